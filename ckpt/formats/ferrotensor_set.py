"""A ferrotensor run's three files saved as one: adapter, state and optimizer under a manifest.

ferrotensor itself writes three files that nothing ties together; each of these it reads where it
lies. The manifest is AstrAI's version 1 with our extension, and comes last.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, FileEntry, Finding, Glance, Severity
from ckpt.errors import NoCheckpoint, TornRead
from ckpt.formats.base import glance_of
from ckpt.formats.directory import Listing, cannot_look, is_pickle, list_files
from ckpt.formats.ferrotensor import ADAPTER_NAME, CHECKPOINT_NAME, STATE_NAME, torn_set
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Listed, Manifest, Origin, build, read_manifest
from ckpt.tensorwriter import Buffer, write_tensors

if TYPE_CHECKING:  # each kind of file imports its reader when one is met
    from ckpt.formats.ferrotensor_checkpoint import TrainingCheckpoint
    from ckpt.formats.ferrotensor_state import ParsedState, TrainingState

REQUIRED = (ADAPTER_NAME, STATE_NAME, CHECKPOINT_NAME)
_MAX_JSON_BYTES = 64 << 20
_ERROR = Severity.ERROR


class FerrotensorSet:
    """A directory with an adapter, its training state and its optimizer, saved together."""

    name: ClassVar[str] = "ferrotensor_set"
    label: ClassVar[str] = "ferrotensor set"

    def owns(self, path: Path) -> bool:
        """Whether a manifest and an adapter lie in a directory, and AstrAI's own files do not."""
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        return {MANIFEST, ADAPTER_NAME} <= names and "meta.json" not in names

    def is_slot(self, path: Path) -> bool:
        """Always: nothing else has these names together."""
        del path
        return True

    def glance(self, path: Path) -> Glance:
        """Tell what the manifest, the state and the sizes of the files tell."""
        try:
            seen, manifest = self._read(path, Depth.NAMES)
        except NoCheckpoint as error:
            finding = Finding("missing-file", _ERROR, error.message)
            return Glance(path, self.name, complete=False, findings=(finding,))
        count = None if manifest.tensors is None else len(manifest.tensors)
        return glance_of(seen, tensor_count=count, digest=manifest.digest)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read the JSON files, at `HEADERS` the adapter's header, at `BYTES` every moment.

        Raises:
            NoCheckpoint: the path cannot be listed.
        """
        return self._read(path, depth)[0]

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield nothing: each file is judged as it is read, and against the others."""
        del checkpoint
        return iter(())

    def _read(self, path: Path, depth: Depth) -> tuple[Checkpoint, Manifest]:
        listing = list_files(path)
        manifest = _read_manifest(listing)
        findings = [*manifest.findings, *listing.findings, *_compare(listing, manifest)]
        parsed = _read_state(listing, findings)
        state = parsed.state if parsed else None
        seen = Checkpoint(
            path,
            self.name,
            self.label,
            step=state.step if state else None,
            epoch=state.epoch if state else None,
            loss=parsed.number("loss") if parsed else None,
            created_at=listing.newest,
            files=_entries(listing, manifest),
            metadata=MappingProxyType(_metadata(parsed)),
            generation=manifest.generation,
            parent=manifest.parent,
        )
        if depth >= Depth.HEADERS:
            seen = _with_payload(seen, listing, state, findings, depth)
        is_whole = not any(finding.severity is _ERROR for finding in findings)
        return replace(seen, complete=is_whole, findings=tuple(findings)), manifest


@dataclass(frozen=True, slots=True)
class SetText:
    """The text of a set's two JSON files; `checkpoint` in pieces, as it can be large."""

    state: bytes
    checkpoint: Iterable[bytes]


def write_set(
    directory: Path,
    buffers: Sequence[Buffer],
    metadata: Mapping[str, str] | None,
    text: SetText,
    *,
    origin: Origin,
) -> None:
    """Fill a staging directory; every file is durable before the manifest, which comes last.

    Raises:
        PublishError: a tensor or a value cannot be written, by its name.
        OSError: the disk refused.
    """
    adapter = write_tensors(directory / ADAPTER_NAME, buffers, metadata)
    listed = {
        ADAPTER_NAME: Listed(adapter.size_bytes, adapter.sha256),
        STATE_NAME: _write_text(directory / STATE_NAME, (text.state,)),
        CHECKPOINT_NAME: _write_text(directory / CHECKPOINT_NAME, text.checkpoint),
    }
    extension = {
        "v": 1,
        "generation": origin.generation,
        "parent": origin.parent,
        "slot": origin.slot,
    }
    names = [name for name, *_ in buffers]
    fs.replace_bytes(directory / MANIFEST, build(listed, names, meta={}, extension=extension))


def _write_text(path: Path, pieces: Iterable[bytes]) -> Listed:
    digest, size = hashlib.sha256(), 0
    with fs.NewFile(path) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.sync()
    return Listed(size, digest.hexdigest())


