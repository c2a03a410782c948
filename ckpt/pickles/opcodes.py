"""The opcodes of pickle protocols 0 to 5: what follows each, and what it does to a stack of names.

Nothing here makes an object, imports or calls: a value is where a short text stands in the file,
or OTHER. Does not know where the bytes come from.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ckpt.pickles.walker import Walker

OTHER = -1
"""Any value that is no short text: numbers, containers, objects, what a call returned."""

MOST_NAME_BYTES = 512
UTF8, RAW_ESCAPED, QUOTED, LATIN = range(4)  # how a text is written
_KIND_BITS, _LENGTH_BITS = 2, 10

COUNT_1, COUNT_4, COUNT_4_SIGNED, COUNT_8, LINE, TWO_LINES = -1, -4, -5, -8, -10, -11
"""What follows an opcode, beside a fixed number of bytes: a count and as many bytes, or lines."""

NEWEST_PROTOCOL = 5


Effect: TypeAlias = Callable[["Walker", int], None]
"""Takes the number that follows the opcode, or where its text stands."""

Row: TypeAlias = tuple[int, int, Effect]
"""Width or form of what follows, how its text is written, what the opcode does."""


def text_at(offset: int, length: int, kind: int) -> int:
    """Return the value that stands for a text in the file; too long a one is OTHER."""
    if length > MOST_NAME_BYTES:
        return OTHER
    return (offset << _LENGTH_BITS | length) << _KIND_BITS | kind


def place_of(text: int) -> tuple[int, int, int]:
    """Return offset, length and kind of a text's value."""
    rest, kind = text >> _KIND_BITS, text & ((1 << _KIND_BITS) - 1)
    return rest >> _LENGTH_BITS, rest & ((1 << _LENGTH_BITS) - 1), kind


def decoded(text: bytes, kind: int) -> str | None:
    """Return a text as a load would see it; None where that is not certain."""
    try:
        if kind == RAW_ESCAPED:
            return text.decode("raw_unicode_escape")
        if kind == QUOTED:
            inner = text.strip()[1:-1]
            return None if b"\\" in inner else inner.decode("latin-1")
        return text.decode("latin-1") if kind == LATIN else text.decode("utf-8", "surrogateescape")
    except UnicodeDecodeError:
        return None


# ---- what opcodes do --------------------------------------------------------------------------


def _nothing(_walker: "Walker", _value: int) -> None:
    pass


def _push(walker: "Walker", _value: int) -> None:
    walker.values.append(OTHER)


def _push_text(walker: "Walker", text: int) -> None:
    walker.values.append(text)


def _drop(count: int) -> Effect:
    return lambda walker, _value: walker.drop(count)


def _replace(count: int) -> Effect:
    def replace(walker: "Walker", _value: int) -> None:
        walker.drop(count)
        walker.values.append(OTHER)

    return replace


def _mark(walker: "Walker", _value: int) -> None:
    walker.marks.append(len(walker.values))


def _drop_to_mark(walker: "Walker", _value: int) -> None:
    walker.drop_to_mark()


def _gather(walker: "Walker", _value: int) -> None:
    walker.drop_to_mark()
    walker.values.append(OTHER)


def _pop(walker: "Walker", _value: int) -> None:
    if walker.marks and walker.marks[-1] == len(walker.values):
        walker.marks.pop()
    else:
        walker.drop(1)


def _duplicate(walker: "Walker", _value: int) -> None:
    walker.values.append(walker.top())


def _global(walker: "Walker", module: int) -> None:
    walker.name(module, walker.second_line)
    walker.values.append(OTHER)


def _instance(walker: "Walker", module: int) -> None:
    walker.drop_to_mark()
    _global(walker, module)


def _stack_global(walker: "Walker", _value: int) -> None:
    name = walker.top()
    walker.drop(1)
    module = walker.top()
    walker.drop(1)
    walker.name(module, name)
    walker.values.append(OTHER)


def _extension(walker: "Walker", code: int) -> None:
    walker.cannot_tell(f"extension code {code}, whose name only the loading program knows")
    walker.values.append(OTHER)


