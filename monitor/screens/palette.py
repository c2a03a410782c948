"""Find a command by its name; what cannot act now says why."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ckpt.present import Cell, Column, Row, Tone
from monitor.commands import Command, Situation, commands_of
from monitor.widgets.filter_input import FilterInput
from monitor.widgets.row_table import RowTable, Table

COLUMNS = (Column("command", rank=1), Column("key", rank=2), Column("does"))


class PaletteScreen(ModalScreen[str | None]):
    """A line to type into and the commands that match; dismissed with the chosen one's name."""

    AUTO_FOCUS = "FilterInput"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
    ]

    def __init__(self, situation: Situation, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._situation = situation
        self.table = RowTable(ascii_only=ascii_only, id="commands")

    def compose(self) -> ComposeResult:
        """Show every command of the screen below."""
        commands = [c for c in commands_of(self._situation.where) if c.name != "palette"]
        self.table.show(Table.of(COLUMNS, [self._row(command) for command in commands]))
        yield FilterInput(placeholder="type a command", id="find")
        yield self.table

    def action_move(self, rows: int) -> None:
        """Move the cursor of the list while the line keeps the keys."""
        self.table.move(rows)

    def action_leave_filter(self) -> None:
        """Leave without a choice."""
        self.dismiss(None)

    def on_input_changed(self, event: FilterInput.Changed) -> None:
        """Narrow the list while typing."""
        event.stop()
        self.table.narrow(event.value)

    def on_input_submitted(self, event: FilterInput.Submitted) -> None:
        """Choose what the cursor is on; nothing is chosen when nothing matches."""
        event.stop()
        self.dismiss(self.table.selected_key)

    def on_row_table_opened(self, event: RowTable.Opened) -> None:
        """A click chooses too."""
        event.stop()
        self.dismiss(event.key)

    def _row(self, command: Command) -> Row:
        reason = command.why_not(self._situation)
        tone = Tone.PLAIN if reason is None else Tone.DIM
        return Row(
            command.name,
            (
                Cell(command.label, tone),
                Cell(command.key, tone),
                Cell(command.help if reason is None else f"not now: {reason}", tone),
            ),
        )
