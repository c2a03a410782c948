"""A chart as lines of cells: legend, axes, curves and marks, from decimated series.

Pure: the same scene gives the same lines, so a redraw is a comparison of lines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ckpt.decimate import Columns, Decimation, Extremes
from ckpt.present import integer, loss
from monitor.widgets import chart_canvas as canvas
from monitor.widgets.chart_axes import StepAxis, ValueAxis, step_axis, value_axis
from monitor.widgets.chart_canvas import Glyphs, Grid, Line, Span, Trace

SMALLEST_WIDTH, SMALLEST_HEIGHT = 20, 4
TWO_LINE_AXIS = 9  # from this height on the step axis has its labels on a line of their own
BETWEEN_MARKS = 3  # cells from one checkpoint to the next, so that the curve is seen between them
LABEL_ROOM = 5


@dataclass(frozen=True, slots=True)
class Mark:
    """A generation to be shown on the curve at its step."""

    key: str
    step: int
    is_live: bool = True
    is_selected: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """How the chart is looked at: `weight` is the smoothing (0: none), `cursor` is a step."""

    weight: float = 0.3
    is_log: bool = False
    zoom: int = 0
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a picture is made from; `curve` is named `title`, None when nothing is recorded."""

    curve: Decimation | None
    evaluation: Decimation | None = None
    title: str = "loss"
    marks: Sequence[Mark] = ()
    look: Look = field(default_factory=Look)


@dataclass(frozen=True, slots=True)
class Picture:
    """The lines, and the step axis below the plot (None where there is no plot)."""

    lines: tuple[Line, ...]
    axis: StepAxis | None = None


