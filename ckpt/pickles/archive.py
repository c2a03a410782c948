"""Zip archives as torch.save writes them: the directory at the end, read with every bound checked.

What the directory says of sizes and places is a claim until it fits the file. Knows nothing of
pickles; reads no entry's content but to compare its CRC.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from ckpt import fs
from ckpt.checkpoint import Finding, Severity
from ckpt.operation import Operation, Progress

MAGIC = b"PK\x03\x04"
MOST_DIRECTORY_BYTES = 1 << 25
MOST_ENTRIES = 250_000
MOST_FINDINGS = 100
STORED, DEFLATED = 0, 8
STRIDE_BYTES = 16 << 20
BLOCK_BYTES = 1 << 18  # stays in the second-level cache between read and CRC

_END, _END_MAGIC = Struct("<4s4H2LH"), b"PK\x05\x06"
_END_64, _END_64_MAGIC = Struct("<4sQ2H2L4Q"), b"PK\x06\x06"
_LOCATOR_64, _LOCATOR_64_MAGIC = Struct("<4sLQL"), b"PK\x06\x07"
_ENTRY, _ENTRY_MAGIC = Struct("<4s6H3L5H2L"), b"PK\x01\x02"
_LOCAL = Struct("<4s5H3L2H")
_MOST_COMMENT = 0xFFFF
_IN_64, _IN_64_SHORT = 0xFFFFFFFF, 0xFFFF
_ENCRYPTED = 1


class Entry(NamedTuple):
    """One entry as the directory claims it; `header_at` is where its own header should stand."""

    name: str
    flags: int
    method: int
    crc: int
    packed_bytes: int
    size_bytes: int
    header_at: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The directory of an archive: entries in its order, and all that is wrong with it.

    `directory_at` is where it begins, so that no entry's content can reach beyond.
    """

    entries: tuple[Entry, ...] = ()
    findings: tuple[Finding, ...] = ()
    directory_at: int = 0


def read_archive(opened: fs.File, file: str) -> Archive:
    """Read the directory of an open archive; `file` is the name that findings carry.

    Raises:
        OSError: it cannot be read.
    """
    try:
        place = _find_directory(opened, file)
        entries = tuple(_entries(opened, place, file))
    except _Refused as refused:
        return Archive(findings=(refused.finding,))
    findings = [*place.findings, *_bad_names(entries, file), *_misplaced(entries, place, file)]
    return Archive(entries, _not_all(findings), place.at)


def is_pickle(entry: Entry) -> bool:
    """Whether a reader may take an entry for a pickle; torch's asks for it in any spelling."""
    return entry.name.lower().endswith((".pkl", ".pickle"))


def content_at(opened: fs.File, archive: Archive, entry: Entry, file: str) -> int | Finding:
    """Return where an entry's content begins, as its own header says; a finding if that is wrong.

    Raises:
        OSError: it cannot be read.
    """
    head = opened.read_at(entry.header_at, _LOCAL.size)
    shown = f"{file}: entry {entry.name!r:.100}"
    if len(head) < _LOCAL.size or not head.startswith(MAGIC):
        return _bad(f"{shown}: no entry begins at byte {entry.header_at:,}", file)
    _, _, flags, method, *_, name_length, extra_length = _LOCAL.unpack(head)
    name = _text(opened.read_at(entry.header_at + _LOCAL.size, name_length))
    if name != entry.name:
        return _bad(f"{shown}: its own header calls it {name!r:.100}", file)
    if method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
        return _bad(f"{shown}: its own header and the directory differ on how it is packed", file)
    begin: int = entry.header_at + _LOCAL.size + name_length + extra_length
    if begin + entry.packed_bytes > archive.directory_at:
        return _bad(f"{shown}: {entry.packed_bytes:,} bytes are more than there are", file)
    return begin


def compare(opened: fs.File, archive: Archive, file: str) -> Operation[tuple[Finding, ...]]:
    """Compare every stored entry's content with its recorded CRC, which torch.load does not.

    Raises:
        OSError: it cannot be read.
    """
    if archive.entries and not any(entry.crc for entry in archive.entries):
        if any(entry.size_bytes for entry in archive.entries):
            text = f"{file}: it was written without CRCs that its bytes could be compared with"
            return (Finding("no-hashes", Severity.NOTE, text, file),)
        return ()
    findings: list[Finding] = []
    total = sum(entry.packed_bytes for entry in archive.entries)
    done = 0
    buffer = memoryview(bytearray(BLOCK_BYTES))
    told = 0
    for entry in archive.entries:
        begin = content_at(opened, archive, entry, file)
        if isinstance(begin, Finding):
            findings.append(begin)
            continue
        if entry.method != STORED or entry.flags & _ENCRYPTED:
            continue
        crc, at, end = 0, begin, begin + entry.packed_bytes
        while at < end:
            count = opened.read_into([buffer[: min(BLOCK_BYTES, end - at)]], at)
            if not count:
                return (*_not_all(findings), _cut(file))
            crc = zlib.crc32(buffer[:count], crc)
            at += count
            done += count
            if done - told >= STRIDE_BYTES:
                told = done
                yield Progress(done, total, file)
        if crc != entry.crc:
            findings.append(_crc_mismatch(entry, crc, file))
    yield Progress(done, total, file)
    return _not_all(findings)


