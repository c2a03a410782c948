"""Running the app on hand-made views, waiting for conditions, and comparing screens as text.

`REWRITE_SCREENS=1 pytest tests/monitor` writes the goldens in tests/data/screens anew: look at
them (they are plain text) before you commit them.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import views
from textual.pilot import Pilot

from ckpt.view import RunView
from monitor.app import MonitorApp, RunUpdated
from monitor.feed import Shown
from monitor.options import Options

GOLDENS = Path(__file__).parent / "data" / "screens"


class StillFeed:
    """A feed that reads nothing: the test itself sends the views."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def look_again(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def running(
    view: RunView | None = None,
    size: tuple[int, int] = (120, 40),
    options: Options | None = None,
    run: Path = views.RUN,
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    """Run the app on a view; the first paint is over when the body begins."""
    app = MonitorApp(run, options or Options())
    app.feed = StillFeed()  # type: ignore[assignment]  # it only starts and stops
    async with app.run_test(size=size) as pilot:
        if view is not None:
            await send(app, pilot, view)
        yield app, pilot


async def send(app: MonitorApp, pilot: Pilot[None], view: RunView, now: float = views.NOW) -> None:
    """Hand the app a view as the feed would, and let it paint."""
    app.post_message(RunUpdated(Shown(view, now)))
    await until(pilot, lambda: app.shown is not None and app.shown.view is view)
    await pilot.pause()


@asynccontextmanager
async def watching(
    run: Path, size: tuple[int, int] = (120, 30), **options: bool
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    """The app on a run on disk, once its checkpoints are on the screen."""
    app = MonitorApp(run, Options(poll_s=0.1, **options))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.shown is not None and app.shown.view.journal is not None)
        await pilot.pause()
        yield app, pilot


async def until(pilot: Pilot[None], condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)
        await pilot.pause()


async def resize(app: MonitorApp, pilot: Pilot[None], width: int, height: int) -> None:
    """Make the window another size, and wait until it is painted."""
    await pilot.resize_terminal(width, height)
    await until(pilot, lambda: app.screen.size == (width, height))


def text_of(app: MonitorApp) -> list[str]:
    """The screen as lines of text, without what is blank at their ends."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def compare(app: MonitorApp, name: str) -> None:
    """Compare the screen with a golden."""
    golden = GOLDENS / f"{name}.txt"
    shown = "\n".join(text_of(app)) + "\n"
    if os.environ.get("REWRITE_SCREENS"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(shown, encoding="utf-8")
        return
    assert golden.is_file(), f"{golden.name} is not there: REWRITE_SCREENS=1 writes it"
    assert shown == golden.read_text(encoding="utf-8")
