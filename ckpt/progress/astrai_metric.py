"""AstrAI's `metric.jsonl`, merged over all checkpoint directories of a run.

Each file holds all rows since its process started, so the longest file of a process holds the
shorter ones; files that begin with the same line are of one process. What an older process did
beyond the step from which the next one went on stays, in its own segment.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ckpt import fs
from ckpt.history import Row
from ckpt.progress.base import SLICE_BYTES, Cadence, sentence
from ckpt.progress.line_file import LineFile, tail
from ckpt.progress.line_source import skipped_warning
from ckpt.progress.records import AstraiRecords
from ckpt.run import RowsRead, RunEvent, Source, SourceRead

NAME, KIND = "metric.jsonl", "astrai-metric"
_FIRST_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Found:
    """One file as it was last seen; `first_line` is b"" while it holds no whole line."""

    path: Path
    identity: fs.Identity
    first_line: bytes


@dataclass
class _Process:
    """What one process has recorded: the longest of its files, and how far it has been taken."""

    first_line: bytes
    began_at: float
    first_step: int
    longest: _Found
    file: LineFile = field(init=False)

    def __post_init__(self) -> None:
        self.file = LineFile(self.longest.path)

    @property
    def order(self) -> tuple[float, int]:
        return (self.began_at, self.first_step)

    @property
    def backlog_bytes(self) -> int:
        return max(0, self.longest.identity.size_bytes - self.file.offset)


class AstraiMetrics:
    """Merges the files; `paths` is set by whoever knows the checkpoint directories."""

    retry_at: float | None = None

    def __init__(self) -> None:
        self.paths: tuple[Path, ...] = ()
        self._found: dict[Path, _Found] = {}
        self._processes: list[_Process] = []
        self._records = AstraiRecords()
        self._replaces = True
        self._stopped_at: dict[Path, int] = {}
        self._source = Source("", KIND, writes_only_at_saves=True, key=KIND)

    @property
    def is_found(self) -> bool:
        """Whether any of the files is there."""
        return bool(self._found)

    @property
    def has_more(self) -> bool:
        """Whether rows are still to be read."""
        return self.backlog_bytes > 0

    @property
    def backlog_bytes(self) -> int:
        """How many bytes are still to be read."""
        return sum(p.backlog_bytes for p in self._processes if self._wants(p))

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield the rows that are new in any of the files, oldest process first."""
        is_changed = self._look()
        if not is_changed and not self.has_more:
            return
        if is_changed:
            self._group()
        if not self._processes or not self._found:
            return
        newest = self._processes[-1].longest
        error = None
        try:
            for path, rows in self._take():
                yield RowsRead(KIND, rows, str(path), restarts=self._replaces)
                self._replaces = False
        except OSError as wrong:
            error = f"{newest.path}: {sentence(wrong)}"
        yield SourceRead(self._described(newest, now, error))

    def _wants(self, process: _Process) -> bool:
        """Whether there is more to take of it than the torn line at its end."""
        seen = process.longest.identity.size_bytes
        return process.backlog_bytes > 0 and self._stopped_at.get(process.longest.path) != seen

    def _look(self) -> bool:
        """Stat every file and read the first line of those that are new or changed."""
        found: dict[Path, _Found] = {}
        for path in self.paths:
            try:
                identity = fs.identity(path)
                if identity is None or not identity.is_file:
                    continue
                known = self._found.get(path)
                if known is not None and known.identity == identity:
                    found[path] = known
                    continue
                first, end, _ = fs.read_bytes(path, limit=_FIRST_LINE_BYTES).partition(b"\n")
                found[path] = _Found(path, identity, first if end else b"")
            except OSError:
                continue  # a checkpoint that is just being retired, or may not be looked at
        is_changed = found != self._found
        self._found = found
        return is_changed

    def _group(self) -> None:
        """Bring the processes up to date; another order than before means to begin anew."""
        longest: dict[bytes, _Found] = {}
        for found in self._found.values():
            known = longest.get(found.first_line)
            size = found.identity.size_bytes
            if found.first_line and (known is None or size > known.identity.size_bytes):
                longest[found.first_line] = found
        before = {process.first_line: process for process in self._processes}
        processes = []
        for line, found in longest.items():
            process = before.get(line) or _process(found)
            if process is None:
                continue
            still = self._found.get(process.longest.path)
            is_stale = still is None or still.first_line != line
            if is_stale or found.identity.size_bytes > process.longest.identity.size_bytes:
                process.longest = found
            processes.append(process)
        gone = [process for line, process in before.items() if line not in longest]
        for process in gone:  # its files are pruned: what was read of them stays
            self._stopped_at[process.longest.path] = process.longest.identity.size_bytes
        processes = sorted((*processes, *gone), key=lambda process: process.order)
        if any(
            (process.backlog_bytes or not process.file.offset) and later.file.offset
            for place, process in enumerate(processes)
            for later in processes[place + 1 :]
        ):
            self._records, self._replaces = AstraiRecords(), True
            for process in processes:
                process.file = LineFile(process.longest.path)
        self._processes = processes

    def _take(self) -> Iterator[tuple[Path, list[Row]]]:
        """Read on, at most a slice in all; yield the new rows of each process."""
        budget = SLICE_BYTES
        for process in self._processes:
            if budget <= 0 or not self._wants(process):
                continue
            is_first, before = process.file.offset == 0, process.file.offset
            with fs.File(process.longest.path) as file:
                taken = self._records.rows(process.file.take(file, budget))
            budget -= process.file.offset - before
            if not process.file.is_behind:  # the rest is a torn line: wait until it changes
                self._stopped_at[process.longest.path] = process.longest.identity.size_bytes
            if is_first and taken:
                taken[0] = taken[0]._replace(begins_segment=True)
            if taken:
                yield process.longest.path, taken

    def _described(self, newest: _Found, now: float, error: str | None) -> Source:
        facts = dict(self._records.facts)
        if self.has_more:
            facts |= _newest_facts(newest)
        cadence = Cadence()
        for at in sorted(found.identity.modified_at for found in self._found.values()):
            cadence.note(at)
        is_change = self._source.read_at is not None
        modified_at = max(found.identity.modified_at for found in self._found.values())
        self._source = replace(
            self._source,
            path=str(newest.path),
            modified_at=modified_at,
            read_at=now,
            error=error,
            error_since=now if error else None,
            cadence_s=cadence.median_s,
            longest_gap_s=cadence.longest_s,
            values=MappingProxyType(facts),
            warnings=skipped_warning(self._records.skipped, str(newest.path)),
            changed_at=now if is_change else None,
        )
        return self._source


def _process(found: _Found) -> _Process | None:
    rows = AstraiRecords().rows([found.first_line])
    if not rows:
        return None
    began_at = rows[0].time
    return _Process(
        found.first_line, 0.0 if math.isnan(began_at) else began_at, rows[0].step, found
    )


def _newest_facts(found: _Found) -> dict[str, object]:
    """What the newest rows tell, while the ones before them are still to be read."""
    records = AstraiRecords()
    try:
        with fs.File(found.path) as file:
            records.rows(tail(file, found.identity.size_bytes))
    except OSError:
        return {}
    return records.facts
