"""Keys that verify: pressed on a real run, looked at in its cache, its table and its findings."""

import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import views
from saving import save
from screens import compare, resize, running, text_of, until, watching
from textual._compositor import CompositorUpdate
from textual.pilot import Pilot

from ckpt import control
from ckpt.checkpoint import (
    Depth,
    Finding,
    Report,
    Severity,
    Verdict,
    first_error,
)
from ckpt.generations import scan
from ckpt.operation import Found, Operation, Progress
from monitor.app import MonitorApp
from monitor.checks import Subject, Verification, subject_of, verify_work
from monitor.options import Options
from monitor.screens.checkpoint import CheckpointScreen
from monitor.screens.dashboard import DashboardScreen
from monitor.screens.verification import VerificationScreen
from monitor.spans import exact

GATE_S = 10.0
NEVER_READ = "\N{EN DASH} never read"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are new; their times are trusted all the same."""
    monkeypatch.setattr(control, "SETTLED_S", -60.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints, the newest saved twice."""
    run = tmp_path_factory.mktemp("saved") / "exp1"
    run.mkdir()
    (run / "training_state.json").write_text(views.state_file(30))
    for step, values in ((10, (1.0,)), (20, (1.0,)), (30, (1.0, 2.0))):
        for value in values:
            save(run / f"step_{step}", step, float(step), value)
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(saved, tmp_path / "exp1")


def flip_last_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def shown(app: MonitorApp) -> str:
    return "\n".join(text_of(app))


def row(app: MonitorApp, name: str) -> str:
    return next(line for line in text_of(app) if name in line[:14])


def said(app: MonitorApp) -> str:
    """What stands above the keys, in one line."""
    return " ".join(line.strip() for line in text_of(app)[-6:-1])


