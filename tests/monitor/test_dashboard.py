"""The first screen on hand-made views: what it says, what keys do, what it leaves alone."""

import base64
from dataclasses import replace

import pytest
import views
from screens import compare, resize, running, send, text_of, until
from textual._compositor import CompositorUpdate

from ckpt.checkpoint import Leftover
from monitor.app import RunUpdated
from monitor.commands import COMMANDS
from monitor.feed import Shown
from monitor.options import Options
from monitor.screens.dashboard import DashboardScreen, Emphasis, Heights, share_lines
from monitor.screens.details import DetailsScreen
from monitor.screens.help import HelpScreen
from monitor.screens.palette import PaletteScreen
from monitor.spans import exact


@pytest.mark.parametrize("state", views.ALL)
async def test_the_dashboard_looks_as_it_did(state: str) -> None:
    async with running(views.ALL[state]()) as (app, pilot):
        compare(app, f"dashboard-{state}-120x40")
        await resize(app, pilot, 80, 24)
        compare(app, f"dashboard-{state}-80x24")


@pytest.mark.parametrize("state", ["healthy", "nan", "hostile"])
async def test_the_dashboard_speaks_ascii_where_nothing_else_is_shown(state: str) -> None:
    async with running(views.ALL[state](), (80, 24), Options(is_ascii=True)) as (app, _pilot):
        assert all(line.isascii() for line in text_of(app))
        compare(app, f"dashboard-{state}-ascii-80x24")


@pytest.mark.parametrize("state", ["healthy", "empty", "300_slots"])
async def test_a_small_window_never_ends_the_app(state: str) -> None:
    async with running(views.ALL[state]()) as (app, pilot):
        for width, height in [(40, 10), (30, 6), (20, 3), (2, 2), (1, 1)]:
            await resize(app, pilot, width, height)
            await pilot.press("j", "slash", "x", "escape", "question_mark", "escape", "colon")
            await pilot.press("escape")
            assert app.is_running
            assert len(text_of(app)) == height


async def test_at_40_by_10_step_loss_and_state_are_there() -> None:
    async with running(views.healthy(), (40, 10)) as (app, _pilot):
        text = "\n".join(text_of(app))
        assert "training" in text
        assert "step 12,400" in text
        assert "loss 1.8342" in text


async def test_a_window_that_shrinks_and_grows_shows_the_same_again() -> None:
    async with running(views.healthy()) as (app, pilot):
        before = text_of(app)
        await resize(app, pilot, 40, 10)
        await resize(app, pilot, 120, 40)
        await until(pilot, lambda: text_of(app) == before)


async def test_an_equal_view_repaints_nothing() -> None:
    async with running(views.healthy()) as (app, pilot):
        home = app.home
        counts = (home.header.repainted, home.table.repainted, home.foot.repainted)
        cells = home.chart.repainted_cells
        app.post_message(RunUpdated(Shown(replace(home.view), views.NOW)))
        app.post_message(RunUpdated(Shown(replace(home.view, seen_at=views.NOW + 1), views.NOW)))
        await until(pilot, lambda: home.view.seen_at == views.NOW + 1)
        assert (home.header.repainted, home.table.repainted, home.foot.repainted) == counts
        assert home.chart.repainted_cells == cells


async def test_a_step_repaints_its_own_digits_only() -> None:
    async with running(views.healthy()) as (app, pilot):
        home = app.home
        before = home.header.repainted
        rows = home.table.repainted
        await send(app, pilot, replace(app.home.view, step=12_401))
        assert "step 12,401 / 50,000" in text_of(app)[1]
        assert home.header.repainted == before + 1
        assert home.table.repainted == rows


async def test_ages_move_on_together() -> None:
    async with running(views.healthy()) as (app, pilot):
        assert any("2 min ago" in line for line in text_of(app))
        await send(app, pilot, replace(app.home.view), now=views.NOW + 60)
        text = "\n".join(text_of(app))
        assert "✓ verified 3 min ago" in text


async def test_moving_in_the_table_moves_the_mark_on_the_chart() -> None:
    async with running(views.healthy()) as (app, pilot):
        home = app.home
        assert home.table.selected_key == "step_12000@c41d07"
        await pilot.press("j")
        assert home.table.selected_key == "step_12000@a1b2c3"
        await pilot.press("G")
        assert home.table.selected_key == "step_10000@live"
        await until(pilot, lambda: [m.step for m in home.chart.marks if m.is_selected] == [10_000])
        await pilot.press("g")
        assert home.table.selected_key == "step_12000@c41d07"


