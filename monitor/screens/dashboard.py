"""The first screen: is it alive, is the loss sane, what is lost if it dies now, what to trust.

It receives views and paints what changed; it reads nothing.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.checkpoint import State
from ckpt.present import (
    GENERATION_COLUMNS,
    Cell,
    Tone,
    advice_cell,
    generation_rows,
    header_lines,
    size,
)
from ckpt.view import RunView
from monitor.commands import Situation, Where, bindings_of
from monitor.planning import RowOf, find_row, one_before, unverified
from monitor.screens.base import CommandScreen
from monitor.widgets.loss_chart import LossChart, marks_of
from monitor.widgets.painted import PaintedLines
from monitor.widgets.row_table import RowTable, Table


class Emphasis(Enum):
    """Who gets the lines that are to share."""

    BOTH = "chart and table"
    CHART = "chart"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Heights:
    """How many lines each part of the dashboard gets; 0 hides it."""

    header: int
    chart: int
    table: int
    foot: int


SMALLEST_CHART, SMALLEST_TABLE = 6, 3
ROOMY = 18  # from this height on a rule stands below the header


def share_lines(height: int, wanted: Heights, emphasis: Emphasis) -> Heights:
    """Share a window's lines: the header first, then the foot, the table's first rows, the chart.

    `wanted` is what each part needs to say all it has to; the chart takes what is left.
    """
    head = min(wanted.header + (1 if height >= ROOMY else 0), height)
    foot = min(wanted.foot, height - head)
    rest = height - head - foot
    if rest < SMALLEST_TABLE:
        return Heights(head + rest, 0, 0, foot)
    if rest < SMALLEST_TABLE + SMALLEST_CHART or emphasis is Emphasis.TABLE:
        return Heights(head, 0, rest, foot)
    if emphasis is Emphasis.CHART:
        return Heights(head, rest, 0, foot)
    table = max(SMALLEST_TABLE, min(wanted.table, rest * 2 // 5))
    return Heights(head, rest - table, table, foot)


class DashboardScreen(CommandScreen):
    """Header, chart, table of generations, one line of advice, the keys."""

    where = Where.DASHBOARD
    cancels = True
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.DASHBOARD)]

    def __init__(self, view: RunView, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.view = view
        self.now = 0.0
        self.header = PaintedLines(ascii_only=ascii_only, id="header")
        self.chart = LossChart(ascii_only=ascii_only)
        self.emphasis = Emphasis.BOTH
        self.is_paused = False
        self._waiting: tuple[RunView, float] | None = None
        self._heights: Heights | None = None
        self._header_count = 1
        self._painted_rows: tuple[object, ...] = ()
        self._table = Table()
        self.marked: str | None = None

    def compose(self) -> ComposeResult:
        """Put the parts below each other."""
        yield self.header
        yield self.chart
        yield from super().compose()

    def show_run(self, view: RunView, now: float) -> None:
        """Paint what changed; while paused only remember it."""
        if self.is_paused:
            self._waiting = (view, now)
            return
        self.view, self.now = view, now
        if self.is_mounted:
            self.paint_all()

    def paint_all(self) -> None:
        """Ask `present` for words and let each widget find what differs."""
        self._paint_table()
        self.share_window()
        self._paint_chart()

    # ---- commands -------------------------------------------------------------------------------

    def situation(self) -> Situation:
        """Tell what is selected and whether there is a chart to act on."""
        return Situation(
            self.where,
            self.table.selected_key,
            self.table.row_count,
            self.view.points,
            has_chart=self._heights is None or self._heights.chart > 0,
            is_filtered=self.is_filtered,
            has_runs=self.monitor.runs_in is not None,
            view=self.view,
            is_read_only=self.monitor.options.is_read_only,
            running=self.monitor.changes.title,
            undo_sequence=self.monitor.changes.undo_sequence,
            has_verified=self.monitor.changes.verification is not None,
            has_other=self.other_key() is not None,
        )

    def do_open(self) -> None:
        """Open the checkpoint under the cursor."""
        path = self.selected_path()
        if path is not None:
            self.monitor.open_checkpoint(path, self.table.selected_key)

    def do_verify(self) -> None:
        """Verify the generation under the cursor."""
        row = self.selected_generation()
        if row is not None and row[1] is not None:
            self.monitor.changes.verify([(row[0], row[1])])

    def do_mark(self) -> None:
        """Mark the generation under the cursor to compare others with, or let it go."""
        key = self.table.selected_key
        self.marked = None if key == self.marked else key
        if self.marked is None:
            self.say("none is marked")
        else:
            self.say(f"{self.marked} is marked: d on another compares them, from the marked one")

    def do_diff(self) -> None:
        """Compare the generation under the cursor with the marked one, or the one before it."""
        other, key = self.other_key(), self.table.selected_key
        if other is not None and key is not None:
            self.monitor.compare(other, key)

    def other_key(self) -> str | None:
        """Return the row that the one under the cursor is compared with, None: there is none."""
        key = self.table.selected_key
        marked = find_row(self.view, self.marked)
        if marked is not None and marked[1] is not None and self.marked != key:
            return self.marked
        before = one_before(self.view, find_row(self.view, key))
        return None if before is None else f"{before[0].name}@{before[1].id}"

    def do_verify_all(self) -> None:
        """Verify all that was not verified yet."""
        self.monitor.changes.verify(unverified(self.view))

    def do_details(self) -> None:
        """Show sources, reasons and warnings."""
        from monitor.screens.details import DetailsScreen

        screen = DetailsScreen(self.view, self.now, ascii_only=self.ascii_only)
        self.app.push_screen(screen)

    def do_roll_back(self) -> None:
        """Ask whether to roll back to what the cursor is on."""
        self.monitor.changes.ask("roll_back", self.table.selected_key)

    def do_pin(self) -> None:
        """Pin the generation under the cursor, or let it go."""
        row = self.selected_generation()
        if row is not None and row[1] is not None:
            self.monitor.changes.toggle_pin(row[1].id, is_pinned=row[1].pinned)

    def do_prune(self) -> None:
        """Show what each policy would keep and free."""
        self.monitor.show_policies()

    def do_guard(self) -> None:
        """Guard the run, or stop guarding it."""
        self.monitor.changes.toggle_guard()
        self.paint_all()

    def do_history(self) -> None:
        """Show what was done to the checkpoints."""
        self.monitor.show_history()

    def do_pause(self) -> None:
        """Stand still, or catch up."""
        self.is_paused = not self.is_paused
        if not self.is_paused and self._waiting is not None:
            (view, now), self._waiting = self._waiting, None
            self.show_run(view, now)

    def do_next_pane(self) -> None:
        """Give the lines to the chart, then to the table, then to both."""
        order = list(Emphasis)
        self.emphasis = order[(order.index(self.emphasis) + 1) % len(order)]
        self.share_window()

    def do_previous_pane(self) -> None:
        """The same the other way round."""
        order = list(Emphasis)
        self.emphasis = order[order.index(self.emphasis) - 1]
        self.share_window()

    def do_show_all(self) -> None:
        """Cancel what is at work, else show all rows again, else go back to the list of runs."""
        if self.monitor.changes.job is not None:
            self.monitor.changes.cancel()
        elif self.is_filtered:
            super().do_show_all()
        else:
            self.monitor.choose_run()

    def show_other_run(self, view: RunView) -> None:
        """Forget the run that was shown."""
        self.is_paused, self._waiting, self.marked = False, None, None
        self._painted_rows = ()
        self.show_run(view, 0.0)

    def do_smooth(self) -> None:
        """Change how strongly the curve is smoothed."""
        self.chart.action_smooth()

    def do_log_axis(self) -> None:
        """Switch between a linear and a logarithmic axis."""
        self.chart.action_log_axis()

    def do_zoom_in(self) -> None:
        """Show a shorter stretch."""
        self.chart.action_zoom_in()

    def do_zoom_out(self) -> None:
        """Show a longer stretch."""
        self.chart.action_zoom_out()

    def do_zoom_all(self) -> None:
        """Show the whole curve."""
        self.chart.action_zoom_all()

    def do_cursor_left(self) -> None:
        """Move the chart's cursor left; the table follows."""
        self.chart.action_cursor_left()

    def do_cursor_right(self) -> None:
        """Move the chart's cursor right; the table follows."""
        self.chart.action_cursor_right()

    def on_loss_chart_picked(self, event: LossChart.Picked) -> None:
        """Select the generation that the chart's cursor is nearest to."""
        event.stop()
        self.table.select(event.key)

    # ---- the cursor -----------------------------------------------------------------------------

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Move the chart's marker to the generation under the cursor."""
        event.stop()
        self._paint_chart()

    def selected_generation(self) -> RowOf | None:
        """Return the slot and the generation under the table's cursor."""
        return find_row(self.view, self.table.selected_key)

    def selected_path(self) -> Path | None:
        """Return where the payload under the cursor lies."""
        found = self.selected_generation()
        if found is None:
            return None
        slot, generation = found
        return generation.path if generation is not None else slot.path

    def path_to_copy(self) -> str | None:
        """The path of what is under the cursor."""
        path = self.selected_path()
        return None if path is None else str(path)

    # ---- painting -------------------------------------------------------------------------------

    def show_work(self) -> None:
        """Paint how far the operation is, in its row and at the foot."""
        self._show_table()
        super().show_work()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The advice; while paused, that."""
        if self.is_paused:
            return (Cell(" paused: the screen stands still, reading goes on (space)", Tone.WARN),)
        advice = advice_cell(self.view, with_key=True)
        return () if advice is None else (Cell(" "), advice)

    def share_window(self) -> None:
        """Share the lines of the window between the parts."""
        self._paint_header()
        super().share_window()
        wanted = Heights(self._header_count, 0, self.table.wanted_height(), self.foot.line_count)
        heights = share_lines(self.size.height, wanted, self.emphasis)
        if heights != self._heights:
            self._heights = heights
            self.header.take_lines(heights.header)
            self.chart.styles.height = heights.chart
            self.chart.display = heights.chart > 0
            self.table.display = heights.table > 0

    def _paint_header(self) -> None:
        width = self.size.width
        lines = header_lines(self.view, self.now, width, ascii_only=self.ascii_only)
        self._header_count = len(lines)
        self.header.paint([*lines, (Cell("─" * width, Tone.DIM),)])

    def _paint_table(self) -> None:
        is_guarded = self.monitor.changes.guarding is not None
        asked = (self.view.slots, self.view.newest_verified, self.now, is_guarded)
        if asked == self._painted_rows:
            return
        self._painted_rows = asked
        rows = generation_rows(self.view, self.now, ascii_only=self.ascii_only)
        self._table = Table.of(GENERATION_COLUMNS, rows)
        self._show_table()

    def _show_table(self) -> None:
        """Show the rows; that of a generation that is being verified says how far it is."""
        checked = self.monitor.changes.checked_now
        table = self._table
        if checked is not None:
            table = table.with_cell(checked.subject.key, len(GENERATION_COLUMNS) - 1, checked.cell)
        self.table.show(
            table,
            title=[Cell(" Generations", Tone.ACCENT)],
            note=[Cell(self._note() + " ", Tone.DIM)],
            empty="nothing was saved yet",
        )

    def _note(self) -> str:
        first = ["read-only"] if self.monitor.options.is_read_only else []
        if self.monitor.changes.guarding is not None:
            first = ["guarded"]
        return " · ".join([*first, slots_summary(self.view)])

    def _paint_chart(self) -> None:
        self.chart.show(self.view, marks_of(self.view, self.table.selected_key))


def slots_summary(view: RunView) -> str:
    """How many slots and retired generations there are, and what they weigh together."""
    generations = [generation for slot in view.slots for generation in slot.generations]
    retired = sum(generation.state is State.RETIRED for generation in generations)
    parts = [f"{len(view.slots)} slot{'' if len(view.slots) == 1 else 's'}"]
    if retired:
        parts.append(f"{retired} retired")
    if generations:
        parts.append(size(sum(generation.size_bytes or 0 for generation in generations)))
    return " · ".join(parts)
