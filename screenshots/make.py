"""Make the README's pictures from a real demo run: python screenshots/make.py (about two minutes).

Trains the demo in a temporary directory, verifies two of its checkpoints, opens the app on it at
each size and writes what is on the screen as SVG beside this file.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from ckpt.generations import verify_in_run
from ckpt.operation import drive
from monitor import demo
from monitor.app import MonitorApp
from monitor.options import Options

HERE = Path(__file__).parent
SHOWN_STEP = 3900
LIMIT_S = 180


async def wait_for(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the demo did not get that far")
        await pilot.pause(0.2)


async def picture(run: Path, name: str, size: tuple[int, int], keys: tuple[str, ...] = ()) -> None:
    app = MonitorApp(run, Options())
    async with app.run_test(size=size) as pilot:
        await wait_for(pilot, lambda: app.shown is not None and app.shown.view.step is not None)
        await wait_for(pilot, lambda: app.shown.view.points > 0 and bool(app.shown.view.slots))
        await wait_for(pilot, lambda: app.shown.view.watching.mode == "events")
        await pilot.press(*keys)
        await pilot.pause(1)
        (HERE / name).write_text(app.export_screenshot(title="ckpt-monitor"))
    print(name)


async def all_pictures(run: Path) -> None:
    await picture(run, "dashboard.svg", (120, 40))
    await picture(run, "dashboard-80x24.svg", (80, 24))
    await picture(run, "checkpoint.svg", (80, 24), ("enter", "tab"))
    await picture(run, "plan.svg", (80, 24), ("j", "j", "r"))


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        with demo.running(Path("runs/exp1")) as run:
            while max(saved_steps(run), default=0) < SHOWN_STEP:
                time.sleep(0.5)
            for path in sorted(run.glob("epoch_*"), key=step_of)[-3:-1]:
                drive(verify_in_run(path))
            asyncio.run(all_pictures(run))


def step_of(path: Path) -> int:
    return int(path.name.rsplit("_", 1)[1])


def saved_steps(run: Path) -> list[int]:
    return [step_of(path) for path in run.glob("epoch_*")]


if __name__ == "__main__":
    main()
