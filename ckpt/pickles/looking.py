"""What stands in a `.pt`, `.pth`, `.bin`, `.ckpt` or `.pkl` file, told without loading it.

Finds the pickles in a file (bare, in torch's older format, in a zip archive), lets each be walked,
and turns what is wrong into findings. Never raises, whatever stands there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, FileEntry, Finding, Severity, worst_first
from ckpt.operation import Operation, Progress
from ckpt.pickles import archive
from ckpt.pickles.archive import Archive, Entry
from ckpt.pickles.meaning import CODE, HINT, findings_of
from ckpt.pickles.walker import MOST_OPCODES, Source, Walked, Walker

OPCODES_WITH_BYTES = 16 * MOST_OPCODES
"""How far a walk goes where every byte is read anyway, with progress and a way to stop."""

MOST_UNPACKED_BYTES = 1 << 25
MOST_PICKLES = 64
_NAME = re.compile(r".+\.(?:pt|pth|bin|ckpt|pkl|pickle)", re.IGNORECASE | re.DOTALL)
_SURE_NAME = re.compile(
    r".+\.(?:pt|pth|pkl|pickle)|(?:pytorch_model|adapter_model|optimizer|training_args).*\.bin",
    re.IGNORECASE | re.DOTALL,
)
_TORCH_BEFORE_ZIP = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLES_BEFORE_ZIP = 5  # magic number, protocol, system, object, storage keys; then raw bytes
_NEWEST_PROTOCOL = 15  # one that may come to be: it is a pickle then, though not read here
_NOT_OPENED = frozenset({"bad-entry-name", "dangling-link", "permission-denied", "symlink"})
_COMPRESSED = (
    b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"x\x01", b"x\x9c",
    b"x\xda",
)  # fmt: skip
_TAR_BYTES, _TAR_SUM = 512, slice(148, 156)


@dataclass(frozen=True, slots=True)
class PickleReport:
    """What a load of a file would import, as `module.name`, sorted; nothing of it was loaded.

    `suspicious` are sentences on what could not be told. `kind` is `zip`, `torchscript`, `torch`
    (its format before zip), `pickle`, `tar`, `compressed`, or None where no pickle was recognised.
    `is_ended` says that every pickle reached its end; `fault_at` is the first byte that cannot be
    followed, counted within `fault_in` (an entry of an archive, None: the file itself).
    """

    kind: str | None
    imports: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
    is_ended: bool = False
    fault_at: int | None = None
    fault_in: str | None = None
    findings: tuple[Finding, ...] = ()


def is_pickle_name(name: str) -> bool:
    """Whether a file of this name may be a pickle that somebody loads."""
    return _NAME.fullmatch(name) is not None


def walk(path: Path | str, file: str | None = None) -> PickleReport:
    """Tell what loading a file would import; reads little of it, in bounded time and memory.

    `file` is the name that findings carry (default: the path's own).
    """
    looking = _looking(path, file or Path(path).name, MOST_OPCODES)
    while True:
        try:
            next(looking)
        except StopIteration as stop:
            report: PickleReport = stop.value
            return report


def check_zip_bytes(path: Path | str, file: str | None = None) -> Operation[tuple[Finding, ...]]:
    """Compare every CRC of a zip archive as torch.save writes it; other files have none.

    What is wrong with the archive's directory is `walk`'s to tell.
    """
    name = file or Path(path).name
    try:
        with fs.File(path) as opened:
            if opened.read_at(0, 4) != archive.MAGIC:
                return ()
            found = archive.read_archive(opened, name)
            return (yield from archive.compare(opened, found, name))
    except OSError as error:
        return (_cannot_read(error, name),)


def check(
    path: Path | str, entry: FileEntry, depth: Depth = Depth.HEADERS
) -> Operation[tuple[Finding, ...]]:
    """Look at one file of a checkpoint: its pickles, and at `BYTES` what its archive recorded.

    Progress counts the bytes whose CRC was compared. A file whose bytes a recorded hash covers is
    not read a second time for that. What is no pickle at all is an error only under a name that
    promises one, and in a list or without one.
    """
    most = OPCODES_WITH_BYTES if depth is Depth.BYTES else MOST_OPCODES
    looking = _looking(path, entry.name, most)
    while True:
        try:
            next(looking)
        except StopIteration as stop:
            report: PickleReport = stop.value
            break
        yield Progress(0, entry.size_bytes, entry.name)
    findings = list(report.findings)
    if report.kind is None and not _SURE_NAME.fullmatch(entry.name):
        findings = [each for each in findings if each.code != "bad-pickle"]
    elif report.kind == "compressed" and not _SURE_NAME.fullmatch(entry.name):
        findings = []
    is_covered = entry.sha256 is not None or bool(entry.chunks)
    if is_covered or (report.kind is None and entry.listed is False):  # its hash tells of damage
        findings = [_lessened(each) if each.code == "bad-pickle" else each for each in findings]
    if depth is Depth.BYTES and report.kind in ("zip", "torchscript") and not is_covered:
        findings += yield from check_zip_bytes(path, entry.name)
    return worst_first(findings)


def pickled(seen: Checkpoint) -> Iterator[FileEntry]:
    """Yield the files of a checkpoint that may be pickles, and may be opened as part of it."""
    refused = {
        finding.file
        for finding in seen.findings
        if finding.severity is Severity.ERROR and finding.code in _NOT_OPENED
    }
    for entry in seen.files:
        if entry.size_bytes and entry.name not in refused and is_pickle_name(entry.name):
            yield entry


# ---- what kind of file ------------------------------------------------------------------------


def _looking(path: Path | str, file: str, most_opcodes: int) -> Operation[PickleReport]:
    try:
        with fs.File(path) as opened:
            return (yield from _look(opened, file, most_opcodes))
    except OSError as error:
        return PickleReport(None, findings=(_cannot_read(error, file),))


def _look(opened: fs.File, file: str, most_opcodes: int) -> Operation[PickleReport]:
    start = opened.read_at(0, _TAR_BYTES)
    if not start:
        text = f"{file}: the file is empty"
        empty = Finding("empty-file", Severity.ERROR, text, file)
        return PickleReport(None, findings=(empty,))
    if start.startswith(archive.MAGIC):
        return (yield from _look_into_archive(opened, file, most_opcodes))
    if (packing := _packing_of(start)) is not None:
        kind, why = packing
        return PickleReport(kind, suspicious=(why,), findings=findings_of(file, (), (why,)))
    is_old_torch = start.startswith(_TORCH_BEFORE_ZIP)
    source = _Part(opened, 0, opened.opened_as.size_bytes)
    walker = Walker(
        source,
        most_pickles=_PICKLES_BEFORE_ZIP if is_old_torch else None,
        most_opcodes=most_opcodes,
    )
    yield from _progress(walker, source.size, file)
    walked = walker.walked
    least = _PICKLES_BEFORE_ZIP if is_old_torch else 1
    is_marked = start[0] == 0x80 and start[1:2] <= bytes([_NEWEST_PROTOCOL])
    if walked.pickles == 0 and not is_marked and not _has_names(walked):
        found = _error("bad-pickle", f"{file}: {_what_stands(start)}", file)
        return PickleReport(
            None, fault_at=walked.fault.at if walked.fault else None, findings=(found,)
        )
    findings = (*_faults(walked, least, file, None), *_imports_of(file, walked))
    return _report("torch" if is_old_torch else "pickle", [(None, walked, least)], findings)


def _look_into_archive(opened: fs.File, file: str, most_opcodes: int) -> Operation[PickleReport]:
    found = archive.read_archive(opened, file)
    findings = list(found.findings)
    pickled = sorted(
        filter(archive.is_pickle, found.entries),
        key=lambda entry: not _is_main(entry),
    )
    code = next((entry.name for entry in found.entries if _is_code(entry)), None)
    walks: list[tuple[str | None, Walked, int]] = []
    untold: set[str] = set()
    opcodes, unpacked = most_opcodes, MOST_UNPACKED_BYTES
    for entry in pickled[:MOST_PICKLES]:
        source = _content(opened, found, entry, file, unpacked)
        if isinstance(source, Finding):
            findings.append(source)
            untold.add(f"entry {entry.name!r:.100}, which cannot be read")
            continue
        unpacked -= source.size if entry.method != archive.STORED else 0
        walker = Walker(source, most_opcodes=opcodes)
        yield from _progress(walker, source.size, file)
        walks.append((entry.name, walker.walked, 1))
        opcodes = max(1, opcodes - walker.walked.opcodes)
        findings += _faults(walker.walked, 1, file, entry.name)
    if len(pickled) > MOST_PICKLES:
        untold.add(f"{len(pickled) - MOST_PICKLES:,} more pickles in the archive")
    findings += _odd(found, code, file)
    imports = {each for _, walked, _ in walks for each in walked.imports}
    if code is not None:  # classes of the archive's own program
        imports = {each for each in imports if each[0].split(".")[0] != "__torch__"}
    untold |= {each for _, walked, _ in walks for each in walked.untold}
    findings += findings_of(file, imports, untold)
    report = _report("torchscript" if code else "zip", walks, tuple(findings), untold)
    return report


def _odd(found: Archive, code: str | None, file: str) -> Iterator[Finding]:
    """What torch.save does not write: programs, compressed entries, no object at all."""
    if code is not None:
        text = (
            f"{file}: holds a program ({code!r:.100}), which runs for whoever uses what it loads"
        )
        yield Finding(CODE, Severity.WARNING, text, file, hint=HINT)
    packed = [each.name for each in found.entries if each.method == archive.DEFLATED]
    if packed and code is None:
        text = (
            f"{file}: {len(packed):,} compressed entries ({packed[0]!r:.100}), which torch.save "
        )
        text += "never writes; their CRCs are not compared"
        yield Finding("compressed-entry", Severity.WARNING, text, file)
    if found.entries and not any(_is_main(entry) for entry in found.entries):
        text = f"{file}: a zip archive without data.pkl, so not what torch.save writes"
        yield Finding("bad-archive", Severity.WARNING, text, file)


def _content(
    opened: fs.File, found: Archive, entry: Entry, file: str, most_bytes: int
) -> "Source | Finding":
    begin = archive.content_at(opened, found, entry, file)
    if isinstance(begin, Finding):
        return begin
    if entry.method == archive.STORED:
        return _Part(opened, begin, entry.packed_bytes)
    content = None
    if entry.method == archive.DEFLATED:
        content = archive.unpacked(opened, entry, begin, most_bytes)
    if content is None:
        text = f"{file}: entry {entry.name!r:.100} cannot be unpacked, or holds too much"
        return Finding("bad-archive", Severity.WARNING, text, file)
    return _Memory(content)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an open file."""

    opened: fs.File
    begin: int
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        return self.opened.read_at(self.begin + offset, min(size, self.size - offset))


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was unpacked."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read_at(self, offset: int, size: int) -> bytes:
        return self.content[offset : offset + size]


def _progress(walker: Walker, total: int, file: str) -> Operation[None]:
    for position in walker.run():
        yield Progress(position, total, file)


# ---- what is wrong ----------------------------------------------------------------------------


def _report(
    kind: str,
    walks: list[tuple[str | None, Walked, int]],
    findings: tuple[Finding, ...],
    untold: set[str] | None = None,
) -> PickleReport:
    imports = {f"{module}.{name}" for _, walked, _ in walks for module, name in walked.imports}
    suspicious = {each for _, walked, _ in walks for each in walked.untold} | (untold or set())
    faults = ((name, walked.fault) for name, walked, least in walks if walked.pickles < least)
    where, fault = next(((name, fault) for name, fault in faults if fault), (None, None))
    return PickleReport(
        kind,
        tuple(sorted(imports)),
        tuple(sorted(suspicious)),
        is_ended=bool(walks) and all(walked.pickles >= least for _, walked, least in walks),
        fault_at=fault.at if fault else None,
        fault_in=where,
        findings=worst_first(findings),
    )


def _imports_of(file: str, walked: Walked) -> tuple[Finding, ...]:
    untold = set(walked.untold)
    if _is_joblib(walked):
        untold.add("raw arrays lie between its opcodes, as joblib writes them")
    return findings_of(file, walked.imports, untold)


def _faults(walked: Walked, least: int, file: str, entry: str | None) -> Iterator[Finding]:
    """The fault that keeps a pickle from being loaded; bytes after the last one are none."""
    fault = walked.fault
    if fault is None or fault.kind == "limit" or _is_joblib(walked):
        return
    if walked.pickles >= least and fault.at >= walked.end:
        return
    inside = f" of entry {entry!r:.100}" if entry else ""
    where = f"at byte {fault.at:,}{inside}"
    if fault.kind == "cut":
        yield _error("truncated", f"{file}: the pickle is cut short: {fault.what}, {where}", file)
    else:
        text = f"{file}: the pickle cannot be loaded: {fault.what}, {where}"
        yield _error("bad-pickle", text, file)


def _has_names(walked: Walked) -> bool:
    """Whether an import that was seen can be one, and not any bytes that look alike."""
    return any(
        all(part.isidentifier() for part in f"{module}.{name}".split("."))
        for module, name in walked.imports
    )


def _is_joblib(walked: Walked) -> bool:
    return any(module.split(".")[0] == "joblib" for module, _ in walked.imports)


def _is_main(entry: Entry) -> bool:
    return entry.name.lower().rpartition("/")[2] == "data.pkl"


def _is_code(entry: Entry) -> bool:
    parts = entry.name.lower().split("/")
    return parts[-1] == "constants.pkl" or "code" in parts[:-1] or parts[-1].endswith(".py")


def _packing_of(start: bytes) -> tuple[str, str] | None:
    """Name what a pickle may be packed in that is not looked into here, and say so."""
    if _is_tar(start):
        return "tar", "it is a tar archive, as torch wrote it long ago, which is not looked into"
    if start.startswith(_COMPRESSED):
        return "compressed", "it is compressed, which is not looked into"
    return None


def _is_tar(start: bytes) -> bool:
    """Whether torch would take a file for a tar archive: by the checksum of its first block."""
    if len(start) < _TAR_BYTES:
        return False
    if start[257:262] == b"ustar":
        return True
    digits = start[_TAR_SUM].split(b"\0")[0].strip()
    if not digits or digits.strip(b"01234567"):
        return False
    total = sum(start) - sum(start[_TAR_SUM]) + 8 * ord(" ")
    return int(digits, 8) == total


def _what_stands(start: bytes) -> str:
    """Name what stands in the place of a pickle."""
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not a pickle (fetch the real file with git lfs pull)"
    if not start.strip(b"\0"):
        return "begins with zeros, as a file does whose bytes a crash lost"
    if start.lstrip().lower().startswith((b"<!doc", b"<html")):
        return "an HTML page, not a pickle (a failed download?)"
    return f"no pickle and no zip archive: it begins with {start[:8]!r}"


def _lessened(finding: Finding) -> Finding:
    return Finding(finding.code, Severity.WARNING, finding.message, finding.file)


def _cannot_read(error: OSError, file: str) -> Finding:
    if isinstance(error, FileNotFoundError):
        return _error("missing-file", f"{file}: not there", file)
    if isinstance(error, PermissionError):
        return _error("permission-denied", f"{file}: permission denied", file)
    return _error("unreadable-file", f"{file}: cannot be read: {error.strerror or error}", file)


def _error(code: str, message: str, file: str) -> Finding:
    return Finding(code, Severity.ERROR, message, file)
