"""What lies in a checkpoint, on the screen: states of files, statistics, orders, differences."""

import math
import shutil
from pathlib import Path

import pytest
import views
from saving import save
from screens import compare, resize, running, text_of, until, watching
from textual.pilot import Pilot

from ckpt import control
from ckpt.checkpoint import (
    Checkpoint,
    Damage,
    Depth,
    FileEntry,
    Finding,
    Severity,
    Tensor,
    Verdict,
    Verified,
)
from ckpt.named import Named
from ckpt.present.trust import Known, file_state_rows
from ckpt.tensors import Difference, Form, Reshaped, TensorStats, Update
from monitor.app import MonitorApp
from monitor.comparing import Comparing, compared_of
from monitor.options import Options
from monitor.screens.checkpoint import CheckpointScreen, Pane, contents_of
from monitor.screens.dashboard import DashboardScreen
from monitor.screens.diff import DiffScreen
from monitor.screens.diff import Pane as DiffPane
from monitor.tensor_list import Measuring, Order, TensorList, groups_of

HASH = "ab" * 32
VERIFIED = Verified(Verdict.INTACT, Depth.BYTES, views.NOW - 120)
DAMAGED = Verified(
    Verdict.DAMAGED,
    Depth.BYTES,
    views.NOW - 120,
    Finding("hash-mismatch", Severity.ERROR, "m: differs", "model.safetensors"),
    ("layers.3.up", "layers.4.up"),
    5,
)
PICKLE = Finding(
    "unsafe-pickle",
    Severity.WARNING,
    "rng.pt: loading it runs posix.mkdir, which can do anything that you can",
    "rng.pt",
)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are new; their times are trusted all the same."""
    monkeypatch.setattr(control, "SETTLED_S", -60.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints of one tensor of two values; the newest was saved twice."""
    run = tmp_path / "exp1"
    run.mkdir()
    (run / "training_state.json").write_text(views.state_file(30))
    save(run / "step_10", 10, 3.0, 4.0)
    save(run / "step_20", 20, 3.0, 5.0)
    save(run / "step_30", 30, math.nan, 5.0)
    save(run / "step_30", 30, 3.0, 6.0)
    return run


def shown(app: MonitorApp) -> str:
    return "\n".join(text_of(app))


def said(app: MonitorApp) -> str:
    """What stands above the keys, in one line."""
    return " ".join(line.strip() for line in text_of(app)[-6:-1])


async def open_row(app: MonitorApp, pilot: Pilot[None], *keys: str) -> CheckpointScreen:
    """Move to a row, open it, and wait until it was read."""
    await pilot.press(*keys, "enter")
    await until(pilot, lambda: isinstance(app.screen, CheckpointScreen))
    screen = app.screen
    assert isinstance(screen, CheckpointScreen)
    await until(pilot, lambda: screen.contents is not None)
    await pilot.pause()
    return screen


# ---- the state of each file ---------------------------------------------------------------------


def states(known: Known, *entries: FileEntry, findings: tuple[Finding, ...] = ()) -> list[str]:
    seen = Checkpoint(views.RUN, "astrai", "AstrAI", files=entries, findings=findings)
    return [row.cells[2].text for row in file_state_rows(seen, known, views.NOW)]


LISTED = FileEntry("model.safetensors", 40, HASH, listed=True)
UNHASHED = FileEntry("meta.json", 5, listed=True)
UNLISTED = FileEntry("notes.txt", 5, listed=False)
MISSING = FileEntry("gone.bin", None, listed=True)


