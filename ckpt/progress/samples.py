"""`.ckpt/samples.jsonl`: a history for trainers whose state holds only a step and a best loss.

Whoever watches adds what it saw; in a run that may not be written to, the history lives only as
long as the watching. The file is read once: afterwards we see the same as any other monitor.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.history import Row
from ckpt.progress.base import SLICE_BYTES, Cadence, whole
from ckpt.progress.records import SampleRecords
from ckpt.progress.training_state import Seen
from ckpt.run import RowsRead, RunEvent, Source, SourceRead

KIND = "samples"
READ_BYTES = 16 * SLICE_BYTES
_KEPT = ("loss", "best_loss", "learning_rate", "grad_norm")


class Samples:
    """The samples of one run. `records` is False where the run must not be written to.

    The rows belong to the state file that they were taken from, whose values they repeat.
    """

    def __init__(self, run_dir: Path, path: Path, *, records: bool) -> None:
        self.path = path
        self._run_dir = run_dir
        self._records = records
        self._cadence = Cadence()
        self._last: tuple[int, float] | None = None
        self._is_loaded = False

    def add(self, seen: Seen, state_path: Path, now: float) -> Iterator[RunEvent]:
        """Yield a new sample, and append it to the file, when the state has moved on.

        The first call yields what was sampled before.
        """
        key = str(state_path)
        if not self._is_loaded:
            self._is_loaded = True
            yield from self._load(key, now)
        step, at = whole(seen.values["step"]), seen.at
        if step is None:  # beyond what a series holds
            return
        if self._last is not None and (step == self._last[0] or at <= self._last[1]):
            return
        values = {name: seen.values[name] for name in _KEPT if name in seen.values}
        row = Row(step, at, values)
        self._note(row)
        yield RowsRead(key, [row], key)
        if self._records:
            self._records = self._append(row)  # what cannot be written to is watched all the same
        if self._records:
            yield self._source(now)

    def _load(self, key: str, now: float) -> Iterator[RunEvent]:
        try:
            with fs.File(self.path) as file:
                size = file.identity().size_bytes
                data = file.read_at(max(0, size - READ_BYTES), READ_BYTES)
        except OSError:
            return
        rows = SampleRecords().rows(data[: data.rfind(b"\n") + 1].split(b"\n"))
        for row in rows:
            self._note(row)
        if rows:
            yield RowsRead(key, rows, key, restarts=True)
            yield self._source(now)

    def _note(self, row: Row) -> None:
        if self._last is not None and row.step < self._last[0]:
            self._cadence.forget()
        self._cadence.note(row.time)
        self._last = (row.step, row.time)

    def _append(self, row: Row) -> bool:
        from ckpt import control

        finite = {name: jsontext.finite_or_none(value) for name, value in row.values.items()}
        lost = [name for name, value in finite.items() if value is None]
        record: dict[str, Any] = {"step": row.step, "time": row.time, **finite}
        if lost:
            record["nonfinite"] = lost
        return control.append_sample(self._run_dir, record)

    def _source(self, now: float) -> SourceRead:
        return SourceRead(
            Source(
                str(self.path),
                KIND,
                self._last[1] if self._last else None,
                now,
                cadence_s=self._cadence.median_s,
                longest_gap_s=self._cadence.longest_s,
            )
        )
