"""The run's journal `.ckpt/reflog`: what was meant to be done to its slots, and what was done.

One line an intent or its outcome, each behind a checksum, appended and never rewritten. Knows the
ids of generations and names of slots, never where a payload lies.
"""

import errno
import json
import math
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.control import DIRECTORY, make_control
from ckpt.errors import DuplicateKey, TornRead
from ckpt.lock import own_words

NAME = "reflog"
UNDO_WINDOW = 20
"""How many of the last entries can be undone; what only took back or removed is not counted."""

UNDOABLE = frozenset({"publish", "rollback", "withdraw"})
_BLANK = re.compile(rb"\n+")
_SHORTEST = len(b"00000000 {}")
_TAIL_BYTES = 1 << 16
_MOST_BYTES = 1 << 30


class Outcome(StrEnum):
    """What became of an intent; one without an outcome was interrupted."""

    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one slot: the ids of the generations that are live before and after.

    `slot` is relative to the run; None: none is live.
    """

    slot: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One intent and what became of it. `at` is epoch seconds; `by` names the process.

    `undoes` is the entry that an undo takes back, or the undo that a redo takes back; `undone_by`
    is the entry that took this one back, as things stand at the journal's end.
    """

    sequence: int
    at: float
    verb: str
    changes: tuple[Change, ...]
    by: str
    undoes: int | None = None
    outcome: Outcome | None = None
    undone_by: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the journal tells of one slot.

    `lived` maps the id of each generation that was ever live to the last sequence in which it was
    so; `pending` is a change that was begun and has no outcome.
    """

    lived: Mapping[str, int] = field(default_factory=dict)
    pending: Change | None = None
    is_withdrawn: bool = False


UNTOLD = Told()


@dataclass(frozen=True, slots=True)
class Journal:
    """All entries, oldest first. `good_bytes` is where the last whole line ends."""

    entries: tuple[Entry, ...] = ()
    good_bytes: int = 0
    size_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    slots: Mapping[str, Told] = field(default_factory=dict)

    @property
    def last_sequence(self) -> int:
        """The number of the last intent, 0 when there is none."""
        return self.entries[-1].sequence if self.entries else 0

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The intents that were interrupted."""
        return tuple(entry for entry in self.entries if entry.outcome is None)

    @property
    def is_torn(self) -> bool:
        """Whether something behind the last whole line is none."""
        return self.good_bytes < self.size_bytes

    def of_slot(self, name: str) -> Told:
        """Return what is told of a slot; of one that was never mentioned: nothing."""
        return self.slots.get(name, UNTOLD)

    @property
    def undo_target(self) -> Entry | None:
        """The entry that an undo takes back: the last one not undone within the window."""
        return next((each for each in reversed(self._window) if _can_be_undone(each)), None)

    def undoable(self, sequence: int) -> Entry | None:
        """Return the entry of that number if it can still be undone, as far as is known here."""
        found = (each for each in self._window if each.sequence == sequence)
        return next(filter(_can_be_undone, found), None)

    @property
    def redo_target(self) -> Entry | None:
        """The undo that a redo takes back; None once something else was done since."""
        for entry in reversed(self._done):
            if entry.verb == "undo" and entry.undone_by is None:
                return entry
            if entry.verb in UNDOABLE:
                return None
        return None

    @property
    def in_undo_window(self) -> frozenset[str]:
        """Ids of the generations that an undo or redo of what a person did would need.

        A trainer's own saves are not among them: how many of those stay is up to its retention.
        """
        recent = [entry for entry in self._window if entry.verb not in ("publish", "prune")]
        ids = {
            each for entry in recent for change in entry.changes
            for each in (change.before, change.after)
        }  # fmt: skip
        return frozenset(each for each in ids if each is not None)

    @property
    def _window(self) -> tuple[Entry, ...]:
        done = self._done
        counted = [at for at, entry in enumerate(done) if entry.verb in UNDOABLE]
        return done[counted[-UNDO_WINDOW] :] if len(counted) > UNDO_WINDOW else done

    @property
    def _done(self) -> tuple[Entry, ...]:
        """What was done, without prunes: they cannot be undone and use up no room for others."""
        done = (entry for entry in self.entries if entry.outcome is Outcome.DONE)
        return tuple(entry for entry in done if entry.verb != "prune")


def _can_be_undone(entry: Entry) -> bool:
    return entry.verb in UNDOABLE and entry.undone_by is None


