"""The loss curve: our own chart, because a run's news is NaN, spikes and what a resume overtook.

It receives views and never reads a file. What it shows is a picture of lines; of a new picture
only the spans that differ are repainted, because a refreshed region is sent whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ckpt.checkpoint import State
from ckpt.decimate import Decimation
from ckpt.view import RunView
from monitor.widgets import chart_canvas as canvas
from monitor.widgets.chart_canvas import ASCII, BRAILLE, Glyphs, Line
from monitor.widgets.chart_picture import Picture, draw
from monitor.widgets.chart_plot import Look, Mark, Scene
from monitor.widgets.painted import joined

SMOOTHING = (0.0, 0.3, 0.9)

_CURVES = {"loss": "loss", "best_loss": "best loss"}  # the first that is there is drawn
_KINDS = {
    canvas.FAINT: "faint",
    canvas.TITLE: "title",
    canvas.CURVE: "curve",
    canvas.RAW: "raw",
    canvas.ORPHANED: "orphaned",
    canvas.EVALUATION: "evaluation",
    canvas.LIVE: "live",
    canvas.RETIRED: "retired",
    canvas.SELECTED: "selected",
    canvas.NONFINITE: "nonfinite",
    canvas.CURSOR: "cursor",
}


class LossChart(Widget):
    """Training and evaluation loss over the steps, with the generations on the curve."""

    DEFAULT_CSS = """
    LossChart {
        height: 1fr;
        & > .loss-chart--faint, & > .loss-chart--raw, & > .loss-chart--orphaned {
            text-style: dim;
        }
        & > .loss-chart--title { text-style: bold; }
        & > .loss-chart--curve { color: ansi_cyan; }
        & > .loss-chart--evaluation { color: ansi_magenta; }
        & > .loss-chart--live { color: ansi_green; text-style: bold; }
        & > .loss-chart--retired { color: ansi_yellow; }
        & > .loss-chart--selected { text-style: bold reverse; }
        & > .loss-chart--nonfinite { color: ansi_red; text-style: bold; }
        & > .loss-chart--cursor { text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"loss-chart--{name}" for name in _KINDS.values()}
    ALLOW_SELECT = False

    class Picked(Message):
        """The cursor moved, and `key` is the generation nearest to it."""

        def __init__(self, key: str, step: int) -> None:
            super().__init__()
            self.key = key
            self.step = step

    def __init__(
        self,
        glyphs: Glyphs = BRAILLE,
        *,
        ascii_only: bool = False,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id, markup=False)
        self.glyphs = ASCII if ascii_only else glyphs
        self.look = Look()
        self.marks: tuple[Mark, ...] = ()
        self.repainted_cells = 0
        """How many cells were ever asked to be repainted: what a test counts."""
        self._title = "loss"
        self._decimations: dict[str, Decimation] = {}
        self._picture = Picture(())
        self._asked: tuple[object, ...] = ()
        self._strips: list[Strip | None] = []
        self._styles: dict[str, Style] = {}

    def show(self, view: RunView, marks: Sequence[Mark] = ()) -> None:
        """Show a view's loss, with `marks` on it (see `marks_of`)."""
        name = next((name for name in _CURVES if name in view.series), "loss")
        self._title = _CURVES[name]
        self._take("curve", view, name)
        self._take("evaluation", view, "eval_loss")
        self.marks = tuple(marks)
        self.repaint()

    def plain(self) -> list[str]:
        """The lines as text, for tests and for screen readers."""
        return [line.text.rstrip() for line in self._picture.lines]

    # ---- what keys do ---------------------------------------------------------------------------

    def action_smooth(self) -> None:
        """Take the next smoothing: none, light, strong."""
        at = SMOOTHING.index(self.look.weight)
        self._look(weight=SMOOTHING[(at + 1) % len(SMOOTHING)])

    def action_log_axis(self) -> None:
        """Switch between a linear and a logarithmic axis."""
        self._look(is_log=not self.look.is_log)

    def action_zoom_in(self) -> None:
        """Show half of the steps: those around the cursor, else the newest."""
        axis = self._picture.axis
        self._look(zoom=1 + (axis.zoom if axis else 0))

    def action_zoom_out(self) -> None:
        """Show twice as many steps."""
        axis = self._picture.axis
        self._look(zoom=max(0, (axis.zoom if axis else 0) - 1))

    def action_zoom_all(self) -> None:
        """Show all steps, and put the cursor away."""
        self._look(zoom=0, cursor=None)

    def action_cursor_left(self) -> None:
        """Move the cursor a cell to the left, and pick the nearest generation."""
        self._move_cursor(-1)

    def action_cursor_right(self) -> None:
        """Move the cursor a cell to the right, and pick the nearest generation."""
        self._move_cursor(1)

    def _look(self, **changes: object) -> None:
        self.look = replace(self.look, **changes)  # type: ignore[arg-type]  # names of Look's fields
        self.repaint()

    def _move_cursor(self, cells: int) -> None:
        axis = self._picture.axis
        steps = [(curve.first_step, curve.last_step) for curve in self._decimations.values()]
        known = [(first, last) for first, last in steps if first is not None and last is not None]
        if axis is None or not known:
            return
        first, last = min(low for low, _ in known), max(high for _, high in known)
        start = self.look.cursor
        if start is None:
            start = next((mark.step for mark in self.marks if mark.is_selected), last)
        buckets = max(1, self.glyphs.dots_x >> axis.stretch) * cells
        cursor = min(max(((start >> axis.bits) + buckets) << axis.bits, first), last)
        self._look(cursor=cursor)
        if self.marks:
            nearest = min(self.marks, key=lambda mark: (abs(mark.step - cursor), not mark.is_live))
            if not nearest.is_selected:
                self.post_message(self.Picked(nearest.key, cursor))

    # ---- painting -------------------------------------------------------------------------------

    def _take(self, role: str, view: RunView, name: str) -> None:
        """Extend the columns of a series; another storage, or a shorter view, starts anew."""
        points = view.series.get(name)
        if points is None:
            self._decimations.pop(role, None)
            return
        known = self._decimations.get(role)
        if known is None or known.series is not points.series or known.length > points.length:
            known = self._decimations[role] = Decimation(points.series)
        known.extend(points.length, [segment.first_step for segment in view.segments])

    def scene(self) -> Scene:
        """What is to be drawn."""
        return Scene(
            self._decimations.get("curve"),
            self._decimations.get("evaluation"),
            self._title,
            self.marks,
            self.look,
        )

    def repaint(self) -> None:
        """Draw a new picture and ask for the spans in which it differs from the shown one."""
        width, height = self.size
        lengths = [(curve, curve.length) for curve in self._decimations.values()]
        asked = (width, height, lengths, self._title, self.marks, self.look)
        if asked == self._asked:
            return
        self._asked = asked
        old, self._picture = self._picture.lines, draw(self.scene(), width, height, self.glyphs)
        new = self._picture.lines
        if len(old) != len(new) or (old and len(old[0].text) != width):
            self._strips = [None] * len(new)
            self.refresh()
            return
        regions = []
        for y, (before, after) in enumerate(zip(old, new, strict=True)):
            spans = changed_spans(before, after)
            if spans:
                self._strips[y] = None
                regions += [Region(start, y, end - start, 1) for start, end in spans]
        if regions:
            self.repainted_cells += sum(region.width for region in regions)
            self.refresh(*regions)

    def on_resize(self, _event: events.Resize) -> None:
        """Draw for the new size."""
        self.repaint()

    def notify_style_update(self) -> None:
        """Forget styled lines when the theme changed."""
        super().notify_style_update()
        self._styles.clear()
        self._strips = [None] * len(self._strips)

    def render_line(self, y: int) -> Strip:
        """Return line `y` of the picture."""
        if y >= len(self._strips):
            return Strip.blank(self.size.width)
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = Strip(self._segments(self._picture.lines[y]))
        return strip

    def _segments(self, line: Line) -> Iterator[Segment]:
        start = 0
        for kind, places in groupby(line.kinds):
            end = start + sum(1 for _ in places)
            yield Segment(line.text[start:end], self._style(kind))
            start = end

    def _style(self, kind: str) -> Style:
        if kind == canvas.PLAIN:
            return Style.null()
        if kind not in self._styles:
            name = f"loss-chart--{_KINDS[kind]}"
            self._styles[kind] = self.get_component_rich_style(name, partial=True)
        return self._styles[kind]


def marks_of(view: RunView, selected: str | None) -> tuple[Mark, ...]:
    """Return the generations of a view that have a step; `selected` is a row's key.

    A row's key is `SLOT@GENERATION`, or a slot's name for its live generation.
    """
    marks = []
    for slot in view.slots:
        for generation in slot.generations:
            if generation.step is None or generation.state is State.TRASH:
                continue
            key = f"{slot.name}@{generation.id}"
            is_live = generation.state is State.LIVE
            is_selected = selected == key or (is_live and selected == slot.name)
            marks.append(Mark(key, generation.step, is_live, is_selected))
    return tuple(marks)


def changed_spans(before: Line, after: Line) -> list[tuple[int, int]]:
    """Return the (start, end) cells in which two lines of a width differ; near ones are joined."""
    if before == after:
        return []
    cells = zip(before.text, before.kinds, after.text, after.kinds, strict=True)
    return joined(
        at
        for at, (old, old_kind, new, new_kind) in enumerate(cells)
        if old != new or old_kind != new_kind
    )
