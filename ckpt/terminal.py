"""What a stream can show, and painting on it: colours, signs, tables, one line of progress.

Text arrives safe for a terminal (see `present.visible`); here it becomes bytes that the stream's
locale can hold. Nothing here knows what a run is.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import TextIO

from ckpt.errors import CannotWrite
from ckpt.present.words import (
    Cell,
    Column,
    Row,
    Tone,
    cell_width,
    is_one_column_each,
    shorten,
    to_ascii,
)

PLAIN_WIDTH = 80  # what a stream that is no terminal is laid out for
NARROWEST = 8  # a column is shortened to no less than this
MARGIN, GAP = 1, 2
REPAINT_S = 0.2
_CODES = {
    Tone.PLAIN: "",
    Tone.DIM: "\x1b[2m",
    Tone.GOOD: "\x1b[32m",
    Tone.WARN: "\x1b[33m",
    Tone.BAD: "\x1b[1;31m",
    Tone.ACCENT: "\x1b[1m",
}
_RESET = "\x1b[0m"


def is_ascii_only(encoding: str | None, environment: Mapping[str, str]) -> bool:
    """Whether only ASCII is sure to be shown: the stream or the locale that was set is no UTF-8.

    Python turns on UTF-8 by itself in a C locale; who set LC_ALL=C still has a terminal without.
    """
    if "utf" not in (encoding or "").lower():
        return True
    names = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((name for name in names if name), "") in ("C", "POSIX")


@dataclass(frozen=True, slots=True)
class Terminal:
    """A stream and what it can show. `width` is None where lines may be as long as they like."""

    stream: TextIO | None
    is_terminal: bool
    has_colour: bool
    ascii_only: bool
    width: int | None

    @classmethod
    def of(cls, stream: TextIO | None, environment: Mapping[str, str]) -> "Terminal":
        """Find out about a stream; a closed one (`>&-`) takes nothing and says nothing."""
        if stream is None:
            return cls(None, False, False, True, None)
        is_terminal = stream.isatty()
        is_dumb = environment.get("TERM", "dumb") == "dumb"
        return cls(
            stream,
            is_terminal,
            is_terminal and not is_dumb and not environment.get("NO_COLOR"),
            is_ascii_only(stream.encoding, environment),
            _width_of(stream, environment) if is_terminal else None,
        )

    @property
    def layout_width(self) -> int:
        """Columns that a laid-out line may take."""
        return self.width or PLAIN_WIDTH

    def line(self, *cells: Cell | str) -> None:
        """Write cells in their tones, and end the line."""
        self.write("".join(self._painted(cell) for cell in cells).rstrip(" ") + "\n")

    def write(self, text: str) -> None:
        """Write text as it is.

        Raises:
            CannotWrite: the stream takes no more.
        """
        if self.stream is not None:
            try:
                self.stream.write(text)
            except OSError as error:
                raise CannotWrite(error) from error

    def flush(self) -> None:
        """Bring out what was written.

        Raises:
            CannotWrite: the stream takes no more.
        """
        if self.stream is not None:
            try:
                self.stream.flush()
            except OSError as error:
                raise CannotWrite(error) from error

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Write one line per row; where they do not fit, the widest texts lose their middles."""
        places = range(len(columns))
        self.columns(
            columns,
            [[row.cells[at].text for row in rows] for at in places],
            [[row.cells[at].tone for row in rows] for at in places],
        )

    def columns(
        self,
        columns: Sequence[Column],
        texts: Sequence[Sequence[str]],
        tones: Sequence[Sequence[Tone]] | None = None,
    ) -> None:
        """The same from the texts of each column: cells for 10,000 tensors would take longer."""
        if self.stream is None:
            return
        whole = [[column.title, *texts[at]] for at, column in enumerate(columns)]
        if self.ascii_only:
            whole = [[to_ascii(text) for text in each] for each in whole]
        wanted = [_widest(each) for each in whole]
        shown = list(range(len(columns)))
        if self.width is not None:
            shown, wanted = _narrowed(columns, wanted, self.width - MARGIN)
        laid = [self._laid(whole[at], columns[at], wanted[at]) for at in shown]
        if self.has_colour:
            for place, at in enumerate(shown):
                told = tones[at] if tones else [Tone.PLAIN] * len(texts[at])
                pairs = zip(laid[place], (Tone.DIM, *told), strict=True)
                laid[place] = [self._painted(Cell(text, tone)) for text, tone in pairs]
        gap, margin = " " * GAP, " " * MARGIN
        lines = [margin + gap.join(parts).rstrip(" ") for parts in zip(*laid, strict=True)]
        self.write("\n".join(lines) + "\n")

    def _laid(self, texts: Sequence[str], column: Column, width: int) -> list[str]:
        """Make the texts of a column equally wide."""
        if _widest(texts) > width:
            dots = "~" if self.ascii_only else "…"
            texts = [shorten(text, width, ellipsis=dots) for text in texts]
        if is_one_column_each("".join(texts)):
            fill = str.rjust if column.is_right else str.ljust
            return [fill(text, width) for text in texts]
        blanks = [" " * (width - cell_width(text)) for text in texts]
        if column.is_right:
            return list(map(add, blanks, texts))
        return list(map(add, texts, blanks))

    def _painted(self, cell: Cell | str) -> str:
        text, tone = (cell, Tone.PLAIN) if isinstance(cell, str) else (cell.text, cell.tone)
        if self.ascii_only:
            text = to_ascii(text)
        code = _CODES[tone] if self.has_colour and text.strip() else ""
        return f"{code}{text}{_RESET}" if code else text