def times(run: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def verdicts(run: Path) -> dict[str, str]:
    """What the run remembers, by the generation's row."""
    return {
        f"{slot.name} {each.state.value}": each.verified.verdict.value
        for slot in scan(run)
        for each in slot.generations
        if each.verified is not None
    }


# ---- one, and all -------------------------------------------------------------------------------


async def test_v_verifies_what_the_cursor_is_on_and_the_table_says_so(run: Path) -> None:
    async with watching(run) as (app, pilot):
        assert NEVER_READ in row(app, "step_30")
        await pilot.press("v")
        await until(pilot, lambda: "✓ verified just now" in row(app, "step_30"))
        await until(pilot, lambda: "✓ step_30 is intact: 1" in said(app))
        assert NEVER_READ in row(app, "step_20")
    assert verdicts(run) == {"step_30 live": "intact"}


async def test_a_flipped_bit_names_the_file_and_the_tensor_in_the_row(run: Path) -> None:
    flip_last_byte(run / "step_20" / "model.safetensors")
    async with watching(run) as (app, pilot):
        await pilot.press("j", "j", "v")
        await until(pilot, lambda: "✗ model.safetensors: w" in row(app, "step_20"))
        assert "✗ step_20 is damaged: model.safetensors: not what was recorded" in said(app)
        assert app.home.view.advice is not None
        assert app.home.view.advice.message == "step_20 is damaged; step_30 is usable"
        assert app.home.view.newest_verified is None
    assert verdicts(run) == {"step_20 live": "damaged"}


async def test_what_was_damaged_is_still_named_when_the_screen_is_opened_again(run: Path) -> None:
    flip_last_byte(run / "step_20" / "model.safetensors")
    async with watching(run) as (app, pilot):
        await pilot.press("j", "j", "v")
        await until(pilot, lambda: "✗ model.safetensors: w" in row(app, "step_20"))
    async with watching(run) as (app, pilot):
        assert "✗ model.safetensors: w" in row(app, "step_20")


async def test_capital_v_verifies_all_newest_first_but_what_is_known(run: Path) -> None:
    flip_last_byte(run / "step_10" / "model.safetensors")
    async with watching(run) as (app, pilot):
        await pilot.press("j", "j", "v")
        await until(pilot, lambda: "✓ verified" in row(app, "step_20"))
        await pilot.press("V")
        await until(pilot, lambda: "✗ 2 intact, 1 damaged: step_10 (w shows why)" in said(app))
        names = [each.name for each in app.changes.verification.subjects]  # type: ignore[union-attr]
        assert [name.partition("@")[0] for name in names] == ["step_30", "step_30", "step_10"]
        await until(pilot, lambda: "never read" not in shown(app))
        await pilot.press("V")
        assert "all were verified as they are now" in said(app)
    assert verdicts(run) == {
        "step_30 live": "intact",
        "step_30 retired": "intact",
        "step_20 live": "intact",
        "step_10 live": "damaged",
    }


async def test_what_no_hash_speaks_of_is_never_green(tmp_path: Path) -> None:
    run = tmp_path / "exp1"
    run.mkdir()
    save(run / "step_10", 10)
    (run / "step_10" / "manifest.json").unlink()
    async with watching(run) as (app, pilot):
        await pilot.press("v")
        await until(pilot, lambda: "? cannot be verified" in row(app, "step_10"))
        assert "? step_10 cannot be verified" in said(app)
        assert app.home.view.newest_verified is None


async def test_read_only_verifies_records_nothing_and_says_so(run: Path) -> None:
    before = times(run)
    async with watching(run, is_read_only=True) as (app, pilot):
        await pilot.press("v")
        await until(pilot, lambda: "✓ step_30 is intact" in said(app))
        assert "(not recorded under --read-only)" in said(app)
        assert NEVER_READ in row(app, "step_30")
    assert times(run) == before


async def test_what_is_gone_meanwhile_is_said_and_the_others_follow(run: Path) -> None:
    async with watching(run) as (app, pilot):
        app.feed.stop()
        shutil.rmtree(run / "step_20")
        await pilot.press("V")
        await until(pilot, lambda: "3 intact, 1 could not be read: step_20" in said(app))
    assert verdicts(run)["step_10 live"] == "intact"


async def test_the_checkpoint_screen_verifies_its_own_checkpoint(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await pilot.press("j", "j", "enter")
        await until(pilot, lambda: isinstance(app.screen, CheckpointScreen))
        await pilot.press("v")
        await until(pilot, lambda: "✓ step_20 is intact" in said(app))
    assert verdicts(run) == {"step_20 live": "intact"}


async def test_a_row_that_is_no_generation_says_so(tmp_path: Path) -> None:
    run = tmp_path / "exp1"
    run.mkdir()
    save(run / "step_10", 10)
    shutil.copytree(run / "step_10", run / ".step_10.tmp-x")
    (run / ".step_10.tmp-x" / "manifest.json").unlink()
    async with watching(run) as (app, pilot):
        await pilot.press("G", "v")
        assert "verify: this is no generation of the run" in said(app)
        assert app.changes.job is None


# ---- while it works -----------------------------------------------------------------------------


class Slow(Verification):
    """A verification that stands at 25 % of its second subject until it is let go."""

    is_open = False
    is_closed = False
    quarters = 1
    FOUND = Finding(
        "hash-mismatch",
        Severity.ERROR,
        "model.safetensors: not what was recorded: bytes 0 to 67,108,863: layers.17.up_proj, "
        "1 of 291 tensors; the other 290 are proven good",
        "model.safetensors",
        "layers.17.up_proj",
    )

    def _begin(self, subject: Subject) -> Operation[Report]:
        is_first = subject is self.subjects[0]
        report = Report(
            subject.named.path, "astrai", Depth.BYTES,
            Verdict.INTACT if is_first else Verdict.DAMAGED,
            () if is_first else (self.FOUND,), 1_234_567_890, 1.25,
        )  # fmt: skip
        return self._reading(subject.size_bytes, report)

    def _reading(self, size: int, report: Report) -> Operation[Report]:
        if first_error(report.findings) is None:
            yield Progress(size, size, "model.safetensors")
            return report
        yield Found(self.FOUND)
        deadline = time.monotonic() + GATE_S
        try:
            while not self.is_open and time.monotonic() < deadline:
                yield Progress(-(-size * self.quarters // 4), size, "model.safetensors")
                time.sleep(0.005)
        finally:
            self.is_closed = True
        return report


@asynccontextmanager
async def slowly(
    size: tuple[int, int] = (120, 40), options: Options | None = None
) -> AsyncIterator[tuple[MonitorApp, Pilot[None], Slow]]:
    """The app while it verifies the second of three."""
    view = views.healthy()
    async with running(view, size, options) as (app, pilot):
        subjects = [subject_of(view.run, slot, slot.generations[0]) for slot in view.slots]
        slow = Slow(subjects[:3])
        app.changes.verification = slow
        app.changes.start(verify_work(slow))
        await until(pilot, lambda: slow.current is not None and slow.current.share > 0.2)
        await until(pilot, lambda: app.changes.job is not None and app.changes.job.at.done > 0)
        app.on_work_told()
        await pilot.pause()
        yield app, pilot, slow
        app.changes.cancel()
        await until(pilot, lambda: app.changes.job is None)


async def test_a_row_says_how_far_its_verification_is_and_what_is_found_is_a_key_away() -> None:
    async with slowly() as (app, pilot, _):
        assert "verifying 25 %" in row(app, "step_11000")
        compare(app, "dashboard-verifying-120x40")
        await resize(app, pilot, 80, 24)
        compare(app, "dashboard-verifying-80x24")
        await resize(app, pilot, 40, 10)
        compare(app, "dashboard-verifying-40x10")
        await pilot.press("w")
        assert isinstance(app.screen, VerificationScreen)
        for width, height in ((120, 40), (80, 24), (40, 10)):
            await resize(app, pilot, width, height)
            compare(app, f"verification-at-work-{width}x{height}")
        await pilot.press("w")
        assert isinstance(app.screen, DashboardScreen)
        assert app.changes.job is not None


async def test_progress_in_a_row_sends_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.job.TELL_EVERY_S", 0.0)
    async with slowly() as (app, pilot, slow):
        sent: list[int] = []

        def display(_screen: object, renderable: object) -> None:
            if isinstance(renderable, CompositorUpdate):
                sent.append(len(exact(renderable).render_segments(app.console)))

        monkeypatch.setattr(app, "_display", display)
        slow.quarters = 2
        await until(pilot, lambda: "verifying 50 %" in row(app, "step_11000"))
        await until(pilot, lambda: len(sent) >= 1)
        assert sum(sent) < 300


async def test_esc_cancels_where_findings_are_shown_and_then_goes_back() -> None:
    async with slowly() as (app, pilot, slow):
        await pilot.press("w", "escape")
        await until(pilot, lambda: app.changes.job is None)
        assert slow.is_closed
        await until(pilot, lambda: "cancelled, without a verdict" in said(app))
        await resize(app, pilot, 80, 24)
        compare(app, "verification-cancelled-80x24")
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
        assert "verifying" not in shown(app)


async def test_one_thing_at_a_time() -> None:
    async with slowly() as (app, pilot, _):
        for key in "vVr":
            await pilot.press(key)
            assert "not while this is at work: verify 3 checkpoints: step_11000, 1 left" in said(
                app
            )


async def test_ascii_where_nothing_else_is_shown() -> None:
    async with slowly((80, 24), Options(is_ascii=True)) as (app, pilot, _):
        assert all(line.isascii() for line in text_of(app))
        await pilot.press("w")
        assert all(line.isascii() for line in text_of(app))


async def test_before_anything_was_verified_the_key_says_so() -> None:
    async with running(views.healthy()) as (app, pilot):
        await pilot.press("w")
        assert "findings: nothing was verified yet (v verifies)" in said(app)
