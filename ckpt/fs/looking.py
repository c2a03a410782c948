"""Looking at names: stat, listings, links, free space. Reads no content and changes nothing."""

import errno
import os
import stat as stat_module
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from ckpt.fs.calls import call


class Entry(NamedTuple):
    """One name in a directory. `is_directory` and `is_file` do not follow a symlink.

    A tuple, as is `Identity`: they are made by the ten thousand.
    """

    name: str
    is_directory: bool
    is_file: bool
    is_symlink: bool


class Identity(NamedTuple):
    """What tells that a path's content may have changed."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @property
    def is_directory(self) -> bool:
        """Whether the path is a directory."""
        return stat_module.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether the path is a regular file."""
        return stat_module.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """Whether the path itself is a link (only `identity(..., follow=False)` says so)."""
        return stat_module.S_ISLNK(self.mode)

    def is_same_file(self, other: "Identity") -> bool:
        """Whether both are one file, whatever its name and content."""
        return (self.device, self.inode) == (other.device, other.inode)

    @property
    def modified_at(self) -> float:
        """Modification time in epoch seconds."""
        return self.mtime_ns / 1e9


class Stamp(NamedTuple):
    """The least that tells a path's content from before; a tuple, made by the thousand."""

    inode: int
    size_bytes: int
    mtime_ns: int


def identity(path: Path | str, *, follow: bool = True) -> Identity | None:
    """Return what the path is now, or None when nothing is there.

    Raises:
        OSError: the path cannot be looked at (permission, link loop, input/output error).
    """
    try:
        found = call("stat", path, lambda: os.stat(path, follow_symlinks=follow))  # noqa: PTH116 - half the cost of Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # a NUL, or half a character: no file can have that name
        return None
    return identity_of(found)


def link_count(path: Path | str) -> int:
    """Return how many names a file has: its bytes are freed with the last of them.

    Raises:
        OSError: it cannot be looked at.
    """
    return call("stat", path, lambda: os.stat(path, follow_symlinks=False)).st_nlink  # noqa: PTH116 - one call style


def stamp(path: Path | str) -> Stamp | None:
    """Return what a path looks like now; one that cannot be looked at looks like its error."""
    try:
        found = call("stat", path, lambda: os.stat(path))  # noqa: PTH116 - half the cost of Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Stamp(0, 0, -(error.errno or 1))
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def is_directory(path: Path | str) -> bool:
    """Whether a directory stands there; False also where that cannot be known."""
    try:
        found = identity(path)
    except OSError:
        return False
    return found is not None and found.is_directory


def scan(directory: Path | str) -> tuple[Entry, ...]:
    """List a directory, unsorted, without a stat per entry."""
    listed = _listed.get()
    if listed is not None and (known := listed.get(str(directory))) is not None:
        return known

    def names() -> tuple[Entry, ...]:
        with os.scandir(directory) as entries:
            return tuple(
                Entry(
                    entry.name,
                    entry.is_dir(follow_symlinks=False),
                    entry.is_file(follow_symlinks=False),
                    entry.is_symlink(),
                )
                for entry in entries
            )

    found = call("scan", directory, names)
    if listed is not None:
        listed[str(directory)] = found
    return found


def names_in(directory: Path | str) -> frozenset[str]:
    """Return the names in a directory; whoever asks for one that is listed once pays once."""
    named = _named.get()
    if named is not None and (known := named.get(str(directory))) is not None:
        return known
    found = frozenset(entry.name for entry in scan(directory))
    if named is not None:
        named[str(directory)] = found
    return found


_listed: ContextVar[dict[str, tuple[Entry, ...]] | None] = ContextVar("listed", default=None)
_named: ContextVar[dict[str, frozenset[str]] | None] = ContextVar("named", default=None)


@contextmanager
def listing_once() -> Iterator[None]:
    """Within it each directory is listed once: whoever asks sees the same names, and cheaply."""
    token, named = _listed.set({}), _named.set({})
    try:
        yield
    finally:
        _listed.reset(token)
        _named.reset(named)


def names_and_inodes(directory: Path | str) -> list[tuple[str, int]]:
    """List a directory's names with their inodes: what tells that one took another's name."""

    def names() -> list[tuple[str, int]]:
        with os.scandir(directory) as entries:
            return [(entry.name, entry.inode()) for entry in entries]

    return call("scan", directory, names)


def read_link(path: Path) -> str:
    """Return what a symlink points at, as it is written."""
    return call("readlink", path, lambda: os.readlink(path))  # noqa: PTH115 - keep the text as is


def real_path(path: Path) -> Path:
    """Resolve every symlink; a link loop raises OSError (ELOOP) instead of going on for ever."""

    def resolve() -> Path:
        try:
            return path.resolve(strict=False)
        except RuntimeError as loop:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from loop

    return call("realpath", path, resolve)


def disk_usage(path: Path) -> tuple[int, int]:
    """Return (free, total) bytes of the file system that holds `path`, free as a user gets."""
    found = call("statvfs", path, lambda: os.statvfs(path))
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def identity_of(found: os.stat_result) -> Identity:
    """Turn what the system says of a file into its identity."""
    return Identity(
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )
