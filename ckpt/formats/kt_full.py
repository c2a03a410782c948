"""KT Full: one safetensors shard per MoE layer, tied together by an index that is replaced last.

Several generations lie side by side in one directory, told apart by the hex in the names of their
shards. The directory is often an HF Trainer's `checkpoint-N`: its other files are listed and left
alone, and nothing is ever written there. Nothing in the format records a hash.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from ckpt import fs
from ckpt.checkpoint import (
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Glance,
    Severity,
    State,
    Tensor,
)
from ckpt.errors import NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats.base import Inside, glance_of
from ckpt.formats.directory import Listing, is_pickle, list_files
from ckpt.formats.kt_directory import (
    generations_in,
    is_ours,
    leftovers_in,
    list_shards,
    read_index,
    share_of,
)
from ckpt.formats.kt_index import (
    DTYPE,
    FORMAT,
    INDEX_NAME,
    PROJECTIONS,
    VERSION,
    Index,
    Shard,
    is_temporary,
    shard_name,
)
from ckpt.formats.trainer import read_trainer
from ckpt.tensorfile import Header, read_header

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


class KtFull:
    """KT Full expert checkpoints: a directory, its index file, or one shard by itself."""

    name: ClassVar[str] = "kt_full"
    label: ClassVar[str] = "KT Full"

    def owns(self, path: Path) -> bool:
        """Whether it is an index or shard by name, or a directory that holds one."""
        if path.name == INDEX_NAME or shard_name(path.name):
            return True
        try:
            return any(map(is_ours, fs.names_in(path)))
        except OSError:
            return False

    def is_slot(self, path: Path) -> bool:
        """Whether it is an index or a directory: a shard is only part of one."""
        return shard_name(path.name) is None

    def glance(self, path: Path) -> Glance:
        """Tell what the index, the trainer's state and the sizes of the files tell."""
        try:
            seen = self.read(path, Depth.NAMES)
        except (TornRead, UnreadableCheckpoint) as error:
            finding = Finding(_code_of(error), _ERROR, error.message, INDEX_NAME)
            return Glance(path, self.name, complete=False, findings=(finding,))
        layers = seen.metadata.get("layers", ())
        return glance_of(seen, tensor_count=len(PROJECTIONS) * len(layers) or None)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read the index, the sizes, the trainer's state and at `HEADERS` each shard's header.

        Raises:
            UnreadableCheckpoint: the path may not be listed, or is not there (NoCheckpoint).
            TornRead: the index does not parse.
        """
        if shard_name(path.name):
            return self._read_shard(path, depth)
        listing, index, shards = _settled(path)
        directory = listing.directory
        trainer = read_trainer(directory, listing.sizes.keys())
        findings = [*index.findings, *trainer.findings, *shards.findings]
        findings += _strays(listing, index)
        findings += (each for each in listing.findings if each.severity is Severity.NOTE)
        is_damaged = any(
            finding.severity is _ERROR or finding.code == "generation-mismatch"
            for finding in findings
        )
        tensors: list[Tensor] = []
        if depth >= Depth.HEADERS:
            for shard, file in shards.present:
                header = read_header(directory / file, file)
                tensors += header.tensors
                findings += _header_findings(header, shard, file, index.generation)
        return Checkpoint(
            path,
            self.name,
            self.label,
            step=trainer.step,
            epoch=trainer.epoch,
            loss=trainer.loss,
            created_at=trainer.saved_at or listing.modified.get(INDEX_NAME),
            complete=not is_damaged,
            files=_entries(listing, index, is_whole_directory=path.name != INDEX_NAME),
            tensors=tuple(tensors),
            metadata=_metadata(index),
            findings=tuple(findings),
            generation=index.generation,
        )

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield a warning for each pickle that lies there: whoever loads it runs it."""
        for entry in checkpoint.files:
            if entry.listed is False and is_pickle(entry.name):
                message = f"{entry.name}: a pickle that nothing lists; it is never loaded here"
                yield Finding("unlisted-pickle", _WARNING, message, entry.name)

    def generations_inside(self, path: Path) -> Inside:
        """Tell the generations in a directory or beside an index by the names of their shards."""
        try:
            listing = list_shards(path)
        except UnreadableCheckpoint:
            return Inside()
        try:
            index = read_index(listing)
        except TornRead:
            index = Index()
        generations = generations_in(listing, index)
        return Inside(generations, tuple(leftovers_in(listing, generations)))

    def _read_shard(self, path: Path, depth: Depth) -> Checkpoint:
        named = shard_name(path.name)
        listing = list_files(path.parent, only=path.name.__eq__)
        if named is None or path.name not in listing.sizes:
            raise NoCheckpoint(f"{path}: nothing is there", path=str(path))
        entry = FileEntry(path.name, listing.sizes[path.name])
        if depth < Depth.HEADERS:
            return Checkpoint(path, self.name, self.label, files=(entry,), generation=named[0])
        header = read_header(path, path.name)
        shard = Shard(named[1], path.name, None, {})
        return Checkpoint(
            path,
            self.name,
            self.label,
            files=(entry,),
            tensors=header.tensors,
            metadata=MappingProxyType(dict(header.metadata or {})),
            findings=tuple(_header_findings(header, shard, path.name, named[0])),
            generation=named[0],
        )


@dataclass(frozen=True, slots=True)
class _Shards:
    present: tuple[tuple[Shard, str], ...]
    findings: tuple[Finding, ...]


