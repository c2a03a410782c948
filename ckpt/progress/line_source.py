"""A history in one append-only file: our `metrics.jsonl`, LLaMA-Factory's `trainer_log.jsonl`.

A large file is sampled first and then read exactly, slice by slice; what is appended meanwhile is
shown at once.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ckpt import fs
from ckpt.history import Row
from ckpt.progress.base import CADENCE_INTERVALS, RETRY_S, Cadence, sentence
from ckpt.progress.line_file import LineFile, sample
from ckpt.progress.records import Records
from ckpt.run import RowsRead, RunEvent, SketchReplaced, Source, SourceRead, Warned

SKETCH_BYTES = 1 << 19


class LineSource:
    """Follows one file; `make_records` begins a reader of its records, whenever it starts anew."""

    def __init__(self, path: Path, kind: str, make_records: Callable[[], Records]) -> None:
        self.path = path
        self.retry_at: float | None = None
        self._make_records = make_records
        self._cadence = Cadence()
        self._source = Source(str(path), kind)
        self._seen: fs.Identity | None = None
        self._shows_sketch = False
        self._begin()

    def _begin(self) -> None:
        self._exact, self._records = LineFile(self.path), self._make_records()
        self._sketch: tuple[LineFile, Records] | None = None
        self._replaces = True
        self._cadence.forget()

    @property
    def has_more(self) -> bool:
        """Whether a part of the file is still to be read exactly."""
        return self._sketch is not None or self._exact.is_behind

    @property
    def backlog_bytes(self) -> int:
        """How many bytes are still to be read exactly."""
        return self._exact.backlog_bytes if self.has_more else 0

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield new rows and the source's newest values, when there is anything new."""
        try:
            identity = fs.identity(self.path)
            is_due = self.retry_at is not None and now >= self.retry_at
            if identity is None:
                yield from self._failed("the file is gone", now)
            elif identity != self._seen or self.has_more or is_due:
                with fs.File(self.path) as file:
                    yield from self._read(file, now)
        except FileNotFoundError:
            yield from self._failed("the file is gone", now)
        except OSError as error:
            yield from self._failed(sentence(error), now)

    def _read(self, file: fs.File, now: float) -> Iterator[RunEvent]:
        identity = file.identity()
        is_first = self._seen is None or self._exact.is_anew(file, now)
        if is_first:
            self._begin()
        if is_first and identity.size_bytes > SKETCH_BYTES:
            yield from self._begin_sketch(file, identity)
        else:
            yield from self._go_on(file, identity)
        self.retry_at = now + RETRY_S if self._exact.is_doubtful else None
        if self._seen is not None and identity != self._seen:
            self._source = replace(self._source, changed_at=now)
        self._seen = identity
        self._source = self._described(identity, now)
        yield SourceRead(self._source)

    def _begin_sketch(self, file: fs.File, identity: fs.Identity) -> Iterator[RunEvent]:
        lines, end = sample(file, identity.size_bytes)
        self._exact.start_at(file, 0)
        follower, records = LineFile(self.path), self._make_records()
        follower.start_at(file, end)
        self._sketch, self._shows_sketch = (follower, records), True
        rows = records.rows(lines, identity.modified_at)
        self._note_times(rows, identity)
        yield RowsRead(str(self.path), rows, str(self.path), restarts=True, is_sketch=True)

    def _go_on(self, file: fs.File, identity: fs.Identity) -> Iterator[RunEvent]:
        lines = self._exact.take(file)
        file_time = math.nan if self._exact.is_behind else identity.modified_at
        rows = self._records.rows(lines, file_time)
        if rows:
            yield RowsRead(str(self.path), rows, str(self.path), restarts=self._replaces)
            self._replaces = False
        if self._sketch is not None and self._exact.offset >= self._sketch[0].offset:
            self._sketch = None
        if self._sketch is None:
            self._note_times(rows, identity)
            if self._shows_sketch and not self._replaces:
                self._shows_sketch = False
                yield SketchReplaced(str(self.path))
            return
        follower, records = self._sketch
        if rows := records.rows(follower.take(file), identity.modified_at):
            self._note_times(rows, identity)
            yield RowsRead(str(self.path), rows, str(self.path), is_sketch=True)

    def _note_times(self, rows: list[Row], identity: fs.Identity) -> None:
        """Learn the cadence from the newest rows; a restart's gap is none of the trainer's."""
        step = 0
        for row in rows[-CADENCE_INTERVALS:]:
            if row.begins_segment or row.step < step:
                self._cadence.forget()
            step = row.step
            self._cadence.note(row.time)
        if rows and math.isnan(rows[-1].time):
            self._cadence.note(identity.modified_at)

    def _described(self, identity: fs.Identity, now: float) -> Source:
        records = self._sketch[1] if self._sketch else self._records
        return replace(
            self._source,
            modified_at=identity.modified_at,
            read_at=now,
            error=None,
            error_since=None,
            cadence_s=self._cadence.median_s,
            longest_gap_s=self._cadence.longest_s,
            values=MappingProxyType(dict(records.facts)),
            warnings=skipped_warning(self._records.skipped, str(self.path)),
        )

    def _failed(self, why: str, now: float) -> Iterator[RunEvent]:
        """Keep what was known; a file that was never there is no news."""
        self.retry_at = None
        is_known = self._source.read_at is not None or why != "the file is gone"
        if is_known and self._source.error is None:
            error = f"{self.path}: {why}"
            self._source = replace(self._source, error=error, error_since=now)
            yield SourceRead(self._source)
        self._seen = None


def skipped_warning(skipped: int, path: str) -> tuple[Warned, ...]:
    """Return the warning for lines that told nothing, none for none."""
    if not skipped:
        return ()
    lines = "1 line was" if skipped == 1 else f"{skipped} lines were"
    message = f"{path}: {lines} passed over: no JSON object with a step"
    return (Warned("bad-lines", message, path),)
