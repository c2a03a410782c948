"""Ending what died: swaps that were cut off, payloads under the wrong name, what nobody writes.

Idempotent, and every step of it may itself be cut off. Removes only trash and what was never
whole; a save of another program that may be going on is left alone.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Leftover, Slot, State
from ckpt.errors import PublishError
from ckpt.generations import names
from ckpt.generations.kt_links import sweep_links
from ckpt.generations.kt_retired import abandoned, is_trash, prune_kt, sweep_kt
from ckpt.generations.kt_slot import kt_slot
from ckpt.generations.payload import look
from ckpt.generations.resolving import resolve
from ckpt.generations.scanner import scan, scan_slot
from ckpt.generations.swap import (
    Move,
    carry,
    foreign_at,
    free_name,
    id_at,
    make_durable,
    rename,
    settle,
    siblings,
)
from ckpt.lock import forget_dead_writers, swap_lock, writer_of
from ckpt.operation import Note, Operation
from ckpt.reflog import Change, Entry, Journal, Outcome, conclude, cut_torn_tail, intend, read

QUIET_S = 600.0
"""Another program's unfinished save that did not change for so long is not going on."""

SEALED_QUIET_S = 10.0
"""A whole payload of another program takes its name at once, unless the program died."""

BUSY_WAIT_S = 1.0


def recover(run_dir: Path) -> Operation[tuple[str, ...]]:
    """End what was cut off in a run, under its lock; return what was done, in sentences.

    Raises:
        Busy: somebody else is changing the run.
        PublishError: the disk refused; what was done so far holds, and it can be run again.
    """
    try:
        with swap_lock(run_dir, "recover", wait_s=BUSY_WAIT_S):
            told = []
            for step in (_mend_journal, _end_intents, _fill_names, _name_rightly, _sweep):
                for sentence in step(run_dir):
                    told.append(sentence)
                    yield Note(sentence)
            forget_dead_writers(run_dir)
    except OSError as error:
        where = error.filename or run_dir
        message = f"{where}: not recovered: {(error.strerror or str(error)).lower()}"
        hint = "what was done so far holds; run it again"
        raise PublishError(message, path=str(where), hint=hint) from error
    return tuple(told)


Step = Callable[[Path], Iterator[str]]


def _mend_journal(run_dir: Path) -> Iterator[str]:
    journal = read(run_dir)
    if journal.is_torn:
        cut_torn_tail(run_dir, journal)
        yield f"the journal: cut a torn tail of {journal.size_bytes - journal.good_bytes} bytes"


def _end_intents(run_dir: Path) -> Iterator[str]:
    journal = read(run_dir)
    for entry in journal.pending:
        is_prune = entry.verb == "prune"
        is_done = _end_prune(run_dir, entry) if is_prune else _end(run_dir, entry, journal)
        conclude(run_dir, entry.sequence, Outcome.DONE if is_done else Outcome.ABORTED)
        slots = ", ".join(change.slot for change in entry.changes)
        how = "ended what was cut off" if is_done else "it had not begun, nothing to take back"
        yield f"{entry.verb} {entry.sequence} of {slots}: {how}"


def _end(run_dir: Path, entry: Entry, journal: Journal) -> bool:
    """End one intent that has no outcome; True: it counts as done.

    What was done to a slot since tells that it had been done before.
    """
    later = [each for each in journal.entries if each.sequence > entry.sequence]
    if any(_follows(change, each) for each in later for change in entry.changes):
        return True
    done = [settle(run_dir, change, is_forward=True) for change in entry.changes]
    if not any(done):
        return False
    for change, is_done in zip(entry.changes, done, strict=True):
        if not is_done and change.after is None and id_at(run_dir / change.slot) == change.before:
            carry(Move(run_dir, change, None))
        elif not is_done and (move := _move(run_dir, change)) is not None:
            carry(move)
    return True


def _end_prune(run_dir: Path, entry: Entry) -> bool:
    """Remove the rest of what is half removed; what had not begun to go stays. True: some went."""
    is_begun = False
    for change in entry.changes:
        slot = scan_slot(run_dir, change.slot, Journal())
        is_inside = slot is not None and slot.format == "kt_full"
        if slot and is_inside and change.before in abandoned(slot.path, run_dir=run_dir):
            prune_kt(slot.path, [change.before], run_dir=run_dir)
        known = slot.generations if slot is not None else ()
        is_whole = any(
            each.id == change.before and each.state is not State.TRASH for each in known
        )
        is_begun = is_begun or not is_whole
    return is_begun


def _follows(change: Change, later: Entry) -> bool:
    return any(
        each.slot == change.slot and each.before is not None and each.before == change.after
        for each in later.changes
    )


def _move(run_dir: Path, change: Change) -> Move | None:
    slot = scan_slot(run_dir, change.slot, Journal())
    if slot is None or (slot.live.id if slot.live else None) != change.before:
        return None
    found = slot.beside(change.after)
    if found is None:
        return None
    return Move(run_dir, change, found.path, is_inside=found.path == slot.path)