def reflog_path(run_dir: Path) -> Path:
    """Return where a run's journal lies."""
    return run_dir / DIRECTORY / NAME


def read(run_dir: Path) -> Journal:
    """Read a run's journal; no journal is an empty one, and damaged lines are findings.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        data = fs.read_small(reflog_path(run_dir), _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Journal()
    return _journal(data)


class JournalReader:
    """Reads one journal again and again, and only what was appended to it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._stamp: fs.Stamp | None = None
        self._journal = Journal()

    def read(self) -> Journal:
        """Return the journal as it is now; the same object while it did not change."""
        found = fs.stamp(reflog_path(self._run_dir))
        if found != self._stamp:
            try:
                self._journal = self._read(found)
            except OSError as error:
                text = f"{NAME}: cannot be read: {(error.strerror or str(error)).lower()}"
                finding = Finding("unreadable-file", Severity.WARNING, text, NAME)
                self._journal = Journal(findings=(finding,))
            self._stamp = found
        return self._journal

    def _read(self, found: fs.Stamp | None) -> Journal:
        before, known = self._stamp, self._journal
        is_same = found is not None and before is not None and found.inode == before.inode
        if not is_same or known.findings or known.is_torn or known.size_bytes == 0:
            return read(self._run_dir)
        with fs.File(reflog_path(self._run_dir)) as file:
            more = file.opened_as.size_bytes - known.size_bytes
            if more < 0 or file.read_at(known.size_bytes - 1, 1) != b"\n":
                return read(self._run_dir)
            return _journal(file.read_at(known.size_bytes, more), known)


# ---- writing: only under the run's lock -------------------------------------------------------


def intend(
    run_dir: Path, verb: str, changes: Sequence[Change], *, undoes: int | None = None
) -> int:
    """Record durably what is about to be done; return its sequence number.

    Raises:
        OSError: the run cannot be written to.
    """
    sequence = last_sequence(run_dir) + 1
    value = {
        "sequence": sequence,
        "at": time.time(),
        "verb": verb,
        "changes": [
            {"slot": each.slot, "before": each.before, "after": each.after} for each in changes
        ],
        "by": own_words(verb),
        "undoes": undoes,
    }
    _append(run_dir, value, is_durable=True)
    return sequence


def conclude(run_dir: Path, sequence: int, outcome: Outcome) -> None:
    """Record what became of an intent; the disk says it too, so it need not be durable.

    Raises:
        OSError: the run cannot be written to.
    """
    value = {"of": sequence, "outcome": outcome.value, "at": time.time()}
    _append(run_dir, value, is_durable=False)


def cut_torn_tail(run_dir: Path, journal: Journal) -> None:
    """Cut a journal to its last whole line.

    Raises:
        OSError: the run cannot be written to.
    """
    path = reflog_path(run_dir)
    _own_file(path)
    fs.truncate(path, journal.good_bytes)
    fs.sync_file(path)


def _append(run_dir: Path, value: Mapping[str, Any], *, is_durable: bool) -> None:
    directory = make_control(run_dir)
    path = directory / NAME
    found = _own_file(path)
    ends_whole = found is None or found.size_bytes == 0 or _last_byte(path, found) == b"\n"
    line = _line(value)
    fs.append_bytes(path, line if ends_whole else b"\n" + line)
    if is_durable:
        fs.sync_file(path)
        if found is None:
            fs.sync_directory(directory)


def _own_file(path: Path) -> fs.Identity | None:
    """Look at the journal; a link in its place would have somebody else's file written to."""
    found = fs.identity(path, follow=False)
    if found is not None and found.is_symlink:
        raise OSError(errno.ELOOP, "is a symbolic link", str(path))
    return found


def _last_byte(path: Path, found: fs.Identity) -> bytes:
    with fs.File(path) as file:
        return file.read_at(found.size_bytes - 1, 1)


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, allow_nan=False).encode()  # ASCII: a name may be no UTF-8
    return b"%08x %s\n" % (zlib.crc32(text), text)


