"""Writing content: new files made exclusively, replaced ones atomically, journals appended to."""

import errno
import os
import stat as stat_module
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckpt.fs.calls import call, call_between, call_writing
from ckpt.fs.naming import sync_directory, unlink
from ckpt.fs.opened import Opened


def make_directory(path: Path, *, parents: bool = False, mode: int = 0o777) -> None:
    """Make a directory, `mode` & ~umask; with `parents` one that is there is fine."""
    if parents:
        call("mkdir", path, lambda: os.makedirs(path, exist_ok=True))  # noqa: PTH103 - one call style
    else:
        call("mkdir", path, lambda: os.mkdir(path, mode))  # noqa: PTH102 - one call style


class NewFile(Opened):
    """A file being written: made exclusively, with mode 0666 & ~umask; fsynced by `sync`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = call("create", path, lambda: os.open(path, flags, 0o666))

    def reserve(self, size: int) -> None:
        """Reserve space now, so that a full disk is met before the first byte, where it can be."""
        if size == 0:
            return
        try:
            call("reserve", self.path, lambda: os.posix_fallocate(self._descriptor, 0, size))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while rest:
            rest = rest[self._write_once(rest[: 1 << 26]) :]

    def _write_once(self, part: memoryview) -> int:
        return call_writing("write", self.path, part, lambda: os.write(self._descriptor, part))

    def sync(self) -> None:
        """Make the content durable. A failure is final: the caller must not publish the file."""
        call("fsync", self.path, lambda: os.fsync(self._descriptor))


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, durable, exclusively created."""
    with NewFile(path) as file:
        file.write(data)
        file.sync()


def replace_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file's content atomically: a reader sees the old or the new one, never half.

    With `durable` the content is on the disk before it takes the name, and the name after.
    """
    temporary = path.with_name(f".{path.name[:200]}.new-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with NewFile(temporary) as file:
            file.write(data)
            if durable:
                file.sync()
        call_between("rename", temporary, path, lambda: os.replace(temporary, path))  # noqa: PTH105 - one call style
    except BaseException:
        with suppress(OSError):  # the first failure is the one to tell
            unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def append_bytes(path: Path, data: bytes) -> None:
    """Append `data` in one write, so that a reader never meets half a line of it from us.

    Opening does not wait for the reader of a FIFO and refuses anything but a regular file.
    """

    def append() -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
        try:
            if not stat_module.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            return os.write(descriptor, data)
        finally:
            os.close(descriptor)

    written = call_writing("append", path, data, append)
    if written != len(data):
        raise OSError(
            errno.ENOSPC, f"only {written} of {len(data)} bytes were appended", str(path)
        )


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """Yield a descriptor that appends to `path`: where a child process writes its output."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = call("create", path, lambda: os.open(path, flags, 0o666))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_temporary_directory(prefix: str) -> Path:
    """Make a directory of our own where the system keeps temporary ones."""
    import tempfile  # late: it is used by writers only, and takes a while

    return Path(call("mkdir", prefix, lambda: tempfile.mkdtemp(prefix=prefix)))


def sync_file(path: Path) -> None:
    """Make the content of a file durable that was written through another descriptor."""

    def sync() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    call("fsync", path, sync)


def truncate(path: Path, size: int) -> None:
    """Cut a file of our own to its first `size` bytes."""
    call("truncate", path, lambda: os.truncate(path, size), size)


def clone(source: Path, target: Path) -> bool:
    """Make a new file that shares the blocks of another; False where the disk cannot do that."""

    def share() -> None:
        import fcntl  # late: hardly anybody clones

        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            writing = os.open(target, flags, 0o666)
            try:
                fcntl.ioctl(writing, _FICLONE, reading)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    try:
        call_between("clone", source, target, share)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS):
            raise
        unlink(target)
        return False
    return True


_FICLONE = 0x40049409
