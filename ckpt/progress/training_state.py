"""`training_state.json`: ferrotensor's, and ours with the same fields and a few more.

It tells where a run is and its lowest loss so far; the current loss only where we wrote it. For a
trainer that leaves no history, what was seen here becomes one: see `samples.py`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt.checkpoint import NOTHING
from ckpt.formats.ferrotensor_state import ParsedState, parse_state
from ckpt.progress.base import Cadence
from ckpt.progress.whole_file import Reading, WholeFile
from ckpt.run import RunEvent, Source, SourceRead, TaskRead, Warned

KIND = "training-state"
_TASK = ("task", "train_modules", "model_path", "dataset_path", "batch_size", "grad_accum_steps",
         "sequence_length", "fp16", "seed")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """The values of one reading, and the file's time."""

    values: Mapping[str, Any]
    at: float


class TrainingState:
    """Reads one `training_state.json`; `seen` is its newest good reading."""

    has_more = False
    backlog_bytes = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: Seen | None = None
        self._file: WholeFile[ParsedState] = WholeFile(
            path, lambda data: parse_state(data, str(path))
        )
        self._cadence = Cadence()
        self._source = Source(str(path), KIND)

    @property
    def retry_at(self) -> float | None:
        """When to read again though nothing may have changed."""
        return self._file.retry_at

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield the source when it changed, and the task that it names."""
        reading = self._file.look(now)
        if reading is None:
            return
        self._source = self._source_of(reading, now)
        yield SourceRead(self._source)
        if reading.value is not None and reading.value.state is not None:
            state = reading.value.state.as_mapping()
            yield TaskRead({name: state[name] for name in _TASK if state[name] not in ("", 0)})

    def _source_of(self, reading: Reading[ParsedState], now: float) -> Source:
        old, parsed = self._source, reading.value
        if parsed is None or reading.identity is None:
            since = reading.error_since or now  # the last good values stay, and their time
            return replace(old, error=reading.error or "unreadable", error_since=since)
        modified_at = reading.identity.modified_at
        warnings = tuple(
            Warned(finding.code, finding.message, old.path) for finding in parsed.findings
        )
        if parsed.state is None:
            message = warnings[0].message if warnings else f"{old.path}: not a training state"
            return Source(
                old.path, KIND, modified_at, now, message, error_since=now, warnings=warnings
            )
        values = _values(parsed)
        self._note_change(values, modified_at)
        self.seen = Seen(values, modified_at)
        return Source(
            old.path,
            KIND,
            modified_at,
            now,
            cadence_s=self._cadence.median_s,
            longest_gap_s=self._cadence.longest_s,
            values=values,
            warnings=warnings,
            changed_at=now if old.read_at is not None else None,
        )

    def _note_change(self, values: Mapping[str, Any], modified_at: float) -> None:
        before = self.seen
        if before is not None and values["step"] < before.values["step"]:
            self._cadence.forget()
        self._cadence.note(modified_at)


def _values(parsed: ParsedState) -> Mapping[str, Any]:
    state = parsed.state
    if state is None:
        return NOTHING
    found: dict[str, Any] = {
        "step": state.step,
        "total_steps": state.total_steps or None,
        "epoch": float(state.epoch),
        "best_loss": state.best_loss if _is_finite(state.best_loss) else None,
        "learning_rate": state.lr,
        "finished": parsed.extra.get("finished") is True,
    }
    for name in ("loss", "grad_norm"):
        found[name] = parsed.number(name)
    if "updated_at" in parsed.extra and state.lr == 0:
        found["learning_rate"] = None  # our recorder was never told one; a true 0 is in the rows
    return MappingProxyType({name: value for name, value in found.items() if value is not None})


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
