"""JSON as trainers write it in, strict JSON out.

Reading takes a BOM, CRLF and bare NaN or Infinity, and refuses a key given twice. Writing emits
strict JSON only. Knows nothing of files or of any format's fields.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from ckpt.errors import DuplicateKey, TornRead

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")


def has_bom(data: bytes) -> bool:
    """Whether the text starts with a UTF-8 byte order mark (which some readers refuse)."""
    return data.startswith(_BOM)


def is_whole(value: Any, *, least: int = 0) -> TypeGuard[int]:
    """Whether a JSON value is an integer from `least` on; neither `true` nor `1.0` is one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def parse(data: bytes, *, path: str) -> Any:
    """Parse JSON text.

    Non-finite numbers come back as floats. Numbers of any length, nesting of any depth and bytes
    that are no UTF-8 give a `TornRead`, never another exception.

    Raises:
        TornRead: the text does not parse; the file may be half-written.
        DuplicateKey: an object at any depth holds one key twice.
    """
    return _parse(data, path, _STRICT)


def parse_table(data: bytes, *, path: str) -> Any:
    """Parse as `parse` does, quicker where the text is an object of thousands of flat objects.

    In such a text every colon is one key's, so that counting them shows whether a key was lost to
    its twin; where the count does not come out even the slow way decides.
    """
    value = _parse(data, path, _DECODER)
    if isinstance(value, dict):
        inner = [len(item) for item in value.values() if isinstance(item, dict)]
        if data.count(b":") == len(value) + sum(inner):
            return value
    return parse(data, path=path)


def _parse(data: bytes, path: str, decoder: json.JSONDecoder) -> Any:
    text = data.removeprefix(_BOM)
    if not text.strip():
        raise TornRead(f"{path}: the file is empty, expected JSON", path=path)
    try:
        return decoder.decode(text.decode())
    except _TwiceGivenError as twice:
        raise DuplicateKey(f"{path}: duplicate key {twice.key!r}", path=path) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise TornRead(f"{path}: not JSON at {where}: {error.msg}", path=path) from None
    except RecursionError:
        raise TornRead(f"{path}: not JSON: nested too deeply", path=path) from None
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,} ({error.object[error.start]:#04x})"
        raise TornRead(f"{path}: not JSON: {where} is no UTF-8", path=path) from None
    except ValueError:  # what is left is Python's limit against slow conversions
        message = f"{path}: not JSON that can be read: a number of more than 4,300 digits"
        raise TornRead(message, path=path) from None


def leading_members(head: bytes) -> dict[str, Any]:
    """Return the complete members at the start of an object whose text is cut off.

    For the first 64 KiB of a file of hundreds of MB: what cannot be told from there is left out.
    Never raises; of a key given twice it is the last value.
    """
    text = head.removeprefix(_BOM).decode("utf-8", errors="replace")
    members: dict[str, Any] = {}
    position = _skip_space(text, 0)
    if not text.startswith("{", position):
        return {}
    try:
        while True:
            key, position = _DECODER.raw_decode(text, _skip_space(text, position + 1))
            position = _skip_space(text, position)
            if not isinstance(key, str) or not text.startswith(":", position):
                return members
            value, position = _DECODER.raw_decode(text, _skip_space(text, position + 1))
            position = _skip_space(text, position)
            if not text.startswith((",", "}"), position):  # the cut may lie inside a number
                return members
            members[key] = value
            if text.startswith("}", position):
                return members
    except (ValueError, RecursionError):
        return members


def dumps(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write strict JSON; raises ValueError for a non-finite number and TypeError by type."""
    return json.dumps(
        value, indent=indent, sort_keys=sort_keys, allow_nan=False, ensure_ascii=False
    )


def dumps_compact(value: Any) -> str:
    """Write strict JSON without a space, as the safetensors library writes its headers."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def dumps_ascii(value: Any) -> str:
    """Write strict JSON in ASCII, so that a name that is no UTF-8 comes back as it was."""
    return json.dumps(value, allow_nan=False)


def finite_or_none(value: float | None) -> float | None:
    """Return the number, or None where strict JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None


def without_nonfinite(value: Any) -> Any:
    """Return a JSON value with null for every number in it that strict JSON has no word for."""
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {key: without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(item) for item in value]
    return value


_DECODER = json.JSONDecoder()


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


class _TwiceGivenError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceGivenError(key)
            seen.add(key)
    return result


_STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys)
