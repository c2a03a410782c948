"""What a chart shows and where: the scene, the layout, and the axes with what is on them.

Pure. A plot is made anew for each picture, from columns that are kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ckpt.decimate import Columns, Decimation, Extremes
from monitor.widgets.chart_axes import StepAxis, ValueAxis, step_axis, value_axis
from monitor.widgets.chart_canvas import Glyphs

TWO_LINE_AXIS = 9  # from this height on the step axis has its labels on a line of their own
LABEL_ROOM = 5  # so wide that the plot rarely moves when a label changes


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

    @property
    def curves(self) -> list[Decimation]:
        """The curves that have a point."""
        return [curve for curve in (self.curve, self.evaluation) if curve and curve.length]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: a legend line, the plot right of its labels, one or two axis lines."""

    width: int
    height: int
    glyphs: Glyphs
    label_room: int = LABEL_ROOM

    @property
    def left(self) -> int:
        """The first cell column of the plot."""
        return self.label_room + 3 if self.label_room else 1

    @property
    def columns(self) -> int:
        """Cell columns of the plot."""
        return self.width - self.left

    @property
    def rows(self) -> int:
        """Lines of the plot."""
        return self.height - (3 if self.height >= TWO_LINE_AXIS else 2)

    @property
    def dots(self) -> int:
        """Dot columns of the plot."""
        return self.columns * self.glyphs.dots_x

    @property
    def levels(self) -> int:
        """Dots from the bottom to the top of the plot."""
        return self.rows * self.glyphs.dots_y


@dataclass(frozen=True, slots=True)
class Plot:
    """The axes, and the columns of what is drawn on them; `note` is what must be said of it."""

    layout: Layout
    steps: StepAxis
    values: ValueAxis
    curve: Columns | None
    evaluation: Columns | None
    note: str | None

    @property
    def drawn(self) -> list[Columns]:
        """The columns of all curves."""
        return [part for part in (self.curve, self.evaluation) if part is not None]


def plot_of(scene: Scene, width: int, height: int, glyphs: Glyphs) -> Plot:
    """Make the plot of a scene that has a curve; labels take more room where they need it."""
    layout = Layout(width, height, glyphs)
    plot = _laid_out(scene, layout)
    needed = max((len(label) for _, label in plot.values.ticks), default=0)
    if needed <= LABEL_ROOM:
        return plot
    return _laid_out(scene, replace(layout, label_room=needed if needed <= width // 2 else 0))


def _laid_out(scene: Scene, layout: Layout) -> Plot:
    steps = step_axis(
        min(curve.first_step or 0 for curve in scene.curves),
        max(curve.last_step or 0 for curve in scene.curves),
        layout.dots,
        zoom=scene.look.zoom,
        anchor=scene.look.cursor,
    )
    curve, evaluation = _columns(scene.curve, steps), _columns(scene.evaluation, steps)
    extremes = [
        half for part in (curve, evaluation) if part for half in (part.kept, part.orphaned)
    ]
    values, note = _value_axis(extremes, layout, is_log=scene.look.is_log)
    return Plot(layout, steps, values, curve, evaluation, note)


def _columns(curve: Decimation | None, steps: StepAxis) -> Columns | None:
    if curve is None or not curve.length:
        return None
    return curve.columns(steps.first, steps.bits, steps.count)


def _value_axis(
    extremes: Sequence[Extremes], layout: Layout, *, is_log: bool
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
