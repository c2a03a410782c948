"""The smallest pieces of what is said: cells, rows, signs, sizes, ages, text fit for a terminal.

Knows no run and no checkpoint; `header` and `rows` build on it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from ckpt.phrases import DAY, HOUR, MINUTE, duration, loss

DEEPEST = 64
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_ASCII_SIGNS = {
    "●": "*", "○": "o", "◆": "*", "◇": "o", "✓": "+", "✗": "x", "\N{EN DASH}": "-", "—": "-",
    "…": "~", "▸": ">", "├": "|", "─": "-", "▓": "#", "░": ".", "↓": "v", "↑": "^", "→": ">",
    "\N{MULTIPLICATION SIGN}": "x", "±": "+-", "·": "|", "“": '"', "”": '"',
}  # fmt: skip
_TO_ASCII = str.maketrans(_ASCII_SIGNS)


class Tone(StrEnum):
    """What a piece of text means; the painter chooses a colour, the text itself holds the word."""

    PLAIN = "plain"
    DIM = "dim"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    ACCENT = "accent"


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text and its tone. The text is safe to print: see `visible`."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of one thing; `key` is its identity, stable while the thing lives."""

    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading of rows; `is_right` columns hold numbers and stand flush right.

    Where not all fit, the column of the highest `rank` goes first. One with a `least` is not made
    narrower than that while another can go.
    """

    title: str
    is_right: bool = False
    rank: int = 0
    least: int = 0


def visible(text: str) -> str:
    r"""Make text from a disk safe for a terminal: one line, no control or invisible codes.

    Control characters, line and paragraph separators, bidirectional overrides and bytes that are
    no UTF-8 become escapes one can read (`\n`, `\x1b`, `\u202e`, `\xff`).
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def visible_all(texts: list[str]) -> list[str]:
    """The same for many texts at once; most lists hold nothing that has to change."""
    joined = "".join(texts)
    if joined.isascii() and joined.isprintable():
        return texts
    return [visible(text) for text in texts]


def to_ascii(text: str) -> str:
    """Spell text for a terminal without UTF-8: signs by look-alikes, other letters by escapes."""
    if text.isascii():
        return text
    return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def spelt(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The same cells spelt for a terminal without UTF-8."""
    return tuple(Cell(to_ascii(cell.text), cell.tone) for cell in cells)


def is_one_column_each(text: str) -> bool:
    """Whether each letter of printable text takes one column for sure: quick to tell, usual."""
    if text.isascii():
        return True
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def cell_width(text: str) -> int:
    """Columns that a terminal gives to text: 2 for a wide letter, 0 for a combining mark."""
    if is_one_column_each(text):
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) or char == "\N{VARIATION SELECTOR-16}"
        else 2 if east_asian_width(char) in "WF"
        else 1
        for char in text
    )  # fmt: skip


def shorten(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Cut text to `width` columns in its middle, where names differ least; never longer."""
    if cell_width(text) <= width:
        return text
    room = width - cell_width(ellipsis)
    if room <= 0:
        return ellipsis[: max(0, width)]
    head = _columns(text, room - room // 2)
    tail = _columns(text[::-1], room // 2)[::-1]
    return head + ellipsis + tail


def jsonable(value: Any, depth: int = DEEPEST) -> Any:
    r"""Make a value fit for strict JSON: NaN → None, paths → text, lone bytes → `\xff` escapes.

    What lies more than `depth` levels deep becomes `…`: a file can nest deeper than any reader of
    our output can follow.
    """
    if isinstance(value, str):
        return value if value.isascii() else _encodable(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return _encodable(str(value))
    if isinstance(value, bytes):
        return _encodable(value.decode("utf-8", "surrogateescape"))
    if depth <= 0:
        return "…"
    if isinstance(value, Mapping):
        return {_encodable(str(key)): jsonable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, depth - 1) for item in value]
    return _encodable(str(value))


def iso_time(at: float | None) -> str | None:
    """Epoch seconds as ISO 8601 with zone (UTC), None for unknown or beyond the calendar."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def size(size_bytes: int | None) -> str:
    """Bytes as people say them, in powers of 1000: `1.2 GB`; `?` for unknown.

    What no disk can hold, as a damaged header may claim it, is `impossible`.
    """
    if size_bytes is None:
        return "?"
    if size_bytes >= 1 << 64:
        return "impossible"
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{size_bytes} B"
    return f"{value:.0f} {_UNITS[unit]}" if value >= 99.95 else f"{value:.1f} {_UNITS[unit]}"


def estimate(seconds: float | None) -> str:
    """The same for a time that is only guessed: to the nearest unit, where an age rounds down."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    for limit, unit in ((DAY, HOUR), (MINUTE, MINUTE)):
        if seconds >= limit:
            return duration(round(seconds / unit) * unit)
    return duration(seconds)


def age(at: float | None, now: float) -> str:
    """How long ago, in whole minutes so that an age costs no bytes; a time ahead says so."""
    if at is None:
        return "?"
    passed = now - at
    if passed < -MINUTE:
        return f"clock ahead {duration(-passed)}"
    if passed < MINUTE:
        return "just now"
    return f"{duration(passed)} ago"


def integer(value: int | None) -> str:
    """A whole number with thousands separators: `12,400`; `?` for unknown."""
    return "?" if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A learning rate: `2.0e-4`; `?` for unknown."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return loss(value)
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return "0" if value == 0 else f"{mantissa}e{int(exponent)}"


def _columns(text: str, width: int) -> str:
    """The longest beginning of `text` that takes at most `width` columns."""
    if text.isascii():
        return text[:width]
    used = 0
    for at, char in enumerate(text):
        used += cell_width(char)
        if used > width:
            return text[:at]
    return text


def _escape(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_escape(c) if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
