"""A checkpoint without hashes of its own, seen with those that were sealed of it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckpt.checkpoint import Checkpoint, FileEntry, Finding, Severity
from ckpt.phrases import duration
from ckpt.seals import Seal

CHANGED = "changed-since-sealed"
_AGAIN = "if that was meant, seal it again: ckpt seal"
_ADDED_LATER = "metric.jsonl"
_NOT_READ = "opaque-weights"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A checkpoint with the hashes of its seal, and what of it the seal does not speak of.

    `uncovered`: so many files can be compared with nothing, whatever the others come to.
    """

    seen: Checkpoint
    findings: tuple[Finding, ...]
    uncovered: int


def with_seal(seen: Checkpoint, seal: Seal, now: float, *, is_whole: bool = True) -> Sealed:
    """Give the files that have no hash of their own those of the seal, where the size fits.

    `is_whole` False: the checkpoint is only a part of what was sealed with it.
    """
    changes = list(_changes(seen, seal, is_whole=is_whole))
    message = f"compared with the hashes that were sealed {ago(seal.at, now)}"
    findings = (*changes, Finding("sealed", Severity.NOTE, message))
    told = tuple(finding for finding in seen.findings if finding.code != "no-manifest")
    opaque = sum(finding.code == _NOT_READ for finding in seen.findings)
    entries = tuple(_entry(entry, seal) for entry in seen.files)
    return Sealed(replace(seen, files=entries, findings=told), findings, len(changes) + opaque)


def ago(at: float, now: float) -> str:
    """Say how long ago something was: `2 h ago`."""
    passed = now - at
    return f"{duration(passed)} ago" if passed >= 0 else "at a time that is still to come"


def changed_since(name: str, what: str) -> Finding:
    """Say that a file is another one than what was sealed, which is no damage."""
    message = f"{name}: changed since it was sealed: {what}"
    return Finding(CHANGED, Severity.WARNING, message, name, hint=_AGAIN)


def _entry(entry: FileEntry, seal: Seal) -> FileEntry:
    file = seal.files.get(entry.name)
    if file is None or entry.sha256 is not None or entry.size_bytes != file.size_bytes:
        return entry
    return entry._replace(sha256=file.sha256, chunks=file.chunks, chunk_bytes=seal.chunk_bytes)


def _changes(seen: Checkpoint, seal: Seal, *, is_whole: bool) -> Iterator[Finding]:
    sizes = {entry.name: entry.size_bytes for entry in seen.files if entry.size_bytes is not None}
    errors = {each.file for each in seen.findings if each.severity is Severity.ERROR}
    hashed = {entry.name for entry in seen.files if entry.sha256 is not None}
    for name, file in seal.files.items():
        size = sizes.get(name)
        if name in errors | hashed or size == file.size_bytes or (size is None and not is_whole):
            continue
        is_now = "it is not there" if size is None else f"{size:,} bytes"
        yield changed_since(name, f"{is_now}, it had {file.size_bytes:,} bytes")
    for name in sorted(sizes.keys() - seal.files.keys() - hashed - {_ADDED_LATER}):
        yield changed_since(name, "it was not there then, and is compared with nothing")
