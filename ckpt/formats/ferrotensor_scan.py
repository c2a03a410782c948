"""One pass over the JSON text of a training checkpoint that builds no value of its moments.

Owns the tokens and the window over the text (hundreds of MB, read on as it is used up). Knows
where a training checkpoint keeps what, and nothing of what its fields mean.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ckpt import jsontext
from ckpt.errors import TornRead

MAX_DEPTH = 100
MAX_TOKEN_BYTES = 1 << 26
_SPACE = re.compile(rb"[ \t\r\n]*+")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_NUMBERS = re.compile(
    rb"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?[ \t\r\n]*+,[ \t\r\n]*+)++"
)
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_WORD = re.compile(rb"true|false|null|NaN|-?Infinity")
_CUT_ENDS = frozenset({b".", b"e", b"E", b"e+", b"e-", b"E+", b"E-"})  # a number goes on after
_BOM = b"\xef\xbb\xbf"


class CutText(Exception):
    """The text ended before its JSON did."""


class BadText(Exception):
    """The text is not JSON; the message says at which byte."""


@dataclass(slots=True)
class Moment:
    """One parameter's moment: how many numbers, and how many that are none (null or NaN)."""

    numbers: int = 0
    lost: int = 0


@dataclass(slots=True)
class Scanned:
    """What was met so far. Values are parsed JSON; `keys` are the members that are complete.

    `optimizer` holds the optimizer's members but its moments, `moments` these by kind and name.
    """

    keys: set[str] = field(default_factory=set)
    training_state: Any = None
    scaler: Any = None
    optimizer_tag: str | None = None
    optimizer: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, dict[str, Moment]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def scan(blocks: Iterator[bytes], found: Scanned) -> None:
    """Scan a whole text into `found`, which holds what was complete when an exception ends it.

    Raises:
        CutText: the text ends too early.
        BadText: it is not JSON, or text follows its end.
    """
    text = _Text(blocks)
    if text.peek() != b"{":
        text.skip_value()
        found.odd.append("an object is expected")
    else:
        text.walk_object(lambda key: _top_member(text, found, key), found.twice)
    text.expect_end()


def _top_member(text: "_Text", found: Scanned, key: str) -> None:
    if key == "training_state":
        found.training_state = text.parse_value()
    elif key == "grad_scaler_state":
        found.scaler = text.parse_value()
    elif key == "optimizer_state" and text.peek() == b"{":
        text.walk_object(lambda tag: _optimizer(text, found, tag), found.twice)
    elif key == "optimizer_state":
        value = text.parse_value()
        if value is not None:
            found.odd.append("optimizer_state is no object")
    else:
        text.skip_value()
    found.keys.add(key)


def _optimizer(text: "_Text", found: Scanned, tag: str) -> None:
    if found.optimizer_tag is not None:
        found.odd.append(f"optimizer_state names {found.optimizer_tag!r} and {tag!r}")
    found.optimizer_tag = tag
    if text.peek() != b"{":
        text.skip_value()
        found.odd.append(f"optimizer_state {tag!r} is no object")
        return
    text.walk_object(lambda key: _optimizer_member(text, found, key), found.twice)


def _optimizer_member(text: "_Text", found: Scanned, key: str) -> None:
    if key not in ("m_states", "v_states"):
        found.optimizer[key] = text.parse_value()
        return
    moments = found.moments.setdefault(key, {})
    if text.peek() != b"{":
        text.skip_value()
        found.odd.append(f"{key} is no object")
        return

    def one(name: str) -> None:
        moments[name] = Moment()
        text.skip_value(moments[name])

    text.walk_object(one, found.twice)


