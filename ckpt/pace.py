"""How fast a run goes and where its loss is heading: pure arithmetic over the newest points.

The rate is the median time a step takes, so that a save, an evaluation or a pause now and then
does not bend it; how often such gaps come goes into the error of what remains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ckpt.series import Point, SeriesView, key_of

WINDOW = 512
GAP_FACTOR = 3.0
_TICKS = 20  # a window of time is at least this many ticks of the clock that stamped it
_TREND_POINTS = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a step takes: median, its standard error, and what gaps add on average."""

    seconds_per_step: float
    error: float
    gaps: float

    def remaining(self, steps: int) -> tuple[float, float]:
        """Return the seconds that `steps` will take, and the error of that."""
        return steps * self.seconds_per_step, steps * (self.error + self.gaps)


def pace_of(series: Mapping[str, SeriesView]) -> Pace | None:
    """Return the pace of the newest segment, from the value with the most timed points."""
    best: list[tuple[float, int]] = []
    for points in sorted(series.values(), key=len, reverse=True):
        if len(best) >= min(len(points), WINDOW):
            break  # no other value can have more
        best = max(best, newest_stretch(points), key=len)
    return pace_between(best)


def newest_stretch(points: SeriesView) -> list[tuple[float, int]]:
    """Return (time, step) of the newest points of the newest segment, in order of time."""
    if points.last is None:
        return []
    segment = points.last.segment
    first, beyond = key_of(segment, 0), key_of(segment + 1, 0)
    stretch: list[tuple[float, int]] = []
    newest = -math.inf
    for time, key in points.series.marks(max(0, points.length - WINDOW), points.length):
        if first <= key < beyond and newest < time < math.inf:  # a time that is NaN is neither
            newest = time
            stretch.append((time, key - first))
    return stretch


def pace_between(marks: Sequence[tuple[float, int]]) -> Pace | None:
    """Return the pace along (time, step) marks, both growing; None with fewer than three."""
    if len(marks) < 3:
        return None
    tick = 1.0 if all(time.is_integer() for time, _ in marks) else 1e-3
    typical = (marks[-1][0] - marks[0][0]) / (len(marks) - 1)
    lag = min(max(1, math.ceil(_TICKS * tick / typical)), max(1, (len(marks) - 1) // 3))
    took = [
        (later[0] - earlier[0]) / (later[1] - earlier[1])
        for earlier, later in zip(marks, marks[lag:], strict=False)
        if later[1] > earlier[1]
    ]
    if len(took) < 2:
        return None
    import statistics  # late: it costs a hundredth of a `ckpt status`

    median = statistics.median(took)
    spread = 1.4826 * statistics.median(abs(each - median) for each in took)
    excess = sorted(each - median for each in took if each > GAP_FACTOR * median)
    gaps = sum(excess[:-1]) / len(took)  # the longest may be a pause that will not come again
    return Pace(median, spread / math.sqrt(len(took)), gaps)


def trend_of(points: SeriesView) -> float | None:
    """Return the relative change of the loss over its newest points, falling < 0.

    The first third of them is compared with the last; None with fewer than six finite ones.
    """
    tail = points.tail(_TREND_POINTS)
    values = [p.value for p in tail if p.segment == tail[-1].segment and math.isfinite(p.value)]
    third = len(values) // 3
    if third < 2:
        return None
    import statistics

    before, after = statistics.fmean(values[:third]), statistics.fmean(values[-third:])
    return (after - before) / abs(before) if before else None


def exploded_from(points: SeriesView) -> Point | None:
    """Return the first point of a lasting explosion of the loss, None when there is none.

    The newest ten must all lie far above everything usual in the two hundred before them.
    """
    tail = points.tail(_TREND_POINTS + 10)
    newest, before = tail[-10:], [p.value for p in tail[:-10] if math.isfinite(p.value)]
    if len(newest) < 10 or len(before) < 30:
        return None
    import statistics

    usual = statistics.median(before)
    spread = 1.4826 * statistics.median(abs(value - usual) for value in before)
    bound = usual + max(20 * spread, 2 * abs(usual))
    return newest[0] if all(point.value > bound for point in newest) else None


def evaluation_due(points: SeriesView, step: int) -> bool:
    """Whether a run that evaluates at even distances is to evaluate at this very step."""
    steps = sorted({point.step for point in points.tail(4)})
    distances = {later - earlier for earlier, later in pairwise(steps)}
    return len(distances) == 1 and step == steps[-1] + distances.pop()