@pytest.mark.parametrize(
    ("known", "entry", "state"),
    [
        (Known(), LISTED, "\N{EN DASH} hash recorded, not compared"),
        (Known(), UNHASHED, "\N{EN DASH} size only, no hash recorded"),
        (Known(), UNLISTED, "! unlisted: compared with nothing"),
        (Known(), MISSING, "✗ missing"),
        (Known(), FileEntry("manifest.json", 5), "\N{EN DASH} nothing recorded of it"),
        (Known.from_cache(VERIFIED), LISTED, "✓ compared 2 min ago"),
        (Known.from_cache(VERIFIED), UNLISTED, "! unlisted: compared with nothing"),
        (Known.from_cache(DAMAGED), LISTED, "✗ hash-mismatch: layers.3.up and 4 more"),
        (
            Known((DAMAGED.worst,), DAMAGED, is_all=True),  # type: ignore[arg-type]  # it has one
            LISTED,
            "✗ hash-mismatch",
        ),
        (
            Known.from_cache(DAMAGED),
            FileEntry("optimizer.safetensors", 5, HASH, listed=True),
            "? verified with the damaged one: v tells",
        ),
        (
            Known((), DAMAGED, is_all=True),
            FileEntry("optimizer.safetensors", 5, HASH, listed=True),
            "✓ compared 2 min ago",
        ),
        (
            Known.from_cache(Verified(Verdict.UNVERIFIABLE, Depth.BYTES, views.NOW)),
            UNHASHED,
            "\N{EN DASH} size only, no hash recorded",
        ),
    ],
)
def test_each_file_says_what_is_known_of_it(known: Known, entry: FileEntry, state: str) -> None:
    # beside a file that has a hash of its own, so that none is taken for sealed
    beside = FileEntry("other.safetensors", 5, HASH, listed=True)
    assert states(known, entry, beside)[0] == state


def test_a_pickle_is_never_green_however_well_its_bytes_were_compared() -> None:
    entry = FileEntry("rng.pt", 5, HASH, listed=True)
    seen = Checkpoint(views.RUN, "astrai", "AstrAI", files=(entry,), findings=(PICKLE,))
    [row] = file_state_rows(seen, Known.from_cache(VERIFIED), views.NOW)
    assert row.cells[2].text == (
        "✓ compared 2 min ago; ! pickle: loading it runs posix.mkdir, which can do anything that "
        "you can"
    )
    assert row.cells[2].tone == "warn"


def test_files_of_a_sealed_checkpoint_were_compared_with_its_seal() -> None:
    assert states(Known.from_cache(VERIFIED), UNHASHED) == ["✓ compared with its seal 2 min ago"]


async def test_v_turns_the_files_green_and_a_flipped_bit_red(run: Path) -> None:
    payload = run / "step_20" / "model.safetensors"
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)
    async with watching(run) as (app, pilot):
        await open_row(app, pilot, "j", "j")
        assert "model.safetensors" in shown(app)
        assert "hash recorded, not compared" in shown(app)
        await pilot.press("v")
        await until(pilot, lambda: "✗ hash-mismatch: w" in shown(app))
        assert "✓ compared just now" in shown(app)
        await pilot.press("tab")
        await until(pilot, lambda: "✗ w" in shown(app))
        await pilot.press("escape")
        await open_row(app, pilot)
        assert isinstance(app.screen, CheckpointScreen)
        assert app.screen.pane is Pane.FINDINGS


# ---- statistics and orders ----------------------------------------------------------------------


