"""The runs in a directory that is no run itself: one row a run, newest first."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from ckpt.present import Cell, Column, Row, Tone, age, health_cell, integer, loss, visible
from ckpt.view import RunView
from monitor.commands import Where, bindings_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import Table

COLUMNS = (
    Column("run"),
    Column("state", rank=1),
    Column("step", is_right=True, rank=2),
    Column("loss", is_right=True, rank=3),
    Column("changed", rank=4),
)


class RunsScreen(CommandScreen):
    """Choose a run; the app then follows it."""

    where = Where.RUNS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.RUNS)]

    class Read(Message):
        """The runs were looked at once each."""

        def __init__(self, views: Sequence[RunView], now: float) -> None:
            super().__init__()
            self.views = views
            self.now = now

    def __init__(self, directory: Path, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.directory = directory

    def compose(self) -> ComposeResult:
        """Say where this is; the rows come when they were read."""
        self._show(Table(), "looking at each run…")
        return super().compose()

    def on_runs_screen_read(self, event: Read) -> None:
        """Show the rows."""
        event.stop()
        self._show(Table.of(COLUMNS, run_rows(event.views, event.now)), "no run any more")

    def do_open(self) -> None:
        """Follow the run under the cursor."""
        key = self.table.selected_key
        if key is not None:
            self.monitor.follow(self.directory / key)

    def path_to_copy(self) -> str | None:
        """The run's path."""
        key = self.table.selected_key
        return None if key is None else str(self.directory / key)

    def _show(self, table: Table, empty: str) -> None:
        title = Cell(f" Runs in {visible(str(self.directory))}", Tone.ACCENT)
        self.table.show(table, title=[title], empty=empty)


def run_rows(views: Sequence[RunView], now: float) -> tuple[Row, ...]:
    """One row a run, the one that changed last first; the key is the run's own name."""
    newest_first = sorted(views, key=lambda view: view.updated_at or 0.0, reverse=True)
    return tuple(
        Row(
            view.run.name,
            (
                Cell(visible(view.run.name)),
                health_cell(view),
                Cell(integer(view.step)),
                Cell("" if view.loss is None else loss(view.loss)),
                Cell(age(view.updated_at, now), Tone.DIM),
            ),
        )
        for view in newest_first
    )
