"""Verification: read a checkpoint to a depth, compare every recorded hash, give a verdict.

Reads only, in one thread, and hashes with read(), so that a file cut short is a finding and never
a dead process. Knows nothing of runs or slots, and nothing of what a format means by its files.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import (
    UNSUPPORTED_CODES,
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Report,
    Severity,
    Verdict,
    worst_first,
)
from ckpt.errors import DuplicateKey, NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats import format_of, inspect
from ckpt.operation import Found, Operation, Progress

STRIDE_BYTES = 16 << 20
BLOCK_BYTES = 1 << 18  # stays in the second-level cache between read and hash
ATTEMPTS = 3
TORN_PAUSE_S = 0.02
_AGAIN = "it is being written: verify it again when the save is done"
_NOT_OPENED = frozenset(
    {"bad-entry-name", "dangling-link", "empty-file", "missing-file", "permission-denied",
     "size-mismatch", "symlink"}
)  # fmt: skip


def verify(path: Path, depth: Depth = Depth.BYTES) -> Operation[Report]:
    """Check a checkpoint and report; closing the operation cancels it and leaves no claim.

    A directory that is replaced meanwhile is still read whole: its files are reached through one
    open descriptor. Files whose size already tells are not hashed.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        seen, opened = _read_settled(path, depth, stack)
        tally = _Tally(list(seen.findings))
        for finding in seen.findings:
            yield Found(finding)
        if depth is Depth.BYTES and tally.verdict is not Verdict.UNSUPPORTED:
            yield from _compare_all(seen, opened, tally)
        for finding in _notes(seen, depth, tally):
            tally.findings.append(finding)
            yield Found(finding)
    return Report(
        path,
        seen.format,
        depth,
        tally.verdict,
        worst_first(tally.findings),
        tally.bytes_read,
        time.monotonic() - started,
    )


