"""What will be done, as a value: shown, compared, then carried out. Pure.

A plan is made of slots as they were scanned and of the journal; whoever carries it out looks
again and refuses it when something changed since.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt.checkpoint import Generation, Slot, State, Verdict, first_error
from ckpt.errors import Refused
from ckpt.formats.directory import step_in_name
from ckpt.phrases import duration
from ckpt.reflog import Change, Entry, Journal

UNSEEN_CODES = frozenset({"permission-denied", "unreadable"})
"""Codes of findings which say that a slot is there and nothing can be said of it."""

IN_PLACE = "kt_full"
"""The format whose generations lie in a directory that is not theirs alone."""

BUSY_TRAINER_S = 60.0
"""A trainer that wrote this shortly ago may save again at any moment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a verb will do to the slots of a run.

    `given_up` counts from what is newest now to what will be. `sequence` is the journal's last,
    by which a stale plan is told; `undoes` the entry that is taken back. `target` is what will be
    newest, to be verified first. Of a prune, `removed` are the generations that go.
    """

    verb: str
    run_dir: Path
    changes: tuple[Change, ...] = ()
    steps_given_up: int | None = None
    seconds_given_up: float | None = None
    warnings: tuple[str, ...] = ()
    frees_bytes: int = 0
    sequence: int = 0
    undoes: int | None = None
    target: Generation | None = None
    removed: tuple[Generation, ...] = ()


@dataclass(frozen=True, slots=True)
class Swapped:
    """What was done: the published name of the first change, and the entry that an undo names."""

    path: Path
    changes: tuple[Change, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Known:
    """What a plan is made of: a run as it was scanned, its journal, and the time.

    `written_at` is when the trainer was last seen to write (epoch seconds), None: not known.
    """

    run_dir: Path
    slots: Sequence[Slot]
    journal: Journal
    now: float
    written_at: float | None = None


def plan_rollback(known: Known, *, slot: str | None = None, to: str | None = None) -> Plan:
    """Plan to make a retired generation of a slot live again; the live one becomes retired.

    Without `slot` it is the newest one that has a retired generation; without `to` its newest
    retired one. `to` is an id, or the start of one.

    Raises:
        Refused: there is no such slot or generation, or it is known to be damaged.
    """
    chosen = _slot_named(known, slot) if slot is not None else _slot_to_roll_back(known)
    target = _generation(chosen, to)
    live = chosen.live
    if live is not None and target.id == live.id:
        raise _refused(known, f"{chosen.name}: {target.id} is live already")
    _refuse_damaged(known, chosen.name, target)
    change = Change(chosen.name, live.id if live else None, target.id)
    return _plan(known, "rollback", (change,), target=target, given_up=live)


def plan_withdraw(known: Known, *, to_step: int) -> Plan:
    """Plan to send a run back to a step: every later slot is withdrawn, as one plan.

    Raises:
        Refused: nothing is later, nothing would be left, what would is known to be damaged, or a
            slot that may be later cannot be looked at.
    """
    _refuse_unseen(known, to_step)
    live = [(slot, slot.live) for slot in known.slots if slot.live is not None]
    later = [(slot, each) for slot, each in live if each and (each.step or -1) > to_step]
    kept = [(slot, each) for slot, each in live if each and each.step is not None]
    kept = [(slot, each) for slot, each in kept if (each.step or 0) <= to_step]
    if not later:
        raise _refused(known, f"no checkpoint is later than step {to_step:,}")
    if not kept:
        steps = ", ".join(
            f"{each.step:,}" for _, each in live[:4] if each and each.step is not None
        )
        raise _refused(known, f"no checkpoint of step {to_step:,} or before", f"there are {steps}")
    slot, target = max(kept, key=lambda pair: pair[1].step or 0)
    _refuse_damaged(known, slot.name, target)
    changes = tuple(Change(each.name, generation.id, None) for each, generation in later)
    newest = max((generation for _, generation in later), key=lambda each: each.step or 0)
    return _plan(known, "withdraw", changes, target=target, given_up=newest)


def plan_undo(known: Known, *, sequence: int | None = None) -> Plan:
    """Plan the inverse of the last entry that was not undone, or of the one with that number.

    Raises:
        Refused: there is none in the undo window, or what it needs is not there any more.
    """
    journal = known.journal
    entry = journal.undo_target if sequence is None else journal.undoable(sequence)
    if entry is None:
        which = "" if sequence is None else f": not #{sequence}, or not any more"
        raise _refused(known, f"nothing to undo{which}")
    changes = tuple(Change(each.slot, each.after, each.before) for each in entry.changes)
    return _inverse(known, "undo", entry, changes)


def plan_redo(known: Known) -> Plan:
    """Plan to do again what the last undo took back.

    Raises:
        Refused: nothing was undone, or something was done since.
    """
    entry = known.journal.redo_target
    if entry is None:
        raise _refused(known, "nothing to redo: nothing was undone, or the run went on since")
    changes = tuple(Change(each.slot, each.after, each.before) for each in entry.changes)
    return _inverse(known, "redo", entry, changes)


def plan_recover(known: Known) -> Plan:
    """Plan what recovery will make live: for each broken slot the best of what is left of it."""
    changes = []
    notes = []
    for slot in known.slots:
        found = next((each for each in slot.candidates if _is_whole(each)), None)
        if slot.state is State.BROKEN and found is not None and found.state is not State.LIVE:
            before = slot.live.id if slot.live else None
            changes.append(Change(slot.name, before, found.id))
        notes += [f"{slot.name}: {each.path.name}: {each.reason}" for each in slot.leftovers]
        notes += _ended(slot)
    notes += [f"{each.verb} {each.sequence} was cut off" for each in known.journal.pending]
    notes += [finding.message for finding in known.journal.findings]
    return Plan(
        "recover",
        known.run_dir,
        tuple(changes),
        warnings=tuple(notes),
        sequence=known.journal.last_sequence,
    )


def _ended(slot: Slot) -> Iterator[str]:
    """Say what recovery does with whole payloads that lie under a name for unfinished ones."""
    for each in slot.generations:
        if each.state is State.TRASH:
            yield f"{slot.name}: {each.path.name}: its removal was cut off"
        elif each.state is State.SEALED and slot.live is not None:
            yield f"{slot.name}: {each.path.name}: whole, and kept as retired {each.id}"


# ---- private ----------------------------------------------------------------------------------


def _plan(
    known: Known,
    verb: str,
    changes: tuple[Change, ...],
    *,
    target: Generation | None,
    given_up: Generation | None,
) -> Plan:
    steps = seconds = None
    if target is not None and given_up is not None:
        if target.step is not None and given_up.step is not None:
            steps = max(0, given_up.step - target.step)
        if target.created_at is not None and given_up.created_at is not None:
            seconds = max(0.0, given_up.created_at - target.created_at)
    return Plan(
        verb,
        known.run_dir,
        changes,
        steps_given_up=steps,
        seconds_given_up=seconds,
        warnings=tuple(_warnings(known, target)),
        sequence=known.journal.last_sequence,
        target=target,
    )


def _inverse(known: Known, verb: str, entry: Entry, changes: tuple[Change, ...]) -> Plan:
    """Plan changes that take an entry back, provided that everything is where it left it."""
    targets, given_up = [], []
    for change in changes:
        slot = next((each for each in known.slots if each.name == change.slot), None)
        live = slot.live.id if slot is not None and slot.live is not None else None
        if live != change.before:
            is_now = live or "nothing"
            message = f"{change.slot}: changed since: {is_now} is live, expected {change.before}"
            raise _refused(known, f"{verb} of {entry.verb} {entry.sequence}: {message}")
        if slot is not None and slot.live is not None:
            given_up.append(slot.live)
            if change.after is None and entry.verb == "publish" and slot.format == IN_PLACE:
                why = "the first save into a directory that holds more than it"
                raise _refused(known, f"nothing to undo: {change.slot}: {why}")
        if change.after is not None:
            target = _generation(slot, change.after) if slot is not None else None
            if target is None:
                raise _refused(known, f"{change.slot}: generation {change.after} is gone")
            _refuse_damaged(known, change.slot, target)
            targets.append(target)
    plan = _plan(known, verb, changes, target=_newest(targets), given_up=_newest(given_up))
    return replace(plan, undoes=entry.sequence)


def _newest(generations: Sequence[Generation]) -> Generation | None:
    return max(generations, key=lambda each: each.step or 0, default=None)


def _slot_named(known: Known, name: str) -> Slot:
    exact = [slot for slot in known.slots if slot.name == name]
    ends = [slot for slot in known.slots if slot.name.endswith(f"/{name}")]
    found = exact or ends
    if len(found) == 1:
        return found[0]
    if found:
        raise _refused(known, f"{name}: more than one slot is named so", found[0].name)
    listed = ", ".join(slot.name for slot in known.slots[:4]) or "none"
    raise _refused(known, f"no slot {name}", f"there are {listed}")


def _slot_to_roll_back(known: Known) -> Slot:
    for slot in known.slots:
        others = (each for each in slot.generations if each.state is State.RETIRED)
        if not all(map(slot.is_live_too, others)):
            return slot
    hint = "only what was saved again under its name leaves one; see also --to-step"
    raise _refused(known, "nothing to roll back to: no slot has a retired generation", hint)


def _generation(slot: Slot, wanted: str | None) -> Generation:
    others = [
        each
        for each in slot.generations
        if each.state not in (State.LIVE, State.TRASH)
        and not slot.is_live_too(each)
        and (wanted is not None or each.state is State.RETIRED)
    ]
    begun = [each for each in others if wanted is None or each.id.startswith(wanted)]
    exact = [each for each in begun if each.id == wanted]
    found = exact or begun
    if wanted is not None and not exact and len(begun) > 1:
        raise Refused(f"{slot.name}: more than one generation begins with {wanted}")
    if found:
        return found[0]
    live = slot.live
    if live is not None and wanted is not None and live.id.startswith(wanted):
        return live
    which = f"no generation {wanted}" if wanted else "no retired generation"
    listed = ", ".join(each.id for each in others[:4])
    hint = f"there are {listed}" if listed else "there is nothing to go back to"
    raise Refused(f"{slot.name}: {which}", path=str(slot.path), hint=hint)


def _refuse_unseen(known: Known, to_step: int) -> None:
    """Refuse where a slot that cannot be looked at may be one of those to withdraw."""
    for slot in known.slots:
        wrong = first_error(slot.findings)
        if slot.live is not None or wrong is None or wrong.code not in UNSEEN_CODES:
            continue
        step = step_in_name(slot.name.rpartition("/")[2])
        if step is None or step > to_step:
            hint = f"it may be later than step {to_step:,}: look at it first"
            raise _refused(known, f"cannot tell what is live: {wrong.message}", hint)


def _refuse_damaged(known: Known, slot: str, target: Generation) -> None:
    wrong = first_error(target.findings)
    verified = target.verified
    if verified is not None and verified.verdict is Verdict.DAMAGED:
        why = "verified and damaged"
    elif wrong is not None:
        why = wrong.message
    elif target.complete is False:
        why = "it is not whole"
    else:
        return
    raise _refused(known, f"{slot}: generation {target.id} cannot be used: {why}")


def _warnings(known: Known, target: Generation | None) -> Iterator[str]:
    wrote = known.written_at
    if wrote is not None and 0 <= known.now - wrote < BUSY_TRAINER_S:
        ago = duration(known.now - wrote)
        yield f"the trainer wrote {ago} ago and may save again: stop it first"
    if target is None:
        yield "nothing will be live at the name"
    elif target.verified is None:
        yield f"the bytes of {target.id} were never verified"
    elif target.verified.verdict is Verdict.UNVERIFIABLE:
        yield f"the bytes of {target.id} cannot be verified: nothing recorded to compare with"


def _is_whole(generation: Generation) -> bool:
    is_damaged = generation.verified and generation.verified.verdict is Verdict.DAMAGED
    return (
        generation.complete is not False
        and not is_damaged
        and not first_error(generation.findings)
    )


def _refused(known: Known, message: str, hint: str | None = None) -> Refused:
    return Refused(f"{known.run_dir}: {message}", path=str(known.run_dir), hint=hint)
