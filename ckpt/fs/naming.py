"""Giving, swapping and removing names, and making them durable. Nothing here decides what goes."""

import errno
import fcntl
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt.fs.calls import call, call_between, call_writing
from ckpt.fs.looking import identity, scan
from ckpt.fs.opened import Opened

if TYPE_CHECKING:
    import ctypes

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_NO_SUCH_FLAG = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_FLOCK = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
_DESCRIPTION_BYTES = 1024
_NFS_PLACEHOLDER = ".nfs"


def rename(source: Path, target: Path) -> None:
    """Give a file or an empty place another name; a file that stands there is replaced."""
    call_between("rename", source, target, lambda: os.rename(source, target))  # noqa: PTH104 - one call style


def rename_to_free_name(source: Path, target: Path) -> None:
    """Give a file or directory a name that must be free.

    Raises:
        FileExistsError: something stands there (xfs says EEXIST where others say ENOTEMPTY).
    """

    def move() -> None:
        if _renameat2(source, target, _NOREPLACE):
            return
        if identity(target, follow=False) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(source, target)  # noqa: PTH104 - one call style

    try:
        call_between("rename", source, target, move)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def exchange(one: Path, other: Path) -> bool:
    """Let two names swap what they stand for, atomically; False where that cannot be done.

    NFS, CephFS and Lustre cannot; ext4, xfs, btrfs and tmpfs can. Nothing has changed then.
    """
    try:
        return call_between("exchange", one, other, lambda: _renameat2(one, other, _EXCHANGE))
    except OSError as error:
        if error.errno in _NO_SUCH_FLAG:
            return False
        raise


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """Call renameat2; False where this system or file system does not know the flag."""
    import ctypes

    function = _libc_renameat2()
    if function is None:
        return False
    paths = os.fsencode(source), os.fsencode(target)
    if function(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_SUCH_FLAG:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _libc_renameat2() -> "ctypes._NamedFuncPointer | None":
    import ctypes  # late: only a writer swaps, and ctypes takes a while

    libc = ctypes.CDLL(None, use_errno=True)
    function: Any = getattr(libc, "renameat2", None)
    if function is not None:
        function.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint,
        ]  # fmt: skip
    return function  # type: ignore[no-any-return]  # ctypes gives its functions no type


def link(source: Path, target: Path) -> None:
    """Give a file one more name (a hard link); the target must be free."""
    call_between("link", source, target, lambda: os.link(source, target, follow_symlinks=False))


def unlink(path: Path) -> None:
    """Remove a file's name; one that is gone already is fine."""
    try:
        call("unlink", path, lambda: os.unlink(path))  # noqa: PTH108 - one call style
    except FileNotFoundError:
        return


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    call("rmdir", path, lambda: os.rmdir(path))  # noqa: PTH106 - one call style


def remove_tree(path: Path, *, first: str | None = None) -> bool:
    """Remove a directory and what is in it, or a file; never through a link.

    `first` is removed before anything else, so that what a crash leaves cannot look complete.
    False: files that NFS keeps for a reader are left, the directory with them; try again later.
    """
    found = identity(path, follow=False)
    if found is None:
        return True
    if not found.is_directory:
        unlink(path)
        return True
    if first is not None:
        unlink(path / first)
    is_empty = True
    for entry in scan(path):
        if entry.name.startswith(_NFS_PLACEHOLDER):
            is_empty = False
        elif entry.is_directory:
            is_empty = remove_tree(path / entry.name) and is_empty
        else:
            unlink(path / entry.name)
    if is_empty:
        try:
            remove_directory(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                raise
            return False
    return is_empty


def set_modified(path: Path, mtime_ns: int) -> None:
    """Set when a file or directory was last modified."""
    call("utime", path, lambda: os.utime(path, ns=(mtime_ns, mtime_ns)))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""

    def sync() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    call("fsync-directory", path, sync)


class FileLock(Opened):
    """A lock that ends with the process that holds it, on a file that stays; made if it must be.

    `is_held` says whether this object holds it; `is_supported` is False where the file system has
    no such locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_held = False
        self.is_supported = True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = call("create", path, lambda: os.open(path, flags, 0o666))

    def take(self) -> bool:
        """Try to take the lock without waiting; False: somebody else holds it."""
        try:
            call("flock", self.path, lambda: fcntl.flock(self._descriptor, _EXCLUSIVE_NOW))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            self.is_supported = False
            return False
        self.is_held = True
        return True

    def describe(self, text: bytes) -> None:
        """Say in the file who holds it; only the holder may."""
        padded = text.ljust(_DESCRIPTION_BYTES)  # cutting a file costs as much as an fsync

        def write() -> None:
            os.pwrite(self._descriptor, padded, 0)

        call_writing("describe", self.path, padded, write, offset=0)

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        super().close()
        self.is_held = False


_EXCLUSIVE_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