class _Text:
    """A window over JSON text: `data[position:]` is what comes next."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._data = b""
        self._position = 0
        self._dropped = 0
        self._kept_from: int | None = None  # absolute: text from here on is not dropped
        self._depth = 0
        if self._more() and self._data.startswith(_BOM):
            self._position = len(_BOM)

    def peek(self) -> bytes:
        """Return the next byte that is no space."""
        while True:
            space = _SPACE.match(self._data, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._data):
                return self._data[self._position : self._position + 1]
            if not self._more():
                raise CutText

    def expect_end(self) -> None:
        """Make sure that nothing but spaces follows."""
        try:
            self.peek()
        except CutText:
            return
        raise self._bad("text after the end")

    def walk_object(self, member: Callable[[str], None], twice: list[str]) -> None:
        """Call `member` at each value of the object that comes next; it must consume the value."""
        seen: set[str] = set()
        self._position += 1
        if self._ends(b"}"):
            return
        while True:
            if self.peek() != b'"':
                raise self._bad("a key is expected")
            key = self._string()
            if key in seen:
                twice.append(key)
            seen.add(key)
            if self.peek() != b":":
                raise self._bad("a colon is expected")
            self._position += 1
            self.peek()
            member(key)
            if self._ends(b"}"):
                return
            self._comma()

    def parse_value(self) -> Any:
        """Parse the value that comes next, which must be small."""
        self.peek()
        start = self._kept_from = self._dropped + self._position
        self.skip_value()
        end = self._dropped + self._position
        self.peek()  # a number is whole only when something follows it
        raw = self._data[start - self._dropped : end - self._dropped]
        self._kept_from = None
        return self._parse(raw)

    def skip_value(self, into: Moment | None = None) -> None:
        """Go past the value that comes next; count its numbers and what should be numbers."""
        moment = into or Moment()
        first = self.peek()
        if first == b"[":
            self._nested(self._skip_array, moment)
        elif first == b"{":
            self._nested(self._skip_object, moment)
        elif first == b'"':
            self._string()
        else:
            self._scalar(moment)

    def _nested(self, skip: Callable[[Moment], None], moment: Moment) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad("nested too deeply")
        skip(moment)
        self._depth -= 1

    def _skip_object(self, moment: Moment) -> None:
        self.walk_object(lambda _key: self.skip_value(moment), [])

    def _skip_array(self, moment: Moment) -> None:
        self._position += 1
        if self._ends(b"]"):
            return
        while True:
            run = _NUMBERS.match(self._data, self._position)
            if run:
                moment.numbers += self._data.count(b",", run.start(), run.end())
                self._position = run.end()
            self.skip_value(moment)
            if self._ends(b"]"):
                return
            self._comma()
            self.peek()

    def _scalar(self, moment: Moment) -> None:
        number = self._match(_NUMBER)
        word = None if number else self._match(_WORD)
        if number:
            end = number.end()
            if len(self._data) - end <= 2 and self._data[end:] in _CUT_ENDS:
                raise CutText
            moment.numbers += 1
            self._position = end
        elif word:
            moment.lost += word.group() not in (b"true", b"false")
            self._position = word.end()
        elif len(self._data) - self._position < len(b"-Infinity") and self._is_word_cut():
            raise CutText
        else:
            raise self._bad("a value is expected")

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Match a short token here, reading on where it could go on after the window."""
        while True:
            found = pattern.match(self._data, self._position)
            end = found.end() if found else self._position
            if end <= len(self._data) - 10 or not self._more():
                return found

    def _is_word_cut(self) -> bool:
        rest = self._data[self._position :]
        words = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")
        return any(word.startswith(rest) for word in words)

    def _string(self) -> str:
        while True:
            found = _STRING.match(self._data, self._position)
            end = found.end() if found else self._position
            if self._data[end : end + 1] == b'"':
                break
            is_escape_cut = self._data[end : end + 1] == b"\\" and len(self._data) - end < 6
            if end < len(self._data) and not is_escape_cut:
                raise self._bad("a bad character in a string")
            if end - self._position > MAX_TOKEN_BYTES:
                raise self._bad("a string too long")
            if not self._more():
                raise CutText
        raw = self._data[self._position : end + 1]
        self._position = end + 1
        try:
            text = raw[1:-1].decode()
        except UnicodeDecodeError:
            raise self._bad("text that is no UTF-8") from None
        return str(self._parse(raw)) if b"\\" in raw else text

    def _parse(self, raw: bytes) -> Any:
        try:
            return jsontext.parse(raw, path="")
        except TornRead as torn:
            raise self._bad(torn.message.removeprefix(": ")) from None

    def _ends(self, closing: bytes) -> bool:
        if self.peek() != closing:
            return False
        self._position += 1
        return True

    def _comma(self) -> None:
        if self.peek() != b",":
            raise self._bad("a comma is expected")
        self._position += 1

    def _more(self) -> bool:
        block = next(self._blocks, b"")
        if not block:
            return False
        start = self._position
        if self._kept_from is not None:
            start = min(start, self._kept_from - self._dropped)
        self._data = self._data[start:] + block
        self._position -= start
        self._dropped += start
        return True

    def _bad(self, what: str) -> BadText:
        return BadText(f"{what} at byte {self._dropped + self._position}")
