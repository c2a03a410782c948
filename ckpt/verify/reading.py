"""What is said of a checkpoint, read while somebody may replace it: until nothing changed."""

import time
from contextlib import ExitStack
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, Finding, Severity
from ckpt.errors import DuplicateKey, NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats import format_of, inspect

ATTEMPTS = 3
TORN_PAUSE_S = 0.02


def inspect_settled(path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
    """Read a checkpoint without its payload, once nothing in it changes meanwhile.

    What cannot be parsed is an error finding here, and no exception.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    with ExitStack() as stack:
        seen, _ = read_settled(path, depth, stack)
    return seen


def read_settled(
    path: Path, depth: Depth, stack: ExitStack
) -> tuple[Checkpoint, fs.Directory | None]:
    """Read until nothing changed meanwhile, or give what the last attempt saw.

    A directory comes open, and is closed by `stack`. A shard that is missing because its index was
    just replaced is no damage: read again.

    Raises:
        NoCheckpoint: nothing there that any format claims.
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
        is_same = opened is None or leads_to(path, opened.opened_as)
        if attempt == ATTEMPTS or (is_same and (not has_error or _stamp(path) == before)):
            return seen, opened
        inner.close()


def leads_to(path: Path, directory: fs.Identity) -> bool:
    """Whether that very directory still stands at a path."""
    try:
        found = fs.identity(path)
    except OSError:
        return False
    return found is not None and found.is_same_file(directory)


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
