"""The chart widget: what a new point repaints, what the keys change, and every size."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from ckpt.checkpoint import Generation, Slot, State
from ckpt.series import Series
from ckpt.view import RunView
from monitor.widgets.chart_canvas import BLOCK, Line
from monitor.widgets.chart_plot import Mark
from monitor.widgets.loss_chart import LossChart, changed_spans, marks_of

RUN = Path("runs/exp1")


class ChartApp(App[None]):
    """An app that shows a chart and nothing else."""

    def __init__(self, chart: LossChart | None = None) -> None:
        super().__init__(ansi_color=True)
        self.chart = chart or LossChart()
        self.picked: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.chart

    def on_loss_chart_picked(self, event: LossChart.Picked) -> None:
        self.picked.append(event.key)


def falling(count: int, every: int = 1) -> Series:
    series = Series()
    for at in range(count):
        series.append(0, at * every, 0.0, loss_at(at * every))
    return series


def loss_at(step: int) -> float:
    return 1.7 + 1.4 * math.exp(-step / 3000) + 0.02 * math.sin(step * 1.7)


def view_of(series: Series, **more: object) -> RunView:
    return RunView(run=RUN, series={"loss": series.view()}, **more)  # type: ignore[arg-type]


def generation(step: int, name: str = "a", state: State = State.LIVE) -> Generation:
    return Generation(name, state, "astrai", RUN / f"step_{step}", step=step)


def slot(step: int, *generations: Generation) -> Slot:
    path = RUN / f"step_{step}"
    return Slot(f"step_{step}", "astrai", path, State.LIVE, generations or (generation(step),))


async def test_a_new_point_repaints_a_few_cells() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 40)) as pilot:
        series = falling(6000)
        app.chart.show(view_of(series))
        await pilot.pause()
        app.chart.repainted_cells = 0
        for step in range(6000, 6100):
            series.append(0, step, 0.0, loss_at(step))
            app.chart.show(view_of(series))
        assert 0 < app.chart.repainted_cells < 1000


async def test_the_same_view_repaints_nothing() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 40)) as pilot:
        series = falling(6000)
        app.chart.show(view_of(series))
        await pilot.pause()
        app.chart.repainted_cells = 0
        app.chart.show(view_of(series))
        assert app.chart.repainted_cells == 0


async def test_what_is_painted_in_spans_is_what_a_whole_repaint_shows() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 24)) as pilot:
        series = falling(300, every=7)
        app.chart.show(view_of(series))
        await pilot.pause()
        for step in range(2100, 9000, 700):
            series.append(0, step, 0.0, loss_at(step))
            app.chart.show(view_of(series))
            await pilot.pause()
        grown = [app.chart.render_line(y).text for y in range(24)]
        fresh = LossChart()
        await app.mount(fresh)
        app.chart.display = False
        fresh.show(view_of(series))
        await pilot.pause()
        assert [fresh.render_line(y).text for y in range(24)] == grown


async def test_points_before_the_first_frame_are_drawn_with_it() -> None:
    chart = LossChart()
    chart.show(view_of(falling(100)))
    async with ChartApp(chart).run_test(size=(60, 10)):
        assert chart.plain()[0] == " loss  ▁ ema 0.3"


async def test_keys_change_smoothing_axis_and_zoom() -> None:
    app = ChartApp(LossChart(ascii_only=True))
    async with app.run_test(size=(80, 12)) as pilot:
        chart = app.chart
        chart.show(view_of(falling(5000)))
        await pilot.pause()
        legends = []
        for act in (
            chart.action_smooth,
            chart.action_smooth,
            chart.action_log_axis,
            chart.action_zoom_out,
            chart.action_zoom_in,
            chart.action_zoom_in,
            chart.action_zoom_out,
            chart.action_zoom_all,
        ):
            act()
            legends.append(chart.plain()[0])
        assert legends == [
            " loss  _ ema 0.9",
            " loss  _",
            " loss  _ y log",
            " loss  _ y log",
            " loss  _ y log | zoom 2x",
            " loss  _ y log | zoom 4x",
            " loss  _ y log | zoom 2x",
            " loss  _ y log",
        ]


async def test_zoom_ends_where_there_is_nothing_more_to_see() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show(view_of(falling(100)))
        await pilot.pause()
        for _ in range(50):
            app.chart.action_zoom_in()
        deepest = app.chart.plain()
        app.chart.action_zoom_in()
        assert app.chart.plain() == deepest
        app.chart.action_zoom_out()
        assert app.chart.plain() != deepest


async def test_the_cursor_starts_at_the_selected_generation_and_picks_the_nearest() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        view = view_of(falling(1000), slots=(slot(200), slot(400), slot(800)))
        app.chart.show(view, marks_of(view, "step_400@a"))
        await pilot.pause()
        app.chart.action_cursor_left()
        assert app.chart.look.cursor is not None
        assert 380 <= app.chart.look.cursor < 400
        assert app.chart.plain()[0].startswith(" loss  ▁ ema 0.3 · step 384: 2.9")
        await pilot.pause()
        assert app.picked == []
        for _ in range(60):
            app.chart.action_cursor_left()
        await pilot.pause()
        assert app.chart.look.cursor == 0
        assert app.picked[0] == "step_200@a"
        app.chart.action_zoom_all()
        assert app.chart.look.cursor is None


async def test_a_cursor_without_a_point_does_nothing() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 12)) as pilot:
        app.chart.show(RunView(run=RUN))
        await pilot.pause()
        app.chart.action_cursor_left()
        app.chart.action_zoom_in()
        assert app.chart.plain()[0] == " no loss recorded yet"


async def test_another_storage_starts_the_curve_anew() -> None:
    app = ChartApp(LossChart(ascii_only=True))
    async with app.run_test(size=(60, 8)) as pilot:
        app.chart.show(view_of(falling(5000)))
        await pilot.pause()
        app.chart.show(view_of(falling(1)))
        assert app.chart.plain()[-1].startswith("       ++0-----")
        app.chart.show(RunView(run=RUN))
        assert app.chart.plain()[0] == " no loss recorded yet"


async def test_a_best_loss_is_called_best() -> None:
    app = ChartApp()
    async with app.run_test(size=(60, 8)) as pilot:
        app.chart.show(RunView(run=RUN, series={"best_loss": falling(10).view()}))
        await pilot.pause()
        assert app.chart.plain()[0] == " best loss  ▁ ema 0.3"


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (19, 3), (20, 4), (40, 10), (200, 60)])
async def test_every_size_shows_something(size: tuple[int, int]) -> None:
    app = ChartApp(LossChart(BLOCK))
    async with app.run_test(size=size) as pilot:
        app.chart.show(view_of(falling(500)))
        await pilot.pause()
        width, height = size
        lines = [app.chart.render_line(y) for y in range(height)]
        assert {line.cell_length for line in lines} == {width}
        await pilot.resize_terminal(width + 30, height + 7)
        await pilot.pause()
        lines = [app.chart.render_line(y) for y in range(height + 7)]
        assert {line.cell_length for line in lines} == {width + 30}
        assert app.chart.plain()[0].startswith(" loss")


def test_generations_with_a_step_become_marks() -> None:
    broken = Slot("half", "astrai", RUN / "half", State.BROKEN)
    retired = generation(200, "old", State.RETIRED)
    trash = generation(200, "gone", State.TRASH)
    unknown = Generation("x", State.LIVE, "safetensors", RUN / "x")
    view = RunView(
        run=RUN,
        slots=(
            slot(200, generation(200), retired, trash),
            slot(300),
            broken,
            slot(9, unknown),
        ),
    )
    assert marks_of(view, "step_300") == (
        Mark("step_200@a", 200),
        Mark("step_200@old", 200, is_live=False),
        Mark("step_300@a", 300, is_selected=True),
    )
    assert [mark.key for mark in marks_of(view, "step_200@old") if mark.is_selected] == [
        "step_200@old"
    ]


LINES = st.text("ab ", min_size=30, max_size=30)


@given(LINES, LINES, LINES, LINES)
def test_changed_spans_hold_every_change_and_begin_and_end_with_one(
    old: str, old_kinds: str, new: str, new_kinds: str
) -> None:
    spans = changed_spans(Line(old, old_kinds), Line(new, new_kinds))
    pairs = zip(old, old_kinds, new, new_kinds, strict=True)
    changed = {at for at, (a, b, c, d) in enumerate(pairs) if (a, b) != (c, d)}
    assert changed <= {at for start, end in spans for at in range(start, end)}
    assert all(start in changed and end - 1 in changed for start, end in spans)


def test_near_changes_are_one_span_and_far_ones_are_two() -> None:
    old = Line("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 30)
    new = Line("abaaaaabaaaaaaaaaaaaaaabaaaaaa", " " * 30)
    assert changed_spans(old, new) == [(1, 8), (23, 24)]
