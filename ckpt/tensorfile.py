"""Headers of safetensors files, read with every bound checked.

Looks at the header only and turns whatever is wrong into findings: the first problem and where it
is, and every tensor that can still be listed. Does not know what a checkpoint is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity, Tensor
from ckpt.errors import DuplicateKey, TornRead

MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Width of every dtype that safetensors 0.8 knows, in the library's own order."""

_INT_ONLY = {int}
_USUAL_RANK = 16
_SPACE = b" \t\n\r"
_OTHER_KINDS: Mapping[bytes, str] = {
    b"version ": "a Git LFS pointer (fetch the real file with git lfs pull)",
    b"/annex/": "a git-annex pointer (fetch the real file with git annex get)",
    b"PK\x03\x04": "a zip archive, as torch.save writes it",
    b"\x00\x05\x16\x07": "AppleDouble metadata that macOS left",
    b"GGUF": "a GGUF file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "gzip-compressed data",
    b"\x28\xb5\x2f\xfd": "zstd-compressed data",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What the head of a safetensors file says; tensor offsets count from the file's start.

    `metadata` is None where there is none; `size_bytes` is None when the file is not there.
    """

    tensors: tuple[Tensor, ...] = ()
    metadata: Mapping[str, str] | None = None
    header_bytes: int = 0
    size_bytes: int | None = None
    findings: tuple[Finding, ...] = ()


def read_header(path: Path, file: str) -> Header:
    """Read the header of a safetensors file; never raises, whatever stands there.

    `file` is the name that tensors and findings carry (relative to the checkpoint).
    """
    try:
        with fs.File(path) as opened:
            return header_of(opened, file)
    except OSError as error:
        return Header(findings=(_cannot_read(error, file),))


def header_of(opened: fs.File, file: str) -> Header:
    """Read the header of a file that is open: what is then read from it is of the same file.

    Raises:
        OSError: it cannot be read.
    """
    size = opened.identity().size_bytes
    start = opened.read_at(0, LENGTH_BYTES)
    problem = _refuse_start(start, size, file)
    if problem is not None:
        return Header(size_bytes=size, findings=(problem,))
    length = int.from_bytes(start, "little")
    text = opened.read_at(LENGTH_BYTES, length)
    if len(text) < length:
        found = _error("changed-while-reading", f"{file}: cut while its header was read", file)
        return Header(size_bytes=size, findings=(found,))
    return _parse(text, size, file)


def _refuse_start(start: bytes, size: int, file: str) -> Finding | None:
    """Judge the first eight bytes before anything is read or allocated for what they claim."""
    if size == 0:
        return _error("empty-file", f"{file}: the file is empty", file)
    length = int.from_bytes(start, "little")
    if size >= LENGTH_BYTES and 0 < length <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
        return None
    if (other := _other_kind(start)) is not None:
        return _error("not-safetensors", f"{file}: {other}, not a safetensors file", file)
    if size < LENGTH_BYTES:
        return _error(
            "truncated", f"{file}: {size} bytes, a safetensors file has at least 8", file
        )
    if length == 0:
        text = f"{file}: begins with zeros, as a file does whose bytes a crash lost"
        return _error("bad-header", text, file)
    if length <= MAX_HEADER_BYTES:
        text = f"{file}: header of {length:,} bytes, but only {size - LENGTH_BYTES:,} follow"
        return _error("truncated", text, file)
    if length > size - LENGTH_BYTES:
        text = f"{file}: claims a header of {length:,} bytes in a file of {size:,}"
    else:
        text = f"{file}: header of {length:,} bytes, larger than readers accept (100,000,000)"
    return _error("header-too-large", text, file)


def _other_kind(start: bytes) -> str | None:
    """Name what is known to stand in the place of weights."""
    if (
        start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
        and start[2:3] in b"}]c(X\x8a\x95"
    ):
        return "a pickle"
    for magic, kind in _OTHER_KINDS.items():
        if start.startswith(magic):
            return kind
    if start.lstrip().lower().startswith((b"<!doc", b"<html")):
        return "an HTML page (a failed download?)"
    if len(start) == LENGTH_BYTES and all(0x20 <= byte < 0x7F for byte in start):
        return f"text that begins with {start.decode()!r}"
    return None


def _parse(text: bytes, size: int, file: str) -> Header:
    start = LENGTH_BYTES + len(text)
    if not text.lstrip(_SPACE).startswith(b"{"):
        shown = text[:8]
        found = _error(
            "bad-header", f"{file}: the header begins with {shown!r}, not with {{", file
        )
        return Header(header_bytes=len(text), size_bytes=size, findings=(found,))
    try:
        fields = jsontext.parse_table(text, path=file)
    except DuplicateKey as error:
        found = _error("duplicate-key", error.message, file)
        return Header(header_bytes=len(text), size_bytes=size, findings=(found,))
    except TornRead as error:
        found = _error("bad-header", error.message, file)
        return Header(header_bytes=len(text), size_bytes=size, findings=(found,))
    if (half := _half_character(text, fields)) is not None:
        found = _error("bad-header", f"{file}: {half}", file)
        return Header(header_bytes=len(text), size_bytes=size, findings=(found,))
    findings: list[Finding] = []
    metadata = _metadata(fields.pop("__metadata__", None), file, findings)
    tensors = _tensors(fields, start, file, findings)
    tensors.sort(key=attrgetter("start", "end"))
    if not findings:
        findings += _layout(tensors, start, size, file)
    return Header(tuple(tensors), metadata, len(text), size, tuple(findings))


def _half_character(text: bytes, fields: Mapping[str, Any]) -> str | None:
    """Say so where an escape is half of a surrogate pair, which Python reads and Rust does not."""
    if b"\\" not in text or (rb"\ud" not in text and rb"\uD" not in text):
        return None
    try:
        jsontext.dumps_compact(fields).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("ascii", "backslashreplace").decode()
        return f"the header holds {half}, half of a character, which readers refuse"
    except ValueError:  # a bare NaN, which is told of its entry
        return None
    return None


def _metadata(value: Any, file: str, findings: list[Finding]) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        findings.append(_error("bad-header", f"{file}: __metadata__ is not an object", file))
        return None
    for key, item in value.items():
        if not isinstance(item, str):
            text = f"{file}: __metadata__ {key!r}: expected text, found {item!r:.60}"
            findings.append(_error("bad-header", text, file))
    return {key: item for key, item in value.items() if isinstance(item, str)}


def _tensors(
    fields: Mapping[str, Any], start: int, file: str, findings: list[Finding]
) -> list[Tensor]:
    """Every tensor of the header; an entry that is not at once seen to be right is judged.

    There can be a hundred thousand: one loop, and tensors made as the tuples that they are.
    """
    tensors: list[Tensor] = []
    make = tuple.__new__
    for name, entry in fields.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            bits = DTYPE_BITS[dtype]
            is_right = len(shape) <= _USUAL_RANK  # of thousands a product takes for ever
            for extent in shape if is_right else ():
                if type(extent) is not int or extent < 0:  # a JSON true would count as 1
                    bits = 0
                    break
                bits *= extent
            is_right = is_right and 0 < bits == (end - begin) * 8 and begin >= 0
        except (KeyError, TypeError, ValueError):
            is_right = False
        if is_right and type(shape) is list and type(begin) is int and type(end) is int:
            place = (end - begin, file, start + begin, start + end)
            tensors.append(make(Tensor, (name, dtype, tuple(shape), *place)))
        elif (tensor := _judged(name, entry, start, file, findings)) is not None:
            tensors.append(tensor)
    return tensors


def _judged(
    name: str, entry: Any, start: int, file: str, findings: list[Finding]
) -> Tensor | None:
    """One entry that may be at fault; None where not even its place can be told."""

    def bad(code: str, text: str) -> None:
        message = f"{file}: tensor {name!r}: {text}"
        findings.append(Finding(code, Severity.ERROR, message, file, name))

    if not isinstance(entry, dict):
        bad("bad-header", f"expected an object, found {entry!r:.60}")
        return None
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        bad("bad-header", f"dtype is {dtype!r:.60}")
        return None
    if not _are_sizes(shape):
        bad("bad-header", f"shape is {shape!r:.60}")
        return None
    if not _are_sizes(offsets) or len(offsets) != 2:
        bad("bad-offsets", f"data_offsets are {offsets!r:.60}")
        return None
    begin, end = offsets
    if begin > end:
        bad("bad-offsets", f"begins at {begin:,} and ends before, at {end:,}")
        return None
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        bad("unknown-dtype", f"unsupported dtype {dtype}")
    elif (problem := size_problem(dtype, bits, shape, end - begin)) is not None:
        bad("bad-offsets", problem)
    return Tensor(name, dtype, tuple(shape), end - begin, file, start + begin, start + end)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    return not value or (set(map(type, value)) == _INT_ONLY and min(value) >= 0)


def size_problem(dtype: str, bits: int, shape: Sequence[int], given: int) -> str | None:
    """Say what is wrong with a range of `given` bytes for a dtype and shape; None: nothing."""
    count = 1
    for extent in shape:
        count *= extent
        if max(count, extent) >= 1 << 64:  # also where a 0 that follows makes it nothing
            return f"shape {list(shape)!r:.80} is impossible: more elements than 64 bits count"
    total = count * bits
    if total % 8:
        return f"{dtype} {list(shape)!r:.80} does not fill whole bytes"
    if total // 8 != given:
        return f"{dtype} {list(shape)!r:.80} needs {total // 8:,} bytes, the range has {given:,}"
    return None


def _layout(tensors: Sequence[Tensor], start: int, size: int, file: str) -> Iterator[Finding]:
    """The first hole, overlap or end that does not fit: ranges must cover the rest exactly."""
    at = start
    for tensor in tensors:
        if tensor.start != at:
            kind = "a gap" if tensor.start > at else "an overlap"
            text = (
                f"{file}: tensor {tensor.name!r}: {kind}: begins at byte "
                f"{tensor.start - start:,}, the one before ends at {at - start:,}"
            )
            yield Finding("bad-offsets", Severity.ERROR, text, file, tensor.name)
            return
        at = tensor.end
    if at > size:
        cut = next(tensor.name for tensor in tensors if tensor.end > size)
        text = f"{file}: truncated: {size:,} bytes, the header needs {at:,} (cut in {cut!r})"
        yield Finding("truncated", Severity.ERROR, text, file, cut)
    elif at < size:
        text = f"{file}: {size - at:,} trailing bytes after the last tensor"
        yield _error("trailing-bytes", text, file)


def _cannot_read(error: OSError, file: str) -> Finding:
    if isinstance(error, FileNotFoundError):
        return _error("missing-file", f"{file}: not there", file)
    if isinstance(error, PermissionError):
        return _error("permission-denied", f"{file}: permission denied", file)
    return _error("unreadable-file", f"{file}: cannot be read: {error.strerror}", file)


def _error(code: str, message: str, file: str) -> Finding:
    return Finding(code, Severity.ERROR, message, file)