def _put(walker: "Walker", index: int) -> None:
    walker.put(index)


def _put_line(walker: "Walker", line: int) -> None:
    walker.put(walker.number_at(line))


def _put_next(walker: "Walker", _value: int) -> None:
    walker.put_next()


def _get(walker: "Walker", index: int) -> None:
    walker.get(index)


def _get_line(walker: "Walker", line: int) -> None:
    walker.get(walker.number_at(line))


def _frame(walker: "Walker", length: int) -> None:
    walker.begin_frame(length)


def _protocol(walker: "Walker", protocol: int) -> None:
    walker.begin(protocol)


def _stop(walker: "Walker", _value: int) -> None:
    walker.stop()


_KNOWN: dict[bytes, Row] = {
    b".": (0, 0, _stop),
    b"(": (0, 0, _mark),
    b"0": (0, 0, _pop),
    b"1": (0, 0, _drop_to_mark),
    b"2": (0, 0, _duplicate),
    # numbers and constants
    b"F": (LINE, 0, _push), b"I": (LINE, 0, _push), b"L": (LINE, 0, _push),
    b"J": (4, 0, _push), b"K": (1, 0, _push), b"M": (2, 0, _push), b"G": (8, 0, _push),
    b"N": (0, 0, _push), b"\x88": (0, 0, _push), b"\x89": (0, 0, _push),
    b"\x8a": (COUNT_1, 0, _push), b"\x8b": (COUNT_4_SIGNED, 0, _push),
    # texts
    b"S": (LINE, QUOTED, _push_text), b"T": (COUNT_4_SIGNED, LATIN, _push_text),
    b"U": (COUNT_1, LATIN, _push_text), b"V": (LINE, RAW_ESCAPED, _push_text),
    b"X": (COUNT_4, UTF8, _push_text), b"\x8c": (COUNT_1, UTF8, _push_text),
    b"\x8d": (COUNT_8, UTF8, _push_text),
    # bytes
    b"B": (COUNT_4, 0, _push), b"C": (COUNT_1, 0, _push), b"\x8e": (COUNT_8, 0, _push),
    b"\x96": (COUNT_8, 0, _push), b"\x97": (0, 0, _push), b"\x98": (0, 0, _nothing),
    # containers
    b")": (0, 0, _push), b"]": (0, 0, _push), b"}": (0, 0, _push), b"\x8f": (0, 0, _push),
    b"t": (0, 0, _gather), b"l": (0, 0, _gather), b"d": (0, 0, _gather), b"\x91": (0, 0, _gather),
    b"\x85": (0, 0, _replace(1)), b"\x86": (0, 0, _replace(2)), b"\x87": (0, 0, _replace(3)),
    b"a": (0, 0, _drop(1)), b"s": (0, 0, _drop(2)), b"e": (0, 0, _drop_to_mark),
    b"u": (0, 0, _drop_to_mark), b"\x90": (0, 0, _drop_to_mark),
    # names and calls
    b"c": (TWO_LINES, UTF8, _global), b"\x93": (0, 0, _stack_global),
    b"i": (TWO_LINES, UTF8, _instance), b"o": (0, 0, _gather),
    b"R": (0, 0, _replace(2)), b"\x81": (0, 0, _replace(2)), b"\x92": (0, 0, _replace(3)),
    b"b": (0, 0, _drop(1)), b"P": (LINE, 0, _push), b"Q": (0, 0, _replace(1)),
    b"\x82": (1, 0, _extension), b"\x83": (2, 0, _extension), b"\x84": (4, 0, _extension),
    # memo
    b"p": (LINE, LATIN, _put_line), b"q": (1, 0, _put), b"r": (4, 0, _put),
    b"\x94": (0, 0, _put_next),
    b"g": (LINE, LATIN, _get_line), b"h": (1, 0, _get), b"j": (4, 0, _get),
    # how it is laid out
    b"\x80": (1, 0, _protocol), b"\x95": (8, 0, _frame),
}  # fmt: skip

ROWS: tuple[Row | None, ...] = tuple(_KNOWN.get(bytes([code])) for code in range(256))
"""One row for each byte value; None where no protocol has such an opcode."""