def last_sequence(run_dir: Path) -> int:
    """Return the number of the last intent, from the journal's tail: the whole may be long.

    Raises:
        OSError: the journal is there and cannot be read.
    """
    path = reflog_path(run_dir)
    try:
        with fs.File(path) as file:
            size = file.opened_as.size_bytes
            tail = file.read_at(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    for line in reversed(tail.split(b"\n")):
        value = _value(line)
        if value is not None and (number := _number(value.get("sequence"))):
            return number
    return read(run_dir).last_sequence


# ---- reading ----------------------------------------------------------------------------------


def _journal(data: bytes, known: Journal | None = None) -> Journal:
    """Read a journal's bytes, or those that were appended to what is known of it."""
    entries = {entry.sequence: entry for entry in known.entries} if known else {}
    start = known.size_bytes if known else 0
    good = 0
    lines = 0
    for end, value in _values(data):
        good, lines = end, lines + _take(entries, value)
    whole = sum(bool(line) for line in data[:good].split(b"\n"))
    findings = []
    if whole > lines:
        text = f"{NAME}: damaged lines passed over: {whole - lines}"
        findings.append(Finding("bad-reflog", Severity.WARNING, text, NAME))
    if good < len(data):
        text = f"{NAME}: ends in {len(data) - good} bytes that are no whole line"
        findings.append(Finding("torn-reflog", Severity.WARNING, text, NAME))
    ordered = tuple(entries[number] for number in sorted(entries))
    return Journal(ordered, start + good, start + len(data), tuple(findings), _by_slot(ordered))


def _values(data: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each whole line's value and where the line ends."""
    at = 0
    while at < len(data):
        if data.startswith(b"\n", at):
            at = _BLANK.match(data, at).end()  # type: ignore[union-attr]  # one is there
            continue
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end  # a line that lost only its end is whole
        value = _value(data[at:end])
        at = min(end + 1, len(data))
        if value is not None:
            yield at, value


def _value(line: bytes) -> Mapping[str, Any] | None:
    if len(line) < _SHORTEST:
        return None
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        value = jsontext.parse(text, path=NAME)
    except (TornRead, DuplicateKey):
        return None
    return value if isinstance(value, dict) else None


def _take(entries: dict[int, Entry], value: Mapping[str, Any]) -> bool:
    """Take one line into account; False where it makes no sense, and changes nothing."""
    of = _number(value.get("of"))
    if of:
        entry = entries.get(of)
        if entry is None or value.get("outcome") not in list(Outcome):
            return True
        entries[of] = replace(entry, outcome=Outcome(value["outcome"]))
        if entries[of].outcome is Outcome.DONE and entry.undoes in entries:
            _take_back(entries, entry, entry.undoes)
        return True
    entry = _entry(value)
    if entry is not None and entry.sequence not in entries:
        entries[entry.sequence] = entry
    return entry is not None


def _take_back(entries: dict[int, Entry], by: Entry, number: int) -> None:
    """Mark what an undo took back; a redo marks the undo, and frees what that took back."""
    undone = entries[number]
    entries[number] = replace(undone, undone_by=by.sequence)
    if by.verb == "redo" and undone.undoes in entries:
        entries[undone.undoes] = replace(entries[undone.undoes], undone_by=None)


def _entry(value: Mapping[str, Any]) -> Entry | None:
    try:
        changes = tuple(
            Change(_slot(each["slot"]), _id(each["before"]), _id(each["after"]))
            for each in value["changes"]
        )
        sequence, undoes = _number(value["sequence"]), value.get("undoes")
        if not sequence or not math.isfinite(value["at"]):
            return None
        return Entry(
            sequence,
            float(value["at"]),
            str(value["verb"]),
            changes,
            str(value["by"]),
            _number(undoes) or None,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _slot(value: Any) -> str:
    """Take the name of a slot, which becomes a path: one that leaves the run is no name of it."""
    name = str(value)
    if "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(name)
    return name


def _id(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _by_slot(entries: Iterable[Entry]) -> dict[str, Told]:
    lived: dict[str, dict[str, int]] = {}
    last: dict[str, tuple[Entry, Change]] = {}
    for entry in entries:
        if entry.outcome is Outcome.ABORTED or entry.verb == "prune":
            continue
        for change in entry.changes:
            known = lived.setdefault(change.slot, {})
            if change.before is not None:
                known.setdefault(change.before, entry.sequence - 1)
            if change.after is not None and entry.outcome is Outcome.DONE:
                known[change.after] = entry.sequence
            last[change.slot] = entry, change
    return {
        slot: Told(
            lived[slot],
            pending=change if entry.outcome is None else None,
            is_withdrawn=entry.outcome is Outcome.DONE and change.after is None,
        )
        for slot, (entry, change) in last.items()
    }