def unpacked(opened: fs.File, entry: Entry, begin: int, most_bytes: int) -> bytes | None:
    """Return a deflated entry's content; None when it holds more than `most_bytes`, or is broken.

    Raises:
        OSError: it cannot be read.
    """
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    parts: list[bytes] = []
    at, end, left = begin, begin + entry.packed_bytes, most_bytes
    while at < end and not engine.eof:
        packed = opened.read_at(at, min(BLOCK_BYTES, end - at))
        if not packed:
            return None
        at += len(packed)
        try:
            part = engine.decompress(packed, left + 1)
        except zlib.error:
            return None
        left -= len(part)
        if left < 0:
            return None
        parts.append(part)
    return b"".join(parts)


# ---- the directory ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    at: int
    size_bytes: int
    count: int
    findings: tuple[Finding, ...]


class _Refused(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _find_directory(opened: fs.File, file: str) -> _Place:
    """Find the end record in the last bytes, as every reader does, and what it points at."""
    size = opened.identity().size_bytes
    begin = max(0, size - _END.size - _MOST_COMMENT)
    tail = opened.read_at(begin, size - begin)
    found = tail.rfind(_END_MAGIC, 0, max(0, len(tail) - _END.size + len(_END_MAGIC)))
    if found < 0:
        text = f"{file}: cut short: the directory at the end of the zip archive is not there"
        raise _Refused(Finding("truncated", Severity.ERROR, text, file))
    *_, count, length, at, comment = _END.unpack_from(tail, found)
    end_at = begin + found
    directory_end = end_at
    if _IN_64 in (at, length) or count == _IN_64_SHORT or _has_64(tail, found):
        count, length, at, directory_end = _read_64(opened, end_at, file)
    if length > MOST_DIRECTORY_BYTES or count > MOST_ENTRIES:
        text = f"{file}: an archive of {count:,} entries, more than are looked at"
        raise _Refused(Finding("bad-archive", Severity.WARNING, text, file))
    if at + length != directory_end:
        text = (
            f"{file}: the zip directory should take bytes {at:,} to {at + length:,}, "
            f"but its end stands at {directory_end:,}"
        )
        raise _Refused(_bad(text, file))
    after = size - end_at - _END.size
    return _Place(at, length, count, tuple(_after_end(after, comment, file)))


def _has_64(tail: bytes, found: int) -> bool:
    at = found - _LOCATOR_64.size
    return at >= 0 and tail.startswith(_LOCATOR_64_MAGIC, at)


def _read_64(opened: fs.File, end_at: int, file: str) -> tuple[int, int, int, int]:
    """Return count, length, place and end of the directory from the 64-bit records."""
    at = max(0, end_at - _LOCATOR_64.size)
    locator = opened.read_at(at, min(_LOCATOR_64.size, end_at))
    if len(locator) == _LOCATOR_64.size and locator.startswith(_LOCATOR_64_MAGIC):
        _, _, record_at, _ = _LOCATOR_64.unpack(locator)
        if record_at + _END_64.size <= at:
            record = opened.read_at(record_at, _END_64.size)
            if len(record) == _END_64.size and record.startswith(_END_64_MAGIC):
                *_, count, length, directory_at = _END_64.unpack(record)
                return count, length, directory_at, record_at
    raise _Refused(_bad(f"{file}: the 64-bit end record of the zip archive is not there", file))


def _after_end(after: int, comment: int, file: str) -> Iterator[Finding]:
    if after > comment:
        text = f"{file}: {after - comment:,} trailing bytes after the zip archive"
        yield Finding("trailing-bytes", Severity.WARNING, text, file)
    elif after < comment:
        text = f"{file}: cut short by {comment - after:,} bytes within the zip archive's comment"
        yield Finding("truncated", Severity.ERROR, text, file)


def _entries(opened: fs.File, place: _Place, file: str) -> Iterator[Entry]:
    text = opened.read_at(place.at, place.size_bytes)
    if len(text) < place.size_bytes:
        raise _Refused(_cut(file))
    at = number = 0
    while at < len(text):
        if at + _ENTRY.size > len(text) or not text.startswith(_ENTRY_MAGIC, at):
            what = f"{file}: entry {number + 1} of the zip directory does not begin as one"
            raise _Refused(_bad(what, file))
        fields = _ENTRY.unpack_from(text, at)
        flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
        name_length, extra_length, comment_length = fields[10:13]
        begin = at + _ENTRY.size
        at = begin + name_length + extra_length + comment_length
        if at > len(text):
            raise _Refused(_bad(f"{file}: the last entry of the zip directory is cut", file))
        header_at = fields[16]
        if _IN_64 in (packed, size, header_at):
            extra = text[begin + name_length : begin + name_length + extra_length]
            size, packed, header_at = _widened(extra, (size, packed, header_at), file)
        name = _text(text[begin : begin + name_length])
        number += 1
        yield Entry(name, flags, method, crc, packed, size, header_at)
    if number != place.count:
        what = f"{file}: the zip directory has {number:,} entries, its end says {place.count:,}"
        raise _Refused(_bad(what, file))


def _widened(extra: bytes, values: Sequence[int], file: str) -> list[int]:
    """Replace the values that stand for 64-bit ones by those of the extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        field = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind != 1:
            continue
        wide = [field[begin : begin + 8] for begin in range(0, len(field) - 7, 8)]
        if len(wide) >= sum(value == _IN_64 for value in values):
            left = iter(wide)
            return [int.from_bytes(next(left), "little") if v == _IN_64 else v for v in values]
    raise _Refused(_bad(f"{file}: a 64-bit size of the zip directory is not there", file))


def _bad_names(entries: Sequence[Entry], file: str) -> Iterator[Finding]:
    """Names that leave the directory they are unpacked into, and names given twice."""
    seen: set[str] = set()
    for entry in entries:
        name = entry.name
        same = name.lower() if is_pickle(entry) else name  # torch looks for any spelling
        if same in seen:
            text = (
                f"{file}: two entries are called {name!r:.100}; readers differ in which they use"
            )
            yield Finding("duplicate-entry", Severity.ERROR, text, file)
        seen.add(same)
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or not name:
            text = f"{file}: an entry is called {name!r:.100}, which leaves the archive"
            yield Finding("bad-entry-name", Severity.ERROR, text, file)
        if entry.method not in (STORED, DEFLATED) or entry.flags & _ENCRYPTED:
            text = f"{file}: entry {name!r:.100} is packed in a way that is not read here"
            yield Finding("bad-archive", Severity.WARNING, text, file)
        elif entry.method == STORED and entry.packed_bytes != entry.size_bytes:
            text = f"{file}: entry {name!r:.100}: {entry.size_bytes:,} bytes in "
            yield _bad(f"{text}{entry.packed_bytes:,}, though it is not compressed", file)


def _misplaced(entries: Sequence[Entry], place: _Place, file: str) -> Iterator[Finding]:
    """The first entry that reaches into the next one, or into the directory."""
    order = sorted(entries, key=lambda entry: entry.header_at)
    ends = [entry.header_at for entry in order[1:]] + [place.at]
    for entry, end in zip(order, ends, strict=False):
        least = entry.header_at + _LOCAL.size + len(entry.name) + entry.packed_bytes
        if least > end:
            text = f"{file}: entry {entry.name!r:.100} overlaps what follows it"
            yield _bad(text, file)
            return


def _not_all(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the first findings of an archive: it can have many entries, and all of them bad."""
    if len(findings) <= MOST_FINDINGS:
        return tuple(findings)
    last = findings[MOST_FINDINGS - 1]
    more = f"{last.message} (and {len(findings) - MOST_FINDINGS:,} more findings)"
    return (*findings[: MOST_FINDINGS - 1], replace(last, message=more))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _crc_mismatch(entry: Entry, found: int, file: str) -> Finding:
    text = f"{file}: entry {entry.name!r:.100}: CRC is {found:08x}, recorded is {entry.crc:08x}"
    hint = "its bytes are not those that were saved; torch.load would not notice"
    return Finding("crc-mismatch", Severity.ERROR, text, file, hint=hint)


def _cut(file: str) -> Finding:
    text = f"{file}: cut while it was read"
    return Finding("changed-while-reading", Severity.ERROR, text, file)


def _bad(text: str, file: str) -> Finding:
    return Finding("bad-archive", Severity.ERROR, text, file)
