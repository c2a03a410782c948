"""One pass over pickled bytes that tells which names a load would import, and never loads.

Reads in small blocks and seeks over long values; stack, memo and time are bounded, whatever the
bytes claim. Knows nothing of archives, of torch, or of what an import means.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ckpt.pickles.opcodes import (
    COUNT_1,
    COUNT_4,
    COUNT_4_SIGNED,
    LINE,
    NEWEST_PROTOCOL,
    OTHER,
    ROWS,
    TWO_LINES,
    decoded,
    place_of,
    text_at,
)

MOST_OPCODES = 750_000
"""About as many as a slow machine walks in a second."""

BLOCK_BYTES = 1 << 16
MOST_LINE_BYTES = 1 << 24
_MOST_VALUES = 500_000
_MOST_MEMO = 100_000
_MOST_NAMES = 4096
_STRETCH = 4096
_BLOCK_COST = 16  # in opcodes: a block is read about as fast as so many are walked
_TEXT_COST = 2
_LONGEST_FIXED = 9


class Source(Protocol):
    """Bytes that can be read anywhere."""

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only where they end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a pickle cannot be followed any further, and why.

    `kind` is `cut` (it ends too early), `bad` (no load gets past this) or `limit` (it goes on
    beyond what is looked at here).
    """

    at: int
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk found. `pickles` counts those that reached their end, `end` is after the last.

    `untold` are sentences: what a load would import beside `imports`, and why it is not known.
    """

    imports: frozenset[tuple[str, str]]
    untold: frozenset[str]
    pickles: int
    end: int
    opcodes: int
    fault: Fault | None = None


class Walker:
    """One walk over a source, which may hold several pickles, one after the other.

    It ends after `most_pickles`, at the end of the bytes, or at the first fault. `run` yields the
    position now and then; then `walked` says what was found.
    """

    def __init__(
        self, source: Source, *, most_pickles: int | None = None, most_opcodes: int = MOST_OPCODES
    ) -> None:
        self.values: list[int] = []
        self.marks: list[int] = []
        self.second_line = OTHER
        self._source = source
        self._size = source.size
        self._most_pickles = most_pickles
        self._most_opcodes = most_opcodes
        self._start, self._block, self._at = 0, b"", 0
        self._opcodes = 0
        self._imports: set[tuple[str, str]] = set()
        self._untold: set[str] = set()
        self._pickles = 0
        self._end = 0
        self._fault: Fault | None = None
        self._is_done = False
        self._forget()

    def run(self) -> Iterator[int]:
        """Walk; stopping between two positions is safe.

        Raises:
            OSError: the source cannot be read.
        """
        try:
            while not self._is_done:
                self._go_on()
                yield self._position
                self._check_limits()
        except _Stopped as stopped:
            fault = Fault(*stopped.args)
            if fault.kind == "limit":
                self.cannot_tell(fault.what)
            self._fault = self._fault or fault

    @property
    def walked(self) -> Walked:
        """What was found so far."""
        names, untold = frozenset(self._imports), frozenset(self._untold)
        return Walked(names, untold, self._pickles, self._end, self._opcodes, self._fault)

    # ---- reading ------------------------------------------------------------------------------

    @property
    def _position(self) -> int:
        return self._start + self._at

    def _go_on(self) -> None:
        """Walk some opcodes."""
        for _ in range(_STRETCH):
            if self._at + _LONGEST_FIXED > len(self._block):
                self._refill()
            block, at = self._block, self._at
            if at >= len(block):
                raise _Stopped(self._position, "cut", "it ends without its last opcode")
            row = ROWS[block[at]]
            if row is None:
                raise _Stopped(self._position, "bad", f"no opcode is 0x{block[at]:02x}")
            width, kind, effect = row
            if width >= 0:
                end = at + 1 + width
                if end > len(block):
                    raise _Stopped(self._position, "cut", "it ends within an opcode")
                self._at = end
                effect(self, int.from_bytes(block[at + 1 : end], "little") if width else 0)
            else:
                self._at = at + 1
                effect(self, self._long_argument(width, kind))
            if self._is_done:
                return
        self._opcodes += _STRETCH

    def _refill(self) -> None:
        if self._start + len(self._block) >= self._size and self._at <= len(self._block):
            return
        self._read_on()

    def _read_on(self) -> None:
        """Read a block from where the walk is."""
        self._opcodes += _BLOCK_COST
        self._check_limits()
        self._start, self._at = self._position, 0
        self._block = self._source.read_at(self._start, min(BLOCK_BYTES, self._size - self._start))

    def _long_argument(self, form: int, kind: int) -> int:
        """Pass over what follows an opcode, and return where it stands if it is a short text."""
        if form == LINE:
            return self._line(kind)
        if form == TWO_LINES:
            first = self._line(kind)
            self.second_line = self._line(kind)
            return first
        width = {COUNT_1: 1, COUNT_4: 4, COUNT_4_SIGNED: 4}.get(form, 8)
        end = self._at + width
        if end > len(self._block):
            raise _Stopped(self._position, "cut", "it ends within an opcode")
        count = int.from_bytes(
            self._block[self._at : end], "little", signed=form == COUNT_4_SIGNED
        )
        self._at = end
        begin = self._position
        if count < 0:
            raise _Stopped(begin, "bad", f"a value of {count} bytes")
        if count > self._size - begin:
            what = f"a value of {count:,} bytes, but only {self._size - begin:,} follow"
            raise _Stopped(begin, "cut", what)
        self._at += count
        return text_at(begin, count, kind)

    def _line(self, kind: int) -> int:
        begin = self._position
        while True:
            found = self._block.find(b"\n", self._at)
            if found >= 0:
                length = self._start + found - begin
                self._at = found + 1
                if begin < self._frame_end < self._position:
                    self.cannot_tell("a line across the end of a frame, which readers cut")
                return text_at(begin, length, kind)
            self._at = len(self._block)
            if self._position - begin > MOST_LINE_BYTES:
                raise _Stopped(begin, "limit", f"a line of more than {MOST_LINE_BYTES:,} bytes")
            if self._position < self._size:
                self._read_on()
            if self._at >= len(self._block):  # a load takes all but the last byte
                self._note("cut", "it ends within a line")
                return text_at(begin, max(0, self._position - begin - 1), kind)

    def _text(self, value: int) -> str | None:
        """Return a short text of the file; None where the value is none, or not certain."""
        if value == OTHER:
            return None
        self._opcodes += _TEXT_COST
        offset, length, kind = place_of(value)
        at = offset - self._start
        if 0 <= at <= len(self._block) - length:
            return decoded(self._block[at : at + length], kind)
        return decoded(self._source.read_at(offset, length), kind)

    def _check_limits(self) -> None:
        position, rest = self._position, self._size - self._position
        if len(self.values) > _MOST_VALUES or len(self.marks) > _MOST_VALUES:
            raise _Stopped(position, "limit", "it nests or gathers more values than are followed")
        if self._opcodes >= self._most_opcodes and not self._is_done:
            what = f"it goes on for {rest:,} bytes beyond the {position:,} that were looked at"
            raise _Stopped(position, "limit", what)

    # ---- what opcodes do (see opcodes.ROWS) ---------------------------------------------------

    def drop(self, count: int) -> None:
        """Take values from the stack."""
        floor = self.marks[-1] if self.marks else 0
        left = len(self.values) - count
        if left < floor:
            self._note("bad", "an opcode takes more values than there are")
            left = floor
        del self.values[left:]

    def drop_to_mark(self) -> None:
        """Take all values since the last mark, and the mark."""
        if not self.marks:
            self._note("bad", "an opcode looks for a mark that was not set")
            self.values.clear()
            return
        del self.values[self.marks.pop() :]

    def top(self) -> int:
        """Return the value on top of the stack."""
        floor = self.marks[-1] if self.marks else 0
        return self.values[-1] if len(self.values) > floor else OTHER

    def put(self, index: int) -> None:
        """Remember the value on top; only texts are kept, as many as a file may make us keep."""
        top = self.top()
        if top != OTHER and len(self._memo) < _MOST_MEMO:
            self._memo[index] = top
        else:
            self._memo.pop(index, None)
        if index == self._memo_length:
            self._memo_length += 1
            while self._memo_length in self._ahead:
                self._ahead.discard(self._memo_length)
                self._memo_length += 1
        elif index > self._memo_length:
            if len(self._ahead) < _MOST_MEMO:
                self._ahead.add(index)
            else:
                self.cannot_tell("it remembers more values than are followed")

    def put_next(self) -> None:
        """Remember the value on top at the next index, which is how many are remembered."""
        self.put(self._memo_length + len(self._ahead))

    def get(self, index: int) -> None:
        """Push what was remembered."""
        self.values.append(self._memo.get(index, OTHER))

    def number_at(self, line: int) -> int:
        """Return the index that a line names."""
        text = (self._text(line) or "").strip()
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise _Stopped(self._position, "bad", f"a memo index is {text!r:.40}")
        return int(text)

    def name(self, module: int, name: int) -> None:
        """Take down an import."""
        texts = self._text(module), self._text(name)
        if None in texts or not all(texts):
            self.cannot_tell("a name that is computed while it loads")
        elif len(self._imports) < _MOST_NAMES:
            self._imports.add((texts[0] or "", texts[1] or ""))
        elif texts not in self._imports:
            self.cannot_tell("more names than are taken down")

    def cannot_tell(self, why: str) -> None:
        """Take down that something is imported which is not known."""
        if len(self._untold) < _MOST_NAMES:
            self._untold.add(why)

    def begin(self, protocol: int) -> None:
        """Judge the protocol's number."""
        if protocol > NEWEST_PROTOCOL:
            what = f"protocol {protocol}, the newest one known is {NEWEST_PROTOCOL}"
            raise _Stopped(self._position, "bad", what)

    def begin_frame(self, length: int) -> None:
        """Judge a frame's length."""
        rest = self._size - self._position
        if length > rest:
            self._note("cut", f"a frame of {length:,} bytes, but only {rest:,} follow")
        self._frame_end = self._position + length

    def stop(self) -> None:
        """End one pickle; what follows is the next one."""
        self.drop(1)
        self._pickles += 1
        self._end = self._position
        self._is_done = self._pickles == self._most_pickles or self._end >= self._size
        self._forget()

    def _forget(self) -> None:
        """Begin with an empty stack and memo, as each load does."""
        self.values.clear()
        self.marks.clear()
        self._frame_end = 0
        self._memo: dict[int, int] = {}
        self._memo_length = 0
        self._ahead: set[int] = set()

    def _note(self, kind: str, what: str) -> None:
        """Take down a fault that ends a load, and go on: readers differ in where they stop."""
        if self._fault is None:
            self._fault = Fault(self._position, kind, what)


class _Stopped(Exception):
    """A fault: position, kind, sentence."""