def _code_of(error: TornRead | UnreadableCheckpoint) -> str:
    if isinstance(error, TornRead):
        return error.finding_code or "bad-index"
    return "missing-file" if isinstance(error, NoCheckpoint) else "permission-denied"


def _settled(path: Path) -> tuple[Listing, Index, _Shards]:
    """Look until index and shards fit: a save replaces the one and then removes the others."""
    seen: str | None = None
    while True:
        listing = list_shards(path)
        index = read_index(listing)
        shards = _look_at_shards(listing, index)
        is_missing = any(finding.code == "missing-file" for finding in shards.findings)
        if not is_missing or index.generation in (seen, None):
            return listing, index, shards
        seen = index.generation


def _look_at_shards(listing: Listing, index: Index) -> _Shards:
    present: list[tuple[Shard, str]] = []
    findings: list[Finding] = []
    for shard in index.shards:
        file = shard.file
        if file is None:
            continue
        size = listing.sizes.get(file)
        where = f"{file}: layer {shard.layer}"
        told = [finding for finding in listing.findings if finding.file == file]
        if any(finding.severity is _ERROR for finding in told):
            findings += told
        elif size is None:
            findings.append(Finding("missing-file", _ERROR, f"{where} is not there", file))
        elif size == 0:
            findings.append(Finding("empty-file", _ERROR, f"{where} is empty", file))
        else:
            present.append((shard, file))
            if shard.size_bytes is not None and size != shard.size_bytes:
                message = f"{file}: size {size} bytes, the index says {shard.size_bytes}"
                findings.append(Finding("size-mismatch", _ERROR, message, file))
    return _Shards(tuple(present), tuple(findings))


def _strays(listing: Listing, index: Index) -> Iterator[Finding]:
    """Say which shards the index should name, and which generations are not whole."""
    known = {shard.layer for shard in index.shards}
    for generation in generations_in(listing, index):
        if generation.state is State.LIVE:
            for entry in generation.files:
                named = shard_name(entry.name)
                if named and named[1] not in known:
                    message = (
                        f"{INDEX_NAME}: layer {named[1]} is not in it, its shard lies beside it"
                    )
                    yield Finding("missing-layer", _ERROR, message, entry.name)
        elif generation.state is None:
            message = f"generation {generation.id}: {share_of(generation, len(known))}"
            yield Finding("partial-generation", _WARNING, message, generation.files[0].name)


def _header_findings(
    header: Header, shard: Shard, file: str, generation: str | None
) -> Iterator[Finding]:
    has_right_size = shard.size_bytes in (None, header.size_bytes)
    for finding in header.findings:
        if has_right_size or finding.code not in ("truncated", "trailing-bytes"):
            yield finding  # else said already: the size is not what the index says
    if any(finding.severity is _ERROR for finding in header.findings):
        return
    yield from _tensor_findings(header, shard, file)
    wanted = {
        "format": (FORMAT, "metadata-mismatch"),
        "version": (str(VERSION), "metadata-mismatch"),
        "layer_idx": (str(shard.layer), "layer-mismatch"),
        "generation": (generation, "generation-mismatch"),
    }
    metadata = header.metadata or {}
    for key, (expected, code) in wanted.items():
        if expected is not None and metadata.get(key) != expected:
            got = repr(metadata[key]) if key in metadata else "not there"
            message = f"{file}: metadata {key} is {got}, expected {expected!r}"
            yield Finding(code, _ERROR, message, file)


def _tensor_findings(header: Header, shard: Shard, file: str) -> Iterator[Finding]:
    names = {tensor.name for tensor in header.tensors}
    if names != set(PROJECTIONS):
        message = f"{file}: tensors {sorted(names)}, expected {sorted(PROJECTIONS)}"
        yield Finding("tensor-list-mismatch", _ERROR, message, file)
    for tensor in header.tensors:
        if tensor.name in PROJECTIONS and tensor.dtype != DTYPE:
            message = f"{file}: {tensor.name} is {tensor.dtype}, expected {DTYPE}"
            yield Finding("dtype-mismatch", _ERROR, message, file, tensor.name)
        shape = shard.shapes.get(tensor.name)
        if shape is not None and tensor.shape != shape:
            message = (
                f"{file}: {tensor.name} has shape {list(tensor.shape)},"
                f" the index says {list(shape)}"
            )
            yield Finding("shape-mismatch", _ERROR, message, file, tensor.name)


def _entries(listing: Listing, index: Index, *, is_whole_directory: bool) -> tuple[FileEntry, ...]:
    """List the index, its shards, and what else lies there; not what other generations own."""
    named = index.file_names
    entries = [FileEntry(name, listing.sizes.get(name), listed=True) for name in sorted(named)]
    if INDEX_NAME in listing.sizes:
        entries.insert(0, FileEntry(INDEX_NAME, listing.sizes[INDEX_NAME]))
    if is_whole_directory:
        entries += [
            FileEntry(name, size, listed=False)
            for name, size in listing.sizes.items()
            if not (is_ours(name) or is_temporary(name) or name in named)
        ]
    return tuple(entries)


def _metadata(index: Index) -> Mapping[str, Any]:
    if not index.shards:
        return MappingProxyType({})
    told: dict[str, Any] = {"format": FORMAT, "dtype": DTYPE, "generation": index.generation}
    told["layers"] = tuple(shard.layer for shard in index.shards)
    gates = {shard.shapes["gate_proj"] for shard in index.shards if "gate_proj" in shard.shapes}
    if len(gates) == 1:
        told["experts"], told["intermediate_size"], told["hidden_size"] = gates.pop()
    return MappingProxyType(told)
