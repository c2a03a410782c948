"""Lines of JSON → rows, one reader a trainer's wording.

A line that does not parse or has no step is counted and passed over; every other one tells what it
can. NaN is a value; where strict JSON had to write null, `nonfinite` names what was lost.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar

from ckpt.history import Row
from ckpt.progress.base import number, numbers, whole

_BOM = b"\xef\xbb\xbf"
_ELAPSED = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class Records(ABC):
    """Reads the records of one process file, in order. `facts` are the newest values told."""

    STEP: ClassVar[str] = "step"
    NAMES: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.skipped = 0

    def rows(self, lines: Iterable[bytes], file_time: float = math.nan) -> list[Row]:
        """Return the rows of some lines.

        `file_time` is when the last of them was written, where they reach the end of the file.
        """
        records = [record for line in lines if (record := self._record(line)) is not None]
        rows = self._rows(records, file_time)
        for row in rows:
            self.facts.update(row.values)
        if rows:
            self.facts["step"] = rows[-1].step
        return rows

    @abstractmethod
    def _rows(self, records: list[dict[str, Any]], file_time: float) -> list[Row]:
        """Return the rows of some records, in order."""

    def _record(self, line: bytes) -> dict[str, Any] | None:
        if not line or line.isspace():
            return None
        try:
            record = json.loads(line.removeprefix(_BOM))
        except (ValueError, RecursionError):
            record = None
        if type(record) is not dict:
            self.skipped += 1
            return None
        return record

    def _step(self, record: Mapping[str, Any]) -> int | None:
        step = record.get(self.STEP)
        if type(step) is int and 0 <= step < 1 << 48:
            return step
        step = whole(step)
        if step is None:
            self.skipped += 1
        return step


class SingleRecords(Records):
    """Records each of which tells its row by itself."""

    def _rows(self, records: list[dict[str, Any]], _file_time: float) -> list[Row]:
        return [row for record in records if (row := self._row(record)) is not None]

    @abstractmethod
    def _row(self, record: dict[str, Any]) -> Row | None:
        """Return the row of one record, None when it tells of no step."""


class MetricsRecords(SingleRecords):
    """Ours: `metrics.jsonl`. `started_at` tells when the newest process of the run began."""

    NAMES = MappingProxyType(
        {
            "loss": "loss",
            "eval_loss": "eval_loss",
            "learning_rate": "learning_rate",
            "lr": "learning_rate",
            "grad_norm": "grad_norm",
        }
    )

    def __init__(self, started_at: Callable[[], float | None] = lambda: None) -> None:
        super().__init__()
        self._started_at = started_at
        self._last_time = math.nan

    def _row(self, record: dict[str, Any]) -> Row | None:
        step = self._step(record)
        if step is None:
            return None
        values = numbers(record, self.NAMES)
        lost = record.get("nonfinite")
        if lost:
            self._take_lost(lost, record, values)
        epoch = number(record.get("epoch"))
        if epoch is not None:
            self.facts["epoch"] = epoch
        time = number(record.get("time"))
        if time is None:
            return Row(step, math.nan, values)
        start, before = self._started_at(), self._last_time
        self._last_time = time
        return Row(step, time, values, start is not None and before < start <= time)

    def _take_lost(self, lost: Any, record: Mapping[str, Any], values: dict[str, float]) -> None:
        for key in lost if isinstance(lost, list) else ():
            if key in self.NAMES and record.get(key) is None:
                values[self.NAMES[key]] = math.nan


class SampleRecords(MetricsRecords):
    """Ours: `.ckpt/samples.jsonl`, what a monitor saw of a trainer that leaves no history."""

    NAMES = MappingProxyType({**MetricsRecords.NAMES, "best_loss": "best_loss"})


class TrainerLogRecords(Records):
    """LLaMA-Factory's `trainer_log.jsonl`, appended across resumes.

    It tells only the time since its process began; rows get a time where that can be tied to the
    file's own, and none otherwise. `remaining_time` is wrong after a resume and is not read.
    """

    STEP = "current_steps"
    NAMES = MappingProxyType({"loss": "loss", "eval_loss": "eval_loss", "lr": "learning_rate"})

    def __init__(self) -> None:
        super().__init__()
        self._elapsed = math.nan
        self._began_at = math.nan

    def _rows(self, records: list[dict[str, Any]], file_time: float) -> list[Row]:
        told = [_elapsed(record.get("elapsed_time")) for record in records]
        restarts = self._restarts(told)
        newest_from = max(restarts, default=0)
        if math.isfinite(file_time) and told and (restarts or math.isnan(self._began_at)):
            self._began_at = file_time - told[-1]
        elif restarts:
            self._began_at = math.nan
        rows = []
        for place, (record, elapsed) in enumerate(zip(records, told, strict=True)):
            step = self._step(record)
            if step is None:
                continue
            total, epoch = whole(record.get("total_steps")), number(record.get("epoch"))
            if total is not None:
                self.facts["total_steps"] = total
            if epoch is not None:
                self.facts["epoch"] = epoch
            time = self._began_at + elapsed if place >= newest_from else math.nan
            rows.append(Row(step, time, numbers(record, self.NAMES), place in restarts))
        return rows

    def _restarts(self, told: list[float]) -> set[int]:
        """Return the places at which the time since the start went back: another process."""
        found = set()
        for place, elapsed in enumerate(told):
            if elapsed < self._elapsed:
                found.add(place)
            if not math.isnan(elapsed):
                self._elapsed = elapsed
        return found


class AstraiRecords(SingleRecords):
    """AstrAI's `metric.jsonl`: rows of type step, validation and epoch, in local time."""

    NAMES = MappingProxyType(
        {"loss": "loss", "val_loss": "eval_loss", "lr": "learning_rate", "grad_norm": "grad_norm"}
    )

    def _row(self, record: dict[str, Any]) -> Row | None:
        epoch = number(record.get("epoch"))
        if epoch is not None:
            self.facts["epoch"] = epoch
        if record.get("type") not in ("step", "validation"):
            return None
        step = self._step(record)
        if step is None:
            return None
        return Row(step, _local_time(record.get("timestamp")), numbers(record, self.NAMES))


def _elapsed(text: Any) -> float:
    """Read `0:01:02` or `1 day, 0:01:02` as seconds, NaN for anything else."""
    found = _ELAPSED.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return math.nan
    days, hours, minutes, seconds = found.groups()
    return int(days or 0) * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _local_time(text: Any) -> float:
    """Read a timestamp without a zone as this host's local time, NaN for anything else."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return math.nan
