"""Which checkpoint a run could go on from, as far as it is known. Pure.

Usable is what is not incomplete and has neither an error found in it nor a bad verdict, where
`generations.resolve` would find it: at the slot's name, else whole in staging, else retired. No
byte is read here; `resolve` compares every hash of what lies in staging before it names it.
"""

from collections.abc import Iterator

from ckpt.checkpoint import Depth, Generation, Slot, State, Verdict, first_error, is_unsupported
from ckpt.view import AtRisk, RunView

_BAD = (Verdict.DAMAGED, Verdict.UNSUPPORTED)


def is_damaged(generation: Generation) -> bool:
    """Whether a check found an error in it, or its bytes were compared and differ.

    Of one that is newer than this program nothing is known.
    """
    verdict = generation.verified.verdict if generation.verified else None
    is_faulty = first_error(generation.findings) is not None
    return verdict is Verdict.DAMAGED or (is_faulty and not is_unsupported(generation.findings))


def is_usable(generation: Generation) -> bool:
    """Whether a reader could use it, as far as anything is known against that."""
    verdict = generation.verified.verdict if generation.verified else None
    is_whole = generation.complete is not False and verdict not in _BAD
    return is_whole and first_error(generation.findings) is None


def is_finite(generation: Generation) -> bool:
    """Whether nothing recorded at its save says that a value of its tensors is NaN or infinite."""
    return generation.finite is not False


def is_verified(generation: Generation) -> bool:
    """Whether all of its recorded hashes were compared, and are those of its bytes."""
    verified = generation.verified
    return (
        verified is not None
        and verified.verdict is Verdict.INTACT
        and verified.depth is Depth.BYTES
    )


def live_generations(view: RunView) -> Iterator[tuple[Slot, Generation]]:
    """Yield each slot with its live generation, where it has one."""
    for slot in view.slots:
        if slot.live is not None:
            yield slot, slot.live


def newest_usable(view: RunView) -> tuple[Slot, Generation] | None:
    """Return the usable checkpoint that the run has got furthest with, the best of its slot.

    Steps beyond the run's own belong to a line that a restart left, and nobody wants to go on from
    values that are not finite: both count only where there is nothing else.
    """
    found = ((slot, _best(slot)) for slot in view.slots)
    usable = [(slot, best) for slot, best in found if best is not None]
    reached = [
        (slot, best)
        for slot, best in usable
        if view.step is None or best.step is None or best.step <= view.step
    ]
    return max(
        reached or usable, key=lambda pair: (is_finite(pair[1]), _order(pair[1])), default=None
    )


def newest_verified(view: RunView) -> str | None:
    """Return `slot@generation` of the furthest that is verified, and finite as far as known."""
    found = [
        (_order(generation), generation.state is State.LIVE, f"{slot.name}@{generation.id}")
        for slot in view.slots
        for generation in slot.generations
        if is_verified(generation) and is_finite(generation)
    ]
    return max(found)[2] if found else None


def at_risk(view: RunView) -> AtRisk:
    """Return what lies between the newest usable checkpoint and where the run is."""
    if view.step is None:
        return AtRisk()
    usable = newest_usable(view)
    if usable is None:
        began = min((s[0].time for s in view.series.values() if len(s)), default=None)
        if began is None or began != began or view.updated_at is None:  # noqa: PLR0124 - NaN: no times told
            return AtRisk(steps=view.step)
        return AtRisk(view.step, max(0.0, view.updated_at - began))
    _, best = usable
    steps = None if best.step is None else max(0, view.step - best.step)
    if best.created_at is None or view.updated_at is None:
        return AtRisk(steps)
    return AtRisk(steps, 0.0 if steps == 0 else max(0.0, view.updated_at - best.created_at))


def _best(slot: Slot) -> Generation | None:
    """Return the candidate to go on from: the first that is usable, best one that is finite."""
    usable = filter(is_usable, slot.candidates)
    return max(usable, key=is_finite, default=None)  # of equals the first


def _order(generation: Generation) -> tuple[int, float]:
    step = -1 if generation.step is None else generation.step
    return step, generation.created_at or 0.0
