"""Columns of a growing series against the plain sum of its points, and their cases written out."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.decimate import Decimation, Extremes
from ckpt.series import Series

NAN, INF = math.nan, math.inf
NOTHING = (INF, -INF, False)
Points = list[tuple[int, int, float]]
Row = tuple[float, float, bool]


def series_of(points: Points) -> Series:
    series = Series()
    for segment, step, value in points:
        series.append(segment, step, 0.0, value)
    return series


def decimated(points: Points, capacity: int = 4096) -> Decimation:
    decimation = Decimation(series_of(points), capacity)
    decimation.extend(len(points))
    return decimation


def buckets(extremes: Extremes) -> list[Row]:
    rows = zip(extremes.lows, extremes.highs, extremes.nonfinite, strict=True)
    return [(low, high, bool(bad)) for low, high, bad in rows]


def summed_up(
    points: Points, first: int, bits: int, count: int
) -> list[tuple[float, float, bool]]:
    rows = []
    for bucket in range(first, first + count):
        values = [value for _, step, value in points if step >> bits == bucket]
        finite = [value for value in values if math.isfinite(value)]
        rows.append(
            (min(finite, default=INF), max(finite, default=-INF), len(finite) < len(values))
        )
    return rows


def split(points: Points) -> tuple[Points, Points]:
    """What no later segment overtook, and what one did."""
    starts: dict[int, int] = {}
    for segment, step, _ in points:
        starts.setdefault(segment, step)
    kept: Points = []
    orphaned: Points = []
    for point in points:
        later = [start for segment, start in starts.items() if segment > point[0]]
        (orphaned if point[1] >= min(later, default=1 << 60) else kept).append(point)
    return kept, orphaned


SMOOTHINGS = st.sampled_from([(0.0, 1), (0.3, 12), (0.9, 132)])
VALUES = st.floats(-1e6, 1e6) | st.sampled_from([NAN, INF, -INF])
SEGMENTS = st.lists(
    st.lists(st.integers(0, 300), min_size=1, max_size=40).map(sorted), min_size=1, max_size=4
)


@st.composite
def runs(draw: st.DrawFn) -> Points:
    return [
        (segment, step, draw(VALUES))
        for segment, steps in enumerate(draw(SEGMENTS))
        for step in steps
    ]


@given(runs(), st.lists(st.integers(1, 25), max_size=20), st.integers(2, 40))
def test_columns_of_a_series_that_grew_are_those_of_its_points(
    points: Points, batches: list[int], capacity: int
) -> None:
    decimation = Decimation(series_of(points), capacity)
    for batch in batches:
        decimation.extend(min(len(points), decimation.length + batch))
    decimation.extend(len(points))
    kept, orphaned = split(points)
    assert len(decimation.kept) <= capacity
    for bits in (0, max(0, decimation.bits - 1), decimation.bits, decimation.bits + 2):
        count = (300 >> bits) + 1
        columns = decimation.columns(0, bits, count)
        assert buckets(columns.kept) == summed_up(kept, 0, bits, count)
        assert buckets(columns.orphaned) == summed_up(orphaned, 0, bits, count)


@given(
    st.lists(VALUES, min_size=1, max_size=300), st.sampled_from([(0.0, 1), (0.3, 12), (0.9, 132)])
)
def test_the_average_is_the_debiased_one_of_the_finite_points_within_reach(
    values: list[float], smoothing: tuple[float, int]
) -> None:
    weight, reach = smoothing
    decimation = decimated([(0, step, value) for step, value in enumerate(values)])
    for index, value in enumerate(values):
        if math.isfinite(value):
            near = values[max(0, index + 1 - reach) : index + 1]
            expected = averaged(near, weight)
            assert decimation.smoothed(index, weight) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weight", [0.3, 0.9])
def test_what_is_beyond_the_reach_of_the_average_does_not_show(weight: float) -> None:
    values = [1.0 + math.sin(step) for step in range(2000)]
    decimation = decimated([(0, step, value) for step, value in enumerate(values)])
    assert decimation.smoothed(1999, weight) == pytest.approx(averaged(values, weight), abs=1e-5)


def test_a_stretch_without_a_finite_point_has_no_average() -> None:
    assert decimated([(0, 0, NAN), (0, 1, INF)]).smoothed(1, 0.9) is None


def averaged(values: list[float], weight: float) -> float:
    average = total = 0.0
    for value in values:
        if math.isfinite(value):
            average = weight * average + (1 - weight) * value
            total = weight * total + (1 - weight)
    return average / total


def test_a_spike_among_a_hundred_thousand_points_is_still_there() -> None:
    points: Points = [(0, step, 1.0) for step in range(100_000)]
    points[61_803] = (0, 61_803, 99.0)
    decimation = decimated(points)
    columns = decimation.columns(0, 10, 98)
    assert max(columns.kept.highs) == 99.0
    assert columns.kept.highs.index(99.0) == 61_803 >> 10


def test_buckets_only_merge_in_pairs_when_the_range_doubles() -> None:
    series = Series()
    decimation = Decimation(series, 4)
    seen = []
    for step in range(9):
        series.append(0, step, 0.0, float(step))
        decimation.extend(len(series))
        seen.append((decimation.bits, list(decimation.kept.lows)))
    assert seen == [
        (0, [0.0]),
        (0, [0.0, 1.0]),
        (0, [0.0, 1.0, 2.0]),
        (0, [0.0, 1.0, 2.0, 3.0]),
        (1, [0.0, 2.0, 4.0]),
        (1, [0.0, 2.0, 4.0]),
        (1, [0.0, 2.0, 4.0, 6.0]),
        (1, [0.0, 2.0, 4.0, 6.0]),
        (2, [0.0, 4.0, 8.0]),
    ]


def test_what_is_not_finite_is_marked_and_no_extreme() -> None:
    decimation = decimated([(0, 0, 2.0), (0, 1, NAN), (0, 2, INF), (0, 3, -INF), (0, 4, 1.0)])
    columns = decimation.columns(0, 1, 3)
    assert buckets(columns.kept) == [(2.0, 2.0, True), (INF, -INF, True), (1.0, 1.0, False)]


def test_values_whose_sum_overflows_are_finite_all_the_same() -> None:
    decimation = decimated([(0, 0, 1.5e308), (0, 0, 1.6e308)])
    assert buckets(decimation.kept) == [(1.5e308, 1.6e308, False)]


def test_a_later_segment_overtakes_the_tail_and_averages_alone() -> None:
    first: Points = [(0, step, 5.0) for step in range(10)]
    later: Points = [(1, step, 1.0) for step in range(6, 12)]
    decimation = decimated(first + later)
    columns = decimation.columns(0, 2, 3)
    assert buckets(columns.kept) == [(5.0, 5.0, False), (1.0, 5.0, False), (1.0, 1.0, False)]
    assert buckets(columns.orphaned) == [NOTHING, (5.0, 5.0, False), (5.0, 5.0, False)]
    assert decimation.smoothed(12, 0.9) == pytest.approx(1.0)
    assert decimation.smoothed(5, 0.9) == pytest.approx(5.0)


def test_a_segment_that_starts_before_all_others_overtakes_them() -> None:
    points: Points = [(0, 100, 5.0), (0, 101, 5.0), (1, 101, 4.0), (2, 50, 3.0)]
    decimation = decimated(points)
    columns = decimation.columns(50, 0, 52)
    assert [at for at, low in enumerate(columns.kept.lows, 50) if low < INF] == [50]
    orphaned = [(at, low) for at, low in enumerate(columns.orphaned.lows, 50) if low < INF]
    assert orphaned == [(100, 5.0), (101, 4.0)]
    assert (decimation.first_step, decimation.last_step) == (50, 101)


def test_a_run_that_starts_at_a_high_step_has_no_empty_buckets_before_it() -> None:
    decimation = decimated([(0, 1_000_000 + step, 1.0) for step in range(10)])
    assert (decimation.bits, len(decimation.kept)) == (0, 10)


def test_steps_far_apart_cost_no_more_than_the_capacity() -> None:
    decimation = decimated([(0, 0, 1.0), (0, (1 << 48) - 1, 2.0)])
    assert len(decimation.kept) <= 4096
    assert decimation.bits == 36


def test_a_shorter_view_is_what_was_seen_already() -> None:
    decimation = decimated([(0, 0, 1.0), (0, 1, 2.0)])
    decimation.extend(1)
    assert decimation.length == 2


def test_points_of_a_stretch_are_found_across_chunks() -> None:
    series = series_of([(segment, step, 0.0) for segment in range(2) for step in range(5000)])
    assert series.index_of(0, 0) == 0
    assert series.index_of(0, 4500) == 4500
    assert series.index_of(1, 0) == 5000
    assert series.index_of(1, 4999) == 9999
    assert series.index_of(2, 0) == 10_000
    lengths = [(len(keys), len(values)) for keys, values in series.runs(4000, 8300)]
    assert lengths == [(96, 96), (4096, 4096), (108, 108)]
    keys = [key for part, _ in series.runs(4000, 8300) for key in part]
    assert all(before < after for before, after in pairwise(keys))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, (1 << 48) - 1), VALUES), max_size=40),
    st.integers(0, 47),
)
def test_points_out_of_order_cost_no_more_and_none_is_lost(points: Points, bits: int) -> None:
    decimation = decimated(points, 8)
    assert len(decimation.kept) <= 8
    assert len(decimation.orphaned) <= 8
    assert len(decimation.columns(0, bits, 100).kept) == 100
    finite = [value for _, _, value in points if math.isfinite(value)]
    both = [*decimation.kept.highs, *decimation.orphaned.highs]
    assert max(both, default=-INF) == max(finite, default=-INF)


def test_a_segment_overtakes_from_its_start_though_its_first_point_comes_later() -> None:
    points: Points = [(0, 90, 5.0), (0, 95, 5.0), (2, 100, 1.0)]
    decimation = Decimation(series_of(points))
    decimation.extend(3, starts=(0, 92, 97))
    columns = decimation.columns(90, 0, 11)
    assert [at for at, low in enumerate(columns.kept.lows, 90) if low < INF] == [90, 100]
    assert [at for at, low in enumerate(columns.orphaned.lows, 90) if low < INF] == [95]
