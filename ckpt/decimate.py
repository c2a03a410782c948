"""Columns of a growing series: the extremes of every bucket of steps, kept as points come in.

A bucket is 2^bits steps wide and begins at a multiple of its width, so a bucket never shifts: when
the range outgrows the capacity, buckets merge in pairs. What a later segment overtook (its points
from the later segment's first step on) is kept apart, and never mixed with what replaced it.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckpt.series import Series, step_of

CAPACITY = 4096
"""Buckets at most: what a screen shows without zoom is made from buckets, not from points."""

_FORGOTTEN = 1e-6  # the share of the average from which on older points count for nothing
_SMOOTHED_KEPT = 8192


class Extremes:
    """Consecutive buckets from `first` on: the extremes of their finite values.

    An empty bucket has a `low` of inf and a `high` of -inf. `ends` holds the index of the last
    finite point (-1: none); `nonfinite` holds 1 where a value was NaN or infinite.
    """

    __slots__ = ("ends", "first", "highs", "lows", "nonfinite")

    def __init__(self, first: int = 0, count: int = 0) -> None:
        self.first = first
        self.lows = array("d", [math.inf]) * count
        self.highs = array("d", [-math.inf]) * count
        self.ends = array("q", [-1]) * count
        self.nonfinite = bytearray(count)

    def __len__(self) -> int:
        return len(self.lows)

    def absorb(self, bucket: int, values: Sequence[float], index: int) -> None:
        """Take in values of one bucket; `index` is the first one's place in the series."""
        at = self._place(bucket)
        last = len(values) - 1
        if not math.isfinite(sum(values)):  # a NaN or inf among them, or an overflow
            finite = [place for place, value in enumerate(values) if math.isfinite(value)]
            if len(finite) < len(values):
                self.nonfinite[at] = 1
            if not finite:
                return
            values, last = [values[place] for place in finite], finite[-1]
        low, high = min(values), max(values)
        self.lows[at] = min(self.lows[at], low)
        self.highs[at] = max(self.highs[at], high)
        self.ends[at] = max(self.ends[at], index + last)

    def truncate(self, bucket: int) -> None:
        """Forget this bucket and all after it."""
        length = max(0, bucket - self.first)
        for column in (self.lows, self.highs, self.ends, self.nonfinite):
            del column[length:]

    def halve(self) -> None:
        """Merge buckets in pairs, into buckets of twice the width."""
        self._grow(self.first & 1, (self.first + len(self)) & 1)
        self.first >>= 1
        self.lows = array("d", map(min, self.lows[::2], self.lows[1::2]))
        self.highs = array("d", map(max, self.highs[::2], self.highs[1::2]))
        self.ends = array("q", map(max, self.ends[::2], self.ends[1::2]))
        self.nonfinite = bytearray(map(max, self.nonfinite[::2], self.nonfinite[1::2]))

    def grouped(self, first: int, shift: int, count: int) -> "Extremes":
        """Return `count` buckets of 2^shift of ours each, the first of them being `first`."""
        merged = Extremes(first, count)
        if not len(self):
            return merged
        place = max(0, (self.first >> shift) - first)
        stop = min(count, ((self.first + len(self) - 1) >> shift) - first + 1)
        for at in range(place, stop):
            start = ((first + at) << shift) - self.first
            span = slice(max(0, start), start + (1 << shift))
            merged.lows[at] = min(self.lows[span])
            merged.highs[at] = max(self.highs[span])
            merged.ends[at] = max(self.ends[span])
            merged.nonfinite[at] = max(self.nonfinite[span])
        return merged

    def _place(self, bucket: int) -> int:
        """Return where a bucket is, made if need be."""
        if not len(self):
            self.first = bucket
        at = bucket - self.first
        if not 0 <= at < len(self):
            self._grow(max(0, -at), max(0, at - len(self) + 1))
        return bucket - self.first

    def _grow(self, before: int, after: int) -> None:
        """Make room for empty buckets on both sides."""
        self.first -= before
        for side, at in ((Extremes(0, before), 0), (Extremes(0, after), len(self) + before)):
            self.lows[at:at] = side.lows
            self.highs[at:at] = side.highs
            self.ends[at:at] = side.ends
            self.nonfinite[at:at] = side.nonfinite


