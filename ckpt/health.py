"""Verdicts over a view: what the run is doing, how fast, what would be lost, what to do. Pure.

A verdict stands on sentences. Silence counts only against a file's own cadence: some trainers
write every step, some only at saves, and a file's idea of what remains is never believed.
"""

import math
from dataclasses import replace
from itertools import pairwise

from ckpt.advice import advise, warnings_of
from ckpt.pace import Pace, evaluation_due, exploded_from, pace_between, pace_of, trend_of
from ckpt.phrases import duration, loss
from ckpt.usable import at_risk, live_generations, newest_verified
from ckpt.view import Disk, Health, HealthState, RunView, Source

STALL_FLOOR_S = 60.0
STALL_MEDIANS, STALL_LONGEST = 20.0, 3.0
LASTING_NONFINITE = 5
CLOCK_AHEAD_S = 60.0
FRESH_S = 120.0
SAVING_S = 60.0
AFTERLIFE_S = 1.0
_MOVING = (HealthState.TRAINING, HealthState.EVALUATING, HealthState.SAVING)


def judge(view: RunView, now: float) -> RunView:
    """Return the view with everything filled in that follows from the rest and from the time.

    Judging a judged view again gives the same. `now` is epoch seconds.
    """
    pace = pace_of(view.series) or _pace_of_saves(view)
    health = _health(view, now, pace)
    is_moving = health.state in _MOVING
    eta, error = _remaining(view, pace) if is_moving else (None, None)
    judged = replace(
        view,
        health=health,
        steps_per_second=_rate(pace) if is_moving else None,
        eta_seconds=eta,
        eta_error_seconds=error,
        loss_trend=trend_of(view.series["loss"]) if "loss" in view.series else None,
        newest_verified=newest_verified(view),
        at_risk=at_risk(view),
        disk=_disk(view),
        warnings=warnings_of(view, now),
    )
    return replace(judged, advice=advise(judged))


def silence_s(view: RunView, now: float) -> float | None:
    """Return how long nothing has changed; None where that cannot be known.

    A file's time that lies ahead of our clock says nothing: then it counts when we saw it change.
    """
    ages = [_age(source, now) for source in view.sources if source.values]
    return min((age for age in ages if age is not None), default=None)


def stall_after_s(view: RunView) -> float | None:
    """Return after how much silence the run counts as stalled; None: not learned yet."""
    source = _learned(view)
    if source is None or source.cadence_s is None or source.longest_gap_s is None:
        return None
    if source.writes_only_at_saves and source.longest_gap_s < 1:
        return None  # copied files: their times say nothing of the trainer
    usual = max(STALL_MEDIANS * source.cadence_s, STALL_LONGEST * source.longest_gap_s)
    if source.writes_only_at_saves:
        usual = STALL_LONGEST * source.longest_gap_s
    return max(STALL_FLOOR_S, usual)


def _speaker(view: RunView) -> Source | None:
    """The source of progress that changed last."""
    told = [source for source in view.sources if source.values]
    return max(told, key=lambda source: source.modified_at or 0.0, default=None)


def _learned(view: RunView) -> Source | None:
    """The source with the shortest learned cadence, of those that changed with the last one."""
    newest = max((source.modified_at or 0.0 for source in view.sources), default=0.0)
    recent = [
        source
        for source in view.sources
        if source.cadence_s is not None and (source.modified_at or 0.0) >= newest - FRESH_S
    ]
    return min(recent, key=lambda source: source.cadence_s or 0.0, default=None)


def _age(source: Source, now: float) -> float | None:
    if source.modified_at is None:
        return None
    if source.modified_at > now + CLOCK_AHEAD_S:
        return None if source.changed_at is None else max(0.0, now - source.changed_at)
    return max(0.0, now - source.modified_at)


# ---- what the run is doing ----------------------------------------------------------------------


