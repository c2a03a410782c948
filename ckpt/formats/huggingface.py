"""Hugging Face directories: models in one file or in shards, PEFT adapters, Trainer checkpoints.

Read only. Nothing in them records a hash. A Trainer's `checkpoint-N` is whole once its
`trainer_state.json`, which comes last, fits its name and every shard of the index is there.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from ckpt import fs
from ckpt.checkpoint import (
    NOTHING,
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Glance,
    Severity,
    Tensor,
)
from ckpt.errors import CheckpointError
from ckpt.formats.base import glance_of
from ckpt.formats.directory import Listing, is_pickle, list_files, read_object, step_in_name
from ckpt.formats.trainer import STATE_NAME, checkpoint_step, read_trainer
from ckpt.manifest import is_safe_name
from ckpt.tensorfile import read_header

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
SINGLE = ("model.safetensors", "adapter_model.safetensors")
INDEX = "model.safetensors.index.json"
PICKLED_INDEX = "pytorch_model.bin.index.json"
_SHARD = re.compile(r"(?:model|adapter_model)-\d+-of-\d+\.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model.bin", "adapter_model.bin")
_SHARDED_BY_OTHERS = re.compile(r"global_step\d+|pytorch_model_fsdp_\d+")
_WEIGHTS = frozenset({*SINGLE, INDEX, PICKLED_INDEX, *_PICKLED_WEIGHTS})
_MAX_JSON_BYTES = 256 << 20


class HuggingFace:
    """Model directories, PEFT adapters and HF Trainer's `checkpoint-N`."""

    name: ClassVar[str] = "huggingface"
    label: ClassVar[str] = "Hugging Face"

    def owns(self, path: Path) -> bool:
        """Whether the names in a directory tell of weights or a trainer, or it is an index."""
        if path.name == INDEX:
            return True
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        signs = _WEIGHTS | {STATE_NAME}
        return checkpoint_step(path.name) is not None or not signs.isdisjoint(names)

    def is_slot(self, path: Path) -> bool:
        """Whether a run would have saved it: yes, unless all it holds is a trainer's state."""
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        return checkpoint_step(path.name) is not None or not _WEIGHTS.isdisjoint(names)

    def glance(self, path: Path) -> Glance:
        """Tell what the index, the trainer's state and the sizes of the files tell."""
        try:
            seen = self.read(path, Depth.NAMES)
        except CheckpointError as error:
            finding = Finding("missing-file", Severity.ERROR, error.message)
            return Glance(path, self.name, complete=False, findings=(finding,))
        weights = seen.metadata.get("weight_map_size")
        return glance_of(seen, tensor_count=weights if isinstance(weights, int) else None)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read the index, the trainer's state, the sizes, and at `HEADERS` each weights header.

        Raises:
            NoCheckpoint, UnreadableCheckpoint: the directory is not there or may not be listed.
        """
        directory = path.parent if path.name == INDEX else path
        listing = list_files(directory)
        trainer = read_trainer(directory, listing.sizes.keys())
        index = _read_index(listing)
        findings = [*listing.findings, *trainer.findings, *index.findings]
        findings += _missing(listing, index)
        findings += _extra(listing, index)
        weights = _weights(listing, index)
        tensors: list[Tensor] = []
        sound: set[str] = set()
        if depth >= Depth.HEADERS:
            for file in weights:
                header = read_header(directory / file, file)
                tensors += header.tensors
                findings += header.findings
                sound |= set() if header.findings else {file}
            findings += _compare(index, tensors, sound & index.shards)
        settings, settings_findings = _settings(listing)
        findings += settings_findings
        is_damaged = any(finding.severity is Severity.ERROR for finding in findings)
        return Checkpoint(
            path,
            self.name,
            self.label,
            step=trainer.step if trainer.step is not None else step_in_name(directory.name),
            epoch=trainer.epoch,
            loss=trainer.loss,
            created_at=trainer.saved_at or listing.newest,
            complete=False if is_damaged else trainer.is_complete,
            files=_entries(listing, index),
            tensors=tuple(tensors),
            metadata=_metadata(index),
            settings=settings,
            findings=tuple(findings),
        )

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield a warning for each pickle that no index names: whoever loads it runs it."""
        for entry in checkpoint.files:
            is_there = entry.size_bytes is not None and not entry.listed
            if is_there and is_pickle(entry.name):
                text = f"{entry.name}: a pickle that nothing lists; it is never loaded here"
                yield Finding("unlisted-pickle", Severity.WARNING, text, entry.name)


@dataclass(frozen=True, slots=True)
class _Index:
    """`weight_map` of an index: tensor name → shard; None where there is no usable index."""

    name: str = INDEX
    weight_map: Mapping[str, str] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def shards(self) -> frozenset[str]:
        return frozenset((self.weight_map or {}).values())


