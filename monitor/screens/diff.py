"""What changed from one generation to another: a bar per tensor, frozen ones, metadata."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.present import Cell, Tone
from monitor.commands import Where, bindings_of
from monitor.comparing import Compared, Comparing
from monitor.screens.base import CommandScreen
from monitor.screens.progress import bar_line
from monitor.widgets.painted import PaintedLines
from monitor.widgets.row_table import RowTable, Table


class Pane(StrEnum):
    """The panes, in the order in which tab goes through them."""

    TENSORS = "differ"
    FROZEN = "frozen"
    SAID = "metadata and files"
    FINDINGS = "findings"


EMPTY = {
    Pane.TENSORS: "every tensor is the same in both",
    Pane.FROZEN: "no tensor is the same in both",
    Pane.SAID: "both say the same of themselves",
    Pane.FINDINGS: "nothing is wrong with what was compared",
}


class DiffScreen(CommandScreen):
    """Both names, how much differs, and one table a pane; the tensors that moved most first."""

    where = Where.DIFF
    cancels = True
    tells_work = False
    most_lines_said = 5
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.DIFF)]

    def __init__(self, comparing: Comparing, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.comparing = comparing
        self.head = PaintedLines(ascii_only=ascii_only, id="head")
        self.pane = Pane.TENSORS
        self._painted: Compared | None = None

    def compose(self) -> ComposeResult:
        """Put both names above the table."""
        self._paint_head()
        yield self.head
        yield from super().compose()

    def show_work(self) -> None:
        """Show how far it is, or what it came to."""
        self._paint_head()
        compared = self.comparing.compared
        if compared is not None and compared is not self._painted:
            self._painted = compared
            self._show_pane(compared)
        super().show_work()

    def do_next_pane(self) -> None:
        """Go to the next pane."""
        self._turn(1)

    def do_previous_pane(self) -> None:
        """Go to the pane before."""
        self._turn(-1)

    def do_back(self) -> None:
        """Cancel the comparison and go back; show all rows again first."""
        if self._is_at_work:
            self.monitor.changes.cancel()
        if self._is_at_work or not self.is_filtered:
            self.dismiss()
        else:
            super().do_back()

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say in full what the cursor is on."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """The row under the cursor in full: a table cuts what is too long."""
        row = self.table.selected_row
        if row is None:
            return ()
        texts = [cell.text for cell in row.cells if cell.text.strip("▓#")]
        return (Cell(" "), Cell("  ".join(texts), Tone.DIM))

    def path_to_copy(self) -> str:
        """The path of the second one."""
        return str(self.comparing.after.path)

    def share_window(self) -> None:
        """The head takes what it needs, the table the rest."""
        self.head.take_lines(min(self.head.line_count, max(1, self.size.height - 5)))
        super().share_window()

    @property
    def _is_at_work(self) -> bool:
        return self.monitor.changes.is_at_work(self.comparing)

    def _turn(self, by: int) -> None:
        panes = list(Pane)
        self.pane = panes[(panes.index(self.pane) + by) % len(panes)]
        if self.table.filter_text:
            self.close_filter(keep=False)
        if self._painted is not None:
            self._show_pane(self._painted)
            self.table.move_to_first()

    def _show_pane(self, compared: Compared) -> None:
        tables = _tables(compared)
        self.table.show(tables[self.pane], title=self._tabs(tables), empty=EMPTY[self.pane])
        self.share_window()

    def _tabs(self, tables: Mapping[Pane, Table]) -> list[Cell]:
        cells = []
        for pane, table in tables.items():
            is_here = pane is self.pane
            text = f"{'▸' if is_here else ' '}{pane} {len(table.rows):,}  "
            cells.append(Cell(text, Tone.ACCENT if is_here else Tone.DIM))
        return cells

    def _paint_head(self) -> None:
        before, after = self.comparing.names
        job, compared = self.monitor.changes.job, self.comparing.compared
        line: tuple[Cell, ...]
        if compared is not None:
            line = (Cell(" "), *compared.line)
        elif job is not None and self._is_at_work:
            line = (
                Cell(f" comparing {bar_line(job.at, self.size.width)}  esc cancels", Tone.ACCENT),
            )
        else:
            line = (Cell(" not compared", Tone.WARN),)
        self.head.paint([(Cell(f" - {before}"),), (Cell(f" + {after}", Tone.ACCENT),), line, ()])


def _tables(compared: Compared) -> Mapping[Pane, Table]:
    return {
        Pane.TENSORS: compared.tensors,
        Pane.FROZEN: compared.frozen,
        Pane.SAID: compared.said,
        Pane.FINDINGS: compared.findings,
    }