def _health(view: RunView, now: float, pace: Pace | None) -> Health:
    silence = silence_s(view, now)
    for verdict in (
        _finished(view),
        _dead(view, silence),
        _diverged(view),
        _waiting(view),
        _saving(view, now),
        _evaluating(view, silence, pace),
        _stalled(view, silence),
    ):
        if verdict is not None:
            return verdict
    return _going_on(view, silence)


def _finished(view: RunView) -> Health | None:
    for source in view.sources:
        if source.values.get("finished") and not _restarted_since(view, source):
            return Health(HealthState.FINISHED, (f"{_name(source)} records the end of training",))
    if view.step is None or not view.total_steps or view.step < view.total_steps:
        return None
    path = view.values_from.get("step")
    if any(source.path == path and _restarted_since(view, source) for source in view.sources):
        return None
    return Health(HealthState.FINISHED, (f"step {view.step:,} of {view.total_steps:,} is done",))


def _restarted_since(view: RunView, source: Source) -> bool:
    started, process = view.process.started_at, view.process
    if started is None or source.modified_at is None or process.is_alive is False:
        return False
    return started > source.modified_at


def _dead(view: RunView, silence: float | None) -> Health | None:
    process = view.process
    if process.is_alive is not False:
        return None
    gone_at = math.inf if process.gone_at is None else process.gone_at
    if view.updated_at is not None and view.updated_at > gone_at + AFTERLIFE_S:
        return None  # somebody goes on writing: the record is of an older process
    reasons = [f"process {process.pid} on this host ({process.host}) is gone"]
    if view.step is not None and silence is not None:
        reasons.append(f"its last sign is step {view.step:,}, {_how_long_ago(silence)}")
    elif view.step is None:
        reasons.append("it wrote no progress")
    return Health(HealthState.DEAD, tuple(reasons))


def _diverged(view: RunView) -> Health | None:
    points = view.series.get("loss")
    if points is None:
        return None
    tail = points.tail(LASTING_NONFINITE)
    if len(tail) == LASTING_NONFINITE and not any(math.isfinite(p.value) for p in tail):
        said = f"the loss is {loss(tail[-1].value)}{_since(view)}"
        best = "" if view.best_loss is None else f"; the best was {loss(view.best_loss)}"
        return Health(HealthState.DIVERGED, (said + best,))
    exploded = exploded_from(points)
    if exploded is None:
        return None
    said = f"the loss has risen to {loss(tail[-1].value)} since step {exploded.step:,}"
    return Health(HealthState.DIVERGED, (f"{said}, far above anything before",))


def _since(view: RunView) -> str:
    for source in view.sources:
        history = view.sketches.get(source.identity) or view.histories.get(source.identity)
        if history and "loss" in history.series:
            losses = history.losses
            if losses.tail_from is None:
                return ""
            return f" since step {losses.tail_from:,} ({losses.tail:,} points)"
    return ""


def _waiting(view: RunView) -> Health | None:
    if any(source.values for source in view.sources) or view.slots:
        return None
    broken = [source.error for source in view.sources if source.error]
    if broken:
        return Health(HealthState.UNKNOWN, tuple(broken))
    awaited = "training_state.json, metrics.jsonl, trainer_log.jsonl or a checkpoint"
    if view.process.is_alive:
        reason = f"process {view.process.pid} has started; waiting for {awaited}"
        return Health(HealthState.WAITING, (reason,))
    return Health(HealthState.WAITING, (f"nothing here yet; waiting for {awaited}",))


def _saving(view: RunView, now: float) -> Health | None:
    if view.saving_at is None or not now - view.saving_at + CLOCK_AHEAD_S >= 0:
        return None
    if now - view.saving_at > SAVING_S:
        return None
    if view.updated_at is not None and view.updated_at > view.saving_at + 1:
        return None  # training went on: what lies there is left over
    return Health(HealthState.SAVING, ("a checkpoint is being written",))


