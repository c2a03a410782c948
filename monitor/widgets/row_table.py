"""A table of rows keyed by identity: only the rows in sight are ever made into text.

Holds a hundred thousand rows as easily as ten. It moves its own cursor, filters, and says what was
chosen; it never reads a file and knows nothing of what a row means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from ckpt.present import Cell, Column, Row, Tone, to_ascii, visible
from monitor.widgets.painted import STYLES, PaintedLines, fit, fit_line, line_of

GAP = 2  # blanks between two columns
MARK = 2  # cells left of the first column, for the cursor's sign
TOO_WIDE = 10  # a column that is wider than it need be by more than this shrinks
NARROWEST = 24  # a column of rank 0 is cut to no less than this while another can go


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, rows in order, and the width that each column wants; made off the event loop."""

    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Sequence[Row]) -> Self:
        """Measure the rows."""
        widths = [cell_len(column.title) for column in columns]
        for row in rows:
            for at, cell in enumerate(row.cells[: len(widths)]):
                if len(cell.text) >= widths[at] or not cell.text.isascii():
                    widths[at] = max(widths[at], cell_len(cell.text))
        return cls(tuple(columns), tuple(rows), tuple(widths))

    def with_cell(self, key: str, at: int, cell: Cell) -> Self:
        """Return the same with another cell in column `at` of the row of a key, if it is there."""
        place = next((place for place, row in enumerate(self.rows) if row.key == key), None)
        if place is None:
            return self
        cells = self.rows[place].cells
        row = replace(self.rows[place], cells=(*cells[:at], cell, *cells[at + 1 :]))
        widths = list(self.widths)
        widths[at] = max(widths[at], cell_len(cell.text))
        rows = (*self.rows[:place], row, *self.rows[place + 1 :])
        return replace(self, rows=rows, widths=tuple(widths))


