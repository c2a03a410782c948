"""The run model: the events that change a `RunView`, and `apply`, the one pure reducer.

No I/O and no clock: times come in with events. The series inside a view only grows; everything
else is replaced. `health.py` judges a view, `sources.py` makes the events.

Several files may tell one value. Curves come from the finest history (`HISTORY_RANK`), a value
that it lacks from the next. A number comes from the file that changed last; among files written
within `SAME_WRITE_S` of it the one that has got furthest wins, then the finer one. The total of
steps comes from the file that gave the step, the best loss is the lowest that any file tells.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ckpt.checkpoint import Slot
from ckpt.history import History, Row, Segment, grow, onto
from ckpt.series import SeriesView
from ckpt.view import (
    Advice,
    AtRisk,
    Disk,
    Health,
    HealthState,
    RunProcess,
    RunView,
    Source,
    Stitched,
    Warned,
    Watching,
)

if TYPE_CHECKING:
    from ckpt.reflog import Journal

__all__ = [
    "HISTORY_RANK",
    "SAME_WRITE_S",
    "Advice",
    "AtRisk",
    "Disk",
    "DiskMeasured",
    "Health",
    "HealthState",
    "History",
    "HistoryHeld",
    "LookedAt",
    "Noticed",
    "ProcessSeen",
    "ReachableChanged",
    "Row",
    "RowsRead",
    "RunEvent",
    "RunProcess",
    "RunView",
    "Segment",
    "SketchReplaced",
    "SlotsScanned",
    "Source",
    "SourceGone",
    "SourceRead",
    "Stitched",
    "TaskRead",
    "Warned",
    "Watching",
    "apply",
]

HISTORY_RANK: Mapping[str, int] = MappingProxyType(
    {
        "metrics": 0,
        "astrai-metric": 1,
        "trainer-log": 2,
        "trainer-state": 3,
        "samples": 4,
        "training-state": 5,
        "run-record": 6,
    }
)
"""Kinds of sources, the finest history first."""

SAME_WRITE_S = 5.0


@dataclass(frozen=True, slots=True)
class SourceRead:
    """A progress file was read, or could not be; replaces what was known of it."""

    source: Source


@dataclass(frozen=True, slots=True)
class SourceGone:
    """A progress file belongs to this run no longer; its history goes with it."""

    key: str


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of one source, in the file's order, behind those that came before.

    `restarts`: the file was begun anew, what came before is dropped. `is_sketch`: the rows are a
    sample, shown until `SketchReplaced` says that the exact history is complete.
    """

    key: str
    rows: Sequence[Row]
    path: str
    restarts: bool = False
    is_sketch: bool = False


@dataclass(frozen=True, slots=True)
class HistoryHeld:
    """A source is about to be read anew, in parts: what was known of it is shown meanwhile."""

    key: str


@dataclass(frozen=True, slots=True)
class SketchReplaced:
    """The exact history of a source is complete."""

    key: str


@dataclass(frozen=True, slots=True)
class SlotsScanned:
    """The checkpoints of the run as they are now; `saving_at` and `journal` as in `RunView`."""

    slots: tuple[Slot, ...]
    saving_at: float | None = None
    journal: "Journal | None" = None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """What is known of the trainer's process."""

    process: RunProcess


@dataclass(frozen=True, slots=True)
class TaskRead:
    """What the run was set to do, as one more file tells it."""

    task: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DiskMeasured:
    """Free bytes where the run lies, None where that cannot be known."""

    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReachableChanged:
    """The run's directory went away or came back."""

    is_reachable: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """What is wrong with `subject` now; nothing when it is well again."""

    subject: str
    warnings: tuple[Warned, ...]


@dataclass(frozen=True, slots=True)
class LookedAt:
    """When the events of this batch were found (epoch seconds)."""

    at: float


RunEvent: TypeAlias = (
    SourceRead
    | SourceGone
    | RowsRead
    | HistoryHeld
    | SketchReplaced
    | SlotsScanned
    | ProcessSeen
    | TaskRead
    | DiskMeasured
    | ReachableChanged
    | Noticed
    | LookedAt
)


def apply(view: RunView, events: Sequence[RunEvent]) -> RunView:
    """Return the view after a batch of events; the one given stays as it is."""
    if not events:
        return view
    for event in events:
        view = _after(view, event)
    return _chosen(view)


def _after(view: RunView, event: RunEvent) -> RunView:
    match event:
        case SourceRead(source):
            others = [s for s in view.sources if s.identity != source.identity]
            return replace(view, sources=tuple(sorted((*others, source), key=_source_order)))
        case SourceGone(key):
            return _without(view, key)
        case RowsRead():
            return _with_rows(view, event)
        case HistoryHeld(key):
            held = view.sketches.get(key) or view.histories.get(key, History())
            return replace(view, sketches=MappingProxyType({**view.sketches, key: held}))
        case SketchReplaced(key):
            return replace(view, sketches=_dropped(view.sketches, key))
        case _:
            return _after_look(view, event)


