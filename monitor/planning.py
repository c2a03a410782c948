"""Which plan a key means for the row under the cursor, and why there is none. Pure.

A plan is made of a view alone, so that asking whether a key can act costs no look at the disk.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ckpt.checkpoint import Depth, Generation, Slot, State
from ckpt.errors import CheckpointError, Refused
from ckpt.view import HealthState, RunView

if TYPE_CHECKING:
    from ckpt.generations import Known, Plan

RowOf: TypeAlias = tuple[Slot, Generation | None]
"""What a row of the table stands for; None: no generation, but a broken slot or a leftover."""

_OVER = (HealthState.DEAD, HealthState.FINISHED)
_UNREACHABLE = "the run's directory is not reachable"
_NOT_YET = "the checkpoints were not looked at yet"
_OLD = (State.RETIRED, State.WITHDRAWN)


def find_row(view: RunView, key: str | None) -> RowOf | None:
    """Return the slot and the generation that a row of `generation_rows` stands for."""
    if key is None:
        return None
    for slot in view.slots:
        for generation in slot.generations:
            if key == f"{slot.name}@{generation.id}":
                return slot, generation
        if key == slot.name or key.startswith(f"{slot.name}!"):
            return slot, None
    return None


def plan_of(
    command: str, view: RunView, key: str | None, now: float, *, sequence: int | None = None
) -> "Plan":
    """Make the plan that a command (`roll_back`, `undo`, `redo`, `recover`, `prune`) means now.

    `sequence` is the entry that an undo is meant for; where it is none that can be undone, the
    last one that can is.

    Raises:
        Refused: there is nothing for it to do; the message says why.
    """
    known = known_of(view, now)
    if command == "undo":
        return _plan_undo(known, sequence)
    return _PLANNERS[command](known, find_row(view, key))


def refusal(
    command: str, view: RunView | None, key: str | None, *, sequence: int | None = None
) -> str | None:
    """Say why a command cannot act, None when there is a plan for it."""
    if view is None:
        return _NOT_YET
    try:
        plan_of(command, view, key, 0.0, sequence=sequence)
    except Refused as refused:
        return reason(refused, view)
    return None


def reason(error: CheckpointError, view: RunView) -> str:
    """Say an error in one sentence, without the name of the run that is on the screen anyway."""
    said = error.message.removeprefix(f"{view.run}: ")
    return f"{said}; {error.hint}" if error.hint else said


def unverifiable(view: RunView | None, key: str | None) -> str | None:
    """Say why what a row stands for cannot be verified, None when it can."""
    if view is None:
        return _NOT_YET
    row = find_row(view, key)
    if row is None or row[1] is None:
        return "this is no generation of the run"
    if row[1].state is State.TRASH:
        return f"{row[1].id} is being deleted"
    return None if view.is_reachable else _UNREACHABLE


def unverified(view: RunView) -> tuple[tuple[Slot, Generation], ...]:
    """Return all generations whose bytes were not compared as they are now, newest slots first."""
    return tuple(
        (slot, generation)
        for slot in view.slots
        for generation in slot.generations
        if generation.state is not State.TRASH
        and (generation.verified is None or generation.verified.depth is not Depth.BYTES)
    )


def one_before(view: RunView, row: RowOf | None) -> tuple[Slot, Generation] | None:
    """Return the generation before one: in its slot, else the live one with the next lower step.

    None where there is none.
    """
    slot, generation = row or (None, None)
    if slot is None or generation is None:
        return None
    known = [each for each in slot.generations if each.state is not State.TRASH]
    later = known[known.index(generation) + 1 :] if generation in known else []
    if later:
        return slot, later[0]
    lower = [
        (each, live)
        for each in view.slots
        if each is not slot and (live := each.live) is not None and _is_before(live, generation)
    ]
    return max(lower, key=lambda pair: pair[1].step or 0, default=None)


def _is_before(one: Generation, other: Generation) -> bool:
    return one.step is not None and other.step is not None and one.step < other.step


def nothing_to_verify(view: RunView | None) -> str | None:
    """Say why there is nothing to verify all of, None when there is."""
    if view is None:
        return _NOT_YET
    if not view.is_reachable:
        return _UNREACHABLE
    if not any(slot.generations for slot in view.slots):
        return "there is no checkpoint yet"
    return None if unverified(view) else "all were verified as they are now (v verifies again)"


def known_of(view: RunView, now: float) -> "Known":
    """Return what plans of a run are made of.

    Raises:
        Refused: too little is known of the run.
    """
    from ckpt.generations import Known

    if view.journal is None:
        raise Refused(_NOT_YET)
    if not view.is_reachable:
        raise Refused(_UNREACHABLE)
    written_at = None if view.health.state in _OVER else view.updated_at
    return Known(view.run, view.slots, view.journal, now, written_at)


# ---- private ----------------------------------------------------------------------------------


def _plan_back(known: "Known", row: RowOf | None) -> "Plan":
    """A retired generation becomes live again, or the run goes back to an older checkpoint."""
    from ckpt.generations import plan_rollback, plan_withdraw

    if row is None:
        return plan_rollback(known)
    slot, generation = row
    if generation is None:
        withdrawn = (each.id for each in slot.generations if each.state is State.WITHDRAWN)
        return plan_rollback(known, slot=slot.name, to=next(withdrawn, None))
    if generation.state is State.TRASH:
        raise Refused(f"{generation.id} is being deleted")
    if generation.state is not State.LIVE:
        return plan_rollback(known, slot=slot.name, to=generation.id)
    live = [each.live for each in known.slots if each.live is not None]
    steps = [each.step for each in live if each.step is not None]
    if generation.step is not None and generation.step < max(steps):
        return plan_withdraw(known, to_step=generation.step)
    if all(each.state is not State.RETIRED for each in slot.generations) and len(live) > 1:
        hint = "on an older checkpoint this key sends the run back to it"
        raise Refused(f"{slot.name} is the newest and has no retired generation", hint=hint)
    return plan_rollback(known, slot=slot.name)


def _plan_undo(known: "Known", sequence: int | None) -> "Plan":
    """Undo what is meant: a trainer that saved since does not come between."""
    from ckpt.generations import plan_undo

    if sequence is not None and sequence > known.journal.last_sequence:
        raise Refused("what was done is not on the screen yet: press it again")
    is_possible = sequence is not None and known.journal.undoable(sequence) is not None
    return plan_undo(known, sequence=sequence if is_possible else None)


def _plan_redo(known: "Known", _row: RowOf | None) -> "Plan":
    from ckpt.generations import plan_redo

    return plan_redo(known)


def _plan_recover(known: "Known", _row: RowOf | None) -> "Plan":
    from ckpt.generations import plan_recover

    plan = plan_recover(known)
    if not plan.changes and not plan.warnings and not known.journal.pending:
        raise Refused("nothing here was cut off")
    return plan


def _plan_prune(known: "Known", _row: RowOf | None) -> "Plan":
    """Plan the widest prune: what a policy keeps of it is chosen from a list."""
    from ckpt.retention import Policy, plan_prune

    if not any(each.state in _OLD for slot in known.slots for each in slot.generations):
        raise Refused("there is nothing but what is live")
    return plan_prune(known, Policy(keep_last=0, is_damaged_too=True))


_PLANNERS: dict[str, Callable[["Known", RowOf | None], "Plan"]] = {
    "roll_back": _plan_back,
    "redo": _plan_redo,
    "recover": _plan_recover,
    "prune": _plan_prune,
}
