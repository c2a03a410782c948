"""What one progress file tells of the past: rows in, segments and growing series out.

Pure. A segment is one stretch between (re)starts; points are keyed by (segment, step), and what a
restart took back stays where it was, in the older segment.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ckpt.checkpoint import NOTHING
from ckpt.series import Series, SeriesView


class Row(NamedTuple):
    """One record of a progress file; a tuple because a file can hold a million of them.

    `time` is epoch seconds, NaN where the file does not tell it. `values` may be NaN or infinite.
    `begins_segment`: something other than its step says that the trainer was started anew.
    """

    step: int
    time: float
    values: Mapping[str, float]
    begins_segment: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a run between (re)starts; its index is its place in `RunView.segments`."""

    first_step: int
    last_step: int
    source: str


@dataclass(frozen=True, slots=True)
class LossFacts:
    """What is kept of all losses so far; `best` is the lowest finite one, never a NaN.

    `tail` counts the unbroken non-finite losses at the end, `tail_from` is the first one's step.
    """

    best: float | None = None
    best_step: int | None = None
    nonfinite: int = 0
    tail: int = 0
    tail_from: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All rows of one source so far: a series a value, ordered by (segment, step)."""

    series: Mapping[str, SeriesView] = field(default_factory=lambda: NOTHING)
    segments: tuple[Segment, ...] = ()
    losses: LossFacts = LossFacts()

    def __bool__(self) -> bool:
        return bool(self.segments)


def grow(history: History, rows: Iterable[Row], source: str) -> History:
    """Return the history with `rows` behind it; the storage is shared and only grows.

    A segment begins when a row says so, or when a value's own step goes back: an evaluation that
    is recorded late, behind newer training steps, is no restart.
    """
    growing = _Growing(history, source)
    for row in rows:
        growing.take(row)
    return growing.history()


def onto(points: SeriesView, segments: Sequence[Segment]) -> SeriesView:
    """Return a coarser source's points keyed by the segments of a finer one.

    A step belongs to the newest segment that had begun by then: a file that is cut back at each
    restart tells only of the line that lived on.
    """
    if len(segments) <= 1 and (points.last is None or points.last.segment == 0):
        return points
    mapped = Series()
    keyed = sorted((_segment_at(segments, p.step), p.step, i) for i, p in enumerate(points))
    for segment, step, index in keyed:
        point = points[index]
        mapped.append(segment, step, point.time, point.value)
    return mapped.view()


def _segment_at(segments: Sequence[Segment], step: int) -> int:
    for index in range(len(segments) - 1, -1, -1):
        if segments[index].first_step <= step:
            return index
    return 0


class _Growing:
    """The loop of `grow`: plain attributes, since it runs a million times."""

    def __init__(self, history: History, source: str) -> None:
        self._source = source
        self._writers = {name: view.writable() for name, view in history.series.items()}
        self._segments = [[s.first_step, s.last_step] for s in history.segments]
        self._older = history.segments
        self._losses = history.losses
        current = len(self._segments) - 1
        self._lasts = {
            name: view.last.step
            for name, view in history.series.items()
            if view.last is not None and view.last.segment == current
        }

    def take(self, row: Row) -> None:
        step, lasts = row.step, self._lasts
        if not self._segments or row.begins_segment:
            self._begin(step)
        else:
            for name in row.values:
                if step < lasts.get(name, 0):
                    self._begin(step)
                    break
        lasts, index = self._lasts, len(self._segments) - 1
        reach = self._segments[index]
        if step > reach[1]:
            reach[1] = step
        elif step < reach[0]:
            reach[0] = step
        for name, value in row.values.items():
            writer = self._writers.get(name)
            if writer is None:
                writer = self._writers[name] = Series()
            writer.append(index, step, row.time, value)
            lasts[name] = step
            if name == "loss":
                self._take_loss(step, value)

    def history(self) -> History:
        series = {name: writer.view() for name, writer in self._writers.items()}
        names = [segment.source for segment in self._older]
        names += [self._source] * (len(self._segments) - len(names))
        segments = tuple(
            Segment(first, last, name)
            for (first, last), name in zip(self._segments, names, strict=True)
        )
        return History(MappingProxyType(series), segments, self._losses)

    def _begin(self, step: int) -> None:
        self._segments.append([step, step])
        self._lasts = {}

    def _take_loss(self, step: int, value: float) -> None:
        facts = self._losses
        if not math.isfinite(value):
            since = step if facts.tail_from is None else facts.tail_from
            self._losses = LossFacts(
                facts.best, facts.best_step, facts.nonfinite + 1, facts.tail + 1, since
            )
        elif facts.tail or facts.best is None or value < facts.best:
            is_better = facts.best is None or value < facts.best
            best, at = (value, step) if is_better else (facts.best, facts.best_step)
            self._losses = LossFacts(best, at, facts.nonfinite, 0, None)
