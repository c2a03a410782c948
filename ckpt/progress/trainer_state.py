"""HF Trainer's `trainer_state.json`: one in each `checkpoint-N`, sometimes one in the run.

Each holds all that was logged up to its step, so one of them is read: the furthest. A file of
hundreds of MB is read row by row, in slices, and only numbers are kept of it.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt import fs, jsontext
from ckpt.errors import CheckpointError, TornRead
from ckpt.formats.directory import step_in_name
from ckpt.history import Row
from ckpt.progress.base import (
    GIVE_UP_S,
    RETRY_S,
    SLACK_BYTES,
    SLICE_BYTES,
    Cadence,
    number,
    numbers,
    sentence,
)
from ckpt.progress.base import whole as whole_number
from ckpt.run import (
    HistoryHeld,
    RowsRead,
    RunEvent,
    SketchReplaced,
    Source,
    SourceRead,
    TaskRead,
    Warned,
)

NAME, KIND = "trainer_state.json", "trainer-state"
WHOLE_BYTES = 4 << 20
TAIL_BYTES = 1 << 18
ANOTHER_RUN_S = 60.0
_NAMES = MappingProxyType(
    {
        "loss": "loss",
        "eval_loss": "eval_loss",
        "learning_rate": "learning_rate",
        "grad_norm": "grad_norm",
    }
)
_TASK = ("num_train_epochs", "train_batch_size", "save_steps", "eval_steps", "logging_steps")
_ROWS_BEGIN = re.compile(rb'\n {0,8}"log_history": ?\[')


@dataclass(frozen=True, slots=True)
class _Part:
    """What one slice of a file gave: rows, and with the first and last of them all the rest."""

    rows: list[Row]
    facts: Mapping[str, Any] | None = None
    is_last: bool = False


class TrainerState:
    """Reads the furthest of the files; `paths` is set by whoever knows the directories."""

    def __init__(self, run_dir: Path) -> None:
        self.paths: tuple[Path, ...] = ()
        self.retry_at: float | None = None
        self._run_dir = run_dir
        self._times: dict[Path, fs.Identity] = {}
        self._reading: Iterator[_Part] | None = None
        self._chosen: Path | None = None
        self._identity: fs.Identity | None = None
        self._torn_since: float | None = None
        self._replaces = False
        self._source = Source("", KIND, writes_only_at_saves=True, key=KIND)

    @property
    def is_found(self) -> bool:
        """Whether any of the files is there."""
        return bool(self._times)

    @property
    def has_more(self) -> bool:
        """Whether a large file is still being read."""
        return self._reading is not None

    @property
    def backlog_bytes(self) -> int:
        """Roughly how many bytes are still to be read."""
        return self._identity.size_bytes if self._reading and self._identity else 0

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield the rows and values of the furthest file, once per change of it."""
        self._look()
        chosen = furthest(self._times)
        if chosen is None:
            return
        identity = self._times[chosen]
        is_due = self.retry_at is not None and now >= self.retry_at
        if identity != self._identity or chosen != self._chosen or is_due:
            self._chosen, self._identity, self._replaces = chosen, identity, True
            self._reading, self.retry_at = _parts(chosen), None
        elif self._reading is None:
            return
        yield from self._go_on(chosen, identity, now)

    def _look(self) -> None:
        times: dict[Path, fs.Identity] = {}
        for path in self.paths:
            try:
                identity = fs.identity(path)
            except OSError:
                continue  # said by whoever lists the checkpoint
            if identity is not None and identity.is_file:
                times[path] = identity
        self._times = times or self._times

    def _go_on(self, path: Path, identity: fs.Identity, now: float) -> Iterator[RunEvent]:
        assert self._reading is not None
        try:
            part = next(self._reading)
        except TornRead as torn:
            yield from self._torn(torn.message, now)
            return
        except (CheckpointError, OSError) as error:
            why = f"{path}: {sentence(error)}" if isinstance(error, OSError) else str(error)
            self._torn_since = now - GIVE_UP_S
            yield from self._torn(why, now)
            return
        if self._replaces and not part.is_last:
            yield HistoryHeld(KIND)
        if part.rows or part.is_last:
            yield RowsRead(KIND, part.rows, str(path), restarts=self._replaces)
            self._replaces = False
        if part.is_last:
            self._reading, self.retry_at, self._torn_since = None, None, None
            yield SketchReplaced(KIND)
        if part.facts is not None:
            yield TaskRead({key: part.facts[key] for key in _TASK if part.facts.get(key)})
            yield SourceRead(self._described(part.facts, identity, now))

    def _torn(self, why: str, now: float) -> Iterator[RunEvent]:
        self._reading = None
        if self._torn_since is None or now < self._torn_since:
            self._torn_since = now
        if now - self._torn_since < GIVE_UP_S:
            self.retry_at = now + RETRY_S
            return
        self.retry_at = None
        path = self._source.path or str(self._chosen)
        self._source = replace(self._source, path=path, error=why, error_since=self._torn_since)
        yield SourceRead(self._source)

    def _described(self, facts: Mapping[str, Any], identity: fs.Identity, now: float) -> Source:
        cadence = Cadence()
        for at in sorted(found.modified_at for found in self._times.values()):
            cadence.note(at)
        path = str(self._chosen)
        values, warnings = self._values(facts, path)
        is_change = self._source.read_at is not None
        self._source = Source(
            path,
            KIND,
            identity.modified_at,
            now,
            cadence_s=cadence.median_s,
            longest_gap_s=cadence.longest_s,
            writes_only_at_saves=True,
            values=MappingProxyType(values),
            warnings=warnings,
            changed_at=now if is_change else None,
            key=KIND,
        )
        return self._source

    def _values(
        self, facts: Mapping[str, Any], path: str
    ) -> tuple[dict[str, Any], tuple[Warned, ...]]:
        values = dict(facts["newest"])
        warnings = []
        step = whole_number(facts.get("global_step"))
        if step is None:
            message = f"{path}: global_step is {facts.get('global_step')!r}, expected an integer"
            warnings.append(Warned("bad-state", message, path))
        else:
            values["step"] = step
            warnings += _name_clash(Path(path), step)
        values["total_steps"] = whole_number(facts.get("max_steps")) or None
        values["epoch"] = number(facts.get("epoch"))
        best = facts.get("best_model_checkpoint")
        if isinstance(best, str) and best and not self._is_here(best):
            message = f"{path}: the recorded best checkpoint {best} is not here"
            warnings.append(Warned("best-not-here", message, path))
        told = {name: value for name, value in values.items() if value is not None}
        return told, tuple(warnings)

    def _is_here(self, recorded: str) -> bool:
        name = re.split(r"[/\\]", recorded.rstrip("/\\"))[-1]
        try:
            return bool(name) and fs.identity(self._run_dir / name) is not None
        except OSError:
            return False


