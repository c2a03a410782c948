"""What is wrong with a run and what to do about it: warnings, and one line of advice. Pure."""

from collections.abc import Iterator

from ckpt.checkpoint import Generation, Slot, State, first_error, is_unsupported
from ckpt.formats.directory import step_in_name
from ckpt.phrases import clock_time, duration
from ckpt.usable import (
    is_damaged,
    is_finite,
    is_usable,
    is_verified,
    live_generations,
    newest_usable,
)
from ckpt.view import Advice, HealthState, RunView, Source, Warned

CLOCK_AHEAD_S = 60.0
FEW_SAVES = 3


def warnings_of(view: RunView, now: float) -> tuple[Warned, ...]:
    """Return all that is wrong with the run and is no checkpoint's finding, without repetition."""
    found = [*_unreachable(view), *_of_sources(view, now), *_clashes(view)]
    for warnings in view.noticed.values():
        found += warnings
    return tuple(dict.fromkeys(found))


def advise(view: RunView) -> Advice | None:
    """Return the worst thing that somebody should do something about, None when all is well.

    The view is judged already. A key is named only where pressing it helps.
    """
    return next(_advices(view), None)


def _unreachable(view: RunView) -> Iterator[Warned]:
    if not view.is_reachable:
        message = f"{view.run}: not reachable; what is shown is what was last known"
        yield Warned("run-unreachable", message, str(view.run))


def _of_sources(view: RunView, now: float) -> Iterator[Warned]:
    for source in view.sources:
        yield from source.warnings
        if source.error and not source.warnings:
            message = f"unreadable{_since(source)}: {source.error}"
            yield Warned("unreadable-source", message, source.path)
        if source.modified_at is not None and source.modified_at > now + CLOCK_AHEAD_S:
            ahead = duration(source.modified_at - now)
            message = f"{source.path}: its time is {ahead} ahead of this host's clock"
            yield Warned("clock-ahead", message, source.path)
    for key, sketch in view.sketches.items():
        points = max((len(points) for points in sketch.series.values()), default=0)
        message = f"{key}: the curve is a sample of {points:,} points; the file is large"
        yield Warned("sketch", message, key)


def _clashes(view: RunView) -> Iterator[Warned]:
    """Checkpoints whose name and content tell two steps."""
    for slot, live in live_generations(view):
        named = step_in_name(slot.name)
        said = any(finding.code == "name-mismatch" for finding in live.findings)
        if named is not None and live.step not in (None, named) and not said:
            message = f"{slot.name}: holds step {live.step:,}, another than its name says"
            yield Warned("name-mismatch", message, str(live.path))


def _advices(view: RunView) -> Iterator[Advice]:
    """Yield what could be said, the worst first."""
    if not view.is_reachable:
        yield Advice("run-unreachable", "the run's directory is not reachable: mounted, renamed?")
    usable = newest_usable(view)
    go_on = _go_on(view, usable)
    if view.health.state is HealthState.DEAD:
        yield Advice("dead", f"the trainer is gone; {go_on}", _key_for(usable))
    if view.health.state is HealthState.DIVERGED:
        yield Advice("diverged", f"{view.health.reasons[0]}; {go_on}", _key_for(usable))
    if view.disk.saves_left == 0:
        yield Advice("disk-full", "the next save will not fit on the disk: free some space")
    yield from _of_slots(view)
    if view.health.state is HealthState.STALLED:
        yield Advice("stalled", view.health.reasons[0])
    yield from _unreadable(view.sources)
    if usable is None and view.slots:
        yield Advice("no-usable-checkpoint", "no checkpoint here can be used", "enter")
    if view.disk.saves_left is not None and view.disk.saves_left < FEW_SAVES:
        saves = "save fits" if view.disk.saves_left == 1 else "saves fit"
        yield Advice("disk-low", f"only {view.disk.saves_left} more {saves} on the disk")
    for warned in view.warnings:
        if warned.code not in ("clock-ahead", "sketch", "upstream-refuses", "unreadable-source"):
            yield Advice(warned.code, warned.message)
    if usable is not None and not any(map(is_verified, _all_generations(view))):
        message = f"no checkpoint was verified yet: ckpt verify {view.run}"
        yield Advice("never-verified", message, "V")


def _go_on(view: RunView, usable: tuple[Slot, Generation] | None) -> str:
    """What a trainer could be started from again, and how far it can be trusted."""
    if usable is None:
        return "there is no usable checkpoint"
    held = f", but {_not_finite(usable[1])}"
    trust = _as_verified(view, usable[1]) if is_finite(usable[1]) else held
    return f"{_name(*usable)} is the newest usable checkpoint{trust}"


def _key_for(usable: tuple[Slot, Generation] | None) -> str | None:
    """The key that opens what is usable, or that gives it its name back first."""
    if usable is None:
        return None
    slot, generation = usable
    return "R" if slot.state is State.BROKEN and generation is not slot.live else "enter"


