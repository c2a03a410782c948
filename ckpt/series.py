"""Append-only points of one value: array chunks and a length.

A point is (segment, step, time, value) at 20 bytes: step and segment packed in eight, the time as
seconds since the series' first point in four, the value as a double. One thread appends; a
`SeriesView` is a length over the same storage, so readers in other threads see a fixed prefix.
"""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

CHUNK_POINTS = 4096
_STEP_BITS = 48
_STEP_MASK = (1 << _STEP_BITS) - 1


@dataclass(frozen=True, slots=True)
class Point:
    """One recorded value. `value` may be NaN or infinite: that is the news, never dropped."""

    segment: int
    step: int
    time: float
    value: float


class Series:
    """The growing storage behind `SeriesView`s. `append` is the only way in."""

    __slots__ = ("_keys", "_length", "_times", "_values", "_zero", "nonfinite")

    def __init__(self) -> None:
        self._keys: list[array[int]] = []
        self._times: list[array[float]] = []
        self._values: list[array[float]] = []
        self._length = 0
        self._zero = 0.0
        self.nonfinite = 0
        """How many values so far are NaN or infinite."""

    def __len__(self) -> int:
        return self._length

    def append(self, segment: int, step: int, time: float, value: float) -> None:
        """Append one point: `segment` from 0, `step` below 2^48, `time` in epoch seconds."""
        at = self._length % CHUNK_POINTS
        if at == 0:
            if self._length == 0:
                self._zero = time
            self._keys.append(array("q"))
            self._times.append(array("f"))
            self._values.append(array("d"))
        self._keys[-1].append(segment << _STEP_BITS | step)
        self._times[-1].append(time - self._zero)
        self._values[-1].append(value)
        if not math.isfinite(value):
            self.nonfinite += 1
        self._length += 1

    def point(self, index: int) -> Point:
        """Return the point at an index from 0; times are exact to about a second a day."""
        chunk, at = divmod(index, CHUNK_POINTS)
        key = self._keys[chunk][at]
        return Point(
            key >> _STEP_BITS,
            key & _STEP_MASK,
            self._zero + self._times[chunk][at],
            self._values[chunk][at],
        )

    def view(self) -> "SeriesView":
        """Return the points so far as a value."""
        return SeriesView(self, self._length)


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
        return (self.series.point(index) for index in range(self.length))

    @property
    def last(self) -> Point | None:
        """The newest point, None while there is none."""
        return self[-1] if self.length else None