def _fill_names(run_dir: Path) -> Iterator[str]:
    """Give each broken slot the best payload that is left of it."""
    for slot in scan(run_dir):
        if slot.state is not State.BROKEN:
            continue
        best = resolve(slot)
        if best.generation is None or best.generation.state is State.LIVE:
            continue
        if not _is_abandoned(slot, best.generation.path):
            yield f"{slot.name}: left alone: it changed just now, a save may be going on"
            continue
        live = look(slot.path)
        if live.error is not None and not live.is_gone:
            yield f"{slot.name}: left alone: {(live.error.strerror or str(live.error)).lower()}"
            continue
        is_inside = best.generation.path == slot.path
        if not is_inside and (why := foreign_at(slot.path, best.generation.path)):
            yield f"{slot.name}: left alone: {why}"
            continue
        change = Change(slot.name, live.id or None, best.generation.id)
        make_durable(best.generation.path)
        fs.sync_directory(slot.path.parent)  # what a dead process did, before more is done to it
        sequence = intend(run_dir, "recover", (change,))
        carry(Move(run_dir, change, best.generation.path, is_inside=is_inside))
        conclude(run_dir, sequence, Outcome.DONE)
        yield f"{slot.name}: {best.reason}; it is live now"


def _is_abandoned(slot: Slot, best: Path) -> bool:
    """Whether nobody can be about to give the name himself."""
    if fs.identity(slot.path, follow=False) is not None:
        return _quiet_s(slot.path) > SEALED_QUIET_S
    has_retired = any(each.state is State.RETIRED for each in slot.generations)
    hidden = names.hidden(best.name)
    is_foreign = hidden is not None and not names.is_own_token(hidden.token)
    return has_retired or not is_foreign or _quiet_s(best) > SEALED_QUIET_S


def _name_rightly(run_dir: Path) -> Iterator[str]:
    """Make whole payloads in staging, old or new, roll-back targets of their slot."""
    for slot in scan(run_dir):
        if slot.live is None:
            continue
        for hidden, payload in list(siblings(slot.path)):
            known = next((g for g in slot.generations if g.path == payload.path), None)
            if hidden.kind != "tmp" or known is None:
                continue
            if _is_being_written(run_dir, hidden, payload.path, SEALED_QUIET_S):
                continue
            make_durable(payload.path)
            fs.sync_directory(slot.path.parent)  # what a dead process did, before more is done
            rename(payload.path, free_name(slot.path, "retired", payload.id))
            fs.sync_directory(slot.path.parent)
            yield f"{slot.name}: {payload.path.name} is whole: kept as retired {payload.id}"


def _sweep(run_dir: Path) -> Iterator[str]:
    """Remove trash, and what was never whole and nobody writes any more."""
    for slot in scan(run_dir):
        if any(is_trash(each.path.name) for each in slot.leftovers):
            freed = sweep_kt(slot.path, run_dir=run_dir)
            yield f"{slot.name}: removed shards that were set aside: {freed:,} bytes"
        elif slot.format == "kt_full":
            sweep_links(kt_slot(slot.path, run_dir))
        for leftover in (*slot.leftovers, *_trash(slot)):
            hidden = names.hidden(leftover.path.name)
            if is_trash(leftover.path.name):
                continue
            if hidden is None or hidden.kind not in ("tmp", "trash"):
                continue
            if hidden.kind == "tmp":
                if _is_being_written(run_dir, hidden, leftover.path, QUIET_S):
                    yield f"{slot.name}: {leftover.path.name} left alone: it may be being written"
                    continue
                trash = free_name(slot.path, "trash", hidden.token)
                rename(leftover.path, trash)
                fs.sync_directory(slot.path.parent)
            else:
                trash = leftover.path
            is_gone = fs.remove_tree(trash, first="manifest.json")
            left = "" if is_gone else "; some files are still held open by a reader"
            yield f"{slot.name}: removed {leftover.path.name}: {leftover.reason}{left}"


def _trash(slot: Slot) -> Iterator[Leftover]:
    for each in slot.generations:
        if each.state is State.TRASH:
            yield Leftover(each.path, "trash", "being deleted")


def _is_being_written(run_dir: Path, hidden: names.Hidden, path: Path, quiet_s: float) -> bool:
    if names.is_own_token(hidden.token):
        return writer_of(run_dir, hidden.token) is not None
    return _quiet_s(path) <= quiet_s


def _quiet_s(path: Path) -> float:
    """For how long nothing in a payload changed, by the newest time in it."""
    payload = look(path)
    found = [fs.identity(path), *(fs.identity(path / name) for name in payload.names)]
    newest = max((each.modified_at for each in found if each is not None), default=0.0)
    return time.time() - newest
