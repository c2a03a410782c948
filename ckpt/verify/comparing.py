"""What was read of a file against what is recorded of it: the same, or a finding. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ckpt.checkpoint import Damage, FileEntry, Finding, Severity, Tensor
from ckpt.verify.damage import in_words, located
from ckpt.verify.hashing import Part, Stretch
from ckpt.verify.sealed import changed_since

STRETCH_BYTES = 1 << 26
_AGAIN = "it is being written: verify it again when the save is done"
_REPLACED = "replaced or removed while it was read"
_BLAKE3 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Target:
    """A file that is to be compared with the hashes of its entry, and where it is reached.

    `tensors` are those of this file. `by_chunks`: the chunk hashes are used; `by_sha256`: the
    whole file's. `sealed_mtime_ns` is the file's time when its hashes were sealed, None where they
    came with the checkpoint.
    """

    entry: FileEntry
    where: str
    size_bytes: int
    tensors: tuple[Tensor, ...] = ()
    by_chunks: bool = False
    by_sha256: bool = True
    may_be_link: bool = False
    sealed_mtime_ns: int | None = None

    @property
    def hashes(self) -> tuple[str, ...]:
        """All hashes that the file is compared with."""
        sha256 = (self.entry.sha256 or "",) if self.by_sha256 else ()
        return sha256 + (self.entry.chunks if self.by_chunks else ())

    def stretches(self) -> Iterator[Stretch]:
        """Yield what is to be read: whole where one hash is over all of it, else by chunks."""
        chunk_bytes = self.entry.chunk_bytes if self.by_chunks else None
        size = self.size_bytes
        step = size
        if chunk_bytes is not None and not self.by_sha256:
            step = max(1, STRETCH_BYTES // chunk_bytes) * chunk_bytes
        for start in range(0, size, step) if size else (0,):
            yield Stretch(
                self.entry.name,
                self.where,
                size,
                start,
                min(start + step, size),
                chunk_bytes,
                self.by_sha256,
                self.may_be_link,
            )


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a file: `is_same` when its bytes are the recorded ones.

    `is_doubtful`: its chunks differ, and the whole file's hash, which is what counts, was not
    looked at.
    """

    finding: Finding | None = None
    damage: Damage | None = None
    is_same: bool = False
    is_doubtful: bool = False


SAME = Judged(is_same=True)


