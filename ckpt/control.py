"""Everything in a run's `.ckpt/`: samples, the cache of verdicts, pins.

The directory is made at the first write. Where it cannot be written everything still works, and
every write says so by its return value: what is recorded here is a comfort, never a condition.
"""

import errno
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Depth, Finding, Severity, Verdict, Verified
from ckpt.errors import DuplicateKey, TornRead

DIRECTORY = ".ckpt"
SETTLED_S = 2.0
"""A payload changed less than this ago may change again without its times telling."""

COMPACT_LINES = 256
_WORDS = ("code", "severity", "message", "file", "tensor", "hint")
_SAMPLES, _VERIFIED, _PINS = "samples.jsonl", "verified", "pins"
_MAX_CONTROL_BYTES = 32 << 20


def samples_path(run_dir: Path) -> Path:
    """Return where the history lies that was sampled for a trainer that leaves none."""
    return run_dir / DIRECTORY / _SAMPLES


def append_sample(run_dir: Path, sample: Mapping[str, Any]) -> bool:
    """Append one line of strict JSON to the samples; False: it could not be recorded."""
    return _append_line(run_dir, _SAMPLES, jsontext.dumps(dict(sample)))


def read_pins(run_dir: Path) -> frozenset[str]:
    """Return the ids of the pinned generations: the first word of each line."""
    data = _read(run_dir / DIRECTORY / _PINS)
    lines = data.decode("utf-8", errors="surrogateescape").splitlines()
    return frozenset(words[0] for line in lines if (words := line.split()))


def verified_path(run_dir: Path) -> Path:
    """Return where the verdicts on a run's payloads are remembered."""
    return run_dir / DIRECTORY / _VERIFIED


def pins_path(run_dir: Path) -> Path:
    """Return where the ids of the pinned generations lie."""
    return run_dir / DIRECTORY / _PINS


def pin(run_dir: Path, generation: str) -> None:
    """Keep a generation from every prune; pinning it again changes nothing.

    Raises:
        OSError: the run cannot be written to.
    """
    if generation not in read_pins(run_dir):
        _write_pins(run_dir, [*_pin_lines(run_dir), generation])


def unpin(run_dir: Path, generation: str) -> bool:
    """Let a generation be pruned again; False: it was not pinned.

    Raises:
        OSError: the run cannot be written to.
    """
    lines = _pin_lines(run_dir)
    kept = [line for line in lines if line.split()[:1] != [generation]]
    if len(kept) == len(lines):
        return False
    _write_pins(run_dir, kept)
    return True


def _pin_lines(run_dir: Path) -> list[str]:
    data = _read(run_dir / DIRECTORY / _PINS)
    return data.decode("utf-8", errors="surrogateescape").splitlines()


def _write_pins(run_dir: Path, lines: list[str]) -> None:
    directory = make_control(run_dir)
    _refuse_links(directory / _PINS)
    text = "".join(f"{line}\n" for line in lines)
    fs.replace_bytes(directory / _PINS, text.encode("utf-8", errors="surrogateescape"))


# ---- what was verified ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells one state of a payload's files from any other: `digest`, and the newest time.

    The digest is over name, device, inode, size, mtime and ctime of every file, so it survives a
    rename of the directory around them and nothing else.
    """

    digest: str
    newest_at: float


def stamp_of(files: Mapping[str, fs.Identity]) -> Stamp:
    """Return the stamp of a payload's files."""
    digest = hashlib.sha256()
    newest_ns = 0
    for name, found in sorted(files.items()):
        fields = (found.device, found.inode, found.size_bytes, found.mtime_ns, found.ctime_ns)
        digest.update(f"{name}\0{fields}\n".encode("utf-8", errors="surrogateescape"))
        newest_ns = max(newest_ns, found.mtime_ns, found.ctime_ns)
    return Stamp(digest.hexdigest()[:32], newest_ns / 1e9)


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """One line of the cache: which payload (its path in the run and generation), what was said."""

    path: str
    generation: str
    digest: str
    verified: Verified


