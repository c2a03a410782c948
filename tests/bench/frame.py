"""What every bench shares: a row with the comparison beside it, and how to time side by side."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure: ours, what it is compared with, the ratio, and the bar it must reach.

    `ratio` is ours / baseline where there is a baseline, else ours itself; it must be <= `bar`.
    """

    name: str
    ours: float
    baseline: float | None
    bar: float
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.baseline if self.baseline else self.ours

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bar


def seconds(job: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def side_by_side(
    ours: Callable[[], object], baseline: Callable[[], object], pairs: int = 7
) -> tuple[float, float]:
    """Medians of interleaved pairs, after one warm-up of each."""
    ours()
    baseline()
    a: list[float] = []
    b: list[float] = []
    for _ in range(pairs):
        a.append(seconds(ours))
        b.append(seconds(baseline))
    return statistics.median(a), statistics.median(b)
