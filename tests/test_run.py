"""The reducer: tables of events in, values written out."""

import math
from pathlib import Path

import pytest

from ckpt.history import History, Row, grow, onto
from ckpt.run import (
    HistoryHeld,
    LookedAt,
    Noticed,
    ReachableChanged,
    RowsRead,
    RunEvent,
    RunView,
    Segment,
    SketchReplaced,
    Source,
    SourceGone,
    SourceRead,
    TaskRead,
    Warned,
    apply,
)

EMPTY = RunView(run=Path("run"))
NAN = math.nan


def row(step: int, loss: float | None = None, time: float = NAN, **values: float) -> Row:
    given = {} if loss is None else {"loss": loss}
    return Row(step, time, {**given, **values})


def points(view: RunView, name: str = "loss") -> list[tuple[int, int, float]]:
    return [(point.segment, point.step, point.value) for point in view.series[name]]


def metrics(*rows: Row, **more: bool) -> list[RunEvent]:
    """The events of a metrics.jsonl that holds these rows."""
    values = {"step": rows[-1].step, **rows[-1].values}
    source = Source("run/metrics.jsonl", "metrics", modified_at=100.0, values=values)
    return [RowsRead("run/metrics.jsonl", rows, "run/metrics.jsonl", **more), SourceRead(source)]


def state(step: int, modified_at: float = 100.0, **values: object) -> SourceRead:
    told = {"step": step, **values}
    return SourceRead(
        Source("run/training_state.json", "training-state", modified_at, values=told)
    )


def test_no_events_leave_the_view_as_it_is() -> None:
    assert apply(EMPTY, []) is EMPTY


def test_rows_become_series_and_one_segment() -> None:
    view = apply(EMPTY, metrics(row(1, 2.0, learning_rate=0.1), row(2, 1.5, eval_loss=1.7)))
    assert points(view) == [(0, 1, 2.0), (0, 2, 1.5)]
    assert points(view, "learning_rate") == [(0, 1, 0.1)]
    assert points(view, "eval_loss") == [(0, 2, 1.7)]
    assert view.segments == (Segment(1, 2, "run/metrics.jsonl"),)
    assert (view.step, view.loss, view.eval_loss, view.learning_rate) == (2, 1.5, 1.7, None)
    assert (view.best_loss, view.best_step, view.points) == (1.5, 2, 2)


def test_an_older_view_keeps_its_points_and_can_grow_another_way() -> None:
    first = apply(EMPTY, metrics(row(1, 2.0)))
    second = apply(first, metrics(row(2, 1.5)))
    other = apply(first, metrics(row(2, 9.0)))
    assert points(first) == [(0, 1, 2.0)]
    assert points(second) == [(0, 1, 2.0), (0, 2, 1.5)]
    assert points(other) == [(0, 1, 2.0), (0, 2, 9.0)]


@pytest.mark.parametrize(
    ("rows", "segments", "keys"),
    [
        pytest.param(
            [row(1, 1.0), row(2, 1.0), row(300, 1.0), row(250, 1.0), row(251, 1.0)],
            [(1, 300), (250, 251)],
            [(0, 1), (0, 2), (0, 300), (1, 250), (1, 251)],
            id="the step goes back",
        ),
        pytest.param(
            [row(1, 1.0), row(2, 1.0)._replace(begins_segment=True)],
            [(1, 1), (2, 2)],
            [(0, 1), (1, 2)],
            id="another process goes on",
        ),
        pytest.param(
            [row(103, 1.0), row(100, eval_loss=1.0), row(104, 1.0)],
            [(100, 104)],
            [(0, 103), (0, 104)],
            id="a late evaluation is no restart",
        ),
        pytest.param(
            [row(5, 1.0), row(5, 1.0)],
            [(5, 5)],
            [(0, 5), (0, 5)],
            id="the same step twice is kept twice",
        ),
    ],
)
def test_segments(
    rows: list[Row], segments: list[tuple[int, int]], keys: list[tuple[int, int]]
) -> None:
    view = apply(EMPTY, metrics(*rows))
    assert [(s.first_step, s.last_step) for s in view.segments] == segments
    assert [(segment, step) for segment, step, _ in points(view)] == keys


def test_segments_are_the_same_whether_rows_come_one_by_one_or_at_once() -> None:
    rows = [row(s, float(s)) for s in (1, 2, 3, 2, 3, 4, 1)]
    at_once = apply(EMPTY, metrics(*rows))
    one_by_one = EMPTY
    for each in rows:
        one_by_one = apply(one_by_one, metrics(each))
    assert points(one_by_one) == points(at_once)
    assert one_by_one.segments == at_once.segments


def test_a_nan_is_kept_and_counted_and_never_the_best() -> None:
    rows = [row(1200, 0.045), row(1201, NAN), row(1202, math.inf), row(1203, NAN)]
    view = apply(EMPTY, metrics(*rows))
    assert [step for _, step, _ in points(view)] == [1200, 1201, 1202, 1203]
    assert view.loss_nonfinite == 3
    assert (view.best_loss, view.best_step) == (0.045, 1200)
    assert view.loss is not None
    assert math.isnan(view.loss)


def test_a_state_without_a_best_loss_does_not_hide_the_one_in_the_rows() -> None:
    view = apply(EMPTY, [*metrics(row(1, 2.0)), state(1, best_loss=NAN)])
    assert (view.best_loss, view.values_from["best_loss"]) == (2.0, "run/metrics.jsonl")


