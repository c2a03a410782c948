"""New files written block by block past the page cache, where the file system lets us.

Copying gigabytes through the cache takes the processor that hashes them; what a trainer saves is
not read again soon. Where direct writing is refused (tmpfs, NFS) the cache takes it.
"""

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from ckpt.fs.calls import call, call_writing
from ckpt.fs.writing import NewFile

ALIGNMENT = 4096
"""What memory, offsets and lengths of a direct write are multiples of."""


def aligned_memory(size: int, *, in_large_pages: bool = False) -> memoryview:
    """Return zeroed memory of our own that direct writes can start from.

    Large pages are quicker to write from and slow to get: they are for much that is written.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if in_large_pages:
        with suppress(OSError):  # this kernel has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class DirectFile(NewFile):
    """A file being written that several threads may write to at once, each at its own offset."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._is_direct = False

    def bypass_cache(self) -> None:
        """Write past the page cache from here on; nothing changes where that is refused."""
        try:
            call("direct", self.path, lambda: self._set_direct(is_direct=True))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def write_at(self, data: memoryview, offset: int) -> None:
        """Write all of `data` from byte `offset` on; one that is not aligned goes by the cache."""
        while data:
            count = self._write_at_once(data, offset)
            data, offset = data[count:], offset + count

    def _write_at_once(self, part: memoryview, offset: int) -> int:
        was_direct = self._is_direct
        if was_direct and (len(part) % ALIGNMENT or offset % ALIGNMENT):
            self._set_direct(is_direct=False)

        def write() -> int:
            return os.pwrite(self._descriptor, part, offset)

        try:
            return call_writing("write", self.path, part, write, offset=offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not was_direct:
                raise
        self._set_direct(is_direct=False)  # accepted when it was asked for, refused now
        return call_writing("write", self.path, part, write, offset=offset)

    def _set_direct(self, *, is_direct: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))
        self._is_direct = is_direct
