"""Dots and letters of a chart: sets of characters, curves as columns of dots, a grid of cells.

Pure text. A column of dots is one integer, bit 0 at the bottom; a cell is a character and a kind,
one letter that says what it is, so that a painter can choose a style and a test can read it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PLAIN, FAINT, TITLE, CURVE, RAW, ORPHANED = " ", "f", "t", "c", "r", "o"
EVALUATION, LIVE, RETIRED, SELECTED, NONFINITE, CURSOR = "e", "l", "d", "s", "n", "x"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """A set of characters. A cell is `dots_x` dots wide and `dots_y` high.

    `cells` is indexed by the left column's bits << dots_y | the right one's bits.
    """

    name: str
    dots_x: int
    dots_y: int
    cells: Sequence[str]
    curve: str = "▁"
    live: str = "◆"
    retired: str = "◇"
    nonfinite: str = "✗"
    evaluation: str = "+"
    cursor: str = "▲"
    wall: str = "│"
    wall_tick: str = "┤"
    corner: str = "└"
    floor: str = "─"
    floor_tick: str = "┬"
    dot: str = "·"
    until: str = "…"
    at_most: str = "≤"


def _braille(bits: int) -> str:
    left, right = bits >> 4, bits & 15
    code = 0
    for height, (at_left, at_right) in enumerate(
        ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
    ):
        code |= at_left * (left >> height & 1) | at_right * (right >> height & 1)
    return chr(0x2800 + code)


BRAILLE = Glyphs("braille", 2, 4, tuple(map(_braille, range(256))))
BLOCK = Glyphs("block", 1, 2, (" ", "▄", "▀", "█"))
ASCII = Glyphs(
    "ascii", 1, 2, (" ", ".", "'", ":"),
    curve="_", live="*", retired="o", nonfinite="x", evaluation="+", cursor="^",
    wall="|", wall_tick="+", corner="+", floor="-", floor_tick="+",
    dot="|", until="..", at_most="<=",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One line of cells: their characters and, at the same places, their kinds."""

    text: str
    kinds: str


class Grid:
    """Cells to draw on; (0, 0) is at the top left. What lies outside is not drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._chars = [[" "] * width for _ in range(height)]
        self._kinds = [[PLAIN] * width for _ in range(height)]

    def put(self, x: int, y: int, char: str, kind: str) -> None:
        """Draw one cell."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self._chars[y][x] = char
            self._kinds[y][x] = kind

    def write(self, x: int, y: int, text: str, kind: str) -> None:
        """Draw text of narrow characters."""
        for at, char in enumerate(text, x):
            self.put(at, y, char, kind)

    def stamp(self, x: int, masks: Sequence[int], rows: int, glyphs: Glyphs, kind: str) -> None:
        """Draw columns of dots from cell column `x` on, in the grid's first `rows` lines.

        A cell with a dot replaces what was there.
        """
        tall, wide, cells = glyphs.dots_y, glyphs.dots_x, glyphs.cells
        full = (1 << tall) - 1
        for at in range(0, len(masks), wide):
            left, right = masks[at], masks[at + 1] if wide > 1 and at + 1 < len(masks) else 0
            both = left | right
            column = x + at // wide
            while both:
                row = (both.bit_length() - 1) // tall
                shift = row * tall
                bits = left >> shift & full
                if wide > 1:
                    bits = bits << tall | right >> shift & full
                self.put(column, rows - 1 - row, cells[bits], kind)
                both &= (1 << shift) - 1

    def lines(self) -> tuple[Line, ...]:
        """Return what is drawn."""
        return tuple(
            Line("".join(chars), "".join(kinds))
            for chars, kinds in zip(self._chars, self._kinds, strict=True)
        )


Span = tuple[int, int, int]


class Trace:
    """A curve of dots: `masks` are its columns, `levels` the dot it passes in each (-1: none)."""

    def __init__(self, spans: Iterable[Span | None], count: int) -> None:
        """Connect spans (dot column, lowest dot, highest dot), left to right; None is a break."""
        self.masks = [0] * count
        self.levels = [-1] * count
        before: Span | None = None
        for span in spans:
            if span is not None and before is not None:
                self._bridge(before, span)
            elif span is not None:
                self._draw(span, span[1], span[2])
            before = span

    def _bridge(self, before: Span, span: Span) -> None:
        """Draw a span and what lies between it and the one before."""
        (x_before, low_before, high_before), (x, low, high) = before, span
        if x == x_before + 1:
            self._draw(span, low_before, high_before)
            return
        if low > high_before:
            start, end = high_before, low
        elif high < low_before:
            start, end = low_before, high
        else:
            start = end = (max(low, low_before) + min(high, high_before)) // 2
        for column in range(x_before + 1, x):
            level = start + round((end - start) * (column - x_before) / (x - x_before))
            self._draw((column, level, level), low_before, high_before)
            low_before = high_before = level
        self._draw(span, low_before, high_before)

    def _draw(self, span: Span, low_before: int, high_before: int) -> None:
        """Draw a span and reach for its left neighbour."""
        x, low, high = span
        self.levels[x] = (low + high) // 2
        if low > high_before:  # no min or max: this runs for each dot column of each curve
            low = high_before + 1
        if high < low_before:
            high = low_before - 1
        self.masks[x] |= (1 << high + 1) - (1 << low)

    def dotted(self) -> list[int]:
        """Return the columns with every second one merged into the one to its left."""
        masks = self.masks[:]
        start = 0
        for x, mask in enumerate(masks):
            if not mask:
                start = x + 1
            elif (x - start) % 2:
                masks[x - 1] |= mask
                masks[x] = 0
        return masks
