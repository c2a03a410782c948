"""An append-only file of lines: whole lines from the last offset on, the torn tail left for later.

A file that was begun anew is noticed by its inode, its size, its first bytes and the bytes before
the offset. It can be sampled by seeking, for a first look at one with a million lines.
"""

from pathlib import Path

from ckpt import fs
from ckpt.progress.base import GIVE_UP_S, SLICE_BYTES

HEAD_BYTES = 64
TAIL_BYTES = 1 << 16
SAMPLES = 500
_WINDOWS = (1 << 10, 1 << 14)  # one read a sample; a longer one where its lines are long


class LineFile:
    """Follows one file. `offset` is the end of the last whole line that was taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.is_behind = False
        """Whether the last `take` stopped at its limit and not at the end of the file."""
        self.is_doubtful = False
        """Whether the file looks shorter than it was, and is not yet believed to be."""
        self._identity: fs.Identity | None = None
        self._head = b""
        self._anchor = b""
        self._short_since = 0.0

    @property
    def backlog_bytes(self) -> int:
        """How much of the file, as it was last seen, lies behind the offset."""
        return max(0, self._identity.size_bytes - self.offset) if self._identity else 0

    def start_at(self, file: fs.File, offset: int) -> None:
        """Begin at an offset where a line begins."""
        self.offset, self._identity = offset, file.identity()
        anchor_at = max(0, offset - HEAD_BYTES)
        self._anchor = file.read_at(anchor_at, offset - anchor_at)
        self._head = file.read_at(0, HEAD_BYTES)

    def is_anew(self, file: fs.File, now: float) -> bool:
        """Whether this is another file, or was cut or rewritten: all of it must be read again."""
        if self._identity is None:
            return False
        identity = file.identity()
        known = (self._identity.device, self._identity.inode)
        if (identity.device, identity.inode) != known:
            return True
        if identity.size_bytes < self.offset:
            return self._is_really_shorter(file, now)
        self.is_doubtful = False
        anchor_at = self.offset - len(self._anchor)
        return file.read_at(anchor_at, len(self._anchor)) != self._anchor

    def take(self, file: fs.File, limit: int = SLICE_BYTES) -> list[bytes]:
        """Return the next whole lines without their ends, at most `limit` bytes of them."""
        if self.is_doubtful:
            return []
        self._identity = file.identity()
        data = file.read_at(self.offset, limit)
        self.is_behind = len(data) == limit
        end = data.rfind(b"\n") + 1
        if end == 0 and self.is_behind:  # a line beyond all measure is no record
            end = len(data)
        if self.offset < HEAD_BYTES:
            self._head = file.read_at(0, HEAD_BYTES)
        self.offset += end
        self._anchor = (self._anchor + data[max(0, end - HEAD_BYTES) : end])[-HEAD_BYTES:]
        return _lines(data[:end])

    def _is_really_shorter(self, file: fs.File, now: float) -> bool:
        """Where the first bytes are the same the size may lag behind the content: wait."""
        head = file.read_at(0, HEAD_BYTES)
        if not head or not self._head.startswith(head):
            return True
        if not self.is_doubtful or now < self._short_since:
            self._short_since, self.is_doubtful = now, True
        return now - self._short_since >= GIVE_UP_S


def sample(file: fs.File, size_bytes: int) -> tuple[list[bytes], int]:
    """Return lines from all over a large file, in its order, and the end of the last one.

    The first line and all of the last `TAIL_BYTES` are among them.
    """
    tail_at = max(0, size_bytes - TAIL_BYTES)
    lines: list[bytes] = []
    done = 0
    for place in range(SAMPLES):
        at = max(done, place * tail_at // SAMPLES)
        start, line = _line_at(file, at, is_start=at in (0, done))
        if line:
            lines.append(line)
            done = start + len(line) + 1
    at = max(done, tail_at)
    data = file.read_at(at, size_bytes - at)
    first = 0 if at == done else data.find(b"\n") + 1
    end = data.rfind(b"\n") + 1
    return lines + _lines(data[first:end]), at + end


def tail(file: fs.File, size_bytes: int, length: int = TAIL_BYTES) -> list[bytes]:
    """Return the whole lines at the end of a file."""
    at = max(0, size_bytes - length)
    data = file.read_at(at, size_bytes - at)
    first = 0 if at == 0 else data.find(b"\n") + 1
    return _lines(data[first : data.rfind(b"\n") + 1])


def _line_at(file: fs.File, at: int, *, is_start: bool) -> tuple[int, bytes]:
    """Return the first whole line from an offset on, and where it begins; b"" for none near."""
    for window in _WINDOWS:
        data = file.read_at(at, window)
        begin = 0 if is_start else data.find(b"\n") + 1
        end = data.find(b"\n", begin)
        if end >= 0 and (begin or is_start):
            return at + begin, data[begin:end]
    return at, b""


def _lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []
