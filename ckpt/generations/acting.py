"""Carrying out a plan: verify what will be live, look again, swap under the lock.

A plan that the disk has left behind is refused. Closing the operation stops it before the first
change, and never between two.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Depth, Generation, State, Verdict, first_error
from ckpt.errors import CheckpointError, PublishError, Refused, StalePlan
from ckpt.generations.inside import verify_inside
from ckpt.generations.plans import Plan, Swapped
from ckpt.generations.scanner import scan_slot
from ckpt.generations.swap import Move, carry, foreign_at, settle
from ckpt.generations.verified import verify_in_run
from ckpt.lock import swap_lock
from ckpt.operation import Note, Operation
from ckpt.reflog import Change, Journal, Outcome, conclude, intend, last_sequence

BUSY_WAIT_S = 1.0


def carry_out(plan: Plan, *, depth: Depth | None = Depth.BYTES) -> Operation[Swapped]:
    """Do what a plan of a roll back, withdrawal, undo or redo says; durable when this returns.

    What will be live is verified to `depth` first (None: not at all).

    Raises:
        Refused: the target is damaged, or of a kind that is not understood; nothing was touched.
        StalePlan: the disk changed since the plan was made; nothing was touched.
        Busy: somebody else is changing the run.
        PublishError: the disk refused; the message says how the run was left.
    """
    try:
        if plan.target is not None and depth is not None:
            yield from _verify(plan, plan.target, depth)
        yield Note(f"changing {', '.join(change.slot for change in plan.changes)}")
        with swap_lock(plan.run_dir, plan.verb, wait_s=BUSY_WAIT_S):
            return _do(plan)
    except OSError as error:
        where = error.filename or plan.run_dir
        message = f"{where}: not changed: {(error.strerror or str(error)).lower()}"
        raise PublishError(message, path=str(where), hint="nothing was touched") from error


def _verify(plan: Plan, target: Generation, depth: Depth) -> Operation[None]:
    if not plan.changes:
        return
    slots = [plan.run_dir / change.slot for change in plan.changes]
    try:
        if target.state is not State.LIVE and target.path in slots:
            report = yield from verify_inside(target, depth)
        else:
            report = yield from verify_in_run(target.path, depth, run_dir=plan.run_dir)
    except CheckpointError as error:
        raise _stale(plan, f"generation {target.id} is not there any more") from error
    wrong = first_error(report.findings)
    if report.verdict is Verdict.DAMAGED:
        why = wrong.message if wrong else "its bytes are not what was recorded"
        message = f"generation {target.id} is damaged: {why}"
        raise Refused(message, path=str(target.path), hint="choose another with --to")
    if report.verdict is Verdict.UNSUPPORTED:
        why = wrong.message if wrong else "it is newer than this program"
        raise Refused(f"generation {target.id} cannot be judged: {why}", path=str(target.path))
    yield Note(f"generation {target.id} is {report.verdict.value}")


def _do(plan: Plan) -> Swapped:
    if plan.undoes is not None and plan.sequence != last_sequence(plan.run_dir):
        raise _stale(plan, "something else was done in the run since")
    moves = [_move(plan, change) for change in plan.changes]
    for parent in {move.path.parent for move in moves}:
        fs.sync_directory(parent)  # who made live what is live may have died before this
    sequence = intend(plan.run_dir, plan.verb, plan.changes, undoes=plan.undoes)
    try:
        for move in moves:
            carry(move)
    except BaseException as error:
        is_back = _go_back(plan.run_dir, plan.changes, sequence)
        if not isinstance(error, OSError):
            raise
        raise _interrupted(plan, error, is_back=is_back) from error
    with suppress(OSError):  # the disk says it too
        conclude(plan.run_dir, sequence, Outcome.DONE)
    return Swapped(moves[0].path, plan.changes, sequence)


def _move(plan: Plan, change: Change) -> Move:
    """Find the payload of a change where it lies now; refuse what is not as it was planned."""
    slot = scan_slot(plan.run_dir, change.slot, Journal())
    live = slot.live.id if slot is not None and slot.live is not None else None
    if live != change.before:
        raise _stale(plan, f"{change.slot}: {live or 'nothing'} is live, not {change.before}")
    if change.after is None:
        return Move(plan.run_dir, change, None)
    found = slot.beside(change.after) if slot is not None else None
    if found is None:
        raise _stale(plan, f"{change.slot}: generation {change.after} is gone")
    path = plan.run_dir / change.slot
    if found.path != path and live is None and (why := foreign_at(path, found.path)):
        raise Refused(f"{path}: {why}; it is untouched", path=str(path), hint="move it away first")
    return Move(plan.run_dir, change, found.path, is_inside=found.path == path)


def _go_back(run_dir: Path, changes: Sequence[Change], sequence: int) -> bool | None:
    """After an error: everything back as it was; None: it could not be, recovery must end it.

    False: everything was done already when the error came.
    """
    try:
        done = [settle(run_dir, change, is_forward=False) for change in changes]
        if all(done):
            conclude(run_dir, sequence, Outcome.DONE)
            return False
        for change, is_done in zip(changes, done, strict=True):
            if is_done:
                _take_back(run_dir, change)
        conclude(run_dir, sequence, Outcome.ABORTED)
    except OSError:
        return None
    return True


def _take_back(run_dir: Path, change: Change) -> None:
    back = Change(change.slot, change.after, change.before)
    slot = scan_slot(run_dir, change.slot, Journal())
    found = slot.beside(change.before) if slot is not None else None
    source = found.path if found is not None else None
    carry(Move(run_dir, back, source, is_inside=source == run_dir / change.slot))


def _interrupted(plan: Plan, error: OSError, *, is_back: bool | None) -> PublishError:
    why = (error.strerror or str(error)).lower()
    if is_back is None:
        told = "cut off half-way: nothing is lost"
        hint = f"ckpt recover {plan.run_dir} ends it"
    elif is_back:
        told, hint = "not done: everything is as it was", None
    else:
        told, hint = "done, but not known to be durable", "a power cut may take it back"
    return PublishError(
        f"{plan.run_dir}: {plan.verb}: {told}: {why}", path=str(plan.run_dir), hint=hint
    )


def _stale(plan: Plan, why: str) -> StalePlan:
    message = f"{plan.run_dir}: the plan is out of date: {why}"
    return StalePlan(message, path=str(plan.run_dir), hint="look at it anew and decide again")