def _evaluating(view: RunView, silence: float | None, pace: Pace | None) -> Health | None:
    points = view.series.get("eval_loss")
    if points is None or view.step is None or silence is None or pace is None:
        return None
    limit = stall_after_s(view)
    is_quiet = silence > max(1.0, 3 * pace.seconds_per_step)
    if not is_quiet or (limit is not None and silence > limit):
        return None
    if not evaluation_due(points, view.step):
        return None
    said = f"quiet at step {view.step:,}, where an evaluation is due"
    return Health(HealthState.EVALUATING, (said,))


def _stalled(view: RunView, silence: float | None) -> Health | None:
    limit, source, learned = stall_after_s(view), _speaker(view), _learned(view)
    if limit is None or silence is None or source is None or learned is None:
        return None
    if silence <= limit:
        return None
    usual = f"it changes every {_interval(learned.cadence_s or 0.0)}"
    reasons = [f"{_name(source)} has not changed for {duration(silence)}; {usual}"]
    if source.writes_only_at_saves:
        reasons.append("the trainer writes only at saves")
    if view.process.is_alive:
        reasons.append(f"process {view.process.pid} is alive")
    return Health(HealthState.STALLED, tuple(reasons))


def _going_on(view: RunView, silence: float | None) -> Health:
    source = _speaker(view)
    reasons: list[str] = []
    if view.process.is_alive:
        reasons.append(f"process {view.process.pid} is alive")
    if source is None:
        broken = [each.error for each in view.sources if each.error]
        reasons += broken or ["there are checkpoints, but no file that tells of progress"]
        return Health(HealthState.UNKNOWN, tuple(reasons))
    if silence is None:
        reasons.append(f"the clock of {_name(source)} is ahead of this host's: its age is unknown")
    else:
        reasons.append(f"{_name(source)} changed {_how_long_ago(silence)}")
    if source.writes_only_at_saves:
        reasons.append("the trainer writes only at saves")
    is_recent = silence is not None and (silence <= FRESH_S or stall_after_s(view) is not None)
    if is_recent or view.process.is_alive:
        return Health(HealthState.TRAINING, tuple(reasons))
    reasons.append("how often it changes is not known yet")
    return Health(HealthState.UNKNOWN, tuple(reasons))


def _name(source: Source) -> str:
    return source.path.rpartition("/")[2]


def _how_long_ago(seconds: float) -> str:
    if seconds < 60:
        return "just now"  # a second's tick costs bytes
    return f"{duration(seconds)} ago"


def _interval(seconds: float) -> str:
    return duration(seconds) if seconds >= 2 else f"{seconds:.2g} s"


# ---- numbers ------------------------------------------------------------------------------------


def _pace_of_saves(view: RunView) -> Pace | None:
    """The pace from checkpoint to checkpoint, for trainers whose files tell no times."""
    marks = sorted(
        (live.created_at, live.step)
        for _, live in live_generations(view)
        if live.created_at is not None and live.step is not None
    )
    if any(not (a[0] < b[0] and a[1] < b[1]) for a, b in pairwise(marks)):
        return None  # copied, or saved by more than one process: the times tell no pace
    return pace_between(marks)


def _rate(pace: Pace | None) -> float | None:
    return 1 / pace.seconds_per_step if pace is not None and pace.seconds_per_step > 0 else None


def _remaining(view: RunView, pace: Pace | None) -> tuple[float | None, float | None]:
    if pace is None or view.step is None or not view.total_steps:
        return None, None
    return pace.remaining(max(0, view.total_steps - view.step))


def _disk(view: RunView) -> Disk:
    newest = sorted(
        (live.step or 0, live.size_bytes)
        for _, live in live_generations(view)
        if live.size_bytes and live.complete is not False
    )[-3:]
    save = max((size for _, size in newest), default=None)
    free = view.disk.free_bytes
    fits = free // save if free is not None and save else None
    return Disk(free, save, fits)
