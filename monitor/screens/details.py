"""Where a run's numbers come from, why it is judged as it is, and every warning about it."""

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.present import Cell, Column, Row, Tone, age, health_cell, visible
from ckpt.view import RunView
from monitor.commands import Where, bindings_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import RowTable, Table

COLUMNS = (Column("about", rank=1), Column("what"), Column("age", rank=2))


class DetailsScreen(CommandScreen):
    """Everything that the dashboard has no room to say, one fact a row."""

    where = Where.DETAILS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.DETAILS)]
    most_lines_said = 5

    def __init__(self, view: RunView, now: float, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.view = view
        self.now = now

    def compose(self) -> ComposeResult:
        """Show the facts as they were when this was opened."""
        self.table.show(
            Table.of(COLUMNS, tuple(detail_rows(self.view, self.now))),
            title=[Cell(" Sources, reasons and warnings", Tone.ACCENT)],
            note=[Cell(f"{visible(self.view.run.name)} ", Tone.DIM)],
        )
        return super().compose()

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say in full what the cursor is on."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The row under the cursor in full."""
        row = self.table.selected_row
        return () if row is None else (Cell(" "), row.cells[1])

    def path_to_copy(self) -> str:
        """The run's own path."""
        return str(self.view.run)


def detail_rows(view: RunView, now: float) -> Iterator[Row]:
    """Yield the health and its reasons, the sources, what came from where, and the warnings."""
    yield Row("run", (Cell("run", Tone.DIM), Cell(visible(str(view.run)))))
    yield Row("health", (Cell("health", Tone.DIM), health_cell(view)))
    for at, reason in enumerate(view.health.reasons):
        yield Row(f"reason {at}", (Cell("reason", Tone.DIM), Cell(visible(reason))))
    for at, warned in enumerate(view.warnings):
        where = f" ({visible(warned.path)})" if warned.path else ""
        said = Cell(f"! {visible(warned.message)}{where}", Tone.WARN)
        yield Row(f"warning {at}", (Cell("warning", Tone.WARN), said))
    watching = view.watching.mode + (f" ({view.watching.reason})" if view.watching.reason else "")
    yield Row("watching", (Cell("watching", Tone.DIM), Cell(visible(watching))))
    for at, source in enumerate(view.sources):
        names = [name for name, path in view.values_from.items() if path == source.path]
        words = [visible(source.path), source.kind]
        if names:
            words.append("gives " + ", ".join(visible(name) for name in names))
        if source.cadence_s:
            words.append(f"written every {source.cadence_s:.3g} s")
        if source.writes_only_at_saves:
            words.append("written only at saves")
        if source.error:
            words.append(f"! {visible(source.error)}")
        tone = Tone.WARN if source.error else Tone.PLAIN
        changed = Cell(age(source.modified_at, now), Tone.DIM)
        yield Row(
            f"source {at}", (Cell("source", Tone.DIM), Cell(" · ".join(words), tone), changed)
        )
    for key, value in view.task.items():
        said = Cell(f"{visible(str(key))}: {visible(str(value))}")
        yield Row(f"task {key}", (Cell("task", Tone.DIM), said))
