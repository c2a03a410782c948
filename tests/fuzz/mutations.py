"""Ways to hurt a real sample: bytes, JSON values, lines, headers and archives, each by chance.

Everything comes from the `Random` that is given, so that a number names an input for ever.
"""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

TOKENS: tuple[bytes, ...] = (
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\r", b"\x1b[31m", b'"', b"\\", b"{",
    b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-0.0",
    b"1e-400", b"9" * 400, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"\\u0000",
    b"../x", b"/", b"\xc3", b"\xed\xa0\x80", b" " * 200, b"18446744073709551616", b"-1", b"0",
    b"1.5", struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 2**63), struct.pack("<I", 2**32 - 1),
    b"PK\x05\x06",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**64, 10**30, 10**400, 0.5, 1.0, -0.0, 1e308,
    float("nan"), float("inf"), float("-inf"), "", "x", "42", "NaN", "..", "../x", "/etc/x",
    "\0", "\ud800", "\udcff", "é", "x" * 3000, "F32", "I4", "0" * 64, [], {}, [[]], [None],
    [0, 2**70], [1] * 500, [9999999999] * 500, {"a": 1}, {"": {}}, [[[[[[]]]]]],
    "2026-12-01T00:00:00+09:00",
)  # fmt: skip

Mutate = Callable[[Random, bytes], bytes]


def in_bytes(random: Random, data: bytes) -> bytes:
    """Flip, cut, drop, repeat or put in bytes, one to four times."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 1, 2, 8, 64)))
        deed = random.randrange(7)
        if deed == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
        elif deed == 1:
            data = data[:at]
        elif deed == 2:
            data = data[:at] + data[end:]
        elif deed == 3:
            data = data[:at] + data[at:end] * random.choice((2, 3, 50)) + data[end:]
        elif deed == 4:
            data = data[:at] + random.choice(TOKENS) + data[at:]
        elif deed == 5:
            data = data[:at] + random.choice(TOKENS) + data[end:]
        else:
            data = data[:at] + random.randbytes(end - at) + data[end:]
    return data


def raw(random: Random, data: bytes) -> bytes:
    """Put bytes of no meaning, or tokens of some, in the place of the sample."""
    if random.random() < 0.5:
        return random.randbytes(random.choice((0, 1, 7, 8, 9, 30, 200, 3000)))
    return b"".join(random.choice(TOKENS) for _ in range(random.randrange(12)))


def in_json(random: Random, data: bytes) -> bytes:
    """Change values of a JSON text, and now and then give a key twice or indent it anew."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return in_bytes(random, data)
    for _ in range(random.choice((1, 1, 2, 5))):
        value = _changed(random, value)
    text = _dumped(random, value)
    if random.random() < 0.1:
        text = _twice(random, text)
    if random.random() < 0.1:
        text = in_bytes(random, text)
    return text


def in_lines(random: Random, data: bytes) -> bytes:
    """Change, drop, repeat and shuffle lines of JSON, and cut the last."""
    lines = data.splitlines()
    for _ in range(random.choice((1, 2, 4))):
        at = random.randrange(len(lines) + 1)
        deed = random.randrange(6)
        if deed <= 2 and at < len(lines):
            lines[at] = in_json(random, lines[at])
        elif deed == 3:
            lines[at : at + 3] = []
        elif deed == 4:
            lines[at:at] = lines[max(0, at - 5) : at] * random.choice((1, 2, 20))
        else:
            lines.insert(at, random.choice(TOKENS))
    text = random.choice((b"\n", b"\n", b"\r\n")).join(lines)
    return text[: random.randrange(len(text) + 1)] if random.random() < 0.2 else text + b"\n"


def in_journal(random: Random, data: bytes) -> bytes:
    """Change what stands behind the checksums, and give it right ones."""
    lines = [line.partition(b" ")[2] for line in data.splitlines() if line]
    text = in_lines(random, b"\n".join(lines) + b"\n")
    sealed = [b"%08x %s" % (zlib.crc32(line), line) for line in text.split(b"\n") if line]
    return b"\n".join(sealed) + b"\n"


def in_header(random: Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, its length, or what follows."""
    length = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + length], data[8 + length :]
    deed = random.randrange(8)
    if deed <= 4:
        text = in_json(random, text)
    elif deed == 5:
        text = random.choice((b" ", b"\n", b"\xef\xbb\xbf", b"")) + text + random.choice(TOKENS)
    elif deed == 6:
        rest = rest[: random.randrange(len(rest) + 1)] + random.choice(TOKENS)
    length = len(text)
    if random.random() < 0.15:
        odd = (0, 1, length - 1, length + 1, length + 8, 2**32, 2**63, 2**64 - 1, 100_000_001)
        length = random.choice(odd) % 2**64
    return struct.pack("<Q", length) + text + rest


def in_archive(random: Random, data: bytes) -> bytes:
    """Change numbers of a zip archive's records, or bytes anywhere in it."""
    marks = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"]
    for _ in range(random.choice((1, 1, 2, 3))):
        at = data.find(random.choice(marks), random.randrange(len(data) + 1))
        if at < 0:
            data = in_bytes(random, data)
            continue
        at += random.randrange(4, 46)
        size = random.choice((1, 2, 4, 8))
        odd = random.choice((0, 1, 0xFF, 2 ** (8 * size) - 1, random.getrandbits(8 * size)))
        data = data[:at] + (odd % 2 ** (8 * size)).to_bytes(size, "little") + data[at + size :]
    return data


def of(*ways: Mutate) -> Callable[[Random, Sequence[bytes]], bytes]:
    """Make inputs out of samples in the given ways, and sometimes of bytes or of two samples."""

    def make(random: Random, samples: Sequence[bytes]) -> bytes:
        data = random.choice(samples)
        chance = random.random()
        if chance < 0.05:
            return raw(random, data)
        if chance < 0.1:
            other = random.choice(samples)
            return (
                data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
            )
        if chance < 0.25:
            return in_bytes(random, data)
        return random.choice(ways)(random, data)

    return make


# ---- JSON -------------------------------------------------------------------------------------


def _changed(random: Random, value: Any) -> Any:
    """Return the value with one place of it changed."""
    if not isinstance(value, (dict, list)) or not value or random.random() < 0.12:
        return random.choice(VALUES)
    if isinstance(value, dict):
        key = random.choice(list(value))
        deed = random.randrange(8)
        changed = dict(value)
        if deed == 0:
            del changed[key]
        elif deed == 1:
            changed[str(random.choice(VALUES))] = changed.pop(key)
        elif deed == 2:
            changed[random.choice(("x", "", "__metadata__", "ckpt", key + key))] = value[key]
        else:
            changed[key] = _changed(random, value[key])
        return changed
    at = random.randrange(len(value))
    deed = random.randrange(6)
    if deed == 0:
        return value[:at] + value[at + 1 :]
    if deed == 1:
        return value[:at] + [value[at]] * random.choice((2, 50)) + value[at:]
    return [*value[:at], _changed(random, value[at]), *value[at + 1 :]]


def _dumped(random: Random, value: Any) -> bytes:
    text = json.dumps(
        value, indent=random.choice((None, None, 2, 0)), ensure_ascii=random.random() < 0.7
    )
    return text.encode("utf-8", "surrogatepass")


def _twice(random: Random, text: bytes) -> bytes:
    """Repeat a member where one ends: often that is a key given twice."""
    at = text.find(b",", random.randrange(len(text) + 1))
    begin = text.rfind(b'"', 0, max(0, at - 1)) if at > 0 else -1
    return text if begin < 0 else text[:at] + b"," + text[begin:at] + text[at:]
