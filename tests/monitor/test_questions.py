"""What a question says and how it looks, in all sizes; and which plan it is about."""

from dataclasses import replace

import pytest
import views
from screens import compare, resize, running, text_of, until
from textual.pilot import Pilot

from ckpt.checkpoint import Generation, Leftover, Slot, State, Verdict
from ckpt.errors import Refused
from ckpt.present import Cell
from ckpt.reflog import Change, Entry, Journal, Outcome, Told
from ckpt.view import Health, HealthState, RunView
from monitor.app import MonitorApp
from monitor.options import Options
from monitor.planning import find_row, plan_of
from monitor.screens.confirm import ConfirmScreen
from monitor.screens.history import HistoryScreen
from monitor.screens.prune import PruneScreen, policies_for
from monitor.widgets.scrolled_lines import wrapped_cells

LONG = "checkpoints_of_the_long_run_" * 8


def rolled_back() -> RunView:
    """The newest slot was rolled back, and that was undone."""
    told = [
        (4, "rollback", "c41d07", "a1b2c3", None, 5),
        (5, "undo", "a1b2c3", "c41d07", 4, None),
    ]
    more = tuple(
        Entry(
            number, views.NOW - 60, verb, (Change("step_12000", before, after),),
            f"{verb} (pid 977 on gpu7)", undoes, Outcome.DONE, undone_by,
        )
        for number, verb, before, after, undoes, undone_by in told
    )  # fmt: skip
    view = views.healthy()
    assert view.journal is not None
    return replace(view, journal=replace(view.journal, entries=(*view.journal.entries, *more)))


def broken() -> RunView:
    """A trainer died between two renames, and another save half-way."""
    hidden = views.generation(
        12_000, name="a1b2c3", state=State.RETIRED, path=views.RUN / ".step_12000.retired-a1b2c3"
    )
    leftover = Leftover(
        views.RUN / ".step_12400.tmp-77", "staging", "unfinished save: it holds only meta.json"
    )
    slots = (
        Slot("step_12000", "astrai", views.RUN / "step_12000", State.BROKEN, (hidden,)),
        Slot("step_12400", "astrai", views.RUN / "step_12400", State.BROKEN, (), (leftover,)),
        views.slot(11_000),
    )
    return replace(views.healthy(), slots=slots, journal=Journal())


def many_retired() -> RunView:
    """Four slots, each saved four times; one generation is pinned and one is damaged."""

    def old(step: int, at: int) -> Generation:
        more: dict[str, object] = {"pinned": True} if (step, at) == (11_000, 2) else {}
        if (step, at) == (10_000, 1):
            more = {"verified": views.verified(Verdict.DAMAGED)}
        return views.generation(
            step,
            name=f"{step}{at}",
            state=State.RETIRED,
            loss=2.0 - step / 1e5 + at / 10,
            created_at=views.NOW - 86_400 * at,
            **more,
        )

    slots = tuple(
        views.slot(step, views.generation(step), *(old(step, at) for at in (1, 2, 3)))
        for step in (12_000, 11_000, 10_000, 9_000)
    )
    told = {
        slot.name: Told({each.id: -at for at, each in enumerate(slot.generations)})
        for slot in slots
    }
    return replace(views.healthy(), slots=slots, journal=Journal(slots=told))


def long_names() -> RunView:
    view = views.many_slots(40)
    slots = tuple(replace(slot, name=f"{LONG}{slot.name}") for slot in view.slots)
    return replace(view, slots=slots)


async def show(app: MonitorApp, pilot: Pilot[None], command: str, key: str | None) -> None:
    app.changes.clock = lambda: views.NOW
    app.changes.ask(command, key)
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    await pilot.pause()


QUESTIONS = {
    "rollback": (views.healthy, "roll_back", "step_12000@a1b2c3"),
    "withdraw": (views.healthy, "roll_back", "step_10000@live"),
    "undo": (views.healthy, "undo", None),
    "redo": (rolled_back, "redo", None),
    "recover": (broken, "recover", None),
    "many": (views.many_slots, "roll_back", "step_1000@live"),
    "long": (long_names, "roll_back", f"{LONG}step_1520@live"),
}


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_question_looks_as_it_did(name: str) -> None:
    view, command, key = QUESTIONS[name]
    async with running(view()) as (app, pilot):
        await show(app, pilot, command, key)
        compare(app, f"question-{name}-120x40")
        await resize(app, pilot, 80, 24)
        compare(app, f"question-{name}-80x24")
        await resize(app, pilot, 40, 10)
        compare(app, f"question-{name}-40x10")