def tensor(name: str, size_bytes: int = 8) -> Tensor:
    return Tensor(name, "F32", (size_bytes // 4,), size_bytes, "model.safetensors", 0, size_bytes)


def test_tensors_are_ordered_by_what_is_known_of_them() -> None:
    tensors = [tensor("b", 8), tensor("a", 16), tensor("c", 4)]
    listed = TensorList(tensors, has_stats=True)
    stats = {
        tensors[0]: TensorStats(2, 0, 0, 2, -1.0, 1.0, 0.0, 1.5),
        tensors[1]: TensorStats(4, 1, 0, 0, -9.0, 2.0, 0.0, 3.5),
    }
    listed.fill(stats, 0)

    def names(order: Order) -> str:
        listed.arrange(order)
        return "".join(row.cells[0].text for row in listed.table().rows)

    found = {order: names(order) for order in Order if order is not Order.DAMAGED}
    assert found == {
        Order.FILE: "bac",
        Order.NAME: "abc",
        Order.SIZE: "abc",
        Order.NONFINITE: "abc",
        Order.NORM: "abc",
        Order.PEAK: "abc",
        Order.ZEROS: "bac",
    }
    listed.mark(frozenset({("model.safetensors", "c")}))
    assert names(Order.DAMAGED) == "✗ cba"


def test_the_order_of_damage_is_offered_only_where_there_is_any() -> None:
    listed = TensorList([tensor("a")])
    assert listed.orders == (Order.FILE, Order.NAME, Order.SIZE)
    listed.mark(frozenset({("model.safetensors", "a")}))
    listed.arrange(Order.DAMAGED)
    assert listed.next_order() is Order.SIZE
    listed.mark(frozenset())
    assert listed.next_order() is Order.FILE


def test_statistics_come_in_groups() -> None:
    tensors = [tensor(f"t{at}", 40 << 20) for at in range(5)]
    assert [len(group) for group in groups_of(tensors)] == [2, 2, 1]
    assert list(groups_of([])) == []


async def test_t_reads_the_tensors_and_marks_what_is_not_finite(run: Path) -> None:
    async with watching(run) as (app, pilot):
        screen = await open_row(app, pilot, "j")
        await pilot.press("t")
        await until(pilot, lambda: "✗ 1 NaN" in shown(app))
        assert screen.pane is Pane.TENSORS
        await until(pilot, lambda: "1 tensor read: model.safetensors: w: 1 NaN" in said(app))
        await pilot.press("tab", "tab")
        assert screen.pane is Pane.FINDINGS
        assert "nonfinite" in shown(app)


async def test_statistics_of_finite_tensors_say_so_in_numbers(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await open_row(app, pilot, "G")
        await pilot.press("t")
        await until(pilot, lambda: "✓ finite" in shown(app))
        assert "step_10: 1 tensor read: all finite" in said(app)
        row = next(line for line in text_of(app) if line.startswith("▸ w"))
        assert row.split() == ["▸", "w", "F32", "2", "✓", "finite", "3", "4", "3.5", "5", "0"]


async def test_o_orders_the_tensors_and_says_how(run: Path) -> None:
    async with watching(run) as (app, pilot):
        screen = await open_row(app, pilot)
        await pilot.press("o")
        assert screen.pane is Pane.TENSORS
        assert "by name" not in text_of(app)[3]
        await pilot.press("o")
        assert text_of(app)[3].endswith("by name")
        await pilot.press("o", "o")
        assert "largest first" not in shown(app)


# ---- differences --------------------------------------------------------------------------------


async def test_d_compares_with_the_generation_before(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await pilot.press("j", "j", "d")
        await until(pilot, lambda: isinstance(app.screen, DiffScreen))
        await until(pilot, lambda: "1 changed" in shown(app))
        screen = text_of(app)
        assert screen[0].startswith(" - step_10@")
        assert screen[1].startswith(" + step_20@")
        assert "▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓" in shown(app)
        assert "0.2 " in next(line for line in screen if line.startswith("▸ w"))
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)


async def test_d_on_a_live_one_compares_with_the_retired_one_of_its_slot(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await pilot.press("d")
        await until(pilot, lambda: "1 changed" in shown(app))
        assert text_of(app)[0].startswith(" - step_30@")
        assert text_of(app)[1].startswith(" + step_30@")
        assert text_of(app)[0][3:] != text_of(app)[1][3:]


async def test_m_marks_what_others_are_compared_with(run: Path) -> None:
    async with watching(run) as (app, pilot):
        await pilot.press("G", "m")
        assert "is marked: d on another compares them" in said(app)
        await pilot.press("g", "d")
        await until(pilot, lambda: isinstance(app.screen, DiffScreen))
        assert text_of(app)[0].startswith(" - step_10@")
        await until(pilot, lambda: "1 changed" in shown(app))
        await pilot.press("escape", "G", "m")
        assert "none is marked" in said(app)
        await pilot.press("d")
        assert "diff: there is none before it (m marks one to compare with)" in said(app)


async def test_what_is_gone_cannot_be_compared_and_says_so(run: Path) -> None:
    async with watching(run) as (app, pilot):
        app.feed.stop()
        shutil.rmtree(run / "step_10")
        await pilot.press("j", "j", "d")
        await until(pilot, lambda: "✗" in said(app))
        await until(pilot, lambda: "not compared" in shown(app))
        assert app.is_running


# ---- as it looks --------------------------------------------------------------------------------


def form(*shape: int, dtype: str = "BF16") -> Form:
    return Form(dtype, shape)


DIFFERENCE = Difference(
    views.RUN / "step_11000",
    views.RUN / "step_12000",
    changed=(
        Update("layers.3.up", "m", form(64, 32), form(64, 32), 0.1, 4.0, 0.4, math.inf, 0, 3),
        *(
            Update(
                f"layers.{at}.up", "m", form(64, 32), form(64, 32), 0.08 / at, 4.0, 0.3, 0.01 / at
            )
            for at in range(1, 30)
            if at != 3
        ),
    ),
    reshaped=(Reshaped("embed", "m", form(100, 8), form(128, 8)),),
    added=("layers.30.up",),
    removed=("[/]\x1b[31mold",),
    same=("norm.weight", "lm_head.weight"),
    metadata={"optimizer_step": (11_000, 12_000), "settings.lr": (2e-4, None)},
    files={"optimizer.pt": (40, 48)},
    findings=(Finding("nonfinite", Severity.WARNING, "layers.3.up: 3 not finite, 0 before", "m"),),
)


async def test_the_diff_looks_as_it_did() -> None:
    names = [Named(Path(f"runs/exp1:step_{step}@{name}"), views.RUN, views.RUN) for step, name in
             ((11_000, "live"), (12_000, "c41d07"))]  # fmt: skip
    async with running(views.healthy()) as (app, pilot):
        comparing = Comparing(*names)
        comparing.compared = compared_of(DIFFERENCE)
        screen = DiffScreen(comparing)
        await app.push_screen(screen)
        screen.show_work()
        for pane in DiffPane:
            assert screen.pane is pane
            await resize(app, pilot, 120, 40)
            compare(app, f"diff-{pane.name.lower()}-120x40")
            await resize(app, pilot, 80, 24)
            compare(app, f"diff-{pane.name.lower()}-80x24")
            await pilot.press("tab")
        await resize(app, pilot, 40, 10)
        compare(app, "diff-40x10")


async def test_a_diff_speaks_ascii_where_nothing_else_is_shown() -> None:
    named = Named(Path("runs/exp1:step_1@a"), views.RUN, views.RUN)
    async with running(views.healthy(), (80, 24), Options(is_ascii=True)) as (app, pilot):
        comparing = Comparing(named, named, ascii_only=True)
        comparing.compared = compared_of(DIFFERENCE, ascii_only=True)
        screen = DiffScreen(comparing, ascii_only=True)
        await app.push_screen(screen)
        screen.show_work()
        for _ in DiffPane:
            await pilot.pause()
            assert all(line.isascii() for line in text_of(app))
            await pilot.press("tab")


async def test_damage_and_statistics_look_as_they_did() -> None:
    tensors = tuple(
        Tensor(f"layers.{at}.up", "BF16", (64, 32), 4096, "model.safetensors", 0, 4096)
        for at in range(20)
    )
    seen = Checkpoint(
        views.RUN / "step_12000", "astrai", "AstrAI", step=12_000, complete=True,
        files=(LISTED, FileEntry("rng.pt", 5, HASH, listed=True), UNLISTED, UNHASHED),
        tensors=tensors, findings=(PICKLE,),
    )  # fmt: skip
    async with running(views.healthy()) as (app, pilot):
        screen = CheckpointScreen(Named(seen.path, seen.path), "step_12000@c41d07")
        screen.show_run(views.healthy(), views.NOW)
        await app.push_screen(screen)
        screen.post_message(CheckpointScreen.Read(contents_of(seen)))
        await until(pilot, lambda: screen.contents is not None)
        assert screen.pane is Pane.FINDINGS
        await pilot.press("tab")
        for width, height in ((120, 40), (80, 24), (40, 10)):
            await resize(app, pilot, width, height)
            compare(app, f"checkpoint-verified-files-{width}x{height}")
        measuring = Measuring(screen.named)
        measuring.listed = TensorList(tensors, has_stats=True)
        stats = {
            each: TensorStats(2048, 3 if at == 2 else 0, 0, 17, -1.5, 2.25, 0.125, 45.5 + at)
            for at, each in enumerate(tensors[:12])
        }
        measuring.listed.fill(stats, 0)
        measuring.filled = 12
        screen.measuring = measuring
        await pilot.press("tab", "tab", "tab", "o", "o")
        for width, height in ((120, 40), (80, 24), (40, 10)):
            await resize(app, pilot, width, height)
            compare(app, f"checkpoint-statistics-{width}x{height}")


def test_what_a_cache_forgot_is_not_taken_for_all_that_is_hurt() -> None:
    assert Known.from_cache(DAMAGED).hurt == frozenset()
    damage = Damage("m", ((0, 9),), ("a", "b"), 9, 7)
    assert Known((), DAMAGED, is_all=True, damage=(damage,)).hurt == {("m", "a"), ("m", "b")}
