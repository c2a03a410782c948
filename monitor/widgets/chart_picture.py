"""A chart as lines of cells: legend, axes, curves and marks, from decimated series.

Pure: the same scene gives the same lines, so a redraw is a comparison of lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckpt.decimate import Decimation, Extremes
from ckpt.present import integer
from monitor.widgets import chart_canvas as canvas
from monitor.widgets.chart_axes import StepAxis
from monitor.widgets.chart_canvas import Glyphs, Grid, Line, Span, Trace
from monitor.widgets.chart_legend import draw_legend, summary
from monitor.widgets.chart_plot import TWO_LINE_AXIS, Mark, Plot, Scene, plot_of

SMALLEST_WIDTH, SMALLEST_HEIGHT = 20, 4
BETWEEN_MARKS = 3  # cells from one checkpoint to the next, so that the curve is seen between them


@dataclass(frozen=True, slots=True)
class Picture:
    """The lines, and the step axis below the plot (None where there is no plot)."""

    lines: tuple[Line, ...]
    axis: StepAxis | None = None


def draw(scene: Scene, width: int, height: int, glyphs: Glyphs) -> Picture:
    """Draw a scene; a place too small for a chart gets one line of words, never an error."""
    if width < SMALLEST_WIDTH or height < SMALLEST_HEIGHT:
        return Picture(_words(summary(scene), width, height))
    if not scene.curves:
        return Picture(_words(f" no {scene.title} recorded yet", width, height))
    plot = plot_of(scene, width, height, glyphs)
    grid = Grid(width, height)
    _draw_axes(grid, plot)
    levels = _draw_curves(grid, plot, scene)
    drawn = _draw_marks(grid, plot, levels, scene)
    draw_legend(grid, plot, scene, drawn)
    return Picture(grid.lines(), plot.steps)


def _draw_axes(grid: Grid, plot: Plot) -> None:
    layout = plot.layout
    glyphs, left = layout.glyphs, layout.left
    for row in range(1, layout.rows + 1):
        grid.put(left - 1, row, glyphs.wall, canvas.FAINT)
    if layout.label_room:
        for value, label in plot.values.ticks:
            level = plot.values.dot(value, layout.levels)
            row = layout.rows - level // glyphs.dots_y
            grid.write(1, row, label.rjust(layout.label_room), canvas.FAINT)
            grid.put(left - 1, row, glyphs.wall_tick, canvas.FAINT)
    floor = layout.rows + 1
    grid.write(left - 1, floor, glyphs.corner + glyphs.floor * layout.columns, canvas.FAINT)
    free = 0
    last = len(integer(plot.steps.stop))
    for step in plot.steps.ticks((last + 3) * glyphs.dots_x):
        column = plot.steps.dot(step) // glyphs.dots_x
        label = integer(step)
        grid.put(left + column, floor, glyphs.floor_tick, canvas.FAINT)
        if layout.height >= TWO_LINE_AXIS:
            start = max(free, min(column - len(label) // 2, layout.columns - len(label)))
            grid.write(left + start, floor + 1, label, canvas.FAINT)
            free = start + len(label) + 1
        elif column + 1 + len(label) <= layout.columns:
            grid.write(left + column + 1, floor, label, canvas.FAINT)


def _draw_curves(grid: Grid, plot: Plot, scene: Scene) -> list[int]:
    """Draw all curves, the surviving line on top; return the dot it passes in each dot column."""
    levels = [-1] * plot.layout.dots
    if plot.curve is not None and scene.curve is not None:
        levels = _draw_curve(grid, plot, scene.curve, scene.look.weight)
    if plot.evaluation is not None:
        part = plot.evaluation.kept
        _draw_points(grid, plot, plot.evaluation.orphaned, canvas.ORPHANED)
        _draw_points(grid, plot, part, canvas.EVALUATION)
        if plot.curve is None:
            levels = Trace(_spans(part, plot), plot.layout.dots).levels
    for columns in (plot.evaluation, plot.curve):
        if columns is not None:
            _draw_nonfinite(grid, plot, columns.orphaned, canvas.ORPHANED)
            _draw_nonfinite(grid, plot, columns.kept, canvas.NONFINITE)
    return levels


def _draw_curve(grid: Grid, plot: Plot, curve: Decimation, weight: float) -> list[int]:
    assert plot.curve is not None
    if any(end >= 0 for end in plot.curve.orphaned.ends):
        orphaned = Trace(_orphaned_spans(curve, plot), plot.layout.dots)
        _stamp(grid, plot, orphaned.dotted(), canvas.ORPHANED)
    kept = plot.curve.kept
    trace = Trace(_spans(kept, plot), plot.layout.dots)
    if not weight:
        _stamp(grid, plot, trace.masks, canvas.CURVE)
        return trace.levels
    _stamp(grid, plot, trace.masks, canvas.RAW)
    smooth = Trace(_smooth_spans(curve, kept, plot, weight), plot.layout.dots)
    _stamp(grid, plot, smooth.masks, canvas.CURVE)
    return smooth.levels


def _stamp(grid: Grid, plot: Plot, masks: Sequence[int], kind: str) -> None:
    layout = plot.layout
    grid.stamp(layout.left, masks, layout.rows + 1, layout.glyphs, kind)


def _spans(part: Extremes, plot: Plot) -> Iterator[Span | None]:
    """Yield what each column spans; None where a column has nothing finite: the line breaks."""
    dot, stretch = plot.values.placing(plot.layout.levels), plot.steps.stretch
    for at, (low, high) in enumerate(zip(part.lows, part.highs, strict=True)):
        if low <= high:
            yield at << stretch, dot(low), dot(high)
        elif part.nonfinite[at]:
            yield None


def _smooth_spans(
    curve: Decimation, part: Extremes, plot: Plot, weight: float
) -> Iterator[Span | None]:
    dot, stretch = plot.values.placing(plot.layout.levels), plot.steps.stretch
    for at, end in enumerate(part.ends):
        value = curve.smoothed(end, weight) if end >= 0 else None
        if value is not None:
            level = dot(value)
            yield at << stretch, level, level
        elif part.nonfinite[at]:
            yield None


def _orphaned_spans(curve: Decimation, plot: Plot) -> Iterator[Span | None]:
    """The same of what was overtaken; tails of different segments are not joined."""
    assert plot.curve is not None
    part = plot.curve.orphaned
    segment: int | None = None
    ends = iter([end for end in part.ends if end >= 0])
    for span in _spans(part, plot):
        if span is not None:
            before, segment = segment, curve.series.point(next(ends)).segment
            if before not in (None, segment):
                yield None
        yield span


def _put_at(grid: Grid, plot: Plot, at: tuple[int, int], char: str, kind: str) -> None:
    """Draw a sign in the cell of a dot (column, level)."""
    column, level = at
    layout = plot.layout
    glyphs = layout.glyphs
    row = layout.rows - level // glyphs.dots_y
    grid.put(layout.left + column // glyphs.dots_x, row, char, kind)


def _draw_points(grid: Grid, plot: Plot, part: Extremes, kind: str) -> None:
    char = plot.layout.glyphs.evaluation if kind == canvas.EVALUATION else "-"
    for span in _spans(part, plot):
        if span is not None:
            column, low, high = span
            _put_at(grid, plot, (column, low), char, kind)
            _put_at(grid, plot, (column, high), char, kind)


def _draw_nonfinite(grid: Grid, plot: Plot, part: Extremes, kind: str) -> None:
    for at, is_marked in enumerate(part.nonfinite):
        if is_marked:
            column = at << plot.steps.stretch
            _put_at(
                grid, plot, (column, plot.layout.levels - 1), plot.layout.glyphs.nonfinite, kind
            )


def _draw_marks(grid: Grid, plot: Plot, levels: Sequence[int], scene: Scene) -> frozenset[str]:
    """Draw the generations and the cursor; return the kinds that were drawn.

    Live ones go before retired ones, and some cells of the curve stay free between any two; the
    selected one is always shown. A retired one that would hide another stands above it,
    in the top line below it.
    """
    layout, steps = plot.layout, plot.steps
    glyphs = layout.glyphs
    taken: dict[str, set[int]] = {canvas.LIVE: set(), canvas.RETIRED: set()}
    for mark in sorted(scene.marks, key=_rank):
        kind = canvas.LIVE if mark.is_live else canvas.RETIRED
        dot = steps.dot(mark.step)
        cell = dot // glyphs.dots_x
        near = range(cell - BETWEEN_MARKS + 1, cell + BETWEEN_MARKS)
        if not 0 <= dot < layout.dots or not taken[kind].isdisjoint(near):
            continue
        level = _level_near(levels, dot)
        if any(cell in cells for cells in taken.values()):
            above = level + glyphs.dots_y
            level = above if above < layout.levels else level - glyphs.dots_y
        taken[kind].add(cell)
        char = glyphs.live if mark.is_live else glyphs.retired
        _put_at(grid, plot, (dot, level), char, canvas.SELECTED if mark.is_selected else kind)
    if scene.look.cursor is not None:
        column = steps.dot(scene.look.cursor) // glyphs.dots_x
        if 0 <= column < layout.columns:
            grid.put(layout.left + column, layout.rows + 1, glyphs.cursor, canvas.CURSOR)
    return frozenset(kind for kind, cells in taken.items() if cells)


def _rank(mark: Mark) -> tuple[bool, bool, int]:
    return not mark.is_selected, not mark.is_live, mark.step


def _level_near(levels: Sequence[int], dot: int) -> int:
    """Return where the curve passes a dot column, or the nearest one before, else after it."""
    before = next((level for level in reversed(levels[: dot + 1]) if level >= 0), None)
    if before is not None:
        return before
    return next((level for level in levels[dot:] if level >= 0), 0)


def _words(text: str, width: int, height: int) -> tuple[Line, ...]:
    grid = Grid(max(0, width), max(0, height))
    grid.write(0, 0, text, canvas.FAINT)
    return grid.lines()
