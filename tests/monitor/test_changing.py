"""Keys that change a run: pressed on a real run, looked at on the disk."""

import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import views
from saving import known, lying, save
from screens import running, text_of, until
from screens import watching as watching_run
from textual._compositor import CompositorUpdate
from textual.events import Key, Paste
from textual.pilot import Pilot
from trees import put_checkpoint, weights

from ckpt.checkpoint import State
from ckpt.control import read_pins
from ckpt.generations import carry_out, plan_rollback, scan
from ckpt.lock import swap_lock
from ckpt.operation import Note, Operation, Progress, drive
from ckpt.present import Tone
from monitor.app import MonitorApp, RunUpdated
from monitor.changes import Said, WorkEnded
from monitor.feed import Shown
from monitor.screens import confirm
from monitor.screens.confirm import ConfirmScreen
from monitor.screens.dashboard import DashboardScreen
from monitor.screens.history import HistoryScreen
from monitor.screens.prune import PruneScreen
from monitor.spans import exact
from monitor.work import Work

GATE_S = 10.0


@pytest.fixture(autouse=True)
def quick_fingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a test come faster than anybody's; what is told from a paste has its own tests."""
    for name in ("OPENING_S", "BURST_S", "QUIET_S"):
        monkeypatch.setattr(confirm, name, -1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four checkpoints; the newest was saved three times, the second newest twice."""
    run = tmp_path_factory.mktemp("saved") / "exp1"
    run.mkdir()
    (run / "training_state.json").write_text(views.state_file(40))
    for step, times in ((10, 1), (20, 1), (30, 2), (40, 3)):
        for value in range(times):
            save(run / f"step_{step}", step, float(step), float(value))
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(saved, tmp_path / "exp1")


watching = partial(watching_run, size=(100, 30))


def live(run: Path) -> dict[str, str | None]:
    """The id of the live generation of each slot."""
    return {slot.name: slot.live.id if slot.live else None for slot in scan(run)}


def retired(run: Path, name: str) -> list[str]:
    [slot] = [slot for slot in scan(run) if slot.name == name]
    return [each.id for each in slot.generations if each.state is State.RETIRED]


def shown(app: MonitorApp) -> str:
    return "\n".join(text_of(app))


def said(app: MonitorApp) -> str:
    """What stands above the keys, in one line."""
    return " ".join(line.strip() for line in text_of(app)[-6:-1])


async def ask(app: MonitorApp, pilot: Pilot[None], *keys: str) -> str:
    """Press keys that open a question; return what it says."""
    await pilot.press(*keys)
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    await pilot.pause()
    return "\n".join(text_of(app))


async def done(app: MonitorApp, pilot: Pilot[None]) -> str:
    """Wait until nothing is at work; return what was said of it."""
    await until(pilot, lambda: isinstance(app.screen, DashboardScreen) and app.changes.job is None)
    await pilot.pause()
    return said(app)


# ---- what the keys do ---------------------------------------------------------------------------


async def test_r_on_a_retired_generation_makes_it_live_and_z_and_z_go_back_and_forth(
    run: Path,
) -> None:
    before, [newer, older] = live(run), retired(run, "step_40")
    async with watching(run) as (app, pilot):
        text = await ask(app, pilot, "j", "j", "r")
        assert "Roll back step_40?" in text
        assert f"becomes live   step_40  {older}" in text
        assert f"is retired     step_40  {before['step_40']}" in text
        await pilot.press("y")
        assert f"✓ step_40: {older} is live (z undoes it)" in await done(app, pilot)
        assert live(run)["step_40"] == older
        await until(pilot, lambda: app.home.table.selected_key == f"step_40@{older}")

        assert "Undo #8, the roll back of step_40?" in await ask(app, pilot, "z")
        await pilot.press("y")
        assert f"{before['step_40']} is live (Z redoes it)" in await done(app, pilot)
        assert live(run) == before

        await until(pilot, lambda: app.home.view.journal.redo_target is not None)  # type: ignore[union-attr]
        assert "Redo #8, the roll back of step_40?" in await ask(app, pilot, "Z")
        await pilot.press("y")
        await done(app, pilot)
        assert live(run)["step_40"] == older
    assert set(retired(run, "step_40")) == {newer, before["step_40"]}


async def test_r_on_the_newest_goes_to_its_newest_retired_one(run: Path) -> None:
    [newer, _] = retired(run, "step_40")
    async with watching(run) as (app, pilot):
        assert f"becomes live   step_40  {newer}" in await ask(app, pilot, "r")
        await pilot.press("y")
        await done(app, pilot)
    assert live(run)["step_40"] == newer


async def test_r_on_an_older_checkpoint_sends_the_run_back_and_one_undo_brings_all_back(
    run: Path,
) -> None:
    before = live(run)
    async with watching(run) as (app, pilot):
        await pilot.press("G", "k")
        assert app.home.table.selected_key == f"step_20@{before['step_20']}"
        text = await ask(app, pilot, "r")
        assert "Send the run back to step 20: withdraw 2 slots?" in text
        assert "given up       20 steps" in text
        await pilot.press("tab", "enter")
        assert "✓ step 20 is the newest again: 2 slots withdrawn" in await done(app, pilot)
        assert live(run) == {**before, "step_40": None, "step_30": None}
        await until(pilot, lambda: "withdrawn on purpose" in "\n".join(text_of(app)))
        await pilot.press("g")
        assert app.home.table.selected_key == "step_40"
        assert f"becomes live   step_40  {before['step_40']}" in await ask(app, pilot, "r")
        await pilot.press("n")
        await ask(app, pilot, "z")
        await pilot.press("y")
        await done(app, pilot)
    assert live(run) == before


async def test_a_question_starts_on_cancel_and_no_is_no(run: Path) -> None:
    before = lying(run)
    async with watching(run) as (app, pilot):
        for keys in ("enter", "n", "escape", "tab tab enter", "right left enter"):
            await ask(app, pilot, "r")
            await pilot.press(*keys.split())
            await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
            assert app.changes.job is None
    assert lying(run) == before


async def test_p_pins_and_unpins_and_the_table_shows_it(run: Path) -> None:
    async with watching(run) as (app, pilot):
        [newer, _] = retired(run, "step_40")
        await pilot.press("j", "p")
        await until(pilot, lambda: "◇ retired, pinned" in "\n".join(text_of(app)))
        assert read_pins(run) == {newer}
        await until(pilot, lambda: f"{newer} is pinned" in said(app))
        await pilot.press("p")
        await until(pilot, lambda: "pinned" not in "\n".join(text_of(app)[:-3]))
        assert read_pins(run) == frozenset()


async def test_a_name_that_another_program_left_empty_is_recovered_by_the_advised_key(
    run: Path,
) -> None:
    before = live(run)
    hidden = run / f".step_40.retired-{before['step_40']}"
    (run / "step_40").rename(hidden)
    async with watching(run, size=(120, 30)) as (app, pilot):
        await until(pilot, lambda: "(R)" in said(app))
        text = await ask(app, pilot, "R")
        assert f"becomes live   step_40  {before['step_40']}" in text
        await pilot.press("y")
        assert f"✓ step_40: {before['step_40']} is live" in await done(app, pilot)
        assert live(run) == before
        await until(pilot, lambda: "nothing here was cut off" in _pressed_says(app, "recover"))


def _pressed_says(app: MonitorApp, name: str) -> str:
    app.home.action_command(name)
    return said(app)


async def test_h_shows_what_was_done_and_z_undoes_there(run: Path) -> None:
    before = live(run)
    async with watching(run) as (app, pilot):
        await ask(app, pilot, "r")
        await pilot.press("y")
        await done(app, pilot)
        await until(pilot, lambda: app.home.view.journal.last_sequence == 8)  # type: ignore[union-attr]
        await pilot.press("h")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        assert "(z undoes this)" in said(app)
        await ask(app, pilot, "z")
        await pilot.press("y")
        await until(pilot, lambda: "undone by #9" in "\n".join(text_of(app)))
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
    assert live(run) == before


async def test_prune_shows_what_each_policy_keeps_and_deletes_what_was_confirmed(
    run: Path,
) -> None:
    [_, older] = retired(run, "step_40")
    before = live(run)
    async with watching(run) as (app, pilot):
        await pilot.press("P")
        await until(pilot, lambda: isinstance(app.screen, PruneScreen))
        await pilot.pause()
        rows = "\n".join(text_of(app))
        assert re.search(r"the last of each slot +2 +1 +1.2 KB", rows)
        assert re.search(r"only what no prune may take +0 +3 +3.7 KB", rows)
        await pilot.press("enter")
        assert "nothing would go" in said(app)
        await pilot.press("G", "k")
        assert "2 stay: among the last 1 of its slot" in said(app)
        text = await ask(app, pilot, "enter")
        assert "Delete 1 generation of step_40?" in text
        assert f"is deleted     step_40  {older}" in text
        assert "! what is deleted cannot be brought back" in text
        await pilot.press("y")
        await until(pilot, lambda: "1 generation deleted, 1.2 KB freed" in said(app))
        await until(pilot, lambda: bool(re.search(r"last of each slot +2 +none", shown(app))))
    assert older not in retired(run, "step_40")
    assert live(run) == before


async def test_a_pinned_generation_is_in_no_prune(run: Path) -> None:
    async with watching(run) as (app, pilot):
        for _ in range(2):
            await pilot.press("j", "p")
            await until(pilot, lambda: "is pinned" in said(app))
        await until(pilot, lambda: shown(app).count("retired, pinned") == 2)
        await pilot.press("P")
        await until(pilot, lambda: isinstance(app.screen, PruneScreen))
        await pilot.press("G")
        await until(pilot, lambda: "2 stay: pinned" in said(app))


async def test_the_guard_keeps_what_a_trainer_deletes_and_says_that_it_is_on(
    tmp_path: Path,
) -> None:
    run = tmp_path / "exp1"
    put_checkpoint(run / "latest", 10)
    (run / "training_state.json").write_text(views.state_file(10))
    async with watching(run) as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: "guarded · 1 slot" in shown(app))
        assert "guarded while this screen is open" in said(app)
        await until(pilot, lambda: bool(list(run.glob(".latest.retired-*"))))
        put_checkpoint(run / ".latest.tmp-abcdefg1", 20)
        (run / "latest").rename(run / ".latest.retired-abcdefg1")
        (run / ".latest.tmp-abcdefg1").rename(run / "latest")
        shutil.rmtree(run / ".latest.retired-abcdefg1")
        await until(pilot, lambda: bool(re.search(r"├ \w+ +10 .*◇ retired", shown(app))))
        await pilot.press("K")
        assert "not guarded any more" in said(app)
        assert "guarded ·" not in shown(app)


async def test_what_cannot_be_guarded_is_said(tmp_path: Path) -> None:
    run = tmp_path / "exp1"
    run.mkdir()
    (run / "adapter.safetensors").write_bytes(weights(1))
    (run / "training_state.json").write_text(views.state_file(10))
    async with watching(run) as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: "its trainer writes the file in place" in said(app))


async def test_z_undoes_what_was_done_here_though_a_trainer_saved_since(run: Path) -> None:
    before = live(run)
    async with watching(run) as (app, pilot):
        await ask(app, pilot, "G", "r")
        await pilot.press("y")
        await done(app, pilot)
        newest = save(run / "step_15", 15)
        await until(pilot, lambda: app.home.view.journal.undo_target.sequence == 9)  # type: ignore[union-attr]
        await until(pilot, lambda: "step_15" in shown(app))
        assert "Undo #8, the withdrawal of 3 slots?" in await ask(app, pilot, "z")
        await pilot.press("y")
        await done(app, pilot)
    assert live(run) == {**before, "step_15": newest}


async def test_z_in_the_history_undoes_the_entry_under_the_cursor(run: Path) -> None:
    before = live(run)
    [older] = retired(run, "step_30")
    async with watching(run) as (app, pilot):
        await pilot.press("h", "j", "j", "j")
        await until(pilot, lambda: said(app).count("(z undoes this)") == 1)
        text = await ask(app, pilot, "z")
        assert "Undo #4, the publish of step_30?" in text
        await pilot.press("y")
        await until(pilot, lambda: "undone by #8" in shown(app))
    assert live(run) == {**before, "step_30": older}


# ---- what is refused ----------------------------------------------------------------------------


async def test_a_damaged_target_is_refused_once_its_bytes_were_read(run: Path) -> None:
    before = live(run)
    [newer, _] = retired(run, "step_40")
    payload = run / f".step_40.retired-{newer}" / "model.safetensors"
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)
    async with watching(run) as (app, pilot):
        await ask(app, pilot, "r")
        await pilot.press("y")
        assert f"✗ generation {newer} is damaged" in await done(app, pilot)
    assert live(run) == before


async def test_a_plan_that_the_disk_has_left_behind_is_refused(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await ask(app, pilot, "r")
        [_, older] = retired(run, "step_40")
        plan = plan_rollback(known(run), to=older)
        drive(carry_out(plan, depth=None))
        await pilot.press("y")
        assert "the plan is out of date" in await done(app, pilot)
    assert live(run)["step_40"] == older


async def test_who_else_changes_the_run_is_named(run: Path) -> None:
    before = live(run)
    async with watching(run) as (app, pilot):
        with swap_lock(run, "prune"):
            await ask(app, pilot, "r")
            await pilot.press("y")
            assert "busy: prune (pid" in await done(app, pilot)
    assert live(run) == before


async def test_read_only_changes_nothing_and_says_so(run: Path) -> None:
    before = lying(run)
    async with watching(run, is_read_only=True) as (app, pilot):
        assert "read-only · 4 slots" in "\n".join(text_of(app))
        for key in "rzZRpPK":
            await pilot.press(key)
            assert "nothing is changed under --read-only" in said(app)
            assert isinstance(app.screen, DashboardScreen)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "not under --read-only: Undo" in "\n".join(text_of(app))
    assert lying(run) == before


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (("Z",), "nothing to redo"),
        (("R",), "nothing here was cut off"),
    ],
)
async def test_a_key_with_nothing_to_do_says_why(
    run: Path, keys: tuple[str, ...], reason: str
) -> None:
    async with watching(run) as (app, pilot):
        await pilot.press(*keys)
        assert reason in said(app)


async def test_before_the_run_was_read_a_key_says_so() -> None:
    async with running(views.empty()) as (app, pilot):
        for key in "rzZR":
            await pilot.press(key)
            assert "the checkpoints were not looked at yet" in said(app)


# ---- while it works -----------------------------------------------------------------------------


class Gate:
    """An operation that verifies until it is let through, and then changes for as long."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_closed = False
        self.is_done = False
        self.changes = False

    def operation(self) -> Operation[None]:
        def wait(condition: str) -> Iterator[None]:
            deadline = time.monotonic() + GATE_S
            while not getattr(self, condition) and time.monotonic() < deadline:
                yield
                time.sleep(0.005)

        try:
            for _ in wait("changes"):
                yield Progress(300_000_000, 1_200_000_000, "model.safetensors")
        except GeneratorExit:
            self.is_closed = True
            raise
        yield Note("changing step_40")
        for _ in wait("is_open"):
            pass
        self.is_done = True

    def work(self) -> Work:
        return Work("roll back step_40", self.operation(), lambda _: "step_40 is live")


async def test_verifying_shows_a_bar_and_esc_cancels_it() -> None:
    gate = Gate()
    async with running(views.healthy(), (100, 30)) as (app, pilot):
        app.changes.start(gate.work())
        bar = "▓▓▓▓▓▓░░░░░░░░░░░░░░░░░░   25 %  300 MB of 1.2 GB  esc cancels"
        await until(pilot, lambda: f"roll back step_40  verifying {bar}" in said(app))
        await pilot.press("r")
        assert "roll back: not while this is at work: roll back step_40" in said(app)
        await pilot.press("escape")
        assert "cancelled, nothing was changed" in await done(app, pilot)
        assert gate.is_closed


async def test_a_bar_that_moves_sends_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.job.TELL_EVERY_S", 0.0)
    done = [300_000_000]

    def operation() -> Operation[None]:
        while done[0] < 1_200_000_000:
            yield Progress(done[0], 1_200_000_000, "model.safetensors")
            time.sleep(0.005)

    async with running(views.healthy()) as (app, pilot):
        app.changes.start(Work("roll back step_40", operation(), lambda _: "done"))
        await until(pilot, lambda: "25 %" in said(app))
        sent: list[int] = []

        def display(_screen: object, renderable: object) -> None:
            if isinstance(renderable, CompositorUpdate):
                sent.append(len(exact(renderable).render_segments(app.console)))

        monkeypatch.setattr(app, "_display", display)
        done[0] = 600_000_000
        await until(pilot, lambda: "50 %" in said(app))
        await until(pilot, lambda: bool(sent))
        assert sum(sent) < 200
        done[0] = 1_200_000_000
        await until(pilot, lambda: app.changes.job is None)


@pytest.mark.parametrize("width", [20, 40, 60, 80])
async def test_the_bar_fits_and_says_what_is_at_work(width: int) -> None:
    gate = Gate()
    async with running(views.healthy(), (width, 12)) as (app, pilot):
        app.changes.start(gate.work())
        await until(pilot, lambda: "25 %" in said(app))
        assert ("esc cancels" in said(app)) == (width >= 40)
        app.changes.cancel()
        await until(pilot, lambda: app.changes.job is None)


async def test_q_while_it_verifies_cancels_and_leaves() -> None:
    gate = Gate()
    async with running(views.healthy()) as (app, pilot):
        app.changes.start(gate.work())
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
        await until(pilot, lambda: gate.is_closed)
        assert not gate.is_done


async def test_q_while_it_changes_the_run_waits_for_its_end_and_says_so() -> None:
    gate = Gate()
    gate.changes = True
    async with running(views.healthy(), (100, 30)) as (app, pilot):
        app.changes.start(gate.work())
        await until(pilot, lambda: app.changes.job is not None and app.changes.job.at.is_changing)
        await pilot.press("escape")
        assert "it changes the run by now, and ends by itself" in said(app)
        await pilot.press("q")
        assert "leaving as soon as this has ended: roll back step_40" in said(app)
        assert app.is_running
        gate.is_open = True
        await until(pilot, lambda: not app.is_running)
        assert gate.is_done


# ---- what was not meant -------------------------------------------------------------------------


async def test_pasted_text_presses_no_key(run: Path) -> None:
    before = lying(run)
    async with watching(run) as (app, pilot):
        app.post_message(Paste("ry\ty\n"))
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        await ask(app, pilot, "r")
        app.post_message(Paste("y\t\n"))
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
    assert lying(run) == before


@pytest.mark.parametrize(
    ("pressed", "answer"),
    [
        ([("y", 0.5)], True),
        ([("y", 0.39)], None),  # nobody has read the question by then
        ([("tab", 0.5), ("enter", 0.7)], True),
        ([("tab", 0.5), ("enter", 0.59)], None),  # together: out of a paste, or a slow link
        ([("tab", 0.5), ("enter", 0.59), ("enter", 1.5)], None),
        ([("tab", 0.5), ("enter", 0.59), ("enter", 1.6)], True),
        ([("x", 0.5), ("y", 1.0)], None),  # a key that means nothing here: somebody types a word
        ([("x", 0.5), ("y", 1.6)], True),
        ([("j", 0.5), ("j", 0.53), ("y", 0.7)], True),  # a key that is held down to scroll
        ([("j", 0.5), ("y", 0.53)], None),
        ([("r", 0.0), ("o", 0.01), ("y", 0.02), ("tab", 0.03), ("n", 0.04)], False),
        ([("enter", 0.1)], False),  # Cancel may be pressed at any time
        ([("tab", 0.5), ("q", 0.51)], False),
    ],
)
async def test_only_what_was_meant_confirms(
    pressed: list[tuple[str, float]], answer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    async with running(views.healthy()) as (app, pilot):
        answers: list[bool | None] = []
        screen = ConfirmScreen("Sure?", [], "Do it")
        app.push_screen(screen, answers.append)
        await until(pilot, lambda: math.isfinite(screen._deaf_until))
        opened_at = screen._deaf_until - confirm.OPENING_S
        for name, after_s in pressed:
            key = Key(name, name if len(name) == 1 else None)
            key.time = opened_at + after_s
            app.post_message(key)
            await pilot.pause()
        assert answers == ([] if answer is None else [answer])
        if answer is None:
            assert "too fast to be meant" in "\n".join(text_of(app))


async def test_what_comes_when_the_screen_is_gone_is_no_fault() -> None:
    async with running(views.healthy(), (80, 24)) as (app, _pilot):
        pass
    app.on_run_updated(RunUpdated(Shown(replace(views.healthy(), step=12_401), views.NOW)))
    app.on_work_told()
    app.on_work_ended(WorkEnded("✓ done", Tone.GOOD))
    app.on_said(Said("pinned", Tone.GOOD))
    assert app.fault is None
