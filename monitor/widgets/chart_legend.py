"""The words of a chart: its legend line, what the cursor reads, and the line of a tiny chart."""

from collections.abc import Iterator

from ckpt.present import integer, loss
from monitor.widgets import chart_canvas as canvas
from monitor.widgets.chart_canvas import Grid
from monitor.widgets.chart_plot import Plot, Scene


def draw_legend(grid: Grid, plot: Plot, scene: Scene, drawn: frozenset[str]) -> None:
    """Write what is shown and how; on a narrow screen what explains itself goes first."""
    glyphs = plot.layout.glyphs
    grid.write(1, 0, scene.title, canvas.TITLE)
    left = f"  {glyphs.curve} {_how(plot, scene)}"
    start = 1 + len(scene.title)
    grid.write(start, 0, left, canvas.FAINT)
    grid.put(start + 2, 0, glyphs.curve, canvas.CURVE)
    room = grid.width - start - len(left) - 1
    items = list(_explained(plot, drawn))
    while items and sum(len(text) + 2 for text, _ in items) > room:
        items.pop(0)
    at = grid.width + 1 - sum(len(text) + 2 for text, _ in items)
    for text, kind in items:
        grid.write(at, 0, text, canvas.FAINT)
        grid.put(at, 0, text[0], kind)
        at += len(text) + 2


def _how(plot: Plot, scene: Scene) -> str:
    look = scene.look
    parts = ["y log"] if plot.values.is_log else []
    if look.weight and plot.curve is not None:
        parts.append(f"ema {look.weight:g}")
    if plot.steps.zoom:
        parts.append(f"zoom {2**plot.steps.zoom}x")
    if look.cursor is not None:
        parts.append(_reading(plot, look.cursor))
    if plot.note is not None:
        parts.append(plot.note)
    return f" {plot.layout.glyphs.dot} ".join(parts)


def _reading(plot: Plot, cursor: int) -> str:
    """Say what was recorded in the cursor's column."""
    columns = plot.curve or plot.evaluation
    at = (cursor >> plot.steps.bits) - plot.steps.first
    where = f"step {integer(cursor)}: "
    if columns is None or not 0 <= at < len(columns.kept):
        return where + "nothing"
    low, high = columns.kept.lows[at], columns.kept.highs[at]
    values = [] if low > high else [loss(low)] if low == high else [loss(low), loss(high)]
    said = [plot.layout.glyphs.until.join(values)] if values else []
    if columns.kept.nonfinite[at]:
        said.append("NaN or inf")
    return where + (", ".join(said) or "nothing")


def _explained(plot: Plot, drawn: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the signs that are in the picture with their words, what explains itself first."""
    glyphs = plot.layout.glyphs
    if canvas.LIVE in drawn:
        yield f"{glyphs.live} checkpoint", canvas.LIVE
    if canvas.RETIRED in drawn:
        yield f"{glyphs.retired} retired", canvas.RETIRED
    if plot.evaluation is not None:
        yield f"{glyphs.evaluation} eval", canvas.EVALUATION
    if any(max(part.orphaned.ends, default=-1) >= 0 for part in plot.drawn):
        yield "dotted: overtaken", canvas.ORPHANED
    if any(any(part.kept.nonfinite) or any(part.orphaned.nonfinite) for part in plot.drawn):
        yield f"{glyphs.nonfinite} NaN/inf", canvas.NONFINITE


def summary(scene: Scene) -> str:
    """Say the newest value in one line."""
    if scene.curve is None or not scene.curve.length:
        return f" no {scene.title} recorded yet"
    point = scene.curve.series.point(scene.curve.length - 1)
    return f" {scene.title} {loss(point.value)} @ {integer(point.step)}"
