"""Reading a file straight into memory that is already there, hashing the same bytes meanwhile.

The file is read once. Chunks that have their own hash are read and hashed by several threads;
where only the whole file's sha256 is known, one thread reads ahead of one that hashes.
"""

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from blake3 import blake3

from ckpt import fs

BLOCK_BYTES = 1 << 19
"""What is read before it is hashed: it stays in the second-level cache."""

MOST_THREADS = 8
_MOST_AHEAD = 16
_EXPECTED_BYTES = 16 << 20  # a disk is quicker when it is asked for more than one block at a time
Place: TypeAlias = "memoryview | Callable[[int, memoryview], None]"
"""Memory that takes a segment, or a function that takes (offset in the segment, bytes)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes `start` to `end` of a file, what they are (a tensor's name), and where they go."""

    name: str
    start: int
    end: int
    place: Place


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file's bytes are compared with: its chunks' hashes, else its sha256, else nothing."""

    sha256: str | None = None
    chunk_bytes: int | None = None
    chunks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The bytes `start` to `end` of a file are not the recorded ones."""

    start: int
    end: int
    message: str


def fill(file: fs.File, segments: Sequence[Segment], recorded: Recorded) -> tuple[Mismatch, ...]:
    """Read all segments of a file, which cover it without a gap; return what does not fit.

    Raises:
        EOFError: the file is shorter than its segments.
        OSError: it cannot be read.
    """
    if recorded.chunks and recorded.chunk_bytes:
        return _fill_chunks(file, segments, recorded.chunk_bytes, recorded.chunks)
    if recorded.sha256 is not None:
        return _fill_hashing(file, segments, recorded.sha256)
    for _ in _read(file, segments, 0, segments[-1].end):
        pass
    return ()


# ---- private ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """At most one block of a file, as buffers that take it; `after` hands on what was read."""

    offset: int
    buffers: tuple[memoryview, ...]
    after: tuple[Callable[[], None], ...]

    def read(self, file: fs.File) -> None:
        wanted = sum(buffer.nbytes for buffer in self.buffers)
        found = file.read_into(self.buffers, self.offset)
        if found < wanted:
            raise EOFError(f"ends at byte {self.offset + found:,}: cut while it was read")
        for hand_on in self.after:
            hand_on()


def _read(file: fs.File, segments: Sequence[Segment], start: int, end: int) -> Iterator[_Piece]:
    """Read the bytes from `start` to `end` and yield each piece when it is there."""
    expected = start
    for piece in _pieces(segments, start, end):
        if piece.offset + _EXPECTED_BYTES // 2 >= expected < end:
            file.expect(expected, min(_EXPECTED_BYTES, end - expected))
            expected += _EXPECTED_BYTES
        piece.read(file)
        yield piece


def _pieces(segments: Sequence[Segment], start: int, end: int) -> Iterator[_Piece]:
    """Cut the bytes from `start` to `end` into blocks."""
    buffers: list[memoryview] = []
    after: list[Callable[[], None]] = []
    at = begun = start
    for segment in _between(segments, start, end):
        while at < min(segment.end, end):
            size = min(segment.end, end, begun + BLOCK_BYTES) - at
            buffers.append(_take(segment, at, size, after))
            at += size
            if at == begun + BLOCK_BYTES:
                yield _Piece(begun, tuple(buffers), tuple(after))
                buffers, after, begun = [], [], at
    if buffers:
        yield _Piece(begun, tuple(buffers), tuple(after))


def _between(segments: Sequence[Segment], start: int, end: int) -> Iterator[Segment]:
    from bisect import bisect_right

    first = max(0, bisect_right(segments, start, key=lambda segment: segment.start) - 1)
    for segment in segments[first:]:
        if segment.start >= end:
            return
        yield segment


def _take(segment: Segment, at: int, size: int, after: list[Callable[[], None]]) -> memoryview:
    offset, place = at - segment.start, segment.place
    if isinstance(place, memoryview):
        return place[offset : offset + size]
    passing = memoryview(bytearray(size))
    after.append(lambda: place(offset, passing))
    return passing


def _fill_chunks(
    file: fs.File, segments: Sequence[Segment], chunk_bytes: int, chunks: Sequence[str]
) -> tuple[Mismatch, ...]:
    total = segments[-1].end
    starts = range(0, total, chunk_bytes)
    if len(starts) != len(chunks):
        message = f"{len(chunks)} chunk hashes are recorded, {len(starts)} expected"
        return (Mismatch(0, total, message),)

    def compare(number: int) -> Mismatch | None:
        start, end = starts[number], min(starts[number] + chunk_bytes, total)
        digest = blake3()
        for piece in _read(file, segments, start, end):
            for buffer in piece.buffers:
                digest.update(buffer)
        found = digest.hexdigest()
        if found == chunks[number].lower():
            return None
        message = f"chunk {number}: blake3 is {found[:12]}…, recorded is {chunks[number][:12]}…"
        return Mismatch(start, end, message)

    threads = min(len(chunks), MOST_THREADS, os.cpu_count() or 1)
    if threads < 2:
        found = [compare(number) for number in range(len(chunks))]
    else:
        with ThreadPoolExecutor(threads, "ckpt-read") as pool:
            found = list(pool.map(compare, range(len(chunks))))
    return tuple(mismatch for mismatch in found if mismatch is not None)


def _fill_hashing(
    file: fs.File, segments: Sequence[Segment], expected: str
) -> tuple[Mismatch, ...]:
    digest = hashlib.sha256()
    total = segments[-1].end
    passed: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
    room = threading.Semaphore(_MOST_AHEAD)

    def hash_passed() -> None:
        while (piece := passed.get()) is not None:
            for buffer in piece.buffers:
                digest.update(buffer)
            room.release()

    hasher = threading.Thread(target=hash_passed, name="ckpt-hash")
    hasher.start()
    try:
        for piece in _read(file, segments, 0, total):
            room.acquire()
            passed.put(piece)
    finally:
        passed.put(None)
        hasher.join()
    found = digest.hexdigest()
    if found == expected:
        return ()
    return (Mismatch(0, total, f"sha256 is {found[:12]}…, recorded is {expected[:12]}…"),)
