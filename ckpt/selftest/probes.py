"""What a file system promises: each probe tries it in a directory of its own."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs

LONGEST_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that the directory, or the protocol in it, does or does not do.

    `code` is stable kebab-case; `cases` is how often it was tried. `holds` is None for what is
    merely reported: nothing is lost without it, and `detail` says what is done instead.
    """

    code: str
    holds: bool | None
    cases: int
    detail: str


def probe_all(directory: Path) -> Iterator[Promise]:
    """Try every promise of a file system in an empty directory, each in one of its own."""
    for code, probe in _PROBES:
        place = directory / code
        fs.make_directory(place)
        try:
            yield probe(code, place)
        except OSError as error:
            yield Promise(code, holds=False, cases=1, detail=f"failed: {error.strerror or error}")


def _exchange(code: str, directory: Path) -> Promise:
    one, other = _new(directory / "one", b"1"), _new(directory / "other", b"2")
    if not fs.exchange(one, other):
        return Promise(code, None, 1, "not here: two renames with an fsync between are used")
    is_swapped = (fs.read_bytes(one), fs.read_bytes(other)) == (b"2", b"1")
    detail = "two names swap at once" if is_swapped else "it reported success and swapped nothing"
    return Promise(code, is_swapped, 1, detail)


def _no_replace(code: str, directory: Path) -> Promise:
    """Neither kind of rename may put a directory in the place of one that holds something."""
    moved, taken = directory / "moved", directory / "taken"
    fs.make_directory(moved)
    fs.make_directory(taken)
    _new(taken / "payload", b"kept")
    refused = [_is_refused(rename, moved, taken) for rename in (fs.rename, fs.rename_to_free_name)]
    is_kept = fs.identity(taken / "payload") is not None
    detail = "a directory never takes the place of one that holds something"
    if not all(refused) or not is_kept:
        return Promise(code, False, 2, "a rename replaced a directory that held something")
    return Promise(code, True, 2, detail)


def _is_refused(rename: Callable[[Path, Path], None], source: Path, target: Path) -> bool:
    try:
        rename(source, target)
    except OSError as error:
        return error.errno in (errno.EEXIST, errno.ENOTEMPTY)
    return False


def _sync(code: str, directory: Path) -> Promise:
    fs.write_new(directory / "file", b"x")
    fs.sync_directory(directory)
    return Promise(code, True, 1, "names can be made durable")


def _flock(code: str, directory: Path) -> Promise:
    with fs.FileLock(directory / "lock") as one, fs.FileLock(directory / "lock") as other:
        if not one.take():
            if not one.is_supported:
                return Promise(code, None, 1, "not here: a file that names its holder is used")
            return Promise(code, False, 1, "a lock that nobody holds cannot be taken")
        if other.take():
            return Promise(code, False, 1, "two holders had one lock at the same time")
        one.close()
        is_free = other.take()
    detail = "one holder at a time, and the lock ends with it"
    return Promise(code, is_free, 1, detail if is_free else "a lock outlived its holder")


def _hard_links(code: str, directory: Path) -> Promise:
    source = _new(directory / "one", b"1")
    try:
        fs.link(source, directory / "other")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        return Promise(code, None, 1, "not here: a foreign trainer's generations cannot be kept")
    fs.unlink(source)
    is_kept = fs.read_bytes(directory / "other") == b"1"
    detail = "a payload stays while one of its names does"
    return Promise(code, is_kept, 1, detail if is_kept else "content went with the first name")


def _reflinks(code: str, directory: Path) -> Promise:
    source = _new(directory / "one", b"1" * 4096)
    if not fs.clone(source, directory / "other"):
        return Promise(code, None, 1, "not here, and not needed")
    return Promise(code, True, 1, "a copy can share its blocks")


def _case(code: str, directory: Path) -> Promise:
    _new(directory / "step_A", b"1")
    if fs.identity(directory / "STEP_a") is None:
        return Promise(code, True, 1, "names that differ in case are different names")
    return Promise(code, None, 1, "not here: two slots must differ in more than case")


def _name_length(code: str, directory: Path) -> Promise:
    low, high = 1, LONGEST_NAME_BYTES
    tried = 0
    while low < high:
        middle = (low + high + 1) // 2
        tried += 1
        if _can_be_named(directory / ("n" * middle)):
            low = middle
        else:
            high = middle - 1
    if low == LONGEST_NAME_BYTES:
        return Promise(code, True, tried, f"{low} bytes")
    return Promise(code, None, tried, f"{low} bytes, elsewhere {LONGEST_NAME_BYTES}")


def _can_be_named(path: Path) -> bool:
    try:
        fs.unlink(_new(path, b""))
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL):
            raise
        return False
    return True


def _new(path: Path, data: bytes) -> Path:
    with fs.NewFile(path) as file:
        file.write(data)
    return path


_PROBES: tuple[tuple[str, Callable[[str, Path], Promise]], ...] = (
    ("exchange", _exchange),
    ("no-replace", _no_replace),
    ("directory-fsync", _sync),
    ("flock", _flock),
    ("hard-links", _hard_links),
    ("reflinks", _reflinks),
    ("case-sensitive", _case),
    ("name-length", _name_length),
)
