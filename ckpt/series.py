"""Append-only points of one value: array chunks and a length.

A point is (segment, step, time, value) at 20 bytes: step and segment packed in eight, the time as
seconds since its chunk's first known time in four, the value as a double. One thread appends; a
`SeriesView` is a length over the same storage, so readers in other threads see a fixed prefix.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

CHUNK_POINTS = 4096
_STEP_BITS = 48
_STEP_MASK = (1 << _STEP_BITS) - 1


def key_of(segment: int, step: int) -> int:
    """Pack a segment and a step: keys order as (segment, step) does."""
    return (segment << _STEP_BITS) + step


def step_of(key: int) -> int:
    """Return the step that a key holds."""
    return key & _STEP_MASK


class Point(NamedTuple):
    """One recorded value. `value` may be NaN or infinite: that is the news, never dropped.

    `time` is epoch seconds, NaN where the file does not tell it. A tuple: made by the thousand.
    """

    segment: int
    step: int
    time: float
    value: float


class Series:
    """The growing storage behind `SeriesView`s. `append` is the only way in."""

    __slots__ = ("_keys", "_length", "_times", "_values", "_zeros", "nonfinite")

    def __init__(self) -> None:
        self._keys: list[array[int]] = []
        self._times: list[array[float]] = []
        self._values: list[array[float]] = []
        self._zeros: list[float] = []
        self._length = 0
        self.nonfinite = 0
        """How many values so far are NaN or infinite."""

    def __len__(self) -> int:
        return self._length

    def append(self, segment: int, step: int, time: float, value: float) -> None:
        """Append one point: `segment` from 0, `step` below 2^48, `time` epoch seconds or NaN."""
        if self._length % CHUNK_POINTS == 0:
            self._open_chunk(time)
        zero = self._zeros[-1]
        if zero != zero:  # noqa: PLR0124 - NaN: no time was known in this chunk so far
            self._zeros[-1] = zero = time
        self._keys[-1].append(segment << _STEP_BITS | step)
        self._times[-1].append(time - zero)
        self._values[-1].append(value)
        if not math.isfinite(value):
            self.nonfinite += 1
        self._length += 1

    def point(self, index: int) -> Point:
        """Return the point at an index from 0; its time is exact to some milliseconds."""
        chunk, at = divmod(index, CHUNK_POINTS)
        key = self._keys[chunk][at]
        return Point(
            key >> _STEP_BITS,
            key & _STEP_MASK,
            self._zeros[chunk] + self._times[chunk][at],
            self._values[chunk][at],
        )

    def points(self, start: int, stop: int) -> Iterator[Point]:
        """Yield points `start` to `stop`: quicker than asking for each."""
        while start < stop:
            chunk, at = divmod(start, CHUNK_POINTS)
            end = min(CHUNK_POINTS, at + stop - start)
            zero = self._zeros[chunk]
            columns = (self._keys[chunk], self._times[chunk], self._values[chunk])
            for key, time, value in zip(*(column[at:end] for column in columns), strict=True):
                yield Point(key >> _STEP_BITS, key & _STEP_MASK, zero + time, value)
            start += end - at

    def runs(self, start: int, stop: int) -> "Iterator[tuple[array[int], array[float]]]":
        """Yield keys (see `key_of`) and values of points `start` to `stop`, a chunk at a time."""
        while start < stop:
            chunk, at = divmod(start, CHUNK_POINTS)
            end = min(CHUNK_POINTS, at + stop - start)
            yield self._keys[chunk][at:end], self._values[chunk][at:end]
            start += end - at

    def marks(self, start: int, stop: int) -> Iterator[tuple[float, int]]:
        """Yield times and keys of points `start` to `stop`: half of what whole points cost."""
        while start < stop:
            chunk, at = divmod(start, CHUNK_POINTS)
            end = min(CHUNK_POINTS, at + stop - start)
            zero = self._zeros[chunk]
            times = [zero + time for time in self._times[chunk][at:end]]
            yield from zip(times, self._keys[chunk][at:end], strict=True)
            start += end - at

    def index_of(self, segment: int, step: int) -> int:
        """Return the index of the first point at or beyond a step, in points ordered by key."""
        key = key_of(segment, step)
        chunks = -(-self._length // CHUNK_POINTS)
        later = bisect_left(self._keys, key, 0, chunks, key=itemgetter(0))
        if later == 0:
            return 0
        return (later - 1) * CHUNK_POINTS + bisect_left(self._keys[later - 1], key)

    def copy(self, length: int) -> "Series":
        """Return a storage of its own with the first `length` points."""
        copied = Series()
        for point in self.points(0, length):
            copied.append(point.segment, point.step, point.time, point.value)
        return copied

    def view(self) -> "SeriesView":
        """Return the points so far as a value."""
        return SeriesView(self, self._length)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays, the room that a growing chunk keeps in reserve included."""
        columns = (self._keys, self._times, self._values)
        return sum(chunk.__sizeof__() for column in columns for chunk in column)

    def _open_chunk(self, time: float) -> None:
        """Begin a chunk; the full one before it gives back the room it had kept to grow."""
        if self._keys:
            self._keys[-1] = self._keys[-1][:]
            self._times[-1] = self._times[-1][:]
            self._values[-1] = self._values[-1][:]
        self._keys.append(array("q"))
        self._times.append(array("f"))
        self._values.append(array("d"))
        self._zeros.append(time)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesView:
    """The first `length` points of a series, in the order in which they were recorded."""

    series: Series
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Point:
        at = index + self.length if index < 0 else index
        if not 0 <= at < self.length:
            raise IndexError(index)
        return self.series.point(at)

    def __iter__(self) -> Iterator[Point]:
        return self.series.points(0, self.length)

    @property
    def last(self) -> Point | None:
        """The newest point, None while there is none."""
        return self[-1] if self.length else None

    def tail(self, count: int) -> tuple[Point, ...]:
        """Return the newest `count` points, oldest first; fewer where there are fewer."""
        return tuple(self.series.points(max(0, self.length - count), self.length))

    def writable(self) -> Series:
        """Return the storage to append to; a copy when somebody has appended beyond this view."""
        return self.series if self.length == len(self.series) else self.series.copy(self.length)