class VerifiedCache:
    """The verdicts remembered of a run's payloads; each holds only while its files are the same.

    Looking up never fails: an entry that no longer fits, or cannot be read, is not there.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = verified_path(run_dir)
        self._read_as: fs.Identity | None = None
        self._by_digest: dict[str, Verified] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered, so that no stamp need be taken."""
        return not self._by_digest

    def lookup(self, stamp: Stamp) -> Verified | None:
        """Return what was said of exactly these files, None when nothing was."""
        return self._by_digest.get(stamp.digest)

    def refresh(self) -> bool:
        """Read the cache again if it changed; True: it did."""
        try:
            found = fs.identity(self._path)
        except OSError:
            found = None
        if found == self._read_as:
            return False
        self._read_as = found
        self._by_digest = {
            entry.digest: entry.verified for entry in _entries(_read(self._path)).values()
        }
        return True

    def remember(
        self, entry: VerifiedEntry, stamp: Stamp, *, began_at: float | None = None
    ) -> bool:
        """Record a verdict on the files that `stamp` was taken of before they were read.

        `began_at` is when that was (epoch s), None: just now. False: nothing was recorded, because
        the files were too new then for their times to tell a change, because more is known of them
        already, or because the run cannot be written to.
        """
        if (time.time() if began_at is None else began_at) - stamp.newest_at < SETTLED_S:
            return False
        self.refresh()
        known = self.lookup(stamp)
        is_damaged = entry.verified.verdict is Verdict.DAMAGED
        if known is not None and known.depth > entry.verified.depth and not is_damaged:
            return False
        is_recorded = _append_line(self._run_dir, _VERIFIED, _line(entry))
        if is_recorded:
            self._compact()
        return is_recorded

    def _compact(self) -> None:
        data = _read(self._path)
        entries = _entries(data)
        if data.count(b"\n") <= max(COMPACT_LINES, 2 * len(entries)):
            return
        text = "".join(f"{_line(entry)}\n" for entry in entries.values())
        try:
            fs.replace_bytes(self._path, text.encode(), durable=False)
        except OSError:
            return  # the cache stays long; nothing is lost


def _line(entry: VerifiedEntry) -> str:
    verified = entry.verified
    value: dict[str, Any] = {
        "path": entry.path,
        "generation": entry.generation,
        "key": entry.digest,
        "verdict": verified.verdict.value,
        "depth": verified.depth.name.lower(),
        "at": verified.at,
    }
    if verified.worst is not None:
        worst = {name: getattr(verified.worst, name) for name in _WORDS}
        value["worst"] = worst | {"tensors": verified.hurt, "tensor_count": verified.hurt_count}
    return json.dumps(value, allow_nan=False)  # ASCII, so that a name that is no UTF-8 survives


def _entries(data: bytes) -> dict[tuple[str, str], VerifiedEntry]:
    """The last entry of each payload; a line that does not parse (a torn tail) is not there."""
    found: dict[tuple[str, str], VerifiedEntry] = {}
    for line in data.splitlines():
        entry = _parsed(line)
        if entry:
            found.pop((entry.path, entry.generation), None)
            found[entry.path, entry.generation] = entry
    return found


def _parsed(line: bytes) -> VerifiedEntry | None:
    """One line by hand: hundreds of them are read before the first frame, pydantic is not."""
    try:
        value = jsontext.parse(line, path=_VERIFIED)
        return VerifiedEntry(
            _text(value["path"]),
            _text(value["generation"]),
            _text(value["key"]),
            Verified(
                Verdict(value["verdict"]),
                Depth[value["depth"].upper()],
                float(value["at"]),
                *_worst(value.get("worst")),
            ),
        )
    except (TornRead, DuplicateKey, KeyError, TypeError, ValueError, AttributeError):
        return None
    except OverflowError:  # an infinite count, or a time of more than 308 digits
        return None


def _worst(value: Any) -> tuple[Finding | None, tuple[str, ...], int]:
    """The worst finding of an entry and what is hurt; entries without one are as good."""
    if value is None:
        return None, (), 0
    words = [None if value[name] is None else _text(value[name]) for name in _WORDS]
    code, severity, message, file, tensor, hint = words
    finding = Finding(
        _text(code), Severity(_text(severity)), _text(message), file=file, tensor=tensor, hint=hint
    )
    return finding, tuple(map(_text, value["tensors"])), int(value["tensor_count"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


# ---- the directory ----------------------------------------------------------------------------


def make_control(run_dir: Path) -> Path:
    """Return a run's `.ckpt/`, made durable if it was not there.

    Raises:
        OSError: the run cannot be written to, or a link stands in the directory's place.
    """
    directory = run_dir / DIRECTORY
    _refuse_links(directory)
    if fs.identity(directory) is None:
        with suppress(FileExistsError):  # made by somebody else since
            fs.make_directory(directory)  # never the run itself, which may have been removed
        fs.sync_directory(run_dir)
    return directory


def _read(path: Path) -> bytes:
    try:
        return fs.read_bytes(path, limit=_MAX_CONTROL_BYTES)
    except OSError:
        return b""


def _append_line(run_dir: Path, name: str, line: str) -> bool:
    """Append a line behind whatever half line a dead writer left; False: it cannot be written."""
    try:
        path = make_control(run_dir) / name
        _refuse_links(path)
        start = "" if _ends_whole(path) else "\n"
        fs.append_bytes(path, f"{start}{line}\n".encode())
    except OSError:
        return False
    return True


def _refuse_links(*paths: Path) -> None:
    """A link planted in a run must not make us write into a file elsewhere."""
    for path in paths:
        found = fs.identity(path, follow=False)
        if found is not None and found.is_symlink:
            raise OSError(errno.ELOOP, "is a symbolic link", str(path))


def _ends_whole(path: Path) -> bool:
    found = fs.identity(path)
    if found is None or found.size_bytes == 0:
        return True
    with fs.File(path) as file:
        return file.read_at(found.size_bytes - 1, 1) in (b"\n", b"")