@pytest.mark.parametrize("name", ["recover", "many", "long"])
async def test_a_question_survives_every_size_and_speaks_ascii(name: str) -> None:
    view, command, key = QUESTIONS[name]
    async with running(view(), (80, 24), Options(is_ascii=True)) as (app, pilot):
        await show(app, pilot, command, key)
        assert all(line.isascii() for line in text_of(app))
        for width, height in [(20, 6), (20, 3), (8, 4), (2, 2), (1, 1), (80, 24)]:
            await resize(app, pilot, width, height)
            await pilot.press("j", "G", "g", "ctrl+d", "k", "ctrl+u", "tab", "tab")
            assert len(text_of(app)) == height
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))


async def test_many_changes_are_scrolled_and_the_buttons_stay() -> None:
    async with running(views.many_slots(), (80, 24)) as (app, pilot):
        await show(app, pilot, "roll_back", "step_1000@live")
        assert "more lines" in "\n".join(text_of(app))
        await pilot.press("G")
        text = "\n".join(text_of(app))
        assert "given up       11,000 steps" in text
        assert "more lines" not in text
        assert "[▸ Cancel ]" in text
        await pilot.press("g")
        assert "step_12000" in "\n".join(text_of(app))


async def test_a_click_presses_the_button_that_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.screens.confirm.OPENING_S", -1.0)
    for x, answer in ((5, False), (18, True)):
        async with running(views.healthy(), (80, 24)) as (app, pilot):
            answers: list[bool | None] = []
            app.push_screen(ConfirmScreen("Sure?", [(Cell("  x"),)], "Do it"), answers.append)
            await until(pilot, lambda: "Do it" in "\n".join(text_of(app)))
            line = next(y for y, text in enumerate(text_of(app)) if "Do it" in text)
            await pilot.click(offset=(x, line))
            await until(pilot, lambda: bool(answers))  # noqa: B023 - waited for in this round
            assert answers == [answer]


async def test_the_history_looks_as_it_did() -> None:
    async with running(rolled_back()) as (app, pilot):
        await pilot.press("h")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("j")
        compare(app, "history-120x40")
        await resize(app, pilot, 80, 24)
        compare(app, "history-80x24")
        await resize(app, pilot, 40, 10)
        compare(app, "history-40x10")


async def test_the_policies_look_as_they_did() -> None:
    async with running(many_retired()) as (app, pilot):
        app.changes.clock = lambda: views.NOW
        await pilot.press("P")
        await until(pilot, lambda: isinstance(app.screen, PruneScreen))
        await pilot.press("G", "k")
        compare(app, "policies-120x40")
        await resize(app, pilot, 80, 24)
        compare(app, "policies-80x24")
        await resize(app, pilot, 40, 10)
        compare(app, "policies-40x10")
        await resize(app, pilot, 80, 24)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        compare(app, "question-prune-80x24")


@pytest.mark.parametrize(
    ("steps", "every"), [(9, 1), (40, 5), (400, 50), (4_000, 500), (50_000, 5_000), (1, 1)]
)
def test_the_steps_to_keep_are_a_round_number(steps: int, every: int) -> None:
    view = replace(views.healthy(), slots=(views.slot(steps),))
    assert f"every {every:,} steps, and the last of each slot" in dict(policies_for(view))


async def test_a_history_of_nothing_says_so() -> None:
    async with running(views.empty(), (80, 24)) as (app, pilot):
        await pilot.press("h")
        await until(pilot, lambda: "nothing was recorded yet" in "\n".join(text_of(app)))


# ---- which plan a key means ---------------------------------------------------------------------