async def test_moving_the_chart_cursor_selects_the_nearest_generation() -> None:
    async with running(views.healthy()) as (app, pilot):
        home = app.home
        await pilot.press(*["left"] * 8)
        await until(pilot, lambda: home.table.selected_key == "step_11000@live")


async def test_the_selection_stays_on_its_row_when_a_new_one_comes() -> None:
    async with running(views.healthy()) as (app, pilot):
        home = app.home
        await pilot.press("j", "j")
        assert home.table.selected_key == "step_11000@live"
        await send(app, pilot, replace(home.view, slots=(views.slot(12_500), *home.view.slots)))
        assert home.table.selected_key == "step_11000@live"


async def test_who_never_moved_stays_on_the_newest() -> None:
    async with running(views.healthy()) as (app, pilot):
        await send(
            app, pilot, replace(app.home.view, slots=(views.slot(12_500), *app.home.view.slots))
        )
        assert app.home.table.selected_key == "step_12500@live"


async def test_a_column_shrinks_once_what_made_it_wide_is_gone() -> None:
    async with running(views.healthy(), (80, 24)) as (app, pilot):
        before = text_of(app)[-7:-2]
        wide = Leftover(views.RUN / f".step_12000.trash-{'9' * 30}", "trash", "being deleted")
        slots = (replace(views.GOOD_SLOT, leftovers=(wide,)), *app.home.view.slots[1:])
        await send(app, pilot, replace(views.healthy(), slots=slots))
        assert "├ .step_12000.trash-999" in "\n".join(text_of(app))
        await send(app, pilot, views.healthy())
        assert text_of(app)[-7:-2] == before


async def test_the_filter_narrows_and_esc_shows_all_again() -> None:
    async with running(views.many_slots(), (80, 24)) as (app, pilot):
        table = app.home.table
        assert table.row_count == 300
        await pilot.press("slash", *"step_119")
        await until(pilot, lambda: table.row_count == 2)
        await pilot.press("enter")
        assert table.row_count == 2
        assert "“step_119” 2 of 300" in "\n".join(text_of(app))
        await pilot.press("j", "escape")
        assert table.row_count == 300


async def test_a_paste_into_the_filter_cannot_bring_control_characters() -> None:
    from textual.events import Paste

    async with running(views.healthy()) as (app, pilot):
        await pilot.press("slash")
        app.screen.focused.post_message(Paste("\x1b]0;x\x07[b]\u202e"))  # type: ignore[union-attr]
        await until(pilot, lambda: app.home.table.filter_text == "]0;x[b]")


async def test_a_paste_elsewhere_does_nothing() -> None:
    from textual.events import Paste

    async with running(views.healthy()) as (app, pilot):
        before = text_of(app)
        app.post_message(Paste("q\nq\n"))
        await pilot.pause()
        assert text_of(app) == before


async def test_space_lets_the_screen_stand_still_and_go_on() -> None:
    async with running(views.healthy()) as (app, pilot):
        await pilot.press("space")
        assert "paused" in text_of(app)[-2]
        await send(app, pilot, replace(app.home.view, step=13_000))
        assert "step 12,400" in text_of(app)[1]
        await pilot.press("space")
        await until(pilot, lambda: "step 13,000" in text_of(app)[1])


async def test_y_copies_the_path_and_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(views.hostile()) as (app, pilot):
        written: list[str] = []
        monkeypatch.setattr(app._driver, "write", written.append)
        await pilot.press("j", "j", "y")
        assert r"copied: runs/exp1/two\nlines" in text_of(app)[-2]
        sent = [text for text in written if text.startswith("\x1b]52;c;")]
        assert base64.b64decode(sent[0][7:-1]) == rb"runs/exp1/two\nlines"


async def test_tab_gives_the_room_to_the_chart_and_to_the_table() -> None:
    async with running(views.many_slots(), (80, 24)) as (app, pilot):
        home = app.home
        await pilot.press("tab")
        await until(pilot, lambda: not home.table.display and home.chart.display)
        await pilot.press("tab")
        await until(pilot, lambda: home.table.display and not home.chart.display)
        await pilot.press("e")
        assert "too small for the chart" in text_of(app)[-2]
        await pilot.press("tab")
        await until(pilot, lambda: home.table.display and home.chart.display)