class ProgressLine:
    """One line that says how far a job is and is overwritten; silent where no terminal is."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._shown_at = -REPAINT_S
        self._length = 0

    def show(self, text: str) -> None:
        """Replace the line, at most five times a second."""
        now = self._clock()
        if not self._terminal.is_terminal or now - self._shown_at < REPAINT_S:
            return
        self._shown_at = now
        text = shorten(text, self._terminal.layout_width - 1)
        self._overwrite(to_ascii(text) if self._terminal.ascii_only else text)

    def clear(self) -> None:
        """Take the line away, so that something else can be said in its place."""
        if self._length:
            self._overwrite("", ending="\r")
        self._shown_at = -REPAINT_S

    def _overwrite(self, text: str, ending: str = "") -> None:
        length = cell_width(text)
        self._terminal.write("\r" + text + " " * (self._length - length) + ending)
        self._terminal.flush()
        self._length = length


def _width_of(stream: TextIO, environment: Mapping[str, str]) -> int:
    told = environment.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
    except (OSError, ValueError):
        return PLAIN_WIDTH


def _widest(texts: Sequence[str]) -> int:
    return max(map(len if is_one_column_each("".join(texts)) else cell_width, texts))


def _narrowed(
    columns: Sequence[Column], wanted: Sequence[int], room: int
) -> tuple[list[int], list[int]]:
    """Choose which columns are shown and how wide: names give way first, numbers stay whole."""
    shown = list(range(len(columns)))
    widths = list(wanted)

    def excess(sizes: Sequence[int]) -> int:
        return sum(sizes[at] for at in shown) + GAP * (len(shown) - 1) - room

    least = [
        width if column.is_right else min(width, max(column.least, NARROWEST))
        for column, width in zip(columns, widths, strict=True)
    ]
    while len(shown) > 1 and excess(least) > 0:
        shown.remove(max(shown, key=lambda at: (columns[at].rank, at)))
    if len(shown) == 1:
        least = [min(each, NARROWEST) for each in least]
    while excess(widths) > 0:
        at = max(shown, key=lambda at: widths[at] - least[at])
        if widths[at] <= least[at]:
            break
        widths[at] -= 1
    return shown, widths
