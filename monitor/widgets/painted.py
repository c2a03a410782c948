"""Lines of cells on the screen: the one place where `present`'s cells become styled text.

A painted widget keeps what it shows and asks Textual to repaint only the spans that differ,
because Textual sends a refreshed region whole. Text goes out as it is: nothing here knows markup.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from rich.cells import cell_len, get_character_cell_size, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from ckpt.present import Cell, Tone, to_ascii

JOIN_GAP = 10  # moving the cursor and setting the style again costs about as many bytes

STYLES = {
    Tone.PLAIN: Style(),
    Tone.DIM: Style(dim=True),
    Tone.GOOD: Style(color="green"),
    Tone.WARN: Style(color="yellow"),
    Tone.BAD: Style(color="red", bold=True),
    Tone.ACCENT: Style(bold=True),
}
"""The terminal's own colours on its own background: right in 16 colours, light and dark."""

SELECTED = Style(reverse=True)


def line_of(cells: Iterable[Cell], *, ascii_only: bool = False) -> Strip:
    """Turn cells into one strip, in their order and without anything between them."""
    spell = to_ascii if ascii_only else str
    return Strip([Segment(spell(cell.text), STYLES[cell.tone]) for cell in cells if cell.text])


def fit(text: str, width: int, *, is_right: bool = False, mark: str = "…") -> str:
    """Pad or cut text to a width in terminal cells; a cut one ends in `mark`."""
    length = cell_len(text)
    if length == width:
        return text
    if length < width:
        padding = " " * (width - length)
        return padding + text if is_right else text + padding
    return "" if width <= 0 else set_cell_size(text, width - 1) + mark


def fit_line(strip: Strip, width: int, *, ascii_only: bool = False) -> Strip:
    """Cut a strip that is too wide so that its last cell says so, and fill a short one."""
    if strip.cell_length <= width:
        return strip.extend_cell_length(width)
    mark = Segment("~" if ascii_only else "…", STYLES[Tone.DIM])
    return Strip([*strip.crop(0, max(0, width - 1)), mark]).crop(0, width)


def changed_spans(old: Strip, new: Strip) -> list[tuple[int, int]]:
    """Return the (start, end) cells in which two strips differ; near ones are joined."""
    if old == new:
        return []
    before, after = _cells_of(old), _cells_of(new)
    length = max(len(before), len(after))
    before += [None] * (length - len(before))
    after += [None] * (length - len(after))
    return joined(at for at in range(length) if before[at] != after[at])


def joined(places: Iterable[int]) -> list[tuple[int, int]]:
    """Return the (start, end) spans of cells that growing places make; near ones are joined."""
    spans: list[tuple[int, int]] = []
    for at in places:
        if spans and at - spans[-1][1] < JOIN_GAP:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
    return spans


class PaintedLines(Widget):
    """A block of lines, one strip each, of which only what changed is repainted."""

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, markup=False)
        self.ascii_only = ascii_only
        self.repainted = 0
        """How many spans were ever asked to be repainted: what a test counts."""
        self._taken: int | None = None
        self._cells: tuple[tuple[Cell, ...], ...] = ()
        self._lines: list[Strip] = []

    def paint(self, lines: Sequence[Sequence[Cell]]) -> None:
        """Show these lines; nothing is repainted where they are what is shown already."""
        cells = tuple(tuple(line) for line in lines)
        if cells != self._cells:
            self._cells = cells
            self._repaint()

    def take_lines(self, count: int) -> None:
        """Take this many lines of the window; said twice it costs nothing."""
        if count != self._taken:
            self._taken = count
            self.styles.height = count

    @property
    def line_count(self) -> int:
        """How many lines were given."""
        return len(self._cells)

    def on_resize(self) -> None:
        """Cut and fill the lines anew: the whole widget is repainted by Textual anyway."""
        self._repaint()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's signature
        """As many lines as were given."""
        return max(1, len(self._cells))

    def render_line(self, y: int) -> Strip:
        """Return line `y`, blank where there is none."""
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)

    def plain(self) -> list[str]:
        """The lines as text, for tests and for screen readers."""
        return [strip.text.rstrip() for strip in self._lines]

    def _repaint(self) -> None:
        width = self.size.width
        lines = [
            fit_line(line_of(cells, ascii_only=self.ascii_only), width, ascii_only=self.ascii_only)
            for cells in self._cells
        ]
        self.replace_lines(lines)

    def replace_lines(self, lines: list[Strip]) -> None:
        """Take new strips and refresh the spans in which they differ from the shown ones."""
        old, self._lines = self._lines, lines
        blank = Strip.blank(self.size.width)
        regions = [
            Region(start, y, end - start, 1)
            for y in range(max(len(old), len(lines)))
            for start, end in changed_spans(
                old[y] if y < len(old) else blank, lines[y] if y < len(lines) else blank
            )
        ]
        if regions:
            self.repainted += len(regions)
            self.refresh(*regions)


def _cells_of(strip: Strip) -> list[tuple[str, Style | None] | None]:
    return list(chain.from_iterable(_segment_cells(segment) for segment in strip))


def _segment_cells(segment: Segment) -> list[tuple[str, Style | None] | None]:
    text, style, _ = segment
    if text.isascii():
        return [(char, style) for char in text]
    cells: list[tuple[str, Style | None] | None] = []
    for char in text:
        size = get_character_cell_size(char)
        if size == 0 and cells and (last := cells[-1]) is not None:
            cells[-1] = (last[0] + char, style)  # a combining mark belongs to the cell before it
            continue
        cells.append((char, style))
        cells.extend([("", style)] * (size - 1))
    return cells