def has_usable_chunks(entry: FileEntry) -> bool:
    """Whether the recorded chunk hashes are hashes, and as many as the file's size takes."""
    size, chunk_bytes = entry.size_bytes, entry.chunk_bytes
    if not entry.chunks or size is None or not chunk_bytes:
        return False
    is_enough = len(entry.chunks) == -(-size // chunk_bytes)
    return is_enough and all(map(_BLAKE3.fullmatch, entry.chunks))


def judge(target: Target, parts: Sequence[Part]) -> Judged:
    """Compare all parts of a file with what is recorded of it."""
    name = target.entry.name
    parts = sorted(parts, key=lambda part: part.stretch.start)
    for part in parts:
        if part.before is None:
            return Judged(_not_opened(name, part))
    if how := _change(parts):
        finding = error_of("changed-while-reading", name, f"{name}: {how}", _AGAIN)
        return Judged(finding)
    judged = _compare(target, parts)
    before = parts[0].before
    is_other = before is not None and target.sealed_mtime_ns not in (None, before.mtime_ns)
    if is_other and judged.finding is not None and judged.finding.code == "hash-mismatch":
        return Judged(changed_since(name, "its bytes and its time are others"))
    return judged


def settle(by_chunks: Judged, by_sha256: Judged) -> Judged:
    """Return what is to be said of a file that was doubtful, now that all of it was hashed."""
    if by_sha256.is_same and by_chunks.finding is not None:
        return _stale_chunks(by_chunks.finding.file or "")
    has_differed = by_sha256.damage is not None
    return replace(by_chunks, is_doubtful=False) if has_differed else by_sha256


def error_of(code: str, file: str, message: str, hint: str | None = None) -> Finding:
    """Return a finding that makes a checkpoint damaged."""
    return Finding(code, Severity.ERROR, message, file, hint=hint)


# ---- private ----------------------------------------------------------------------------------


def _compare(target: Target, parts: Sequence[Part]) -> Judged:
    """Compare the hashes of a file that was read whole and did not change meanwhile."""
    name = target.entry.name
    failure = next((part.error for part in parts if part.error is not None), None)
    if not target.by_chunks:
        [part] = parts
        if failure is not None:
            return Judged(_unreadable(name, failure))
        return _by_sha256(target, part.sha256 or "")
    found = [digest for part in parts for digest in part.chunks]
    bad = [
        place
        for place, (digest, recorded) in enumerate(zip(found, target.entry.chunks, strict=True))
        if digest != recorded.lower()
    ]
    if not bad:
        return _by_sha256(target, parts[0].sha256 or "") if target.by_sha256 else SAME
    if target.by_sha256 and parts[0].sha256 == target.entry.sha256:
        return _stale_chunks(name)
    return _by_chunks(target, bad, failure)


def _not_opened(name: str, part: Part) -> Finding:
    if part.error is not None:
        return _unreadable(name, part.error)
    if part.is_link:
        return error_of("symlink", name, f"{name}: a symbolic link, not followed")
    return error_of("missing-file", name, f"{name}: not there any more")


def _change(parts: Sequence[Part]) -> str | None:
    """Say how a file changed while it was read, None: it did not.

    Its parts were opened one by one, so that it may have changed between two of them as well.
    """
    seen = [each for part in parts for each in (part.before, part.after) if each is not None]
    listed, first = parts[0].stretch.size_bytes, seen[0]
    least, read = min(each.size_bytes for each in seen), sum(part.read_bytes for part in parts)
    was_whole = any(part.before and part.before.size_bytes == listed for part in parts)
    if not all(each.is_same_file(first) for each in seen):
        return _REPLACED
    if was_whole and (least < listed or read < listed):
        return f"cut from {listed} to {least} bytes while it was read"
    for part in parts:
        if part.named is None or not part.named.is_same_file(first):
            return _REPLACED
    if any(each[:4] != first[:4] for each in seen):  # the file, its size and its time
        return "changed while it was read"
    if first.size_bytes != listed:
        return f"changed from {listed} to {first.size_bytes} bytes before it was read"
    return None


def _by_sha256(target: Target, found: str) -> Judged:
    entry, recorded = target.entry, target.entry.sha256 or ""
    if found == recorded:
        return SAME
    message = f"{entry.name}: sha256 is {found[:12]}…, recorded is {recorded[:12]}…"
    damage = Damage(
        entry.name,
        ((0, target.size_bytes),),
        tensor_count=len(target.tensors),
        is_located=False,
    )
    return Judged(error_of("hash-mismatch", entry.name, message), damage)


def _by_chunks(target: Target, bad: Sequence[int], failure: OSError | None) -> Judged:
    name, step = target.entry.name, target.entry.chunk_bytes or 1
    ranges = [(at * step, min((at + 1) * step, target.size_bytes)) for at in bad]
    damage = located(name, ranges, target.tensors)
    tensor = damage.tensors[0] if len(damage.tensors) == 1 else None
    words = in_words(damage)
    if failure is None:
        code, message = "hash-mismatch", f"{name}: not what was recorded: {words}"
    else:
        code, message = "unreadable-file", f"{name}: {_reason(failure)}, or not intact: {words}"
    finding = Finding(code, Severity.ERROR, message, name, tensor)
    is_doubtful = failure is None and not target.by_sha256 and target.entry.sha256 is not None
    return Judged(finding, damage, is_doubtful=is_doubtful)


def _stale_chunks(name: str) -> Judged:
    message = (
        f"{name}: its sha256 fits, the hashes of its chunks do not: those are of another file"
    )
    return Judged(Finding("stale-chunks", Severity.WARNING, message, name), is_same=True)


def _unreadable(name: str, error: OSError) -> Finding:
    code = "permission-denied" if isinstance(error, PermissionError) else "unreadable-file"
    return error_of(code, name, f"{name}: {_reason(error)}")


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