class RowTable(PaintedLines):
    """The widget: a title line, a heading line, and as many rows as fit below them."""

    class Selected(Message):
        """The cursor is on another row; `key` is None when there is no row."""

        def __init__(self, table: "RowTable", key: str | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Opened(Message):
        """A row was clicked while the cursor was on it: the same as pressing enter."""

        def __init__(self, table: "RowTable", key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(ascii_only=ascii_only, id=id)
        self._table = Table()
        self._shown: tuple[Row, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._title: tuple[Cell, ...] = ()
        self._note: tuple[Cell, ...] = ()
        self._empty = ""
        self._filter = ""
        self._cursor = 0
        self._top = 0
        self._follows_first = True

    # ---- what it shows --------------------------------------------------------------------------

    def show(
        self,
        table: Table,
        *,
        title: Sequence[Cell] = (),
        note: Sequence[Cell] = (),
        empty: str = "",
    ) -> None:
        """Show these rows; the cursor stays on its row's key, or on the first row if it was there.

        `title` stands at the left of the first line and `note` at its right; `empty` is said where
        there are no rows. Columns only grow while the titles stay, so that nothing jumps, unless
        what made one much too wide is gone.
        """
        selected = self.selected_key
        if table.columns == self._table.columns:
            pairs = zip(self._widths, table.widths, strict=True)
            self._widths = tuple(
                wanted if wanted < width - TOO_WIDE else max(width, wanted)
                for width, wanted in pairs
            )
        else:
            self._widths = table.widths
        self._table, self._title, self._note = table, tuple(title), tuple(note)
        self._empty = empty
        self._choose_rows(selected)

    def narrow(self, text: str) -> None:
        """Show only rows that hold `text` somewhere, in any case; an empty text shows all."""
        if text != self._filter:
            self._filter = text
            self._choose_rows(self.selected_key)

    @property
    def filter_text(self) -> str:
        """What the rows are filtered by; empty when they are not."""
        return self._filter

    @property
    def selected_key(self) -> str | None:
        """The key of the row that the cursor is on."""
        return None if self.selected_row is None else self.selected_row.key

    @property
    def selected_row(self) -> Row | None:
        """The row that the cursor is on; None while there is none."""
        return self._shown[self._cursor] if self._cursor < len(self._shown) else None

    @property
    def row_count(self) -> int:
        """How many rows pass the filter."""
        return len(self._shown)

    def wanted_height(self) -> int:
        """Lines needed to show every row, title and heading included."""
        return 2 + max(1, len(self._shown))

    # ---- moving ---------------------------------------------------------------------------------

    def move(self, rows: int) -> None:
        """Move the cursor by some rows, as far as there are any."""
        self._go_to(self._cursor + rows)

    def move_half_page(self, direction: int) -> None:
        """Move by half of the rows in sight, up (-1) or down (1)."""
        self.move(direction * max(1, self._room // 2))

    def move_to_first(self) -> None:
        """Go to the first row, and stay on whatever becomes the first row."""
        self._go_to(0)

    def move_to_last(self) -> None:
        """Go to the last row."""
        self._go_to(len(self._shown) - 1)

    def select(self, key: str) -> None:
        """Put the cursor on the row of a key, when it is shown."""
        for at, row in enumerate(self._shown):
            if row.key == key:
                self._go_to(at)
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll by moving the cursor."""
        event.stop()
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll by moving the cursor."""
        event.stop()
        self.move(-1)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on a row; a click on the row it is on opens that row."""
        at = self._top + event.y - self._heading_lines
        if event.y < self._heading_lines or at >= len(self._shown):
            return
        if at == self._cursor:
            self.post_message(self.Opened(self, self._shown[at].key))
        else:
            self._go_to(at)

    # ---- painting -------------------------------------------------------------------------------

    @property
    def _heading_lines(self) -> int:
        return (1 if self._title or self._note else 0) + 1

    @property
    def _room(self) -> int:
        return max(0, self.size.height - self._heading_lines)

    def _choose_rows(self, selected: str | None) -> None:
        rows = self._table.rows
        if self._filter:
            wanted = self._filter.casefold()
            rows = tuple(
                row for row in rows if any(wanted in c.text.casefold() for c in row.cells)
            )
        if rows is not self._shown:
            self._shown = rows
            self._keep_cursor(selected)
        self._repaint()
        if self.selected_key != selected:
            self.post_message(self.Selected(self, self.selected_key))

    def _keep_cursor(self, selected: str | None) -> None:
        if self._follows_first or selected is None:
            self._cursor = 0
            return
        found = next((at for at, row in enumerate(self._shown) if row.key == selected), None)
        self._cursor = min(self._cursor, max(0, len(self._shown) - 1)) if found is None else found

    def _go_to(self, at: int) -> None:
        at = max(0, min(at, len(self._shown) - 1))
        if at == self._cursor:
            return
        self._cursor = at
        self._follows_first = at == 0
        self._repaint()
        self.post_message(self.Selected(self, self.selected_key))

    def _repaint(self) -> None:
        width, room = self.size.width, self._room
        if width <= 0 or self.size.height <= 0:
            return
        self._top = max(0, min(self._top, len(self._shown) - room))
        if self._cursor < self._top:
            self._top = self._cursor
        elif room and self._cursor >= self._top + room:
            self._top = self._cursor - room + 1
        columns = self._columns_for(width)
        lines = [self._title_line(width)] if self._title or self._note else []
        lines.append(self._heading_line(columns, width))
        lines.extend(
            self._row_line(self._shown[at], columns, is_selected=at == self._cursor)
            for at in range(self._top, min(self._top + room, len(self._shown)))
        )
        if not self._shown:
            text = f"no row holds “{visible(self._filter)}”" if self._filter else self._empty
            lines.append(line_of([Cell(" " * MARK + text, Tone.DIM)], ascii_only=self.ascii_only))
        only = self.ascii_only
        self.replace_lines(
            [fit_line(line, width, ascii_only=only) for line in lines[: self.size.height]]
        )

    def _columns_for(self, width: int) -> list[tuple[int, int]]:
        """Choose (column, width): the highest ranks go first, those of rank 0 give and take."""
        columns = self._table.columns
        kept = list(range(len(columns)))
        while len(kept) > 1 and self._least_width(kept) > width:
            kept.remove(max(kept, key=lambda at: (columns[at].rank, at)))
        sizes = {at: self._widths[at] for at in kept}
        flexible = sorted((at for at in kept if not columns[at].rank), key=sizes.__getitem__)
        fixed = sum(sizes[at] for at in kept if columns[at].rank)
        left = max(0, width - MARK - fixed - GAP * (len(kept) - 1))
        for place, at in enumerate(flexible):
            sizes[at] = min(sizes[at], left // (len(flexible) - place))
            left -= sizes[at]
        return [(at, sizes[at]) for at in kept]

    def _least_width(self, kept: Sequence[int]) -> int:
        columns = self._table.columns
        needs = [
            self._widths[at] if columns[at].rank else min(self._widths[at], NARROWEST)
            for at in kept
        ]
        return MARK + sum(needs) + GAP * (len(kept) - 1)

    def _title_line(self, width: int) -> Strip:
        note = line_of(self._note, ascii_only=self.ascii_only)
        title = fit_line(
            line_of(self._title_cells(), ascii_only=self.ascii_only),
            max(0, width - note.cell_length - 1),
            ascii_only=self.ascii_only,
        )
        return Strip([*title, Segment(" "), *note])

    def _title_cells(self) -> list[Cell]:
        if not self._filter:
            return list(self._title)
        told = f"  “{visible(self._filter)}” {len(self._shown):,} of {len(self._table.rows):,}"
        return [*self._title, Cell(told, Tone.WARN)]

    def _heading_line(self, columns: list[tuple[int, int]], width: int) -> Strip:
        titles = [
            fit(self._table.columns[at].title, size, is_right=self._table.columns[at].is_right)
            for at, size in columns
        ]
        text = " " * MARK + (" " * GAP).join(titles)
        return Strip([Segment(text[:width], STYLES[Tone.DIM])])

    def _row_line(self, row: Row, columns: list[tuple[int, int]], *, is_selected: bool) -> Strip:
        spell = to_ascii if self.ascii_only else str
        emphasis = Style(bold=True) if is_selected else Style()
        segments = [Segment(spell("▸ ") if is_selected else "  ", STYLES[Tone.ACCENT])]
        for place, (at, size) in enumerate(columns):
            if place:
                segments.append(Segment(" " * GAP))
            cell = row.cells[at] if at < len(row.cells) else Cell("")
            text = fit(spell(cell.text), size, is_right=self._table.columns[at].is_right)
            segments.append(Segment(spell(text), STYLES[cell.tone] + emphasis))
        return Strip(segments)