def furthest(times: Mapping[Path, fs.Identity]) -> Path | None:
    """Choose the file to read: the greatest number in its directory's name.

    A file in the run itself is written at the end of training: it counts when it is the newest.
    So does one with a smaller number that is much newer and begins otherwise: a new training was
    started in an old directory.
    """
    if not times:
        return None

    def order(path: Path) -> tuple[int, int]:
        return (_number_of(path), times[path].mtime_ns)

    chosen = max(times, key=order)
    newest = max(times, key=lambda path: times[path].mtime_ns)
    if _number_of(newest) < 0:
        return newest
    is_later = times[newest].modified_at - times[chosen].modified_at > ANOTHER_RUN_S
    return newest if is_later and _first_row(newest) != _first_row(chosen) else chosen


def _first_row(path: Path) -> Any:
    """Return the first row of a file's log history, None where it has none."""
    try:
        head = fs.read_bytes(path, limit=1 << 16)
    except OSError:
        return None
    found = _ROWS_BEGIN.search(head)
    records = _objects(head[found.end() :], json.JSONDecoder())[0] if found else []
    return records[0] if records else None


def _number_of(path: Path) -> int:
    """The step that the directory's name tells, -1 where it tells none: `run-3` is no step."""
    step = step_in_name(path.parent.name)
    return -1 if step is None else step


