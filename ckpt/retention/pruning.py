"""Removing the generations that a plan names: out of the way under the lock, deleted after it.

What was asked for is looked at again first. A name that says trash is never a generation any more,
so a death at any moment leaves each of them whole or being deleted; recovery sweeps the rest.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Generation, Slot, State
from ckpt.errors import CheckpointError, PublishError, StalePlan
from ckpt.generations import names
from ckpt.generations.kt_retired import set_aside_kt, sweep_kt
from ckpt.generations.plans import Known, Plan
from ckpt.generations.scanner import Scanner, scan_slot
from ckpt.generations.swap import free_name, rename
from ckpt.lock import swap_lock
from ckpt.operation import Note, Operation, drive
from ckpt.reflog import Change, Journal, Outcome, conclude, intend, read
from ckpt.retention.policies import Policy, always_kept, plan_prune

QUICK_BYTES = 64 << 20
"""So much is deleted in a blink; a GiB takes a third of a second."""

BUSY_WAIT_S = 1.0
"""How long a prune waits for a swap: it can be done later."""


def prune(plan: Plan) -> Operation[int]:
    """Remove what a plan of a prune names; return the bytes freed.

    Each is renamed to trash under the run's lock and deleted after it, so that a save never waits
    for a deletion. What cannot be deleted yet (a reader on NFS holds it) is told and tried again
    by the next prune or recovery.

    Raises:
        StalePlan: one of them vanished, became live, was pinned or is needed since; none is gone.
        Busy: somebody else is changing the run.
        PublishError: the disk refused; what was not renamed to trash is whole.
    """
    if not plan.removed:
        return 0
    yield Note(f"pruning {len(plan.removed)} of {_slots_in(plan)}")
    scanner = Scanner(plan.run_dir)
    try:
        scanner.scan()  # so that looking again under the lock takes milliseconds
        aside = _taken_aside(plan, scanner.scan)
    except OSError as error:
        raise _refused_by_the_disk(plan, error) from error
    return (yield from _delete_all(plan.run_dir, aside))


def retain(run_dir: Path, policy: Policy, *, slot: str | None = None) -> int:
    """Let go what a saver's policy does not keep, after a publish; return the bytes it takes.

    With `slot`, the one that was just published, the others are not looked at and nothing of them
    goes, unless the policy has a limit on all of them. Much is deleted by a thread of its own:
    training goes on. Whatever goes wrong is a warning: the save is done.
    """
    try:
        if slot is None or policy.max_bytes is not None:
            look: _Look = Scanner(run_dir).scan
        else:
            look = partial(_only, run_dir, slot)
        known = Known(run_dir, look(), read(run_dir), time.time())
        plan = plan_prune(known, policy, slot=slot)
        if plan.removed:
            _delete_meanwhile(plan, _taken_aside(plan, look))
        return plan.frees_bytes
    except (CheckpointError, OSError) as error:
        text = f"{run_dir}: the save is done, but nothing was pruned after it: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return 0


def _only(run_dir: Path, name: str) -> tuple[Slot, ...]:
    """Look at one slot as if the run had no other: what stays of it then is no less."""
    found = scan_slot(run_dir, name, read(run_dir))
    return (found,) if found is not None else ()


# ---- under the lock ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Aside:
    """What was taken out of the way and is still to be deleted.

    `inside` are the slots among whose own files some of it lies.
    """

    trash: tuple[Path, ...]
    inside: tuple[Path, ...]


_Look = Callable[[], Sequence[Slot]]


def _taken_aside(plan: Plan, look: _Look) -> _Aside:
    with swap_lock(plan.run_dir, "prune", wait_s=BUSY_WAIT_S):
        return _set_aside(plan, look())


def _refused_by_the_disk(plan: Plan, error: OSError) -> PublishError:
    where = error.filename or plan.run_dir
    message = f"{where}: not pruned: {(error.strerror or str(error)).lower()}"
    hint = "what is not gone is whole; it can be pruned again"
    return PublishError(message, path=str(where), hint=hint)


def _set_aside(plan: Plan, slots: Sequence[Slot]) -> _Aside:
    journal = read(plan.run_dir)
    pairs = _look_again(plan, slots, journal)
    left = list(_old_trash(slots, {change.slot for change, _ in pairs}))
    sequence = intend(plan.run_dir, "prune", plan.changes)
    trash = _to_trash(plan.run_dir, pairs)
    inside = _set_aside_inside(plan.run_dir, pairs)
    with suppress(OSError):  # the disk says it too
        conclude(plan.run_dir, sequence, Outcome.DONE)
    return _Aside((*trash, *left), inside)


_Pairs = Sequence[tuple[Change, Generation]]


def _look_again(plan: Plan, slots: Sequence[Slot], journal: Journal) -> _Pairs:
    """Find each generation where it lies now; refuse all when one is not what it was."""
    by_name = {slot.name: slot for slot in slots}
    always = always_kept(slots, journal)
    pairs = []
    for change, planned in zip(plan.changes, plan.removed, strict=True):
        slot = by_name.get(change.slot)
        found = next((each for each in _others(slot) if each.id == planned.id), None)
        if found is None or found.path != planned.path:
            raise _stale(plan, f"{change.slot}: generation {planned.id} is not where it was")
        reason = always.get((change.slot, found.id))
        if reason is not None:
            raise _stale(plan, f"{change.slot}: generation {planned.id} stays: {reason}")
        pairs.append((change, found))
    return pairs


def _others(slot: Slot | None) -> Iterator[Generation]:
    for each in slot.generations if slot is not None else ():
        if each.state in (State.RETIRED, State.WITHDRAWN):
            yield each


def _to_trash(run_dir: Path, pairs: _Pairs) -> list[Path]:
    trash = []
    parents = {}
    for change, generation in pairs:
        path = run_dir / change.slot
        if generation.path == path:
            continue
        name = free_name(path, "trash", generation.id)
        rename(generation.path, name)
        trash.append(name)
        parents[path.parent] = True
    for parent in parents:
        fs.sync_directory(parent)  # or a power cut may bring back a name over half a payload
    return trash


def _set_aside_inside(run_dir: Path, pairs: _Pairs) -> tuple[Path, ...]:
    """Set aside the generations whose files lie among those of their slot; return the slots."""
    inside: dict[str, list[str]] = {}
    for change, generation in pairs:
        if generation.path == run_dir / change.slot:
            inside.setdefault(change.slot, []).append(generation.id)
    for slot, ids in inside.items():
        set_aside_kt(run_dir / slot, ids, run_dir=run_dir)
    return tuple(run_dir / slot for slot in inside)


def _old_trash(slots: Sequence[Slot], chosen: set[str]) -> Iterator[Path]:
    """What earlier prunes of the same slots could not delete."""
    for slot in slots:
        if slot.name in chosen:
            yield from (each.path for each in slot.generations if each.state is State.TRASH)
            for leftover in slot.leftovers:
                hidden = names.hidden(leftover.path.name)
                if hidden is not None and hidden.kind == "trash":
                    yield leftover.path


# ---- after it ---------------------------------------------------------------------------------


def _delete_all(run_dir: Path, aside: _Aside) -> Operation[int]:
    """Delete what was set aside; tell what is left of it, return the bytes freed."""
    freed = 0
    for slot in aside.inside:
        try:
            freed += sweep_kt(slot, run_dir=run_dir)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            yield Note(f"{slot.name}: what was set aside in it is deleted later: {why}")
    for trash in aside.trash:
        size = _bytes_of_its_own(trash)
        left = _delete(trash)
        if left is None:
            freed += size
        else:
            yield Note(f"{trash.name} is left, to be deleted later: {left}")
    return freed


def _delete_meanwhile(plan: Plan, aside: _Aside) -> None:
    """Delete what was set aside: a little at once, much in a thread that the exit waits for."""

    def delete() -> None:
        drive(_delete_all(plan.run_dir, aside))

    if plan.frees_bytes <= QUICK_BYTES:
        delete()
        return
    try:
        threading.Thread(target=delete, name="prune").start()
    except RuntimeError:  # the interpreter is shutting down
        delete()


def _bytes_of_its_own(path: Path) -> int:
    """What no other name holds: a generation that was kept by links may share all of it."""
    try:
        found = fs.identity(path, follow=False)
        if found is None or found.is_symlink:
            return 0
        if found.is_directory:
            return sum(_bytes_of_its_own(path / entry.name) for entry in fs.scan(path))
        return found.size_bytes if fs.link_count(path) == 1 else 0
    except OSError:
        return 0


def _delete(trash: Path) -> str | None:
    """Delete what nobody may use any more; return why some of it is left, None: all is gone."""
    try:
        if fs.remove_tree(trash, first="manifest.json"):
            return None
    except FileNotFoundError:
        return None  # somebody else deletes it too
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "a reader holds its files open"


def _slots_in(plan: Plan) -> str:
    found = list(dict.fromkeys(change.slot for change in plan.changes))
    more = f" and {len(found) - 2} more slots" if len(found) > 3 else ""
    return ", ".join(found[: 2 if more else 3]) + more


def _stale(plan: Plan, why: str) -> StalePlan:
    message = f"{plan.run_dir}: the plan is out of date: {why}"
    return StalePlan(message, path=str(plan.run_dir), hint="look at it anew and decide again")
