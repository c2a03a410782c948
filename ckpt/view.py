"""`RunView`, the one frozen value with all that a screen or `ckpt status` shows of a run.

Pure values. `run.py` makes one view from the next, `health.py` judges it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt.checkpoint import NOTHING, Slot
from ckpt.history import History, Segment
from ckpt.series import SeriesView

if TYPE_CHECKING:
    from ckpt.reflog import Journal


class HealthState(StrEnum):
    """What a run is doing, as far as its files and its process tell."""

    WAITING = "waiting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    STALLED = "stalled"
    DIVERGED = "diverged"
    DEAD = "dead"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict over a run and the sentences that it stands on."""

    state: HealthState = HealthState.WAITING
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """One progress file. Times in epoch seconds; `error` says why it could not be read last time.

    `kind` is stable: `training-state`, `metrics`, `astrai-metric`, `trainer-state`, `trainer-log`,
    `samples`, `run-record`. `cadence_s` is the learned median time between its changes, and
    `longest_gap_s` the longest one. `writes_only_at_saves`: its trainer has nothing to say between
    two saves. `values` is what it last told, by the field's name in `RunView`, with `finished`
    True where it records an end; after an `error` (since `error_since`) these are the last good
    ones. `changed_at` is when our own clock last saw it change, None when it was never seen to.
    `key` stays while the path moves on to the next checkpoint; it is the path where not given.
    """

    path: str
    kind: str
    modified_at: float | None = None
    read_at: float | None = None
    error: str | None = None
    cadence_s: float | None = None
    writes_only_at_saves: bool = False
    longest_gap_s: float | None = None
    values: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    warnings: tuple["Warned", ...] = ()
    error_since: float | None = None
    changed_at: float | None = None
    key: str = ""

    @property
    def identity(self) -> str:
        """What tells this source from the others of its run."""
        return self.key or self.path


@dataclass(frozen=True, slots=True)
class Warned:
    """Something about the run that is wrong and is no checkpoint's finding."""

    code: str
    message: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The one line of advice; `key` names the key that helps, where one does."""

    code: str
    message: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What would be lost if the run died now, measured from the newest usable checkpoint."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Space where the run lies: free bytes, the size of a save, how many more saves fit."""

    free_bytes: int | None = None
    save_bytes: int | None = None
    saves_left: int | None = None


@dataclass(frozen=True, slots=True)
class RunProcess:
    """The trainer's process as `run.json` recorded it; `is_alive` None: cannot be known from here.

    `ended_cleanly` is True when the record says that the trainer finished by itself. `gone_at` is
    when it was first seen to be gone.
    """

    pid: int | None = None
    host: str | None = None
    started_at: float | None = None
    is_alive: bool | None = None
    ended_cleanly: bool | None = None
    gone_at: float | None = None


@dataclass(frozen=True, slots=True)
class Watching:
    """How changes are noticed: `mode` is `events` or `polling`, `reason` says why polling."""

    mode: str = "polling"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything a screen or `ckpt status` shows of a run.

    Unknown is None. `values_from` maps a field's name to the path of the source it came from.
    `series` maps a name (`loss`, `eval_loss`, `learning_rate`, `grad_norm`) to its points, ordered
    by (segment, step). `loss_nonfinite` counts NaN and infinite losses, in all segments.
    `loss_trend` is the relative change of the smoothed loss over the recent points (falling < 0).
    `seen_at` is the time of the last batch of events (epoch seconds); ages are counted from it.
    `is_reachable` is False while the run's directory is gone; what was known is kept.
    `saving_at` is when a checkpoint that is being written was last touched, None when none is.
    `journal` is what was done to the slots, as of the same look as they; None: not looked yet.

    The fields behind `warnings` are what `apply` works with: all histories by source, the rough
    ones that stand in while an exact one is being read, and what was noticed, by its subject.
    """

    run: Path
    is_reachable: bool = True
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    loss_nonfinite: int = 0
    loss_trend: float | None = None
    eval_loss: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    eta_error_seconds: float | None = None
    updated_at: float | None = None
    seen_at: float | None = None
    health: Health = Health()
    process: RunProcess = RunProcess()
    sources: tuple[Source, ...] = ()
    values_from: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    series: Mapping[str, SeriesView] = field(default_factory=lambda: NOTHING)
    segments: tuple[Segment, ...] = ()
    task: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    watching: Watching = Watching()
    slots: tuple[Slot, ...] = ()
    journal: "Journal | None" = None
    newest_verified: str | None = None
    at_risk: AtRisk = AtRisk()
    disk: Disk = Disk()
    advice: Advice | None = None
    warnings: tuple[Warned, ...] = ()
    saving_at: float | None = None
    histories: Mapping[str, History] = field(default_factory=lambda: NOTHING)
    sketches: Mapping[str, History] = field(default_factory=lambda: NOTHING)
    stitched: Mapping[str, "Stitched"] = field(default_factory=lambda: NOTHING)
    noticed: Mapping[str, tuple[Warned, ...]] = field(default_factory=lambda: NOTHING)

    @property
    def is_sketch(self) -> bool:
        """Whether the curves are a sample of a file that is still being read."""
        return bool(self.sketches)

    @property
    def points(self) -> int:
        """Number of loss points (of the longest series where there is no loss)."""
        if "loss" in self.series:
            return len(self.series["loss"])
        return max((len(view) for view in self.series.values()), default=0)


@dataclass(frozen=True, slots=True)
class Stitched:
    """A coarser source's series on the segments of a finer one, and what it was made from."""

    points: SeriesView
    first_steps: tuple[int, ...]
    result: SeriesView