def _name_clash(path: Path, step: int) -> list[Warned]:
    named = _number_of(path)
    if named < 0 or named == step:
        return []
    message = f"{path}: global_step is {step}, but the directory is named {path.parent.name}"
    return [Warned("name-mismatch", message, str(path))]


# ---- reading one file --------------------------------------------------------------------------


def _parts(path: Path) -> Iterator[_Part]:
    """Read a file in slices. Raises TornRead, CheckpointError and OSError."""
    with fs.File(path) as file:
        size = file.identity().size_bytes
        if size <= WHOLE_BYTES:
            yield _whole(file.read_at(0, size + SLACK_BYTES), path)
            return
        yield from _sliced(file, path)


def _whole(data: bytes, path: Path) -> _Part:
    value = jsontext.parse(data, path=str(path))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not an object, expected a trainer state")
    history = value.pop("log_history", None)
    rows, newest = _rows(history if isinstance(history, list) else [])
    _require(value, path)
    return _Part(rows, {**value, "newest": newest}, is_last=True)


def _require(value: Mapping[str, Any], path: Path) -> None:
    missing = [key for key in ("global_step", "max_steps") if key not in value]
    if missing:
        raise CheckpointError(f"{path}: not a trainer state, it has no {', '.join(missing)}")


def _sliced(file: fs.File, path: Path) -> Iterator[_Part]:
    """Take the rows one by one out of a window; what lies around them is small."""
    head = file.read_at(0, SLICE_BYTES)
    found = _ROWS_BEGIN.search(head)
    if found is None:
        raise CheckpointError(f"{path}: too large, and not laid out as the trainer writes it")
    before, offset = head[: found.end()], found.end()
    yield _Part([], _around(file, before, path))
    newest: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    while True:
        data = file.read_at(offset, SLICE_BYTES)
        if not data:
            raise TornRead(f"{path}: ends within log_history", path=str(path))
        records, used, is_end = _objects(data, decoder)
        if not used:
            raise TornRead(f"{path}: log_history does not parse at byte {offset}", path=str(path))
        rows, told = _rows(records)
        newest |= told
        offset += used
        if is_end:
            break
        yield _Part(rows)
    rest = file.read_at(offset, WHOLE_BYTES)
    value = jsontext.parse(before + b"]" + rest, path=str(path))
    _require(value, path)
    yield _Part(rows, {**value, "newest": newest}, is_last=True)


def _around(file: fs.File, before: bytes, path: Path) -> Mapping[str, Any] | None:
    """Tell from both ends of a large file what it will say; None if it is laid out otherwise."""
    size = file.identity().size_bytes
    end = file.read_at(max(0, size - TAIL_BYTES), TAIL_BYTES)
    rows_end = end.rfind(b"\n  ],")
    row_at = end.rfind(b"\n    {", 0, rows_end)
    if rows_end < 0 or row_at < 0:
        return None
    try:
        value = jsontext.parse(before + end[row_at:], path=str(path))
        _require(value, path)
    except CheckpointError:
        return None
    _, newest = _rows(value.pop("log_history"))
    return {**value, "newest": newest}


def _objects(data: bytes, decoder: json.JSONDecoder) -> tuple[list[Any], int, bool]:
    """Return the whole objects at the front of some bytes, how many bytes, and if `]` followed."""
    text = data.decode("ascii", "replace")  # the trainer escapes what is not ASCII
    found: list[Any] = []
    at = used = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            return found, at + 1, True
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return found, used, False
        found.append(value)
        used = at


def _rows(records: list[Any]) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a log history and the newest value of each kind; it tells no times."""
    rows: list[Row] = []
    newest: dict[str, Any] = {}
    for record in records:
        if type(record) is not dict:
            continue
        step = whole_number(record.get("step"))
        if step is None:
            continue
        if "train_runtime" in record:
            newest["finished"] = True
        values = numbers(record, _NAMES)
        if values:
            newest |= values
            newest.pop("finished", None)
            rows.append(Row(step, math.nan, values))
    return rows, newest
