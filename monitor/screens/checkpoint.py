"""One checkpoint: its files, tensors, metadata and findings, each in a pane of the one table.

It opens before anything was read; the app reads in another thread and sends `Read` or `Failed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from ckpt.checkpoint import Checkpoint
from ckpt.present import (
    FILE_COLUMNS,
    FINDING_COLUMNS,
    METADATA_COLUMNS,
    TENSOR_COLUMNS,
    Cell,
    Tone,
    file_rows,
    finding_rows,
    integer,
    loss,
    metadata_rows,
    size,
    tensor_rows,
    visible,
)
from monitor.commands import Situation, Where, bindings_of
from monitor.screens.base import CommandScreen
from monitor.widgets.painted import PaintedLines
from monitor.widgets.row_table import RowTable, Table


class Pane(StrEnum):
    """The panes, in the order in which tab goes through them."""

    FILES = "files"
    TENSORS = "tensors"
    METADATA = "metadata"
    FINDINGS = "findings"


EMPTY = {
    Pane.FILES: "no file",
    Pane.TENSORS: "no tensor that can be read",
    Pane.METADATA: "it says nothing of itself",
    Pane.FINDINGS: "nothing is wrong with its names and headers",
}


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint made ready to paint: lines for the head, and one table a pane."""

    head: tuple[tuple[Cell, ...], ...]
    panes: Mapping[Pane, Table]


class CheckpointScreen(CommandScreen):
    """Files, tensors, metadata and settings, findings; `tab` goes from one to the next."""

    where = Where.CHECKPOINT
    most_lines_said = 5
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.CHECKPOINT)]

    class Read(Message):
        """The checkpoint was read."""

        def __init__(self, contents: Contents) -> None:
            super().__init__()
            self.contents = contents

    class Failed(Message):
        """The checkpoint cannot be read; `reason` is one sentence."""

        def __init__(self, reason: str) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, path: str, key: str | None = None, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.path = path
        self.key = key
        self.head = PaintedLines(ascii_only=ascii_only, id="head")
        self.pane = Pane.FILES
        self.contents: Contents | None = None

    def compose(self) -> ComposeResult:
        """Say which checkpoint this is, before anything of it is known."""
        self._paint_head((self._name_line(), (Cell(" reading its headers…", Tone.DIM),)))
        yield self.head
        yield from super().compose()

    def on_checkpoint_screen_read(self, event: Read) -> None:
        """Show what was read; the findings first, where there are any."""
        event.stop()
        self.contents = event.contents
        self._paint_head((self._name_line(), *event.contents.head))
        if event.contents.panes[Pane.FINDINGS].rows:
            self.pane = Pane.FINDINGS
        self._show_pane()

    def on_checkpoint_screen_failed(self, event: Failed) -> None:
        """Say in words why there is nothing to see."""
        event.stop()
        reason = Cell(f" ✗ {visible(event.reason)}", Tone.BAD)
        self._paint_head((self._name_line(), (reason,)))
        self.share_window()

    def situation(self) -> Situation:
        """Tell which generation of the run this is."""
        return replace(super().situation(), selected_key=self.key)

    def do_verify(self) -> None:
        """Verify this checkpoint."""
        self.monitor.changes.verify_row(self.key)

    def do_next_pane(self) -> None:
        """Go to the next pane."""
        self._turn(1)

    def do_previous_pane(self) -> None:
        """Go to the pane before."""
        self._turn(-1)

    def path_to_copy(self) -> str:
        """The checkpoint's own path."""
        return self.path

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say in full what the cursor is on."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The row under the cursor in full: a table cuts what is too long."""
        row = self.table.selected_row
        if row is None or self.pane is Pane.TENSORS:
            return ()
        if self.pane is Pane.FINDINGS:
            where, what = row.cells[-2], row.cells[-1]
            is_told = where.text in what.text
            return (Cell(" "), what if is_told else Cell(f"{where.text}: {what.text}", what.tone))
        return (Cell(" "), Cell("  ".join(cell.text for cell in row.cells if cell.text), Tone.DIM))

    def share_window(self) -> None:
        """The head and the foot take what they need, the table the rest."""
        self.head.take_lines(min(self._head_height, max(1, self.size.height - 4)))
        super().share_window()

    def _turn(self, by: int) -> None:
        panes = list(Pane)
        self.pane = panes[(panes.index(self.pane) + by) % len(panes)]
        if self.table.filter_text:
            self.close_filter(keep=False)
        self._show_pane()

    def _show_pane(self) -> None:
        if self.contents is None:
            return
        self.table.show(
            self.contents.panes[self.pane],
            title=self._tabs(self.contents),
            empty=EMPTY[self.pane],
        )
        self.table.move_to_first()
        self.share_window()

    def _tabs(self, contents: Contents) -> list[Cell]:
        cells = []
        for pane, table in contents.panes.items():
            is_here = pane is self.pane
            text = f"{'▸' if is_here else ' '}{pane} {len(table.rows):,}  "
            cells.append(Cell(text, Tone.ACCENT if is_here else Tone.DIM))
        return cells

    def _name_line(self) -> tuple[Cell, ...]:
        return (Cell(" " + visible(self.path), Tone.ACCENT),)

    def _paint_head(self, lines: tuple[tuple[Cell, ...], ...]) -> None:
        self._head_height = len(lines) + 1
        self.head.paint([*lines, ()])


def contents_of(checkpoint: Checkpoint, *, ascii_only: bool = False) -> Contents:
    """Make a checkpoint ready to paint; for another thread, as it can hold 100,000 tensors."""
    return Contents(
        _head_lines(checkpoint),
        {
            Pane.FILES: Table.of(FILE_COLUMNS, file_rows(checkpoint.files)),
            Pane.TENSORS: Table.of(
                TENSOR_COLUMNS, tensor_rows(checkpoint.tensors, ascii_only=ascii_only)
            ),
            Pane.METADATA: Table.of(METADATA_COLUMNS, metadata_rows(checkpoint)),
            Pane.FINDINGS: Table.of(FINDING_COLUMNS, finding_rows(checkpoint.findings)),
        },
    )


def _head_lines(checkpoint: Checkpoint) -> tuple[tuple[Cell, ...], ...]:
    complete = {
        True: Cell("✓ complete", Tone.GOOD),
        False: Cell("✗ incomplete", Tone.BAD),
        None: Cell("? completeness unproven", Tone.WARN),
    }[checkpoint.complete]
    facts = [f" {checkpoint.format_label}", f"step {integer(checkpoint.step)}"]
    if checkpoint.loss is not None:
        facts.append(f"loss {loss(checkpoint.loss)}")
    facts.append(size(checkpoint.size_bytes))
    return ((Cell("   ".join(facts) + "   "), complete),)