@pytest.mark.parametrize(
    ("told", "step"),
    [
        pytest.param([(100.0, 40), (101.0, 42)], 42, id="written together: the furthest"),
        pytest.param([(101.0, 40), (100.0, 42)], 42, id="in whichever order"),
        pytest.param([(100.0, 300), (200.0, 250)], 250, id="a restart: the newer file"),
    ],
)
def test_the_step_comes_from_the_file_that_changed_last(
    told: list[tuple[float, int]], step: int
) -> None:
    (old_at, old), (new_at, new) = told
    log = Source("run/trainer_log.jsonl", "trainer-log", old_at, values={"step": old})
    assert apply(EMPTY, [SourceRead(log), state(new, new_at)]).step == step


def test_every_value_says_where_it_comes_from() -> None:
    view = apply(EMPTY, [*metrics(row(7, 2.0)), state(7, total_steps=9, best_loss=1.5)])
    assert view.values_from == {
        "step": "run/metrics.jsonl",
        "loss": "run/metrics.jsonl",
        "total_steps": "run/training_state.json",
        "best_loss": "run/training_state.json",
    }
    assert (view.total_steps, view.best_loss, view.updated_at) == (9, 1.5, 100.0)


def test_a_total_of_zero_is_no_total() -> None:
    assert apply(EMPTY, [state(50, total_steps=0)]).total_steps is None


def test_the_finest_history_draws_the_curve_and_a_coarser_one_fills_in() -> None:
    log = Source("run/trainer_log.jsonl", "trainer-log", 100.0, values={"step": 4})
    events = [
        RowsRead("hf", [row(1, 9.0, grad_norm=0.1), row(3, 9.0, grad_norm=0.3)], "run/c/t.json"),
        SourceRead(Source("run/c/t.json", "trainer-state", 90.0, values={"step": 3}, key="hf")),
        RowsRead(log.path, [row(1, 2.0), row(4, 1.0), row(2, 1.9), row(4, 1.1)], log.path),
        SourceRead(log),
    ]
    view = apply(EMPTY, events)
    assert points(view) == [(0, 1, 2.0), (0, 4, 1.0), (1, 2, 1.9), (1, 4, 1.1)]
    assert points(view, "grad_norm") == [(0, 1, 0.1), (1, 3, 0.3)]
    again = apply(view, [LookedAt(5.0)])
    assert again.series["grad_norm"] is view.series["grad_norm"]


def test_a_coarser_history_takes_the_newest_segment_that_had_begun() -> None:
    history = grow(History(), [row(s, float(s)) for s in (1, 5, 9)], "a")
    segments = [Segment(1, 6, "b"), Segment(4, 7, "b"), Segment(8, 20, "b")]
    mapped = onto(history.series["loss"], segments)
    assert [(p.segment, p.step) for p in mapped] == [(0, 1), (1, 5), (2, 9)]


def test_a_sketch_is_shown_until_the_exact_history_is_complete() -> None:
    path = "run/metrics.jsonl"
    sketched = apply(EMPTY, metrics(row(1, 2.0), row(900, 1.0), restarts=True, is_sketch=True))
    reading = apply(sketched, [RowsRead(path, [row(1, 2.0), row(2, 1.9)], path, restarts=True)])
    assert reading.is_sketch
    assert points(reading) == [(0, 1, 2.0), (0, 900, 1.0)]
    exact = apply(reading, [RowsRead(path, [row(3, 1.8)], path), SketchReplaced(path)])
    assert not exact.is_sketch
    assert points(exact) == [(0, 1, 2.0), (0, 2, 1.9), (0, 3, 1.8)]


def test_a_history_that_is_read_anew_in_parts_stays_on_screen_meanwhile() -> None:
    path = "run/metrics.jsonl"
    view = apply(EMPTY, metrics(row(1, 2.0), row(2, 1.0)))
    held = apply(view, [HistoryHeld(path), RowsRead(path, [row(1, 5.0)], path, restarts=True)])
    assert points(held) == [(0, 1, 2.0), (0, 2, 1.0)]
    assert points(apply(held, [SketchReplaced(path)])) == [(0, 1, 5.0)]


def test_a_file_begun_anew_replaces_its_own_history_only() -> None:
    view = apply(EMPTY, metrics(row(1, 2.0), row(2, 1.0)))
    again = apply(view, metrics(row(1, 3.0), restarts=True))
    assert points(again) == [(0, 1, 3.0)]
    assert again.best_loss == 3.0


def test_a_source_that_is_gone_takes_its_history_with_it() -> None:
    view = apply(EMPTY, [*metrics(row(1, 2.0)), SourceGone("run/metrics.jsonl")])
    assert (view.sources, dict(view.series), view.step) == ((), {}, None)


def test_an_unreachable_run_keeps_what_was_known() -> None:
    view = apply(EMPTY, [*metrics(row(1, 2.0)), ReachableChanged(is_reachable=False)])
    assert (view.is_reachable, view.step) == (False, 1)


def test_tasks_add_up_and_what_was_noticed_is_taken_back() -> None:
    warned = Warned("permission-denied", "no", "run/x")
    view = apply(EMPTY, [TaskRead({"a": 1}), TaskRead({"b": 2}), Noticed("x", (warned,))])
    assert view.task == {"a": 1, "b": 2}
    assert view.noticed == {"x": (warned,)}
    assert apply(view, [Noticed("x", ())]).noticed == {}
