"""What is worth a bell: the few transitions of a run that somebody asleep wants to know."""

from ckpt.checkpoint import State, Verdict
from ckpt.view import HealthState, RunView

LOUD = {
    HealthState.DEAD: "died",
    HealthState.STALLED: "stalled",
    HealthState.DIVERGED: "diverged",
    HealthState.FINISHED: "finished",
}


def news(before: RunView, after: RunView) -> tuple[str, ...]:
    """Return one sentence for each transition between two views that matters; mostly none."""
    name = after.run.name
    told = []
    if after.health.state is not before.health.state and after.health.state in LOUD:
        told.append(f"{name} {LOUD[after.health.state]} at step {after.step or 0:,}")
    if after.loss_nonfinite and not before.loss_nonfinite:
        told.append(f"{name}: the loss is not finite at step {after.step or 0:,}")
    told += [f"{name}: {slot} is damaged" for slot in sorted(_damaged(after) - _damaged(before))]
    return tuple(told)


def _damaged(view: RunView) -> set[str]:
    return {
        slot.name
        for slot in view.slots
        for generation in slot.generations
        if generation.state is State.LIVE
        and generation.verified is not None
        and generation.verified.verdict is Verdict.DAMAGED
    }