WITHDRAWN = Slot(
    "step_12000",
    "astrai",
    views.RUN / "step_12000",
    State.WITHDRAWN,
    (
        views.generation(12_000, name="a1b2c3", state=State.RETIRED),
        views.generation(12_000, name="c41d07", state=State.WITHDRAWN),
    ),
)
BEING_DELETED = views.slot(
    12_000,
    views.generation(12_000, name="c41d07"),
    views.generation(12_000, name="99", state=State.TRASH),
)


@pytest.mark.parametrize(
    ("slots", "key", "verb", "changes"),
    [
        ((views.GOOD_SLOT,), None, "rollback", [("step_12000", "c41d07", "a1b2c3")]),
        (
            (views.GOOD_SLOT, views.slot(11_000)),
            "step_12000@c41d07",
            "rollback",
            [("step_12000", "c41d07", "a1b2c3")],
        ),
        (
            (views.GOOD_SLOT, views.slot(11_000)),
            "step_11000@live",
            "withdraw",
            [("step_12000", "c41d07", None)],
        ),
        ((WITHDRAWN,), "step_12000", "rollback", [("step_12000", None, "c41d07")]),
        ((WITHDRAWN,), "step_12000@a1b2c3", "rollback", [("step_12000", None, "a1b2c3")]),
    ],
)
def test_r_means_a_roll_back_or_a_withdrawal_by_the_row(
    slots: tuple[Slot, ...], key: str | None, verb: str, changes: list[tuple[str | None, ...]]
) -> None:
    plan = plan_of("roll_back", replace(views.healthy(), slots=slots), key, views.NOW)
    assert plan.verb == verb
    assert [(each.slot, each.before, each.after) for each in plan.changes] == changes


@pytest.mark.parametrize(
    ("slots", "key", "reason"),
    [
        (
            (views.slot(12_000), views.slot(11_000)),
            "step_12000@live",
            "step_12000 is the newest and has no retired generation",
        ),
        ((views.slot(12_000),), "step_12000@live", "step_12000: no retired generation"),
        ((BEING_DELETED,), "step_12000@99", "99 is being deleted"),
        ((), None, "nothing to roll back to"),
    ],
)
def test_r_with_nothing_to_go_back_to_says_so(
    slots: tuple[Slot, ...], key: str | None, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        plan_of("roll_back", replace(views.healthy(), slots=slots), key, views.NOW)


@pytest.mark.parametrize(
    ("state", "is_warned"),
    [(HealthState.TRAINING, True), (HealthState.DEAD, False), (HealthState.FINISHED, False)],
)
def test_a_trainer_that_is_gone_cannot_save_again(state: HealthState, is_warned: bool) -> None:
    view = replace(views.healthy(), health=Health(state))
    plan = plan_of("roll_back", view, "step_12000@a1b2c3", views.NOW)
    assert any("the trainer wrote 3 s ago" in each for each in plan.warnings) is is_warned


def test_a_row_is_found_by_its_key() -> None:
    view = broken()
    assert find_row(view, "step_12000") == (view.slots[0], None)
    assert find_row(view, "step_12000@a1b2c3") == (view.slots[0], view.slots[0].generations[0])
    assert find_row(view, "step_12400!.step_12400.tmp-77") == (view.slots[1], None)
    assert find_row(view, "step_1") is None
    assert find_row(view, None) is None


# ---- text that is wrapped -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "width", "lines"),
    [
        (["  a b c"], 20, ["  a b c"]),
        ([], 20, [""]),
        (["  ! one two three four"], 14, ["  ! one two", "    three four"]),
        (["  label", "  ", "value of it"], 16, ["  label", "    value of it"]),
        (["abcdefghijkl"], 8, ["abcdefgh", "    ijkl"]),
        (["  名前名前名前 x"], 8, ["  名前名", "    前名", "    前 x"]),
        (["x" * 9], 1, ["xxxxxxxx", "    x"]),
        (
            ["  becomes live ", "  ", "s" * 40, "  ", "t" * 20],
            64,
            ["  becomes live   " + "s" * 40, " " * 17 + "t" * 20],
        ),
    ],
)
def test_lines_are_broken_at_blanks_and_nothing_is_lost(
    line: list[str], width: int, lines: list[str]
) -> None:
    shown = wrapped_cells([Cell(text) for text in line], width)
    assert ["".join(cell.text for cell in each).rstrip() for each in shown] == lines