def _read_index(listing: Listing) -> _Index:
    """Read the index that a loader would follow; one beside a single file is never followed."""
    name = next((name for name in (INDEX, PICKLED_INDEX) if name in listing.sizes), None)
    if name is None:
        return _Index()
    singles = SINGLE[:1] if name == INDEX else (SINGLE[0], _PICKLED_WEIGHTS[0])
    single = next((single for single in singles if single in listing.sizes), None)
    if single is not None:
        text = f"{name}: not followed: {single} stands beside it, and loaders take that one"
        return _Index(name, findings=(Finding("stale-index", Severity.NOTE, text, name),))
    read = read_object(listing, name, code="bad-index", most_bytes=_MAX_JSON_BYTES)
    if read.value is None:
        return _Index(name, findings=read.findings)
    weight_map = _weight_map(read.value)
    if weight_map is None:
        text = f"{name}: expected weight_map to be an object of file names"
        return _Index(name, findings=(_error("bad-index", text, name),))
    unsafe = sorted({shard for shard in weight_map.values() if not is_safe_name(shard)})
    if unsafe:
        text = f"{name}: names {unsafe[0]!r}, which is no plain file name of this directory"
        return _Index(name, findings=(_error("bad-entry-name", text, name),))
    return _Index(name, MappingProxyType(weight_map))


def _weight_map(index: Mapping[str, Any]) -> dict[str, str] | None:
    """Take the one field that matters; None when it is not an object of file names."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        return None
    return weight_map if all(isinstance(name, str) for name in weight_map.values()) else None


def _missing(listing: Listing, index: _Index) -> Iterator[Finding]:
    """Weights that must be there and are not, or are empty."""
    there = listing.sizes.keys() | listing.links.keys()
    for name in sorted(index.shards - there):
        yield _error("missing-file", f"{name}: listed in {index.name} and not there", name)
    for name in sorted((index.shards | _WEIGHTS) & listing.sizes.keys()):
        if listing.sizes[name] == 0:
            yield _error("empty-file", f"{name}: the file is empty", name)
    if SINGLE[1] in there and ADAPTER_CONFIG not in there:
        text = f"{ADAPTER_CONFIG}: not there; without it {SINGLE[1]} cannot be applied"
        yield _error("missing-file", text, ADAPTER_CONFIG)
    if not there.isdisjoint(_WEIGHTS):
        return
    sharded = sorted(filter(_SHARDED_BY_OTHERS.fullmatch, listing.directories))
    if sharded:
        text = f"the weights lie in {sharded[0]}, in a layout that is not read here"
        yield Finding("opaque-weights", Severity.NOTE, text)
    else:
        text = f"no weights: neither {SINGLE[0]}, {SINGLE[1]} nor {INDEX}"
        yield Finding("missing-file", Severity.ERROR, text)


def _extra(listing: Listing, index: _Index) -> Iterator[Finding]:
    """Shards of an earlier save that no loader reads."""
    if index.weight_map is not None:
        why = f"that {index.name} does not name"
    elif SINGLE[0] in listing.sizes and not index.findings:
        why = f"beside {SINGLE[0]}, which loaders take"
    else:
        return
    for name in sorted(listing.sizes.keys() - index.shards):
        if _SHARD.fullmatch(name):
            text = f"{name}: a shard {why}, of an earlier save"
            yield Finding("unlisted-file", Severity.WARNING, text, name)


def _weights(listing: Listing, index: _Index) -> tuple[str, ...]:
    """The files whose headers are read: what the index names, else single files, else shards."""
    if index.weight_map is not None:
        named = (index.shards | {SINGLE[1]}) & listing.sizes.keys()
        return tuple(sorted(name for name in named if not is_pickle(name)))
    single = tuple(name for name in SINGLE if name in listing.sizes)
    return single or tuple(sorted(name for name in listing.sizes if _SHARD.fullmatch(name)))


def _compare(
    index: _Index, tensors: Sequence[Tensor], sound: Collection[str]
) -> Iterator[Finding]:
    """The index against the headers of sound shards: all where it says, and none besides."""
    if index.weight_map is None:
        return
    found = {(tensor.name, tensor.file) for tensor in tensors if tensor.file in sound}
    listed = {item for item in index.weight_map.items() if item[1] in sound}
    for what, names in (
        ("listed and not in its shard", sorted(listed - found)),
        ("in a shard and not listed", sorted(found - listed)),
    ):
        if names:
            name, file = names[0]
            more = f", and {len(names) - 1} more" if len(names) > 1 else ""
            text = f"{index.name}: tensor {name!r} of {file} is {what}{more}"
            yield Finding("tensor-list-mismatch", Severity.ERROR, text, index.name, name)


def _entries(listing: Listing, index: _Index) -> tuple[FileEntry, ...]:
    names = sorted(listing.sizes.keys() | index.shards | listing.links.keys())
    has_list = index.weight_map is not None
    return tuple(
        FileEntry(name, listing.sizes.get(name), listed=name in index.shards if has_list else None)
        for name in names
    )


def _metadata(index: _Index) -> Mapping[str, Any]:
    if index.weight_map is None:
        return NOTHING
    return {"shards": len(index.shards), "weight_map_size": len(index.weight_map)}


def _settings(listing: Listing) -> tuple[Mapping[str, Any], tuple[Finding, ...]]:
    """Read the adapter's or the model's configuration; what is wrong with it is a finding."""
    name = ADAPTER_CONFIG if ADAPTER_CONFIG in listing.sizes else CONFIG
    read = read_object(listing, name, code="bad-config", most_bytes=_MAX_JSON_BYTES)
    return read.value or NOTHING, read.findings


def _error(code: str, message: str, file: str) -> Finding:
    return Finding(code, Severity.ERROR, message, file)