# ---- private ----------------------------------------------------------------------------------


def _with_payload(
    seen: Checkpoint,
    listing: Listing,
    state: "TrainingState | None",
    findings: list[Finding],
    depth: Depth,
) -> Checkpoint:
    """Add the adapter's header and the optimizer, and what of them does not fit together."""
    from ckpt.formats.ferrotensor_adapter import read_adapter

    names: frozenset[str] | None = None
    settings: dict[str, Any] = {}
    if ADAPTER_NAME in listing.sizes:
        adapter = read_adapter(replace(seen, path=seen.path / ADAPTER_NAME, metadata={}))
        findings += adapter.findings
        settings |= adapter.settings
        seen = replace(seen, tensors=adapter.tensors)
        names = frozenset(tensor.name for tensor in adapter.tensors)
    optimizer = _read_optimizer(listing, findings, whole=depth >= Depth.BYTES)
    if optimizer is not None:
        if optimizer.optimizer is not None:
            told = {"type": "AdamW", **optimizer.optimizer}
            settings["optimizer"] = MappingProxyType(told)
        if (torn := torn_set(state, optimizer, names)) is not None:
            findings.append(torn)
    return replace(seen, settings=MappingProxyType(settings))


def _read_manifest(listing: Listing) -> Manifest:
    try:
        data = fs.read_small(f"{listing.directory}/{MANIFEST}", _MAX_JSON_BYTES)
    except OSError as error:
        return Manifest(findings=(cannot_look(error, MANIFEST),))
    manifest = read_manifest(data, required=REQUIRED)
    return replace(manifest, digest=hashlib.sha256(data).hexdigest()[:12])


def _compare(listing: Listing, manifest: Manifest) -> Iterator[Finding]:
    for name, listed in manifest.files.items():
        size = listing.sizes.get(name)
        if size is None and name not in listing.links:
            yield Finding("missing-file", _ERROR, f"{name}: listed and not there", name)
        elif size == 0 and listed.size_bytes:
            yield Finding("empty-file", _ERROR, f"{name}: the file is empty", name)
        elif size is not None and size != listed.size_bytes:
            text = f"{name}: size {size:,} bytes, {MANIFEST} says {listed.size_bytes:,}"
            yield Finding("size-mismatch", _ERROR, text, name)
    for name in sorted(listing.sizes.keys() - manifest.files.keys() - {MANIFEST}):
        if is_pickle(name):
            text = f"{name}: a pickle that nothing lists; it is never loaded here"
            severity = _ERROR if manifest.files else Severity.WARNING
            yield Finding("unlisted-pickle", severity, text, name)
        elif manifest.files:
            text = f"{name}: not listed in {MANIFEST}"
            yield Finding("unlisted-file", Severity.WARNING, text, name)


def _read_state(listing: Listing, findings: list[Finding]) -> "ParsedState | None":
    from ckpt.formats.ferrotensor_state import parse_state

    if not listing.sizes.get(STATE_NAME):
        return None
    try:
        data = fs.read_small(listing.directory / STATE_NAME, _MAX_JSON_BYTES)
        parsed = parse_state(data, STATE_NAME)
    except TornRead as torn:
        code = torn.finding_code or "bad-state"
        findings.append(Finding(code, _ERROR, torn.message, STATE_NAME))
        return None
    except OSError as error:
        findings.append(cannot_look(error, STATE_NAME))
        return None
    findings += parsed.findings
    return parsed


def _read_optimizer(
    listing: Listing, findings: list[Finding], *, whole: bool
) -> "TrainingCheckpoint | None":
    from ckpt.formats.ferrotensor_checkpoint import read_training_checkpoint

    if not listing.sizes.get(CHECKPOINT_NAME):
        return None
    try:
        found = read_training_checkpoint(listing.directory / CHECKPOINT_NAME, whole=whole)
    except TornRead as torn:
        code = torn.finding_code or "bad-state"
        findings.append(Finding(code, _ERROR, torn.message, CHECKPOINT_NAME))
        return None
    except OSError as error:
        findings.append(cannot_look(error, CHECKPOINT_NAME))
        return None
    findings += found.findings
    return found


def _entries(listing: Listing, manifest: Manifest) -> tuple[FileEntry, ...]:
    names = sorted(listing.sizes.keys() | manifest.files.keys())
    return tuple(
        FileEntry(
            name,
            listing.sizes.get(name),
            manifest.files[name].sha256 if name in manifest.files else None,
            None if name == MANIFEST else name in manifest.files,
            chunks=manifest.chunks.get(name, ()) if name in manifest.files else (),
            chunk_bytes=manifest.chunk_bytes,
        )
        for name in names
    )


def _metadata(parsed: "ParsedState | None") -> Mapping[str, Any]:
    if parsed is None or parsed.state is None:
        return {}
    return {**parsed.state.as_mapping(), **parsed.extra}