def inspect_settled(path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
    """Read a checkpoint without its payload, once nothing in it changes meanwhile.

    What cannot be parsed is an error finding here, and no exception.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    with ExitStack() as stack:
        seen, _ = _read_settled(path, depth, stack)
    return seen


def verdict_of(findings: Iterable[Finding], *, is_all_compared: bool) -> Verdict:
    """Return the verdict that findings allow; warnings and notes never change it."""
    found = list(findings)
    codes = {finding.code for finding in found if finding.severity is Severity.ERROR}
    if codes - UNSUPPORTED_CODES:
        return Verdict.DAMAGED
    if any(finding.code in UNSUPPORTED_CODES for finding in found):
        return Verdict.UNSUPPORTED
    return Verdict.INTACT if is_all_compared else Verdict.UNVERIFIABLE


@dataclass(slots=True)
class _Tally:
    """What one verification has found so far; `left` files with a hash are not yet compared."""

    findings: list[Finding]
    compared: int = 0
    left: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    reported_bytes: int = 0

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.findings, is_all_compared=self.compared > 0 and self.left == 0)


# ---- reading what is said of it ---------------------------------------------------------------


def _read_settled(
    path: Path, depth: Depth, stack: ExitStack
) -> tuple[Checkpoint, fs.Directory | None]:
    """Read until nothing changed meanwhile, or give what the last attempt saw.

    A shard that is missing because its index was just replaced is no damage: read again.
    """
    attempt = 0
    while True:
        attempt += 1
        before = _stamp(path)
        inner = stack.enter_context(ExitStack())
        opened = _open_directory(path, inner)
        seen, is_torn = _read(path, depth)
        if is_torn:
            time.sleep(TORN_PAUSE_S)
        has_error = any(finding.severity is Severity.ERROR for finding in seen.findings)
        is_same = opened is None or _leads_to(path, opened.opened_as)
        if attempt == ATTEMPTS or (is_same and (not has_error or _stamp(path) == before)):
            return seen, opened
        inner.close()


def _read(path: Path, depth: Depth) -> tuple[Checkpoint, bool]:
    """Read a claimed path; what cannot be parsed is one error finding. True: it was torn."""
    try:
        return inspect(path, depth), False
    except NoCheckpoint:
        raise
    except (TornRead, DuplicateKey, UnreadableCheckpoint) as error:
        format_ = format_of(path)
        if format_ is None:
            raise NoCheckpoint(error.message, path=error.path, hint=error.hint) from None
        code = error.finding_code if isinstance(error, TornRead) else None
        finding = Finding(code or error.code, Severity.ERROR, error.message, hint=error.hint)
        seen = Checkpoint(path, format_.name, format_.label, complete=False, findings=(finding,))
        return seen, isinstance(error, TornRead)


def _open_directory(path: Path, stack: ExitStack) -> fs.Directory | None:
    try:
        found = fs.identity(path)
        if found is None or not found.is_directory:
            return None
        return stack.enter_context(fs.Directory(path))
    except OSError:
        return None


def _leads_to(path: Path, directory: fs.Identity) -> bool:
    try:
        found = fs.identity(path)
    except OSError:
        return False
    return found is not None and (found.device, found.inode) == (
        directory.device,
        directory.inode,
    )


def _stamp(path: Path) -> object:
    """What tells whether a path or, for a directory, a file in it changed."""
    try:
        found = fs.identity(path)
        if found is None or not found.is_directory:
            return found
        names = sorted(entry.name for entry in fs.scan(path) if not entry.is_directory)
        return found, [(name, fs.identity(path / name)) for name in names]
    except OSError as error:
        return error.errno


# ---- comparing bytes --------------------------------------------------------------------------


def _compare_all(seen: Checkpoint, opened: fs.Directory | None, tally: _Tally) -> Operation[None]:
    errors = [finding for finding in seen.findings if finding.severity is Severity.ERROR]
    notes = [finding for finding in seen.findings if finding.severity is not Severity.ERROR]
    told = {finding.file for finding in errors if finding.code in _NOT_OPENED}
    hashed = [entry for entry in seen.files if entry.sha256 is not None]
    chosen = [entry for entry in hashed if entry.name not in told]
    tally.left = len(hashed)
    tally.total_bytes = sum(entry.size_bytes or 0 for entry in chosen)
    for entry in chosen:
        where = opened.inside(entry.name) if opened else str(_path_of(seen.path, entry))
        may_be_link = any(each.file == entry.name and each.code == "symlink" for each in notes)
        finding = yield from _compare(entry, where, tally, may_be_link=may_be_link)
        if finding is None:
            continue
        if opened and not _leads_to(seen.path, opened.opened_as):
            finding = _replaced(entry)
        tally.findings.append(finding)
        yield Found(finding)


def _path_of(path: Path, entry: FileEntry) -> Path:
    return path if path.name == entry.name else path.parent / entry.name


def _compare(
    entry: FileEntry, where: str, tally: _Tally, *, may_be_link: bool
) -> Operation[Finding | None]:
    """Hash one file; None when its bytes are the recorded ones, and then it is counted.

    `may_be_link`: the format saw the link and let it pass (the Hub cache's own).
    """
    name = entry.name
    try:
        named = fs.identity(where, follow=False)
        if named is None:
            return _error("missing-file", name, f"{name}: not there any more")
        if named.is_symlink and not may_be_link:
            return _error("symlink", name, f"{name}: a symbolic link, not followed")
        with fs.File(where) as file:
            before = file.identity()
            digest = hashlib.sha256()
            done = 0
            for block in file.blocks(BLOCK_BYTES):
                digest.update(block)
                done += len(block)
                tally.bytes_read += len(block)
                if tally.bytes_read - tally.reported_bytes >= STRIDE_BYTES:
                    tally.reported_bytes = tally.bytes_read
                    yield Progress(tally.bytes_read, tally.total_bytes, name)
            after = file.identity()
        changed = _change(entry, before, after, done, fs.identity(where))
    except OSError as error:
        return _unreadable(name, error)
    if changed:
        return _error("changed-while-reading", name, f"{name}: {changed}", _AGAIN)
    if digest.hexdigest() != entry.sha256:
        return _hash_mismatch(entry, digest.hexdigest())
    tally.left -= 1
    tally.compared += 1
    yield Progress(tally.bytes_read, tally.total_bytes, name)
    return None


def _change(
    entry: FileEntry,
    before: fs.Identity,
    after: fs.Identity,
    read_bytes: int,
    named: fs.Identity | None,
) -> str | None:
    """Say how a file changed while it was read, None: it did not."""
    if read_bytes < before.size_bytes or after.size_bytes < before.size_bytes:
        return f"cut from {before.size_bytes} to {after.size_bytes} bytes while it was read"
    if named is None or (named.device, named.inode) != (after.device, after.inode):
        return "replaced or removed while it was read"
    if after.mtime_ns != before.mtime_ns or read_bytes != before.size_bytes:
        return "changed while it was read"
    if entry.size_bytes is not None and entry.size_bytes != before.size_bytes:
        return f"changed from {entry.size_bytes} to {before.size_bytes} bytes before it was read"
    return None


def _hash_mismatch(entry: FileEntry, found: str) -> Finding:
    expected = entry.sha256 or ""
    message = f"{entry.name}: sha256 is {found[:12]}…, recorded is {expected[:12]}…"
    return _error("hash-mismatch", entry.name, message)


def _replaced(entry: FileEntry) -> Finding:
    message = f"{entry.name}: the checkpoint was replaced or removed while it was read"
    hint = "verify it again: what stands there now is another one"
    return Finding("changed-while-reading", Severity.WARNING, message, entry.name, hint=hint)


def _unreadable(name: str, error: OSError) -> Finding:
    code = "permission-denied" if isinstance(error, PermissionError) else "unreadable-file"
    return _error(code, name, f"{name}: cannot be read: {error.strerror or error}")


def _error(code: str, file: str, message: str, hint: str | None = None) -> Finding:
    return Finding(code, Severity.ERROR, message, file, hint=hint)


def _notes(seen: Checkpoint, depth: Depth, tally: _Tally) -> Iterator[Finding]:
    """Say why nothing, or not everything, was compared though nothing is wrong."""
    if tally.verdict in (Verdict.DAMAGED, Verdict.UNSUPPORTED):
        return
    has_hashes = any(entry.sha256 is not None for entry in seen.files)
    if depth is not Depth.BYTES:
        looked = "file names and sizes" if depth is Depth.NAMES else "names, sizes and headers"
        message = f"only {looked} were looked at, no byte was compared"
        yield Finding("not-compared", Severity.NOTE, message, hint="--depth bytes compares them")
    elif not has_hashes and all(finding.code != "no-manifest" for finding in seen.findings):
        message = "no hash is recorded that the bytes could be compared with"
        yield Finding("no-hashes", Severity.NOTE, message)
