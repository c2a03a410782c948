"""What must be true of a run after a fault, a crash or a power cut, whatever the moment was.

Each oracle yields sentences about what is wrong; none at all is what the suite wants.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ckpt import fs, reflog
from ckpt.checkpoint import Slot, State
from ckpt.errors import CheckpointError
from ckpt.generations import resolve, scan
from ckpt.generations.names import hidden
from ckpt.selftest import deeds
from ckpt.selftest.tree import label_of, mark, take

Standing: TypeAlias = Mapping[str, int | None]
"""The label of what is live in each slot; None: nothing is."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What may be so after an action was cut off, and what must be.

    `before` and `after` are how the slots stand when nothing, or all, of the action was done;
    `kept` are the labels of what must be found whole whichever it is; `made` is the label of the
    generation that comes with `after`. `between` is a third way for them to stand, where one
    action followed another.
    """

    before: Standing
    after: Standing
    kept: frozenset[int]
    made: int | None = None
    between: Standing | None = None

    def allowed(self, slot: str) -> set[int | None]:
        """Return what may be live in a slot."""
        return {standing.get(slot) for standing in self.standings}

    @property
    def standings(self) -> tuple[Standing, ...]:
        """All the ways in which the slots may stand."""
        return (self.before, self.after, *((self.between,) if self.between is not None else ()))

    def only_after(self) -> "Expected":
        """Return what must be so once the action was reported as done."""
        return replace(self, before=self.after, between=None)

    def only_before(self) -> "Expected":
        """Return what must be so once it was reported that nothing was done."""
        return replace(self, after=self.before, made=None, between=None)


@dataclass(slots=True)
class Found:
    """Every generation that the scan names, by label; what is wrong with it is not in it."""

    live: dict[str, int | None] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    places: dict[int, list[State]] = field(default_factory=dict)
    ids: dict[str, str | None] = field(default_factory=dict)


def judge(run_dir: Path, expected: Expected, *, is_live: bool = False) -> Iterator[str]:
    """Judge a run that something was cut off in: as it stands, then recovered, then once more.

    `is_live`: every name must be in its place before the recovery too.
    """
    yield from _judge_reading(run_dir, expected)
    if is_live:
        yield from _judge_names(run_dir, expected)
    try:
        deeds.recover(run_dir)
    except (CheckpointError, OSError) as error:
        yield f"cannot be recovered: {error}"
        return
    yield from _judge_recovered(run_dir, expected)
    recovered = mark(take(run_dir))
    said = deeds.recover(run_dir)
    if said:
        yield f"recovering again does more: {said!r}"
    if mark(take(run_dir)) != recovered:
        yield "recovering again changes the disk"


def _judge_reading(run_dir: Path, expected: Expected) -> Iterator[str]:
    """Judge what a reader would be given now, before anybody recovers."""
    slots = {slot.name: slot for slot in scan(run_dir)}
    for name in expected.before.keys() | expected.after.keys():
        allowed = expected.allowed(name)
        if name not in slots:
            if None not in allowed:
                yield f"{name}: a reader finds no such slot"
            continue
        yield from _judge_resolved(slots[name], allowed)


def _judge_resolved(slot: Slot, allowed: set[int | None]) -> Iterator[str]:
    found = resolve(slot)
    if not found.reason:
        yield f"{slot.name}: resolved without a reason"
    if found.path is None:
        if None not in allowed:
            yield f"{slot.name}: a reader is given nothing: {found.reason}"
        return
    label = label_of(found.path)
    if label is None:
        yield f"{slot.name}: a reader is given {found.path.name}, which is not whole"
    elif label not in allowed:
        yield f"{slot.name}: a reader is given generation {label}, not one of {allowed}"


def _judge_names(run_dir: Path, expected: Expected) -> Iterator[str]:
    seen = found_in(run_dir)
    for name in expected.before.keys() | expected.after.keys():
        allowed = expected.allowed(name)
        if seen.live.get(name) not in allowed:
            yield f"{name}: live is {seen.live.get(name)}, not one of {allowed}, unrecovered"


def _judge_recovered(run_dir: Path, expected: Expected) -> Iterator[str]:
    """Judge a run that was recovered: nothing is lost, left over or in between."""
    seen = found_in(run_dir)
    names = expected.before.keys() | expected.after.keys()
    live = {name: seen.live.get(name) for name in names}
    is_after = live == {name: expected.after.get(name) for name in names}
    stands = [{name: each.get(name) for name in names} for each in expected.standings]
    if live not in stands:
        yield f"live are {live}, none of {stands}"
    yield from (f"{name} is broken" for name in names if seen.states.get(name) is State.BROKEN)
    wanted = expected.kept | ({expected.made} if is_after and expected.made else set())
    for label in sorted(wanted):
        if not set(seen.places.get(label, ())) - {State.TRASH}:
            yield f"generation {label} is lost"
    for label, states in seen.places.items():
        if len(states) > 1:
            yield f"generation {label} is there twice: {states}"
    yield from _judge_leftovers(run_dir)
    yield from _judge_journal(run_dir, seen)


def found_in(run_dir: Path) -> Found:
    """Return what the scan names and the suite's own reading finds whole."""
    seen = Found()
    for slot in scan(run_dir):
        seen.states[slot.name] = slot.state
        seen.ids[slot.name] = slot.live.id if slot.live else None
        seen.live[slot.name] = label_of(slot.live.path) if slot.live else None
        for each in slot.generations:
            label = label_of(each.path)
            if label is not None:
                seen.places.setdefault(label, []).append(each.state)
    return seen


def _judge_leftovers(run_dir: Path) -> Iterator[str]:
    for entry in fs.scan(run_dir):
        sibling = hidden(entry.name)
        if sibling is not None and sibling.kind in ("tmp", "trash"):
            yield f"{entry.name} is left over"


def _judge_journal(run_dir: Path, seen: Found) -> Iterator[str]:
    """Judge whether the journal knows what is live, of the slots that it knows at all."""
    journal = reflog.read(run_dir)
    for entry in journal.pending:
        yield f"the journal's entry {entry.sequence} ({entry.verb}) is open"
    if journal.is_torn:
        yield "the journal has a torn tail"
    known: dict[str, str | None] = {}
    for entry in journal.entries:
        if entry.outcome is reflog.Outcome.DONE and entry.verb != "prune":
            known |= {change.slot: change.after for change in entry.changes}
    for slot, generation in known.items():
        if seen.ids.get(slot) != generation:
            yield f"{slot}: the journal knows {generation}, live is {seen.ids.get(slot)}"
