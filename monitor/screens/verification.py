"""What is being verified: how far it is, what it finds as it finds it, how each one ended."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType

from ckpt.present import Cell, Column, Row, Tone, visible
from ckpt.present.rows import SEVERITY_SIGNS
from monitor.checks import MOST_SHOWN, Verification
from monitor.commands import Where, bindings_of
from monitor.screens.base import CommandScreen
from monitor.screens.progress import bar_line
from monitor.widgets.row_table import RowTable, Table

if TYPE_CHECKING:
    from monitor.checks import Checked

COLUMNS = (Column("checkpoint"), Column("verdict"), Column("what"))


class VerificationScreen(CommandScreen):
    """One row for each that was begun, newest first, and below it one for each finding."""

    where = Where.OPERATION
    cancels = True
    tells_work = False
    most_lines_said = 5
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.OPERATION)]

    def __init__(self, verification: Verification, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.verification = verification
        self._painted: object = None

    def on_mount(self) -> None:
        """Show what is known so far."""
        self._show()
        super().on_mount()

    def on_resize(self, event: events.Resize) -> None:
        """Say as much of the progress as there is room for now."""
        self._show()
        super().on_resize(event)

    def show_work(self) -> None:
        """Show what was found since."""
        newest = self.monitor.changes.verification
        if newest is not None and newest is not self.verification:
            self.verification = newest
        self._show()
        super().show_work()

    def do_open(self) -> None:
        """Open the checkpoint that the row under the cursor is about."""
        key = self.table.selected_key
        for checked in self.verification.checked:
            if key is not None and key.startswith(f"{checked.subject.key}\0"):
                self.monitor.open_checkpoint(checked.subject.named.path, checked.subject.key)
                return

    def do_show_work(self) -> None:
        """Go back; what is at work goes on."""
        self.dismiss()

    def do_back(self) -> None:
        """Cancel what is at work, else show all rows again, else go back."""
        if self.monitor.changes.checked_now is not None:
            self.monitor.changes.cancel()
        else:
            super().do_back()

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say in full what the cursor is on."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The row under the cursor in full: a table cuts what is too long."""
        row = self.table.selected_row
        return () if row is None else (Cell(" "), row.cells[2])

    def path_to_copy(self) -> str | None:
        """The path of the checkpoint that the row under the cursor is about."""
        key = self.table.selected_key
        paths = (
            str(each.subject.named.path)
            for each in self.verification.checked
            if key is not None and key.startswith(f"{each.subject.key}\0")
        )
        return next(paths, None)

    def _show(self) -> None:
        job = self.monitor.changes.job
        is_at_work = self.monitor.changes.checked_now is not None and job is not None
        shown = (self.verification.checked, is_at_work, self.size.width)
        if shown == self._painted:
            return
        self._painted = shown
        title = self.verification.title
        bar = bar_line(job.at, self.size.width) if job is not None and is_at_work else ""
        self.table.show(
            Table.of(COLUMNS, tuple(verification_rows(self.verification, is_at_work=is_at_work))),
            title=[Cell(f" {title[:1].upper()}{title[1:]}", Tone.ACCENT)],
            note=[Cell(f"{bar} ", Tone.DIM)],
            empty="not begun yet",
        )


def verification_rows(verification: Verification, *, is_at_work: bool) -> Iterator[Row]:
    """Yield the row of each subject that was begun, the newest of them first, and its findings."""
    for checked in reversed(verification.checked):
        yield from _rows_of(checked, is_at_work=is_at_work)


def _rows_of(checked: "Checked", *, is_at_work: bool) -> Iterator[Row]:
    key, name = checked.subject.key, visible(checked.subject.name)
    cell, told = checked.cell, checked.told
    if not checked.is_over and not is_at_work:
        cell, told = Cell("· cancelled", Tone.WARN), "cancelled, without a verdict"
    yield Row(f"{key}\0", (Cell(name), cell, Cell(told)))
    findings = checked.findings if checked.report is None else checked.report.findings
    for at, finding in enumerate(findings[:MOST_SHOWN]):
        sign, tone = SEVERITY_SIGNS[finding.severity]
        hint = f" ({visible(finding.hint)})" if finding.hint else ""
        yield Row(
            f"{key}\0{at}",
            (
                Cell(f"├ {visible(finding.file or '')}", Tone.DIM),
                Cell(f"{sign} {visible(finding.code)}", tone),
                Cell(visible(finding.message) + hint),
            ),
        )
    more = len(findings) - MOST_SHOWN
    if more > 0:
        yield Row(f"{key}\0more", (Cell("├ …", Tone.DIM), Cell(""), Cell(f"{more:,} more")))