def _after_look(view: RunView, event: RunEvent) -> RunView:
    """Take what is told of the run as a whole."""
    match event:
        case SlotsScanned(slots, saving_at, journal):
            return replace(view, slots=slots, saving_at=saving_at, journal=journal)
        case ProcessSeen(process):
            return replace(view, process=process)
        case TaskRead(task):
            return replace(view, task=MappingProxyType({**view.task, **task}))
        case DiskMeasured(free_bytes):
            return replace(view, disk=replace(view.disk, free_bytes=free_bytes))
        case ReachableChanged(is_reachable):
            return replace(view, is_reachable=is_reachable)
        case Noticed(subject, warnings):
            noticed = _dropped(view.noticed, subject)
            if warnings:
                noticed = MappingProxyType({**noticed, subject: warnings})
            return replace(view, noticed=noticed)
        case LookedAt(at):
            return replace(view, seen_at=at)
        case _:
            raise TypeError(event)


def _with_rows(view: RunView, event: RowsRead) -> RunView:
    histories = view.sketches if event.is_sketch else view.histories
    before = History() if event.restarts else histories.get(event.key, History())
    grown = MappingProxyType({**histories, event.key: grow(before, event.rows, event.path)})
    return replace(view, sketches=grown) if event.is_sketch else replace(view, histories=grown)


def _without(view: RunView, key: str) -> RunView:
    return replace(
        view,
        sources=tuple(source for source in view.sources if source.identity != key),
        histories=_dropped(view.histories, key),
        sketches=_dropped(view.sketches, key),
    )


def _dropped(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return MappingProxyType({name: value for name, value in values.items() if name != key})


def _source_order(source: Source) -> tuple[int, int, str]:
    return HISTORY_RANK.get(source.kind, len(HISTORY_RANK)), source.path.count("/"), source.path


# ---- which file's word counts -----------------------------------------------------------------


_NUMBERS = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm")


def _chosen(view: RunView) -> RunView:
    """Fill the fields that several sources may tell; `sources` are in the order of their rank."""
    told: dict[str, tuple[Any, str]] = {}
    for name in _NUMBERS:
        source = _newest(view.sources, name)
        if source is not None:
            told[name] = (source.values[name], source.path)
    total = _total_steps(view.sources)
    if total is not None:
        told["total_steps"] = total
    histories = _ranked_histories(view)
    best, best_step, best_from = _best(view.sources, histories)
    if best is not None:
        told["best_loss"] = (best, best_from)
    updated = [s.modified_at for s in view.sources if s.values and s.modified_at is not None]
    segments = histories[0][1].segments if histories else ()
    series, stitched = _series(histories, view.stitched)
    return replace(
        view,
        **{name: told.get(name, (None, ""))[0] for name in (*_NUMBERS, "total_steps")},
        best_loss=best,
        best_step=best_step,
        loss_nonfinite=histories[0][1].losses.nonfinite if histories else 0,
        values_from=MappingProxyType({name: path for name, (_, path) in told.items()}),
        updated_at=max(updated, default=None),
        series=series,
        segments=segments,
        stitched=stitched,
    )


def _newest(sources: Sequence[Source], name: str) -> Source | None:
    tellers = [source for source in sources if source.values.get(name) is not None]
    if not tellers:
        return None
    newest = max(source.modified_at or 0.0 for source in tellers)
    fresh = [s for s in tellers if (s.modified_at or 0.0) >= newest - SAME_WRITE_S]
    return max(fresh, key=lambda source: source.values.get("step") or 0)


def _total_steps(sources: Sequence[Source]) -> tuple[int, str] | None:
    """The total of steps; a total of 0 is none."""
    stepper = _newest(sources, "step")
    for source in (*((stepper,) if stepper else ()), *reversed(sources)):
        total = source.values.get("total_steps")
        if total:
            return total, source.path
    return None


def _best(
    sources: Sequence[Source], histories: Sequence[tuple[Source, History]]
) -> tuple[float | None, int | None, str]:
    best: tuple[float | None, int | None, str] = (None, None, "")
    for source, history in histories[:1]:
        if history.losses.best is not None:
            best = (history.losses.best, history.losses.best_step, source.path)
    for source in sources:
        value = source.values.get("best_loss")
        if value is None or not math.isfinite(value):
            continue
        if best[0] is None or value < best[0]:
            best = (value, source.values.get("best_step"), source.path)
    return best


def _ranked_histories(view: RunView) -> list[tuple[Source, History]]:
    found = []
    for source in view.sources:
        key = source.identity
        history = view.sketches.get(key) or view.histories.get(key)
        if history:
            found.append((source, history))
    return found


def _series(
    histories: Iterable[tuple[Source, History]], before: Mapping[str, Stitched]
) -> tuple[Mapping[str, SeriesView], Mapping[str, Stitched]]:
    series: dict[str, SeriesView] = {}
    stitched: dict[str, Stitched] = {}
    segments: tuple[Segment, ...] | None = None
    for _, history in histories:
        if segments is None:
            segments = history.segments
            series |= history.series
            continue
        first_steps = tuple(segment.first_step for segment in segments)
        for name, points in history.series.items():
            if name in series:
                continue
            known = before.get(name)
            if known is None or (known.points, known.first_steps) != (points, first_steps):
                known = Stitched(points, first_steps, onto(points, segments))
            stitched[name] = known
            series[name] = known.result
    return MappingProxyType(series), MappingProxyType(stitched)
