"""Reading one file ahead in a thread of its own, so that disk and processor work at once.

For a hash that only one core can compute, while another core has nothing to do.
"""

import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from ckpt import fs

BUFFER_BYTES = 1 << 21
BUFFERS = 4


class Ahead:
    """Bytes `start` to `end` of an open file, in order; the thread is gone when it is left."""

    def __init__(self, file: fs.File, start: int, end: int) -> None:
        self._file, self._start, self._end = file, start, end
        self._is_over = False
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[memoryview, int] | BaseException] = SimpleQueue()
        self._buffer: memoryview | None = None
        self._rest = memoryview(b"")
        self._thread = threading.Thread(target=self._work, name="ckpt-verify", daemon=True)

    def __enter__(self) -> Self:
        for _ in range(BUFFERS):
            self._free.put(memoryview(bytearray(BUFFER_BYTES)))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._free.put(None)
        self._thread.join()

    def take(self, most: int) -> memoryview:
        """Return the next bytes, at most so many; none where the file ends.

        Each is overwritten after the next one was taken.

        Raises:
            OSError: they could not be read, nor can what follows.
        """
        if not self._rest:
            if self._buffer is not None:
                self._free.put(self._buffer)
                self._buffer = None
            got = self._full.get()
            if isinstance(got, BaseException):
                self._full.put(got)
                raise got
            self._buffer, count = got
            self._rest = self._buffer[:count]
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken

    def _work(self) -> None:
        at = self._start
        try:
            fs.idle_io_priority()
            while at < self._end:
                buffer = self._free.get()
                if buffer is None or self._is_over:
                    return
                count = self._file.read_into([buffer[: self._end - at]], at)
                self._full.put((buffer, count))
                if not count:
                    return
                at += count
        except BaseException as error:  # noqa: BLE001 - raised where the bytes are taken
            self._full.put(error)
