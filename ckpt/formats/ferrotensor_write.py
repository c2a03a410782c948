"""The text of ferrotensor's JSON files, number for number as its own program writes them.

Pure: values in, text out. A number is the shortest decimal that comes back as the same float; what
is not finite cannot be written, and is refused by its name.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckpt import jsontext
from ckpt.checkpoint import Severity
from ckpt.errors import PublishError
from ckpt.formats.ferrotensor_state import FIELDS, TrainingState, state_from

SCALER_COUNTS = frozenset({"growth_interval", "consecutive_good_steps"})
SCALER_FLAGS = frozenset({"found_overflow", "enabled"})
_INDENT = "  "
_FEW_DIGITS, _MOST_DIGITS_32 = 6, 9
_FLOAT32_TYPECODE = "f"


def float_text(value: float) -> str:
    """Return a float as serde writes an f64: `1e-8`, `0.0001`, `42.0`."""
    return _laid_out(repr(float(value)), smallest=-5, largest=16)


def float32_text(value: float) -> str:
    """Return a float as serde writes an f32: the shortest text that comes back as that f32."""
    return _laid_out(_shortest_32(value), smallest=-6, largest=13)


def decimal_text(value: float) -> str:
    """Return a float as Rust shows an f32, never with an exponent: `16`, `0.0000001`."""
    sign, digits, point = _taken_apart(_shortest_32(value))
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}" if digits != "0" else f"{sign}0"
    whole, part = digits[:point].ljust(point, "0"), digits[point:]
    return f"{sign}{whole}.{part}" if part else f"{sign}{whole}"


def state_text(state: TrainingState, extra: Mapping[str, Any], *, file: str) -> bytes:
    """Return the bytes of a state file: the 14 fields in their order, then `extra`.

    Raises:
        PublishError: a value is not what ferrotensor would read, or is not finite; by its name.
    """
    members = [*_state_members(state, file), *_extra_members(extra, file)]
    return "".join(_object(members, "")).encode()


def checkpoint_chunks(
    state: TrainingState,
    optimizer: Mapping[str, Any] | None,
    scaler: Mapping[str, Any] | None,
    *,
    file: str,
) -> Iterator[bytes]:
    """Yield the bytes of a training checkpoint; the moments are never in memory as one text.

    `optimizer` are AdamW's numbers with `m_states` and `v_states`, values by parameter name: each
    an array (its `tolist()`; of float32 the shortest text of that type) or nested lists.

    Raises:
        PublishError: a value is not finite, or no number; by its name. Met while yielding.
    """
    members: list[tuple[str, Any]] = [("training_state", _state_members(state, file))]
    tagged = None if optimizer is None else [("AdamW", _optimizer_members(optimizer, file))]
    members.append(("optimizer_state", tagged))
    members.append(
        ("grad_scaler_state", None if scaler is None else _scaler_members(scaler, file))
    )
    for piece in _object(members, ""):
        yield piece.encode()


# ---- numbers ----------------------------------------------------------------------------------


def _taken_apart(text: str) -> tuple[str, str, int]:
    """Take a decimal apart: sign, digits without zeros around them, where the point goes."""
    mantissa, _, exponent = text.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, part = mantissa.lstrip("-").partition(".")
    digits = (whole + part).lstrip("0")
    if not digits:
        return sign, "0", 1
    point = len(whole) + int(exponent or 0) - (len(whole + part) - len(digits))
    return sign, digits.rstrip("0"), point


def _laid_out(text: str, *, smallest: int, largest: int) -> str:
    """Lay digits out as ryu does: plain where the point lies in a range, else `1.5e-9`."""
    sign, digits, point = _taken_apart(text)
    if digits == "0":
        return f"{sign}0.0"
    if len(digits) <= point <= largest:
        return f"{sign}{digits.ljust(point, '0')}.0"
    if 0 < point <= largest:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if smallest < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{point - 1}"


def _shortest_32(value: float) -> str:
    """The shortest decimal that comes back as the same f32.

    Most values of a moment need all nine digits or eight, most settings a few: six tell which.
    """
    packed = struct.pack("<f", value)
    kept: float = struct.unpack("<f", packed)[0]
    few = _comes_back(f"{kept:.{_FEW_DIGITS}g}", packed)
    for digits in range(1 if few else _FEW_DIGITS + 1, _MOST_DIGITS_32):
        text = f"{kept:.{digits}g}"
        if _comes_back(text, packed):
            return text
    return f"{kept:.{_MOST_DIGITS_32}g}"


def _comes_back(text: str, packed: bytes) -> bool:
    try:
        return struct.pack("<f", float(text)) == packed
    except OverflowError:  # rounded up past the largest
        return False


# ---- members ----------------------------------------------------------------------------------


def _state_members(state: TrainingState, file: str) -> list[tuple[str, str]]:
    """The 14 fields as text; whatever ferrotensor would not read back is refused."""
    value = dict(state.as_mapping())
    for name in ("lr", "best_loss"):
        number = value[name]
        if number is None and name == "best_loss":
            continue
        value[name] = _finite(number, f"{file}: {name}")
    for finding in state_from(value, file).findings:
        if finding.severity in (Severity.ERROR, Severity.WARNING):
            raise PublishError(finding.message)
    return [(name, _scalar(value[name], f"{file}: {name}")) for name in FIELDS]


def _extra_members(extra: Mapping[str, Any], file: str) -> list[tuple[str, str]]:
    members = []
    for name, value in extra.items():
        if name in FIELDS:
            raise PublishError(f"{file}: {name} is ferrotensor's own field, not an extra one")
        try:
            text = jsontext.dumps(value, indent=2)
        except (TypeError, ValueError) as error:
            raise PublishError(f"{file}: {name!r} cannot be written as JSON: {error}") from error
        _check_text(name, f"{file}: a key")
        _check_text(text, f"{file}: {name}")
        members.append((name, text.replace("\n", f"\n{_INDENT}")))
    return members


def _optimizer_members(optimizer: Mapping[str, Any], file: str) -> list[tuple[str, Any]]:
    members: list[tuple[str, Any]] = []
    for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "t"):
        number = _finite(optimizer[name], f"{file}: {name} of AdamW")
        members.append((name, float_text(number)))
    for name in ("m_states", "v_states"):
        moments = []
        for parameter, values in optimizer[name].items():
            _check_text(parameter, f"{file}: {name}: a parameter's name")
            moments.append((parameter, _Numbers(values, f"{file}: {name} of {parameter!r}")))
        members.append((name, moments))
    return members


def _scaler_members(scaler: Mapping[str, Any], file: str) -> list[tuple[str, str]]:
    members = []
    for name, value in scaler.items():
        where = f"{file}: grad_scaler_state: {name}"
        if name in SCALER_FLAGS:
            if not isinstance(value, bool):
                raise PublishError(f"{where} is {value!r:.60}, expected true or false")
            members.append((name, jsontext.dumps(value)))
        elif name in SCALER_COUNTS:
            if not jsontext.is_whole(value):
                raise PublishError(f"{where} is {value!r:.60}, expected a non-negative integer")
            members.append((name, str(value)))
        else:
            members.append((name, float_text(_finite(value, where))))
    return members


def _finite(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PublishError(f"{where} is {value!r:.60}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PublishError(f"{where} is {number}, expected a finite number")
    return number


def _scalar(value: Any, where: str) -> str:
    if isinstance(value, float):
        return float_text(_finite(value, where))
    if isinstance(value, str):
        _check_text(value, where)
    return jsontext.dumps(value)


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise PublishError(f"{where}: {value!r:.60} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PublishError(f"{where}: {value!r:.60} cannot be written as UTF-8") from None


# ---- layout -----------------------------------------------------------------------------------


class _Numbers:
    """The values of one moment, made into text when their turn comes."""

    def __init__(self, values: Any, where: str) -> None:
        self._values, self._where = values, where

    def pieces(self, indent: str) -> Iterator[str]:
        """Yield the text of the values, nested as they are."""
        dtype = getattr(self._values, "dtype", None)
        is_32 = str(getattr(dtype, "name", dtype)).removeprefix("torch.") == "float32"
        is_32 = is_32 or getattr(self._values, "typecode", None) == _FLOAT32_TYPECODE
        listed = self._values
        if hasattr(listed, "tolist"):
            listed = listed.tolist()
        yield from self._nested(listed, indent, float32_text if is_32 else float_text)

    def _nested(self, value: Any, indent: str, text: Any) -> Iterator[str]:
        if not isinstance(value, list | tuple):
            yield text(_finite(value, self._where))
            return
        if not value:
            yield "[]"
            return
        inner = indent + _INDENT
        start = "["
        for item in value:
            yield f"{start}\n{inner}"
            start = ","
            yield from self._nested(item, inner, text)
        yield f"\n{indent}]"


def _object(members: Iterable[tuple[str, Any]], indent: str) -> Iterator[str]:
    """Yield an object's text, two spaces a level as serde's pretty form; None is null."""
    inner = indent + _INDENT
    start = "{"
    for name, value in members:
        yield f"{start}\n{inner}{jsontext.dumps(name)}: "
        start = ","
        if value is None:
            yield "null"
        elif isinstance(value, str):
            yield value
        elif isinstance(value, _Numbers):
            yield from value.pieces(inner)
        else:
            yield from _object(value, inner)
    yield "{}" if start == "{" else f"\n{indent}}}"
