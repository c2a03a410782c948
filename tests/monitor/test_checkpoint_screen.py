"""One checkpoint on the screen: its panes, damage in words, a hundred thousand tensors."""

from pathlib import Path

import pytest
import views
from screens import compare, resize, running, text_of, until
from textual.pilot import Pilot

from ckpt.checkpoint import Checkpoint, FileEntry, Finding, Severity, Tensor
from ckpt.named import Named
from monitor.app import MonitorApp
from monitor.options import Options
from monitor.screens.checkpoint import CheckpointScreen, Contents, Pane, contents_of
from monitor.screens.dashboard import DashboardScreen


def tensor(at: int, name: str | None = None) -> Tensor:
    name = name or f"layers.{at}.up_proj.weight"
    return Tensor(name, "BF16", (14336, 4096), 117_440_512, "model.safetensors", 0, 117_440_512)


def checkpoint(**more: object) -> Checkpoint:
    values: dict[str, object] = {
        "path": views.RUN / "step_12000",
        "format": "astrai",
        "format_label": "AstrAI",
        "step": 12_000,
        "loss": 1.8355,
        "complete": True,
        "files": (
            FileEntry("manifest.json", 812, listed=None),
            FileEntry("model.safetensors", 1_234_567_890, "ab" * 32, listed=True),
            FileEntry("optimizer.safetensors", 2_469_135_780, "cd" * 32, listed=True),
        ),
        "tensors": tuple(tensor(at) for at in range(12)),
        "metadata": {"optimizer_step": 12_000, "config": {"lr": 2e-4, "name": "[/data/x]"}},
        "settings": {"rank": 16, "targets": ["q_proj", "v_proj"]},
        **more,
    }
    return Checkpoint(**values)  # type: ignore[arg-type]


DAMAGED = checkpoint(
    complete=False,
    findings=(
        views.DAMAGE,
        Finding("unlisted-file", Severity.WARNING, "notes\x1b[31m.txt: no list names it"),
    ),
    files=(
        FileEntry("model.safetensors", 40, "ab" * 32, listed=True),
        FileEntry("meta.json", None, listed=True),
        FileEntry("notes\x1b[31m.txt", 5, listed=False),
    ),
)


async def show(app: MonitorApp, pilot: Pilot[None], contents: Contents) -> CheckpointScreen:
    path = views.RUN / "step_12000"
    screen = CheckpointScreen(Named(path, path), ascii_only=app.options.is_ascii)
    await app.push_screen(screen)
    screen.post_message(CheckpointScreen.Read(contents))
    await until(pilot, lambda: screen.contents is contents)
    await pilot.pause()
    return screen


@pytest.mark.parametrize("state", ["healthy", "damaged"])
async def test_every_pane_looks_as_it_did(state: str) -> None:
    contents = contents_of(checkpoint() if state == "healthy" else DAMAGED)
    async with running(views.healthy()) as (app, pilot):
        screen = await show(app, pilot, contents)
        for _ in Pane:
            await resize(app, pilot, 120, 40)
            compare(app, f"checkpoint-{state}-{screen.pane}-120x40")
            await resize(app, pilot, 80, 24)
            compare(app, f"checkpoint-{state}-{screen.pane}-80x24")
            await pilot.press("tab")


async def test_findings_are_shown_first_where_there_are_any() -> None:
    async with running(views.healthy()) as (app, pilot):
        assert (await show(app, pilot, contents_of(DAMAGED))).pane is Pane.FINDINGS


async def test_panes_turn_both_ways_and_esc_goes_back() -> None:
    async with running(views.healthy()) as (app, pilot):
        screen = await show(app, pilot, contents_of(checkpoint()))
        assert screen.pane is Pane.FILES
        await pilot.press("tab")
        assert screen.pane is Pane.TENSORS
        await pilot.press("shift+tab", "shift+tab")
        assert screen.pane is Pane.FINDINGS
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)


async def test_ascii_where_nothing_else_is_shown() -> None:
    async with running(views.healthy(), options=Options(is_ascii=True)) as (app, pilot):
        await show(app, pilot, contents_of(checkpoint(), ascii_only=True))
        for _ in Pane:
            assert all(line.isascii() for line in text_of(app))
            await pilot.press("tab")


async def test_a_hundred_thousand_tensors_answer_keys_and_filter() -> None:
    many = checkpoint(tensors=tuple(tensor(at) for at in range(100_000)))
    async with running(views.healthy(), (80, 24)) as (app, pilot):
        screen = await show(app, pilot, contents_of(many))
        await pilot.press("tab", "G")
        assert any(line.startswith("▸ layers.99999.up_proj.weight") for line in text_of(app))
        await pilot.press("slash", *"9999")
        await until(pilot, lambda: screen.table.row_count == 19)
        await pilot.press("escape", "g")
        assert any(line.startswith("▸ layers.0.up_proj.weight") for line in text_of(app))


@pytest.mark.parametrize(
    "name", ["[/]", "\x1b[31mred", "two\nlines", "\u202egnp", "\udcff", "名" * 90]
)
async def test_a_tensor_name_is_shown_letter_for_letter_in_one_row(name: str) -> None:
    hostile = checkpoint(tensors=(tensor(0, name), tensor(1)))
    async with running(views.healthy(), (80, 24)) as (app, pilot):
        await show(app, pilot, contents_of(hostile))
        await pilot.press("tab")
        rows = text_of(app)
        shown = next(line for line in rows if line.startswith("▸"))
        expected = {
            "[/]": "[/]",
            "\x1b[31mred": r"\x1b[31mred",
            "two\nlines": r"two\nlines",
            "\u202egnp": r"\u202egnp",
            "\udcff": r"\xff",
            "名" * 90: "名" * 10,
        }[name]
        assert expected in shown
        assert len(rows) == 24


async def test_one_of_the_real_samples_is_read_and_shown(golden: Path) -> None:
    run = golden / "astrai" / "run_real" / "tree" / "exp1"
    path = next(p for p in sorted(run.iterdir()) if p.is_dir() and not p.name.startswith("."))
    async with running(views.healthy()) as (app, pilot):
        app.open_checkpoint(path)
        screen = app.screen
        assert isinstance(screen, CheckpointScreen)
        await until(pilot, lambda: screen.contents is not None)
        await until(pilot, lambda: "AstrAI" in "\n".join(text_of(app)))
        assert "model.safetensors" in "\n".join(text_of(app))


async def test_a_torn_file_is_a_finding_on_the_screen(golden: Path) -> None:
    path = golden / "kt_full" / "bad_index_truncated" / "tree"
    async with running(views.healthy()) as (app, pilot):
        app.open_checkpoint(next(path.rglob("*.index.json")).parent)
        screen = app.screen
        assert isinstance(screen, CheckpointScreen)
        await until(pilot, lambda: screen.contents is not None)
        await until(pilot, lambda: screen.pane is Pane.FINDINGS)
        assert "bad-index" in "\n".join(text_of(app))


async def test_a_path_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    async with running(views.healthy()) as (app, pilot):
        app.open_checkpoint(tmp_path / "nothing")
        await until(pilot, lambda: "✗" in "\n".join(text_of(app)))
        assert app.is_running
        await pilot.press("tab", "y", "slash", "x", "escape", "escape")
        assert isinstance(app.screen, DashboardScreen)