async def test_help_shows_every_command_of_the_screen() -> None:
    async with running(views.healthy()) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        compare(app, "help-120x40")
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)


async def test_the_palette_finds_and_runs_a_command() -> None:
    async with running(views.healthy()) as (app, pilot):
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, PaletteScreen))
        await pilot.press(*"pause")
        await until(pilot, lambda: app.screen.table.row_count == 1)  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: app.home.is_paused)


async def test_the_palette_says_why_a_command_cannot_act() -> None:
    async with running(views.empty()) as (app, pilot):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, PaletteScreen))
        assert "not now: there is no row to act on yet" in "\n".join(text_of(app))


@pytest.mark.parametrize("state", ["empty", "healthy"])
async def test_no_key_but_quit_ends_the_app(state: str) -> None:
    keys = {key for command in COMMANDS if command.name != "quit" for key in command.keys}
    async with running(views.ALL[state](), (80, 24)) as (app, pilot):
        for key in sorted(keys):
            await pilot.press(key)
            assert app.is_running, key
            while len(app.screen_stack) > 1:
                app.pop_screen()
                await pilot.pause()


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_quits(key: str) -> None:
    async with running(views.healthy()) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (views.stalled, "exp1 stalled at step 12,400"),
        (views.diverged, "exp1 diverged at step 12,400"),
        (views.damaged, "exp1: step_11000 is damaged"),
    ],
)
async def test_a_transition_that_matters_rings_once(
    after: object, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(views.healthy()) as (app, pilot):
        rung: list[str] = []
        monkeypatch.setattr(app, "ring", rung.append)
        view = after()  # type: ignore[operator]
        await send(app, pilot, view)
        await send(app, pilot, replace(view, step=12_500))
        assert rung.count(sentence) == 1


async def test_a_run_that_was_dead_already_rings_no_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (app, pilot):
        rung: list[str] = []
        monkeypatch.setattr(app, "ring", rung.append)
        await send(app, pilot, views.stalled())
        assert rung == []


@pytest.mark.parametrize(
    ("height", "wanted", "emphasis", "heights"),
    [
        (40, Heights(4, 0, 30, 2), Emphasis.BOTH, Heights(5, 20, 13, 2)),
        (24, Heights(5, 0, 6, 2), Emphasis.BOTH, Heights(6, 10, 6, 2)),
        (24, Heights(5, 0, 6, 2), Emphasis.CHART, Heights(6, 16, 0, 2)),
        (24, Heights(5, 0, 6, 2), Emphasis.TABLE, Heights(6, 0, 16, 2)),
        (10, Heights(3, 0, 6, 2), Emphasis.BOTH, Heights(3, 0, 5, 2)),
        (6, Heights(3, 0, 6, 2), Emphasis.BOTH, Heights(4, 0, 0, 2)),
        (2, Heights(3, 0, 6, 1), Emphasis.BOTH, Heights(2, 0, 0, 0)),
        (1, Heights(3, 0, 6, 1), Emphasis.BOTH, Heights(1, 0, 0, 0)),
    ],
)
def test_lines_are_shared(
    height: int, wanted: Heights, emphasis: Emphasis, heights: Heights
) -> None:
    assert share_lines(height, wanted, emphasis) == heights


async def test_an_update_sends_a_few_spans_and_never_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(views.healthy()) as (app, pilot):
        sent: list[int] = []

        def display(screen: object, renderable: object) -> None:
            if isinstance(renderable, CompositorUpdate):
                sent.append(len(exact(renderable).render_segments(app.console)))

        monkeypatch.setattr(app, "_display", display)
        view = replace(app.home.view, step=12_401, loss=1.8111, learning_rate=1.9e-4)
        await send(app, pilot, view)
        await until(pilot, lambda: bool(sent))
        assert sum(sent) < 300


@pytest.mark.parametrize("state", ["torn", "nan"])
async def test_details_say_sources_reasons_and_warnings(state: str) -> None:
    async with running(views.ALL[state](), (80, 24)) as (app, pilot):
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, DetailsScreen))
        await pilot.pause()
        compare(app, f"details-{state}-80x24")
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