@dataclass(frozen=True, slots=True)
class Columns:
    """`count` buckets of 2^bits steps from bucket `first` on: the surviving line and what it left.

    `kept` and `orphaned` have the same `first` and length.
    """

    first: int
    bits: int
    kept: Extremes
    orphaned: Extremes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Points `start` to `stop` of the series, all of one segment."""

    segment: int
    start: int
    stop: int


class Decimation:
    """The buckets of one series, extended as it grows.

    `first_step` and `last_step` are the ends of all points seen, None while there are none.
    """

    def __init__(self, series: Series, capacity: int = CAPACITY) -> None:
        self.series = series
        self.capacity = capacity
        self.bits = 0
        self.length = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.kept = Extremes()
        self.orphaned = Extremes()
        self._line: list[_Piece] = []
        self._overtaken: list[_Piece] = []
        self._smoothed: dict[int, float | None] = {}
        self._weight = 0.0

    def extend(self, length: int, starts: Sequence[int] = ()) -> None:
        """Take in the points up to `length`, ordered by (segment, step).

        `starts` holds the first step of each segment where it is known: a segment overtakes from
        there on, though its first point in this series may come later.
        """
        if length <= self.length:
            return
        self._fit(self.series.point(self.length).step)
        self._fit(self.series.point(length - 1).step)
        while self.length < length:
            start = self.length
            point = self.series.point(start)
            if not self._line or point.segment != self._line[-1].segment:
                self._begin_segment(point.segment, point.step, starts)
            stop = min(length, max(start + 1, self.series.index_of(point.segment + 1, 0)))
            self._fit(point.step)
            self._fit(self.series.point(stop - 1).step)
            self._line[-1] = replace(self._line[-1], stop=stop)
            self.length = stop
            self._absorb(self.kept, _Piece(point.segment, start, stop))

    def columns(self, first: int, bits: int, count: int) -> Columns:
        """Return the columns of a stretch of steps, from the points where ours are too wide."""
        if bits >= self.bits:
            shift = bits - self.bits
            kept = self.kept.grouped(first, shift, count)
            return Columns(first, bits, kept, self.orphaned.grouped(first, shift, count))
        return Columns(
            first,
            bits,
            self._window(self._line, first, bits, count),
            self._window(self._overtaken, first, bits, count),
        )

    def smoothed(self, index: int, weight: float) -> float | None:
        """Return the debiased exponential average at a kept point, of its segment's points alone.

        `weight` (0 to 1) is what the past counts; points that are not finite are passed over, and
        so is what is too far back to show. None when nothing finite is near.
        """
        if weight != self._weight or len(self._smoothed) > _SMOOTHED_KEPT:
            self._smoothed.clear()
            self._weight = weight
        if index not in self._smoothed:
            self._smoothed[index] = self._smooth(index, weight)
        return self._smoothed[index]

    def _smooth(self, index: int, weight: float) -> float | None:
        piece = self._line[bisect_right(self._line, index, key=_start) - 1]
        start = max(piece.start, index + 1 - _reach(weight))
        average = total = 0.0
        for _, values in self.series.runs(start, index + 1):
            for value in values:
                if math.isfinite(value):
                    average = weight * average + (1 - weight) * value
                    total = weight * total + (1 - weight)
        return average / total if total else None

    def _fit(self, step: int) -> None:
        """Widen the range to a step, and the buckets until the range fits."""
        first = step if self.first_step is None else min(self.first_step, step)
        last = step if self.last_step is None else max(self.last_step, step)
        self.first_step, self.last_step = first, last
        while (last >> self.bits) - (first >> self.bits) >= self.capacity:
            self.bits += 1
            self.kept.halve()
            self.orphaned.halve()

    def _begin_segment(self, segment: int, step: int, starts: Sequence[int]) -> None:
        """Start a segment at a step: what the line had from there on is orphaned."""
        if self._line:
            step = min([step, *starts[self._line[-1].segment + 1 : segment + 1]])
        overtaken = []
        while self._line and self.series.point(self._line[-1].start).step >= step:
            overtaken.append(self._line.pop())
        if self._line:
            last = self._line[-1]
            cut = self._index_in(last, step)
            if cut < last.stop:
                self._line[-1] = replace(last, stop=cut)
                overtaken.append(replace(last, start=cut))
        if overtaken:
            self._overtaken += overtaken
            self._cut_kept(step >> self.bits)
            for piece in overtaken:
                self._absorb(self.orphaned, piece)
        self._line.append(_Piece(segment, self.length, self.length))

    def _cut_kept(self, bucket: int) -> None:
        """Forget what was kept from a bucket on, except what the line still has of that bucket."""
        self.kept.truncate(bucket)
        for piece in reversed(self._line):
            start = self._index_in(piece, bucket << self.bits)
            if start == piece.stop:
                break
            self._absorb(self.kept, replace(piece, start=start))

    def _window(self, pieces: Iterable[_Piece], first: int, bits: int, count: int) -> Extremes:
        window = Extremes(first, count)
        for piece in pieces:
            start = self._index_in(piece, first << bits)
            stop = self._index_in(piece, (first + count) << bits)
            for step, values, index in self._slices(replace(piece, start=start, stop=stop), bits):
                if first <= step >> bits < first + count:
                    window.absorb(step >> bits, values, index)
        return window

    def _index_in(self, piece: _Piece, step: int) -> int:
        index = self.series.index_of(piece.segment, step)
        return min(max(index, piece.start), piece.stop)

    def _absorb(self, into: Extremes, piece: _Piece) -> None:
        for step, values, index in self._slices(piece, self.bits):
            self._fit(step)  # a point that is out of order must not ask for a bucket far away
            into.absorb(step >> self.bits, values, index)

    def _slices(self, piece: _Piece, bits: int) -> "Iterator[tuple[int, array[float], int]]":
        """Yield the points by bucket: the first one's step, all values, the first one's index."""
        index = piece.start
        for keys, values in self.series.runs(piece.start, piece.stop):
            at = 0
            while at < len(keys):
                key = keys[at]
                step = step_of(key)
                beyond = key - step + (((step >> bits) + 1) << bits)
                end = bisect_left(keys, beyond, at + 1)
                yield step, values[at:end], index + at
                at = end
            index += len(keys)


def _start(piece: _Piece) -> int:
    return piece.start


def _reach(weight: float) -> int:
    """Return how many points back still count."""
    return 1 if weight <= 0 else math.ceil(math.log(_FORGOTTEN) / math.log(weight))
