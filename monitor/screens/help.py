"""All keys of a screen, from the table of commands."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.present import Cell, Column, Row, Tone
from monitor.commands import Command, Where, bindings_of, commands_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import Table

COLUMNS = (Column("key", rank=1), Column("name", rank=2), Column("does"))


class HelpScreen(CommandScreen):
    """One row a command: its keys, its name, what it does."""

    where = Where.HELP
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.HELP)]

    def __init__(
        self, about: Where, *, is_read_only: bool = False, ascii_only: bool = False
    ) -> None:
        super().__init__(ascii_only=ascii_only)
        self._about = about
        self._is_read_only = is_read_only

    def compose(self) -> ComposeResult:
        """Show the rows; there is nothing to wait for."""
        self.table.show(
            Table.of(COLUMNS, [self._row(command) for command in commands_of(self._about)]),
            title=[Cell(f" Keys of the {self._about}", Tone.ACCENT)],
            note=[Cell("esc goes back ", Tone.DIM)],
        )
        return super().compose()

    def _row(self, command: Command) -> Row:
        cells = (
            Cell(command.key, Tone.ACCENT),
            Cell(command.label, Tone.DIM),
            Cell(command.help),
        )
        if self._is_read_only and command.changes:
            cells = (
                Cell(command.key, Tone.DIM),
                Cell(command.label, Tone.DIM),
                Cell(f"not under --read-only: {command.help}", Tone.DIM),
            )
        return Row(command.name, cells)