def _of_slots(view: RunView) -> Iterator[Advice]:
    yield from _damaged(view)
    yield from _unsupported(view)
    yield from _broken(view)
    yield from _nonfinite(view)


def _damaged(view: RunView) -> Iterator[Advice]:
    """The furthest of the damaged checkpoints."""
    damaged = [slot for slot, live in live_generations(view) if is_damaged(live)]
    if not damaged:
        return
    slot = max(damaged, key=lambda slot: slot.step or 0)
    retired = _retired(slot)
    has_spare = slot is view.slots[0] and retired is not None and is_usable(retired)
    key = "r" if has_spare else "enter"  # the cursor is on the newest slot until it is moved
    yield Advice("damaged", f"{slot.name} is damaged{_instead(view)}", key)


def _unsupported(view: RunView) -> Iterator[Advice]:
    """The furthest of the checkpoints that are newer than this program, or of another kind."""
    newer = [slot for slot, live in live_generations(view) if is_unsupported(live.findings)]
    if newer:
        slot = max(newer, key=lambda slot: slot.step or 0)
        text = f"{slot.name} is of a version or kind that this program does not read"
        yield Advice("unsupported", text + _instead(view), "enter")


def _broken(view: RunView) -> Iterator[Advice]:
    """The furthest of the names at which no checkpoint stands, though one was begun."""
    broken = [
        (slot, wrong)
        for slot in view.slots
        if slot.state is State.BROKEN and (wrong := first_error(slot.findings)) is not None
    ]
    if broken and view.health.state is not HealthState.SAVING:
        slot, wrong = max(broken, key=lambda pair: pair[0].step or 0)
        what = wrong.message.partition(";")[0]  # where else it lies says the finding
        is_free = wrong.code != "name-taken"
        key = "R" if is_free and any(map(is_usable, slot.candidates)) else "enter"
        yield Advice(wrong.code, f"{what}{_instead(view)}", key)


def _nonfinite(view: RunView) -> Iterator[Advice]:
    """The furthest of the checkpoints, where its save recorded values that are not finite."""
    live = list(live_generations(view))
    slot, furthest = max(live, key=lambda pair: pair[1].step or 0, default=(None, None))
    if slot is None or furthest is None or is_finite(furthest) or not is_usable(furthest):
        return
    held = _not_finite(furthest)
    what = f"{slot.name} {held}"
    usable = newest_usable(view)
    if usable is not None and is_finite(usable[1]):
        has_spare = slot is view.slots[0] and usable[1] is _retired(slot)
        yield Advice("nonfinite", what + _instead(view), "r" if has_spare else "enter")
    elif "NaN" in held:  # infinities everywhere are a mask's
        yield Advice("nonfinite", f"{what}; no checkpoint here is known to be finite", "enter")


def _not_finite(generation: Generation) -> str:
    """What its manifest records: `holds NaN in 3 tensors`; the finding names them."""
    told = (each.message for each in generation.findings if each.code == "nonfinite")
    held = (message.partition(",")[0] for message in told if message.startswith("holds"))
    return next(held, "holds values that are not finite")


def _instead(view: RunView) -> str:
    usable = newest_usable(view)
    if usable is None:
        return "; no checkpoint here can be used"
    word = "verified" if is_verified(usable[1]) else "usable"
    if usable[1].finite:
        word += " and finite"
    return f"; {_name(*usable)} is {word}"


def _as_verified(view: RunView, usable: Generation) -> str:
    """What of it was verified, or which one was where it was not."""
    if is_verified(usable):
        return ", verified and finite" if usable.finite else " and verified"
    found = [live for _, live in live_generations(view) if is_usable(live) and _is_proven(live)]
    newest = max((live.step for live in found if live.step is not None), default=None)
    return "" if newest is None else f", not verified; newest verified: step {newest:,}"


def _retired(slot: Slot) -> Generation | None:
    """The generation that a rollback brings back."""
    return next((each for each in slot.generations if each.state is State.RETIRED), None)


def _is_proven(generation: Generation) -> bool:
    return is_verified(generation) and is_finite(generation)


def _all_generations(view: RunView) -> Iterator[Generation]:
    return (generation for slot in view.slots for generation in slot.generations)


def _name(slot: Slot, generation: Generation) -> str:
    """What `ckpt` calls a generation of a run: by its slot where it stands at that name."""
    return slot.name if generation is slot.live else f"{slot.name}@{generation.id}"


def _unreadable(sources: tuple[Source, ...]) -> Iterator[Advice]:
    for source in sources:
        if source.error and not source.warnings:
            name = source.path.rpartition("/")[2]
            yield Advice("unreadable-source", f"{name} cannot be read{_since(source)}")


def _since(source: Source) -> str:
    return "" if source.error_since is None else f" since {clock_time(source.error_since)}"
