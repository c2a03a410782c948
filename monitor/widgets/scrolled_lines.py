"""A text of several lines that is wrapped to the window and scrolled, line by line."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from rich.cells import cell_len, set_cell_size
from textual import events

from ckpt.present import Cell, Tone
from monitor.widgets.painted import PaintedLines

INDENT, DEEP_INDENT, NARROWEST = 4, 17, 8
SHORT = 22  # a cell of so few letters is not broken: `✓ verified 12 min ago`
WIDE = 60  # from this width on what belongs to a label stands under its text


class ScrolledLines(PaintedLines):
    """The widget. The last line in sight says how many more there are."""

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(ascii_only=ascii_only, id=id)
        self._text: tuple[tuple[Cell, ...], ...] = ()
        self._top = 0

    def show(self, lines: Sequence[Sequence[Cell]]) -> None:
        """Show a text from its first line on."""
        self._text = tuple(tuple(line) for line in lines)
        self._top = 0
        self._show()

    def scroll(self, lines: int) -> None:
        """Move by some lines, as far as there are any."""
        self._top += lines
        self._show()

    def scroll_page(self, direction: int) -> None:
        """Move by half of what is in sight, up (-1) or down (1)."""
        self.scroll(direction * max(1, self.size.height // 2))

    def scroll_to_first(self) -> None:
        """Show the first line."""
        self.scroll(-self._top)

    def scroll_to_last(self) -> None:
        """Show the last line."""
        self.scroll(len(self._wrapped(self.size.width)))

    def wanted_height(self, width: int) -> int:
        """Lines that the whole text takes at a width."""
        return len(self._wrapped(width))

    def on_resize(self) -> None:
        """Wrap anew."""
        self._show()
        super().on_resize()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll."""
        event.stop()
        self.scroll(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll."""
        event.stop()
        self.scroll(-1)

    def _show(self) -> None:
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        lines = self._wrapped(width)
        self._top = max(0, min(self._top, len(lines) - height))
        below = len(lines) - self._top - height
        shown = lines[self._top : self._top + height]
        if below > 0:
            shown[-1] = (Cell(f"  ↓ {below + 1:,} more lines", Tone.WARN),)
        self.paint(shown)

    def _wrapped(self, width: int) -> list[tuple[Cell, ...]]:
        lines = (part for line in self._text for part in wrapped_cells(line, width - 1))
        return [joined_cells(line) for line in lines]


def joined_cells(line: Sequence[Cell]) -> tuple[Cell, ...]:
    """Make one cell of neighbours of one tone: each change of style costs bytes."""
    return tuple(
        Cell("".join(cell.text for cell in cells), tone)
        for tone, cells in groupby(line, key=attrgetter("tone"))
    )


def wrapped_cells(line: Sequence[Cell], width: int) -> Iterator[tuple[Cell, ...]]:
    """Break a line at blanks into lines of at most `width`; what follows is indented."""
    deep = len(line) > 1 and width >= WIDE
    indent = Cell(" " * (DEEP_INDENT if deep else INDENT))
    width = max(width, NARROWEST)
    room, parts, is_begun = width, list[Cell](), False
    for word, tone in _words(line, min(SHORT, width - cell_len(indent.text))):
        if cell_len(word) > room and is_begun:
            yield tuple(parts)
            room, parts, is_begun = width - cell_len(indent.text), [indent], False
            word = word.lstrip(" ")  # noqa: PLW2901 - the blank is where the line was broken
        while cell_len(word) > room:
            head = set_cell_size(word, room)
            head = head if word.startswith(head) else word[: max(1, len(head) - 1)]
            yield (*parts, Cell(head, tone))
            word = word[len(head) :]  # noqa: PLW2901 - the rest of a word longer than a line
            room, parts = width - cell_len(indent.text), [indent]
        parts.append(Cell(word, tone))
        room -= cell_len(word)
        is_begun = is_begun or bool(word.strip(" "))
    if is_begun or not parts:
        yield tuple(parts)


def _words(line: Sequence[Cell], longest: int) -> Iterator[tuple[str, Tone]]:
    """Yield each word with the blanks before it; a cell of up to `longest` stays in one piece."""
    for cell in line:
        if len(cell.text) <= longest:
            yield cell.text, cell.tone
            continue
        start = 0
        for at in range(1, len(cell.text)):
            if cell.text[at] == " " and cell.text[at - 1] != " ":
                yield cell.text[start:at], cell.tone
                start = at
        yield cell.text[start:], cell.tone