def draw(scene: Scene, width: int, height: int, glyphs: Glyphs) -> Picture:
    """Draw a scene; a place too small for a chart gets one line of words, never an error."""
    if width < SMALLEST_WIDTH or height < SMALLEST_HEIGHT:
        return Picture(_words(_summary(scene), width, height))
    curves = [curve for curve in (scene.curve, scene.evaluation) if curve and curve.length]
    if not curves:
        return Picture(_words(f" no {scene.title} recorded yet", width, height))
    layout = _Layout(width, height, glyphs)
    plot = _plot(scene, layout)
    labels = [label for _, label in plot.values.ticks]
    needed = max(map(len, labels), default=0)
    if needed > LABEL_ROOM:
        layout = replace(layout, label_room=needed if needed <= width // 2 else 0)
        plot = _plot(scene, layout)
    grid = Grid(width, height)
    _draw_axes(grid, layout, plot)
    levels = _draw_curves(grid, layout, plot, scene)
    shown = _draw_marks(grid, layout, plot.steps, levels, scene)
    _draw_legend(grid, layout, plot, scene, shown)
    return Picture(grid.lines(), plot.steps)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things are: a legend line, the plot right of its labels, one or two axis lines."""

    width: int
    height: int
    glyphs: Glyphs
    label_room: int = LABEL_ROOM

    @property
    def left(self) -> int:
        return self.label_room + 3 if self.label_room else 1

    @property
    def columns(self) -> int:
        return self.width - self.left

    @property
    def rows(self) -> int:
        return self.height - (3 if self.height >= TWO_LINE_AXIS else 2)

    @property
    def dots(self) -> int:
        return self.columns * self.glyphs.dots_x

    @property
    def levels(self) -> int:
        return self.rows * self.glyphs.dots_y


@dataclass(frozen=True, slots=True)
class _Plot:
    """The axes, and the columns of what is drawn on them."""

    steps: StepAxis
    values: ValueAxis
    curve: Columns | None
    evaluation: Columns | None
    note: str | None


def _plot(scene: Scene, layout: _Layout) -> _Plot:
    curves = [curve for curve in (scene.curve, scene.evaluation) if curve and curve.length]
    steps = step_axis(
        min(curve.first_step or 0 for curve in curves),
        max(curve.last_step or 0 for curve in curves),
        layout.dots,
        zoom=scene.look.zoom,
        anchor=scene.look.cursor,
    )
    curve = _columns(scene.curve, steps)
    evaluation = _columns(scene.evaluation, steps)
    drawn = [part for part in (curve, evaluation) if part]
    extremes = [half for columns in drawn for half in (columns.kept, columns.orphaned)]
    values, note = _value_axis(extremes, layout, is_log=scene.look.is_log)
    return _Plot(steps, values, curve, evaluation, note)


def _columns(curve: Decimation | None, steps: StepAxis) -> Columns | None:
    if curve is None or not curve.length:
        return None
    return curve.columns(steps.first, steps.bits, steps.count)


def _value_axis(
    extremes: Sequence[Extremes], layout: _Layout, *, is_log: bool
) -> tuple[ValueAxis, str | None]:
    """Make the axis for what is finite, and the sentence to say of what is not on it."""
    low = min((min(part.lows) for part in extremes), default=math.inf)
    high = max((max(part.highs) for part in extremes), default=-math.inf)
    if low > high:
        return ValueAxis(0.0, 1.0, ()), None
    at_most = layout.glyphs.at_most
    if not is_log or low > 0:
        return value_axis(low, high, layout.rows, is_log=is_log), None
    if high <= 0:
        note = "no value above 0: not a log axis"
        return value_axis(low, high, layout.rows), note
    lowest = min(
        bound for part in extremes for bound in map(_smallest_positive, part.lows, part.highs)
    )
    return (
        value_axis(lowest, high, layout.rows, is_log=True),
        f"values {at_most} 0 are at the bottom of a log axis",
    )


def _smallest_positive(low: float, high: float) -> float:
    """Return a bucket's lowest value that a log axis can show, as far as its extremes tell."""
    if low > 0:
        return low
    return high if high > 0 else math.inf


def _draw_axes(grid: Grid, layout: _Layout, plot: _Plot) -> None:
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


def _draw_curves(grid: Grid, layout: _Layout, plot: _Plot, scene: Scene) -> list[int]:
    """Draw all curves, the surviving line on top; return the dot it passes in each dot column."""
    levels = [-1] * layout.dots
    if plot.curve is not None and scene.curve is not None:
        levels = _draw_curve(grid, layout, plot, scene.curve, scene.look.weight)
    if plot.evaluation is not None:
        part = plot.evaluation.kept
        _draw_points(grid, layout, plot, plot.evaluation.orphaned, canvas.ORPHANED)
        _draw_points(grid, layout, plot, part, canvas.EVALUATION)
        if plot.curve is None:
            levels = Trace(_spans(part, plot, layout), layout.dots).levels
    for columns in (plot.evaluation, plot.curve):
        if columns is not None:
            _draw_nonfinite(grid, layout, plot, columns.orphaned, canvas.ORPHANED)
            _draw_nonfinite(grid, layout, plot, columns.kept, canvas.NONFINITE)
    return levels


def _draw_curve(
    grid: Grid, layout: _Layout, plot: _Plot, curve: Decimation, weight: float
) -> list[int]:
    assert plot.curve is not None
    orphaned = Trace(_orphaned_spans(curve, plot, layout), layout.dots)
    _stamp(grid, layout, orphaned.dotted(), canvas.ORPHANED)
    kept = plot.curve.kept
    trace = Trace(_spans(kept, plot, layout), layout.dots)
    if not weight:
        _stamp(grid, layout, trace.masks, canvas.CURVE)
        return trace.levels
    _stamp(grid, layout, trace.masks, canvas.RAW)
    smooth = Trace(_smooth_spans(curve, kept, plot, layout, weight), layout.dots)
    _stamp(grid, layout, smooth.masks, canvas.CURVE)
    return smooth.levels


def _stamp(grid: Grid, layout: _Layout, masks: Sequence[int], kind: str) -> None:
    grid.stamp(layout.left, masks, layout.rows + 1, layout.glyphs, kind)


def _spans(part: Extremes, plot: _Plot, layout: _Layout) -> Iterator[Span | None]:
    """Yield what each column spans; None where a column has nothing finite: the line breaks."""
    dot, dots, stretch = plot.values.dot, layout.levels, plot.steps.stretch
    for at, (low, high) in enumerate(zip(part.lows, part.highs, strict=True)):
        if low <= high:
            yield at << stretch, dot(low, dots), dot(high, dots)
        elif part.nonfinite[at]:
            yield None


def _smooth_spans(
    curve: Decimation, part: Extremes, plot: _Plot, layout: _Layout, weight: float
) -> Iterator[Span | None]:
    for at, end in enumerate(part.ends):
        value = curve.smoothed(end, weight) if end >= 0 else None
        if value is not None:
            level = plot.values.dot(value, layout.levels)
            yield at << plot.steps.stretch, level, level
        elif part.nonfinite[at]:
            yield None


def _orphaned_spans(curve: Decimation, plot: _Plot, layout: _Layout) -> Iterator[Span | None]:
    """The same of what was overtaken; tails of different segments are not joined."""
    assert plot.curve is not None
    part = plot.curve.orphaned
    segment: int | None = None
    ends = iter([end for end in part.ends if end >= 0])
    for span in _spans(part, plot, layout):
        if span is not None:
            before, segment = segment, curve.series.point(next(ends)).segment
            if before not in (None, segment):
                yield None
        yield span


def _put_at(grid: Grid, layout: _Layout, at: tuple[int, int], char: str, kind: str) -> None:
    """Draw a sign in the cell of a dot (column, level)."""
    column, level = at
    glyphs = layout.glyphs
    row = layout.rows - level // glyphs.dots_y
    grid.put(layout.left + column // glyphs.dots_x, row, char, kind)


def _draw_points(grid: Grid, layout: _Layout, plot: _Plot, part: Extremes, kind: str) -> None:
    char = layout.glyphs.evaluation if kind == canvas.EVALUATION else "-"
    for span in _spans(part, plot, layout):
        if span is not None:
            column, low, high = span
            _put_at(grid, layout, (column, low), char, kind)
            _put_at(grid, layout, (column, high), char, kind)


def _draw_nonfinite(grid: Grid, layout: _Layout, plot: _Plot, part: Extremes, kind: str) -> None:
    for at, is_marked in enumerate(part.nonfinite):
        if is_marked:
            column = at << plot.steps.stretch
            _put_at(grid, layout, (column, layout.levels - 1), layout.glyphs.nonfinite, kind)


def _draw_marks(
    grid: Grid, layout: _Layout, steps: StepAxis, levels: Sequence[int], scene: Scene
) -> frozenset[str]:
    """Draw the generations and the cursor; return the kinds that were drawn.

    Live ones go before retired ones, and some cells of the curve stay free between any two; the
    selected one is always shown. A retired one that would hide another stands above it.
    """
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
            level = min(level + glyphs.dots_y, layout.levels - 1)
        taken[kind].add(cell)
        char = glyphs.live if mark.is_live else glyphs.retired
        _put_at(grid, layout, (dot, level), char, canvas.SELECTED if mark.is_selected else kind)
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


def _draw_legend(
    grid: Grid, layout: _Layout, plot: _Plot, scene: Scene, drawn: frozenset[str]
) -> None:
    """Write what is shown and how; on a narrow screen what explains itself goes first."""
    grid.write(1, 0, scene.title, canvas.TITLE)
    left = f"  {layout.glyphs.curve} {_how(layout.glyphs, plot, scene)}"
    start = 1 + len(scene.title)
    grid.write(start, 0, left, canvas.FAINT)
    grid.put(start + 2, 0, layout.glyphs.curve, canvas.CURVE)
    room = layout.width - start - len(left) - 1
    items = list(_explained(layout.glyphs, plot, drawn))
    while items and sum(len(text) + 2 for text, _ in items) > room:
        items.pop(0)
    at = layout.width + 1 - sum(len(text) + 2 for text, _ in items)
    for text, kind in items:
        grid.write(at, 0, text, canvas.FAINT)
        grid.put(at, 0, text[0], kind)
        at += len(text) + 2


def _how(glyphs: Glyphs, plot: _Plot, scene: Scene) -> str:
    look = scene.look
    parts = ["y log"] if plot.values.is_log else []
    if look.weight and plot.curve is not None:
        parts.append(f"ema {look.weight:g}")
    if plot.steps.zoom:
        parts.append(f"zoom {2**plot.steps.zoom}x")
    if look.cursor is not None:
        parts.append(_reading(glyphs, plot, look.cursor))
    if plot.note is not None:
        parts.append(plot.note)
    return f" {glyphs.dot} ".join(parts)


def _reading(glyphs: Glyphs, plot: _Plot, cursor: int) -> str:
    """Say what was recorded in the cursor's column."""
    columns = plot.curve or plot.evaluation
    at = (cursor >> plot.steps.bits) - plot.steps.first
    where = f"step {integer(cursor)}: "
    if columns is None or not 0 <= at < len(columns.kept):
        return where + "nothing"
    low, high = columns.kept.lows[at], columns.kept.highs[at]
    values = [] if low > high else [loss(low)] if low == high else [loss(low), loss(high)]
    said = [glyphs.until.join(values)] if values else []
    if columns.kept.nonfinite[at]:
        said.append("NaN or inf")
    return where + (", ".join(said) or "nothing")


def _explained(glyphs: Glyphs, plot: _Plot, drawn: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the signs that are in the picture with their words, what explains itself first."""
    columns = [part for part in (plot.curve, plot.evaluation) if part is not None]
    if canvas.LIVE in drawn:
        yield f"{glyphs.live} checkpoint", canvas.LIVE
    if canvas.RETIRED in drawn:
        yield f"{glyphs.retired} retired", canvas.RETIRED
    if plot.evaluation is not None:
        yield f"{glyphs.evaluation} eval", canvas.EVALUATION
    if any(max(part.orphaned.ends, default=-1) >= 0 for part in columns):
        yield "dotted: overtaken", canvas.ORPHANED
    if any(any(part.kept.nonfinite) or any(part.orphaned.nonfinite) for part in columns):
        yield f"{glyphs.nonfinite} NaN/inf", canvas.NONFINITE


def _summary(scene: Scene) -> str:
    """Say the newest value in one line."""
    if scene.curve is None or not scene.curve.length:
        return f" no {scene.title} recorded yet"
    point = scene.curve.series.point(scene.curve.length - 1)
    return f" {scene.title} {loss(point.value)} @ {integer(point.step)}"


def _words(text: str, width: int, height: int) -> tuple[Line, ...]:
    grid = Grid(max(0, width), max(0, height))
    grid.write(0, 0, text, canvas.FAINT)
    return grid.lines()
