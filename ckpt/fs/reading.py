"""Reading content: by offset, never mapped: a file cut short must not kill the process."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ckpt.fs.calls import call
from ckpt.fs.looking import Identity, identity_of
from ckpt.fs.opened import Opened

BLOCK_BYTES = 1 << 20
_MOST_BUFFERS = 1024  # what one call takes (IOV_MAX)


def read_bytes(path: Path | str, *, limit: int | None = None) -> bytes:
    """Read a small file as long as it was when it was opened, or its first `limit` bytes."""
    with File(path) as file:
        size = file.opened_as.size_bytes
        return file.read_at(0, size if limit is None else min(size, limit))


def read_small(path: Path | str, most: int) -> bytes:
    """Read a file that should be small, whole.

    Raises:
        OSError: it cannot be read, or it holds more than `most` bytes (EFBIG).
    """
    with File(path) as file:
        size = file.opened_as.size_bytes
        if size > most:
            words = f"{size:,} bytes, expected at most {most:,}"
            raise OSError(errno.EFBIG, words, str(path))
        return file.read_at(0, size)


class File(Opened):
    """An open file read by offset: never mapped, so a file cut short cannot kill the process.

    Opening does not block on a FIFO and refuses anything but a regular file. `opened_as` is what
    it was then.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._descriptor = call("open", path, lambda: os.open(path, flags))
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket cannot even be opened
                raise OSError(errno.EINVAL, "not a regular file", self.path) from None
            raise
        try:
            self.opened_as = self.identity()
            if not self.opened_as.is_file:
                raise OSError(errno.EINVAL, "not a regular file", self.path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def identity(self) -> Identity:
        """Return what the open file is now, whatever stands at its name."""
        return identity_of(call("fstat", self.path, lambda: os.fstat(self._descriptor)))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`; fewer only where the file ends."""
        parts: list[bytes] = []
        while size > 0:
            part = self._read_once(offset, min(size, 1 << 26))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, offset: int, size: int) -> None:
        """Let the system fetch bytes that will be read soon; it may do so or not."""
        with suppress(OSError):
            call("advise", self.path, lambda: self._advise(offset, size))

    def forget(self, offset: int, size: int) -> None:
        """Let the system drop bytes from its cache that were read and will not be again."""
        with suppress(OSError):
            call("advise", self.path, lambda: self._advise(offset, size, is_wanted=False))

    def _advise(self, offset: int, size: int, *, is_wanted: bool = True) -> None:
        if hasattr(os, "posix_fadvise"):
            advice = os.POSIX_FADV_WILLNEED if is_wanted else os.POSIX_FADV_DONTNEED
            os.posix_fadvise(self._descriptor, offset, size, advice)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill writable buffers, one after the other, from `offset`; fewer only at the end."""
        rest = [buffer for buffer in buffers if buffer.nbytes]
        done = 0
        while rest:
            count = self._scatter(rest, offset + done)
            if not count:
                break
            done += count
            while rest and count >= rest[0].nbytes:
                count -= rest.pop(0).nbytes
            if rest:
                rest[0] = rest[0][count:]
        return done

    def _scatter(self, buffers: list[memoryview], offset: int) -> int:
        part = buffers[:_MOST_BUFFERS]
        size = sum(buffer.nbytes for buffer in part)
        return call("read", self.path, lambda: os.preadv(self._descriptor, part, offset), size)

    def _read_once(self, offset: int, size: int) -> bytes:
        return call("read", self.path, lambda: os.pread(self._descriptor, size, offset), size)

    def _fill(self, buffer: bytearray, offset: int) -> int:
        return call(
            "read", self.path, lambda: os.preadv(self._descriptor, [buffer], offset), len(buffer)
        )

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[memoryview]:
        """Yield the file from its start; each block is overwritten by the next."""
        buffer = bytearray(block_bytes)
        view = memoryview(buffer)
        offset = 0
        while True:
            count = self._fill(buffer, offset)
            if not count:
                return
            yield view[:count]
            offset += count


class Directory(Opened):
    """An open directory: reads through it go on seeing the same one, whatever takes its name.

    Where there is no /proc, its files are reached by name. `opened_as` is what it was then; its
    device and inode stay.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor = call("open", path, lambda: os.open(path, flags))
        through = f"/proc/self/fd/{self._descriptor}"
        self._root = through if os.path.isdir(through) else self.path  # noqa: PTH112 - one call
        try:
            self.opened_as = identity_of(call("fstat", path, lambda: os.fstat(self._descriptor)))
        except BaseException:
            os.close(self._descriptor)
            raise

    def inside(self, name: str) -> str:
        """Return a path that leads to `name` in this very directory while it is open."""
        return f"{self._root}/{name}"
