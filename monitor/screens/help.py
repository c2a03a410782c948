"""All keys of a screen, from the table of commands."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.present import Cell, Column, Row, Tone
from monitor.commands import Where, bindings_of, commands_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import Table

COLUMNS = (Column("key", rank=1), Column("name", rank=2), Column("does"))


class HelpScreen(CommandScreen):
    """One row a command: its keys, its name, what it does."""

    where = Where.HELP
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.HELP)]

    def __init__(self, about: Where, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self._about = about

    def compose(self) -> ComposeResult:
        """Show the rows; there is nothing to wait for."""
        rows = [
            Row(
                command.name,
                (
                    Cell(command.key, Tone.ACCENT),
                    Cell(command.label, Tone.DIM),
                    Cell(command.help),
                ),
            )
            for command in commands_of(self._about)
        ]
        self.table.show(
            Table.of(COLUMNS, rows),
            title=[Cell(f" Keys of the {self._about}", Tone.ACCENT)],
            note=[Cell("esc goes back ", Tone.DIM)],
        )
        return super().compose()
