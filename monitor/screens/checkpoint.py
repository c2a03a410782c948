"""One checkpoint: its files, tensors, metadata and findings, each in a pane of the one table.

It opens before anything was read; the app reads in another thread and sends `Read` or `Failed`.
What a verification or the statistics tell meanwhile is painted as it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from ckpt.checkpoint import Checkpoint, Finding, Generation, Severity, State, Verified, worst_first
from ckpt.present import (
    FINDING_COLUMNS,
    METADATA_COLUMNS,
    Cell,
    Tone,
    bytes_cell,
    finding_rows,
    integer,
    loss,
    metadata_rows,
    size,
    visible,
)
from ckpt.present.trust import FILE_STATE_COLUMNS, Known, all_findings, file_state_rows
from ckpt.view import RunView
from monitor.commands import Situation, Where, bindings_of
from monitor.planning import find_row, one_before
from monitor.screens.base import CommandScreen
from monitor.tensor_list import Measuring, TensorList
from monitor.widgets.painted import PaintedLines
from monitor.widgets.row_table import RowTable, Table

if TYPE_CHECKING:
    from ckpt.named import Named
    from monitor.checks import Checked


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
    """A checkpoint as it was read, and what of it is made ready to paint off the event loop."""

    checkpoint: Checkpoint
    listed: TensorList
    metadata: Table


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

    def __init__(
        self, named: "Named", key: str | None = None, *, ascii_only: bool = False
    ) -> None:
        super().__init__(ascii_only=ascii_only)
        self.named = named
        self.key = key
        self.head = PaintedLines(ascii_only=ascii_only, id="head")
        self.pane = Pane.FILES
        self.contents: Contents | None = None
        self.measuring: Measuring | None = None
        self.generation: Generation | None = None
        self.now = 0.0
        self._other: str | None = None
        self._filled = 0

    def compose(self) -> ComposeResult:
        """Say which checkpoint this is, before anything of it is known."""
        self._paint_head((self._name_line(), (Cell(" reading its headers…", Tone.DIM),)))
        yield self.head
        yield from super().compose()

    def on_checkpoint_screen_read(self, event: Read) -> None:
        """Show what was read; the findings first, where there are any."""
        event.stop()
        self.contents = event.contents
        if any(each.severity is not Severity.NOTE for each in self._findings(event.contents)):
            self.pane = Pane.FINDINGS
        self._show_pane()
        self.table.move_to_first()

    def on_checkpoint_screen_failed(self, event: Failed) -> None:
        """Say in words why there is nothing to see."""
        event.stop()
        reason = Cell(f" ✗ {visible(event.reason)}", Tone.BAD)
        self._paint_head((self._name_line(), (reason,)))
        self.share_window()

    def show_run(self, view: RunView, now: float) -> None:
        """Take what the run knows of this generation by now."""
        row = find_row(view, self.key)
        generation = row[1] if row is not None else None
        before = one_before(view, row)
        self._other = None if before is None else f"{before[0].name}@{before[1].id}"
        if (generation, now) != (self.generation, self.now):
            self.generation, self.now = generation, now
            if self.is_mounted and self.pane is not Pane.TENSORS:
                self._show_pane()

    def show_work(self) -> None:
        """Show what a verification or a reading of tensors has told since."""
        filled = self.measuring.filled if self.measuring is not None else 0
        is_news = filled != self._filled or self._checked() is not None
        if is_news:
            self._filled = filled
            self._show_pane()
        super().show_work()

    # ---- commands -------------------------------------------------------------------------------

    @property
    def cancels(self) -> bool:  # type: ignore[override]  # known while it runs only
        """Whether esc cancels: a reading of tensors that only this screen shows."""
        return self.measuring is not None and self.monitor.changes.is_at_work(self.measuring)

    def situation(self) -> Situation:
        """Tell which generation of the run this is, and what it has."""
        return replace(
            super().situation(),
            selected_key=self.key,
            tensor_count=len(self.listed.tensors) if self.listed is not None else 0,
            has_other=self._other is not None,
        )

    def do_back(self) -> None:
        """Cancel the reading of tensors, else show all rows again, else go back."""
        if self.cancels:
            self.monitor.changes.cancel()
        else:
            super().do_back()

    def do_verify(self) -> None:
        """Verify this checkpoint."""
        shown = self.monitor.shown
        row = find_row(shown.view, self.key) if shown is not None else None
        if row is not None and row[1] is not None:
            self.monitor.changes.verify([(row[0], row[1])])

    def do_diff(self) -> None:
        """Compare it with the generation before it."""
        if self._other is not None and self.key is not None:
            self.monitor.compare(self._other, self.key)

    def do_measure(self) -> None:
        """Read what the values of the tensors are like."""
        named = self.monitor.named(self.key) or self.named
        measuring = Measuring(named, ascii_only=self.ascii_only)
        if self.monitor.changes.measure(measuring, self.short_name):
            self.measuring, self._filled = measuring, 0
            self._turn_to(Pane.TENSORS)

    def do_order(self) -> None:
        """Order the tensors otherwise."""
        listed = self.listed
        if listed is None:
            return
        if self.pane is Pane.TENSORS:
            listed.arrange(listed.next_order())
        self._turn_to(Pane.TENSORS)

    def do_next_pane(self) -> None:
        """Go to the next pane."""
        self._turn(1)

    def do_previous_pane(self) -> None:
        """Go to the pane before."""
        self._turn(-1)

    def path_to_copy(self) -> str:
        """The checkpoint's own path."""
        return str(self.named.path)

    # ---- what is known --------------------------------------------------------------------------

    @property
    def listed(self) -> TensorList | None:
        """The tensors, with their statistics once those are being read."""
        if self.measuring is not None and self.measuring.listed is not None:
            return self.measuring.listed
        return self.contents.listed if self.contents is not None else None

    @property
    def _verified(self) -> Verified | None:
        """What the run remembers of its bytes."""
        return self.generation.verified if self.generation is not None else None

    def _checked(self) -> "Checked | None":
        """What the last verification has told of this checkpoint, None: nothing that holds."""
        verification = self.monitor.changes.verification
        checked = verification.of(self.key) if verification is not None else None
        if verification is None or checked is None or checked.report is None:
            return checked
        verified = self._verified
        is_same = verified is not None and verified.verdict is checked.report.verdict
        return checked if is_same or not verification.is_recorded else None

    def _known(self) -> Known:
        verified, checked = self._verified, self._checked()
        if checked is None:
            return Known.from_cache(verified)
        report = checked.report
        if report is None:
            return Known(checked.findings)
        at = verified.at if verified is not None else self.now
        said = Verified(report.verdict, report.depth, at)
        return Known(report.findings, said, is_all=True, damage=report.damage)

    def _findings(self, contents: Contents) -> Sequence[Finding]:
        found = all_findings(contents.checkpoint, self._known())
        measured = self.measuring.findings if self.measuring is not None else ()
        return worst_first((*found, *measured)) if measured else found

    # ---- painting -------------------------------------------------------------------------------

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
        self._turn_to(panes[(panes.index(self.pane) + by) % len(panes)])

    def _turn_to(self, pane: Pane) -> None:
        if pane is not self.pane and self.table.filter_text:
            self.close_filter(keep=False)
        self.pane = pane
        self._show_pane()
        self.table.move_to_first()

    def _show_pane(self) -> None:
        contents = self.contents
        if contents is None:
            return
        self._paint_head((self._name_line(), self._facts_line(contents.checkpoint)))
        findings = self._findings(contents)
        self.table.show(
            self._table(contents, findings),
            title=self._tabs(contents, len(findings)),
            note=self._note(),
            empty=EMPTY[self.pane],
        )
        self.share_window()

    def _table(self, contents: Contents, findings: Sequence[Finding]) -> Table:
        if self.pane is Pane.TENSORS:
            listed = self.listed or contents.listed
            listed.mark(self._known().hurt)
            return listed.table()
        if self.pane is Pane.METADATA:
            return contents.metadata
        if self.pane is Pane.FINDINGS:
            rows = finding_rows(findings, ascii_only=self.ascii_only)
            return Table.of(FINDING_COLUMNS, rows)
        known = self._known()
        rows = file_state_rows(contents.checkpoint, known, self.now, ascii_only=self.ascii_only)
        return Table.of(FILE_STATE_COLUMNS, rows)

    def _tabs(self, contents: Contents, finding_count: int) -> list[Cell]:
        counts = {
            Pane.FILES: len(contents.checkpoint.files),
            Pane.TENSORS: len(contents.checkpoint.tensors),
            Pane.METADATA: len(contents.metadata.rows),
            Pane.FINDINGS: finding_count,
        }
        cells = []
        for pane, count in counts.items():
            is_here = pane is self.pane
            text = f"{'▸' if is_here else ' '}{pane} {count:,}  "
            cells.append(Cell(text, Tone.ACCENT if is_here else Tone.DIM))
        return cells

    def _note(self) -> list[Cell]:
        """How the tensors are ordered, where that is another order than their own."""
        listed = self.listed
        if self.pane is not Pane.TENSORS or listed is None or listed.order is listed.orders[0]:
            return []
        return [Cell(f"{listed.order} ", Tone.DIM)]

    def _name_line(self) -> tuple[Cell, ...]:
        named = self.named
        shown = named.path if named.inside is None else named.name
        return (Cell(" " + visible(str(shown)), Tone.ACCENT),)

    @property
    def short_name(self) -> str:
        """What it is called in few words."""
        if self.key is None:
            return visible(self.named.path.name)
        is_live = self.generation is not None and self.generation.state is State.LIVE
        return visible(self.key.rpartition("@")[0] if is_live else self.key)

    def _facts_line(self, checkpoint: Checkpoint) -> tuple[Cell, ...]:
        complete = {
            True: Cell("✓ complete", Tone.GOOD),
            False: Cell("✗ incomplete", Tone.BAD),
            None: Cell("? completeness unproven", Tone.WARN),
        }[checkpoint.complete]
        checked, generation = self._checked(), self.generation
        verdict = [bytes_cell(generation, self.now)] if generation is not None else []
        is_recorded = checked is not None and checked.is_over and self._verified is not None
        said = verdict if checked is None or is_recorded else [checked.cell]
        facts = [Cell(f"{checkpoint.format_label}   step {integer(checkpoint.step)}")]
        known_loss = [] if checkpoint.loss is None else [Cell(f"loss {loss(checkpoint.loss)}")]
        cells = [*facts, *said, complete, *known_loss, Cell(size(checkpoint.size_bytes))]
        return (Cell(" "), *(each for cell in cells for each in (cell, Cell("   "))))

    def _paint_head(self, lines: tuple[tuple[Cell, ...], ...]) -> None:
        self._head_height = len(lines) + 1
        self.head.paint([*lines, ()])


def contents_of(checkpoint: Checkpoint, *, ascii_only: bool = False) -> Contents:
    """Make a checkpoint ready to paint; for another thread, as it can hold 100,000 tensors."""
    return Contents(
        checkpoint,
        TensorList(checkpoint.tensors, ascii_only=ascii_only),
        Table.of(METADATA_COLUMNS, metadata_rows(checkpoint, ascii_only=ascii_only)),
    )
