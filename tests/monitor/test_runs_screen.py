"""A directory that holds several runs: choose one, look at it, go back."""

import shutil
from pathlib import Path

import pytest
import views
from screens import StillFeed, send, text_of, until

from ckpt.errors import NoSuchRun
from ckpt.view import RunView
from monitor.app import MonitorApp
from monitor.options import Options
from monitor.plain import follow
from monitor.screens.dashboard import DashboardScreen
from monitor.screens.runs import RunsScreen


def make_run(directory: Path, name: str, step: int) -> None:
    (directory / name).mkdir()
    (directory / name / "training_state.json").write_text(views.state_file(step))


async def test_a_run_is_chosen_from_the_list_and_esc_goes_back_to_it(tmp_path: Path) -> None:
    make_run(tmp_path, "[first]", 11)
    make_run(tmp_path, "second", 22)
    app = MonitorApp(tmp_path, Options(is_read_only=True))
    app.feed = StillFeed()  # type: ignore[assignment]  # it only starts and stops
    async with app.run_test(size=(80, 24)) as pilot:
        await send(app, pilot, RunView(run=tmp_path))
        await until(pilot, lambda: "second" in "\n".join(text_of(app)))
        assert isinstance(app.screen, RunsScreen)
        assert any("[first]" in line and "11" in line for line in text_of(app))
        await pilot.press("slash", *"first", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        assert app.run_dir == tmp_path / "[first]"
        assert "[first]" in text_of(app)[0]
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))


async def test_the_facts_of_several_runs_never_meet_in_one_view(
    golden: Path, tmp_path: Path
) -> None:
    shutil.copytree(golden / "astrai/run_real/tree/exp1", tmp_path / "a")
    shutil.copytree(golden / "kt_full/hf_run/tree/exp1", tmp_path / "b")
    app = MonitorApp(tmp_path, Options(is_read_only=True))
    shown: list[object] = []
    app.watch(app, "shown", shown.append, init=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await until(pilot, lambda: any("finished" in line for line in text_of(app)))
    assert shown == []


async def test_a_run_itself_is_opened_at_once(tmp_path: Path) -> None:
    make_run(tmp_path, "run", 11)
    app = MonitorApp(tmp_path / "run", Options(is_read_only=True))
    app.feed = StillFeed()  # type: ignore[assignment]  # it only starts and stops
    async with app.run_test(size=(80, 24)) as pilot:
        await send(app, pilot, RunView(run=tmp_path / "run"))
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)


def test_plain_lines_are_of_one_run(tmp_path: Path) -> None:
    make_run(tmp_path, "a", 11)
    make_run(tmp_path, "b", 22)
    with pytest.raises(NoSuchRun, match="a directory of 2 runs, expected one run"):
        follow(tmp_path, Options(is_read_only=True))
