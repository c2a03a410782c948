"""The chart: a redraw after one more point, and what two updates a second cost on the wire."""

import asyncio
import fcntl
import gc
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from frame import Row, seconds
from rich.console import RenderableType
from textual.app import App, ComposeResult
from textual.screen import Screen

from ckpt.decimate import Decimation
from ckpt.series import Series
from ckpt.view import RunView
from monitor.spans import exact
from monitor.widgets.loss_chart import LossChart

WIDE = (200, 48)
USUAL = (120, 40)
UPDATES_PER_S = 2
POINTS_PER_UPDATE = 3
BEGIN, END = "\x1b]2;begin\x07", "\x1b]2;end {:.6f}\x07"


def noisy(count: int) -> Series:
    series = Series()
    rng = random.Random(7)
    for step in range(count):
        series.append(
            0, step, float(step), 1.7 + 1.4 * math.exp(-3 * step / count) + rng.gauss(0, 0.02)
        )
    return series


def view_of(series: Series) -> RunView:
    return RunView(run=Path("run"), series={"loss": series.view()})


class ChartApp(App[None]):
    """A chart and nothing else."""

    CSS = "Screen { background: ansi_default; }"

    def __init__(self) -> None:
        super().__init__(ansi_color=True)
        self.chart = LossChart()

    def compose(self) -> ComposeResult:
        yield self.chart


async def redraws(series: Series, size: tuple[int, int], rounds: int) -> tuple[float, float]:
    """Median seconds of a redraw with every strip made anew: columns kept, and computed anew."""
    app = ChartApp()
    kept, anew = [], []
    async with app.run_test(size=size) as pilot:
        chart = app.chart
        chart.show(view_of(series))
        await pilot.pause()
        for _ in range(rounds):
            for times in (kept, anew):
                series.append(0, len(series), 0.0, 1.7)
                view = view_of(series)
                if times is anew:
                    chart._decimations.clear()
                chart._strips = [None] * size[1]
                gc.collect()
                start = time.perf_counter()
                chart.show(view)
                strips = [chart.render_line(y) for y in range(size[1])]
                times.append(time.perf_counter() - start)
                assert len(strips) == size[1]
    return statistics.median(kept), statistics.median(anew)


class Updated(ChartApp):
    """Takes two updates a second; tells between two titles what they cost."""

    def __init__(self, mode: str, duration_s: float, points: int) -> None:
        super().__init__()
        self.mode = mode
        self.duration_s = duration_s
        self.series = noisy(points)

    def _display(self, screen: Screen[None], renderable: RenderableType | None) -> None:
        super()._display(screen, exact(renderable) if self.mode == "spans" else renderable)

    def on_mount(self) -> None:
        self.chart.show(view_of(self.series))
        self.set_timer(1.0, self.begin)

    def begin(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()
        assert self._driver is not None
        self._driver.write(BEGIN)
        self.set_interval(1 / UPDATES_PER_S, self.update)
        self.set_timer(self.duration_s, self.finish)

    def update(self) -> None:
        for _ in range(POINTS_PER_UPDATE):
            step = len(self.series)
            self.series.append(0, step, 0.0, 1.77 + 0.02 * math.sin(step * 1.7))
        self.chart.show(view_of(self.series))
        if self.mode == "whole":
            self.chart.refresh()

    def finish(self) -> None:
        share = (time.process_time() - self.cpu) / (time.perf_counter() - self.wall)
        assert self._driver is not None
        self._driver.write(END.format(share))
        self.set_timer(0.2, self.exit)


def on_a_terminal(mode: str, duration_s: float, points: int) -> tuple[float, float]:
    """Bytes a second and percent of a core of `Updated` in a real pty."""
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", USUAL[1], USUAL[0], 0, 0))
    settings = {"TERM": "xterm-256color", "TEXTUAL_FPS": "10", "TEXTUAL_ANIMATIONS": "none"}
    child = subprocess.Popen(
        [sys.executable, __file__, mode, str(duration_s), str(points)],
        stdin=side, stdout=side, stderr=side, start_new_session=True,
        env={**os.environ, **settings},
    )  # fmt: skip
    os.close(side)
    sent = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:
            break
        if not part:
            break
        sent += part
    os.close(main)
    child.wait()
    found = re.search(rb"\x1b\]2;begin\x07(.*?)\x1b\]2;end ([\d.]+)\x07", sent, re.DOTALL)
    assert found is not None, sent[-2000:].decode(errors="replace")
    return len(found[1]) / duration_s, 100 * float(found[2])


def run(quick: bool) -> list[Row]:
    rows = []
    rounds = 5 if quick else 15
    for count, bar in ((50_000, 15.0), (1_000_000, 50.0)):
        series = noisy(count)
        kept, anew = asyncio.run(redraws(series, WIDE, rounds))
        note = f"columns computed anew: {anew * 1e3:.0f} ms"
        rows.append(
            Row(f"redraw of {count:,} points at 200x48", kept * 1e3, None, bar, "ms", note)
        )
    decimation = Decimation(series)
    first = seconds(lambda: decimation.extend(len(series)))
    summed = seconds(lambda: [series.point(at).value for at in range(0, len(series), 10)]) * 10
    rows.append(Row("first pass over a million, vs reading each point", first, summed, 0.5, "s"))
    held = sum(
        part.__sizeof__()
        for side in (decimation.kept, decimation.orphaned)
        for part in (side.lows, side.highs, side.ends, side.nonfinite)
    )
    a_point = (series.size_bytes + held) / len(series)
    rows.append(Row("memory with the columns", a_point, None, 21.0, "bytes a point"))
    duration_s = 4.0 if quick else 10.0
    wire, share = on_a_terminal("spans", duration_s, 3000)
    left, _ = on_a_terminal("textual", duration_s, 3000)
    whole, whole_share = on_a_terminal("whole", duration_s, 3000)
    note = f"spans by Textual alone {left:.0f}, whole refresh {whole:.0f}"
    rows.append(Row("two updates a second at 120x40", wire, None, 1500, "bytes/s", note))
    note = f"whole refresh {whole_share:.2f} %"
    rows.append(Row("the same, of a core", share, None, 2.0, "%", note))
    return rows


if __name__ == "__main__":
    Updated(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])).run()
