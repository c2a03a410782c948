"""What was done to the checkpoints of a run, newest first; what can be undone is undone here."""

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.present import Cell, Tone, visible
from ckpt.present.plans import LOG_COLUMNS, log_rows
from ckpt.view import RunView
from monitor.commands import Situation, Where, bindings_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import RowTable, Table


class HistoryScreen(CommandScreen):
    """The run's journal, one row a change."""

    where = Where.HISTORY
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.HISTORY)]

    def __init__(self, view: RunView, now: float, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.view = view
        self.now = now

    def compose(self) -> ComposeResult:
        """Show what is known."""
        self._show()
        return super().compose()

    def show_run(self, view: RunView, now: float) -> None:
        """Show what was done since."""
        if (view.journal, now) != (self.view.journal, self.now):
            self.view, self.now = view, now
            self._show()
            self.share_window()

    def situation(self) -> Situation:
        """An undo is meant for the entry under the cursor, where that can be undone."""
        found = self._undoable()
        situation = super().situation()
        return situation if found is None else replace(situation, undo_sequence=found)

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say in full what the cursor is on."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The row under the cursor in full, and whether it is what an undo would take back."""
        row = self.table.selected_row
        if row is None:
            return ()
        said = "  ".join(cell.text for cell in row.cells if cell.text)
        return (Cell(" "), Cell(f"{said}{self._can_be_undone(row.key)}", Tone.DIM))

    def path_to_copy(self) -> str:
        """The run's own path."""
        return str(self.view.run)

    def _undoable(self) -> int | None:
        """The number of the entry under the cursor, if it can be undone."""
        key, journal = self.table.selected_key, self.view.journal
        if key is None or journal is None:
            return None
        entry = journal.undoable(int(key.partition(":")[0]))
        return None if entry is None else entry.sequence

    def _can_be_undone(self, key: str) -> str:
        if self._undoable() is not None:
            return " (z undoes this)"
        redo = self.view.journal.redo_target if self.view.journal is not None else None
        is_redo = redo is not None and key.startswith(f"{redo.sequence}:")
        return " (Z redoes it)" if is_redo else ""

    def _show(self) -> None:
        journal = self.view.journal
        rows = log_rows(journal, self.now) if journal is not None else ()
        self.table.show(
            Table.of(LOG_COLUMNS, rows),
            title=[Cell(" What was done to the checkpoints", Tone.ACCENT)],
            note=[Cell(f"{visible(self.view.run.name)} ", Tone.DIM)],
            empty="nothing was recorded yet: saves of this library, roll backs and undos are",
        )
