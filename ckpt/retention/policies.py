"""Which retired generations stay and why: the policies, what no policy can remove, the plan. Pure.

Order is the journal's; where it tells none, by step, epoch and the numbers in a name. Never by a
file's time.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ckpt.checkpoint import (
    Depth,
    Generation,
    Slot,
    State,
    Verdict,
    first_error,
    is_unsupported,
)
from ckpt.errors import Refused
from ckpt.generations.names import age_key
from ckpt.generations.plans import Known, Plan
from ckpt.phrases import duration
from ckpt.reflog import Change, Journal

SAME_AS_LIVE = "the same as what is live"
METRICS = ("loss",)
"""What is recorded of a generation and can be compared; less is better."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which retired and withdrawn generations stay; one stays when any of these keeps it.

    `keep_last`: so many of each slot; `keep_best`: so many of the run, those with the lowest
    `metric`; `keep_every`: those whose step is a multiple of it; `keep_s`: those that were live
    within so many seconds. None keeps nothing and removes nothing; with all four None everything
    stays. 0 keeps none beyond what always stays. `max_bytes` limits what the kept ones take
    together: the oldest go first. Damaged and incomplete ones count for none of these and stay
    unless `is_damaged_too`.

    Raises:
        Refused: a number is negative or none, or the metric is not recorded.
    """

    keep_last: int | None = 1
    keep_best: int | None = None
    metric: str = "loss"
    keep_every: int | None = None
    keep_s: float | None = None
    max_bytes: int | None = None
    is_damaged_too: bool = False

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_best", "keep_every", "keep_s", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 0:  # a NaN is none either
                raise Refused(f"{name}: expected 0 or more, found {value}", hint="0 keeps none")
        if self.metric not in METRICS:
            known = ", ".join(METRICS)
            raise Refused(f"metric: expected {known}, found {self.metric!r}")

    @property
    def keeps_all(self) -> bool:
        """Whether no policy is set that would let one go for its place among the others."""
        chosen = (self.keep_last, self.keep_best, self.keep_every, self.keep_s)
        return all(each is None for each in chosen)


@dataclass(frozen=True, slots=True)
class Kept:
    """A generation that is not live and stays, and why: a clause (`pinned`)."""

    slot: str
    generation: Generation
    reason: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a policy would do to a run: the plan, and why what is not live stays."""

    plan: Plan
    kept: tuple[Kept, ...]


def plan_prune(known: Known, policy: Policy, *, slot: str | None = None) -> Plan:
    """Plan which generations go; with `slot` none of another slot does.

    Each of the plan's `changes` names the slot and the id of the generation at the same place in
    its `removed`. `frees_bytes` counts files that another generation shares by hard links too.
    """
    return preview_prune(known, policy, slot=slot).plan


def preview_prune(known: Known, policy: Policy, *, slot: str | None = None) -> Preview:
    """Plan as `plan_prune` does, and tell of every other generation why it stays."""
    kept: list[Kept] = []
    going: list[_Candidate] = []
    by_policy: list[tuple[_Candidate, str]] = []
    always = always_kept(known.slots, known.journal)
    candidates = list(_candidates(known))
    chosen = _Chosen(policy, known.now, [each for each in candidates if each.counts])
    for each in candidates:
        reason = always.get(each.key) or _kept_damaged(each, policy)
        if reason is not None:
            kept.append(Kept(each.slot, each.generation, reason))
        elif (reason := chosen.reason(each)) is not None:
            by_policy.append((each, reason))
        else:
            going.append(each)
    taking = [each.generation for each in kept if each.reason != SAME_AS_LIVE]
    over = _over_limit(policy, taking, by_policy)
    going += [each for each, _ in by_policy if each.key in over]
    kept += [Kept(c.slot, c.generation, why) for c, why in by_policy if c.key not in over]
    if slot is not None:
        others = [each for each in going if each.slot != slot]
        kept += [Kept(each.slot, each.generation, "of another slot") for each in others]
        going = [each for each in going if each.slot == slot]
    going.sort(key=lambda each: each.order)
    return Preview(_plan(known, going), tuple(kept))


def always_kept(slots: Sequence[Slot], journal: Journal) -> dict[tuple[str, str], str]:
    """Return why each generation that no policy may remove stays, by (slot, id)."""
    needed = journal.in_undo_window
    unfinished = {
        each
        for entry in journal.pending
        for change in entry.changes
        for each in (change.before, change.after)
        if entry.verb != "prune"
    }
    found = dict(_last_good(slots, journal))
    for slot in slots:
        swapped = unfinished.union(slot.interrupted or ())
        for each in slot.generations:
            if each.state is State.LIVE:
                reason = "live"
            elif each.state is State.SEALED:
                reason = "whole in staging: a publish may be going on, or was cut off"
            elif slot.state is State.BROKEN:
                reason = "its slot is broken: recover it first"
            elif each.id in swapped:
                reason = "of a swap that was cut off"
            elif slot.is_live_too(each):
                reason = SAME_AS_LIVE
            elif each.pinned:
                reason = "pinned"
            elif each.id in needed:
                reason = "needed to undo what was done"
            else:
                continue
            found[slot.name, each.id] = reason
    return found


# ---- the order --------------------------------------------------------------------------------

_Order = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A generation that could go. `order` sorts from old to new; `lived_until` in epoch seconds.

    Two of equal order are as old as each other for all that is known.
    """

    slot: str
    generation: Generation
    order: _Order
    lived_until: float | None

    @property
    def key(self) -> tuple[str, str]:
        return self.slot, self.generation.id

    @property
    def counts(self) -> bool:
        return _is_whole(self.generation)


def _candidates(known: Known) -> Iterator[_Candidate]:
    retired_at = _retired_at(known.journal)
    for slot in known.slots:
        for each in slot.generations:
            if each.state in (State.RETIRED, State.WITHDRAWN):
                times = (retired_at.get((slot.name, each.id)), each.created_at)
                lived = max((at for at in times if at is not None), default=None)
                yield _Candidate(slot.name, each, _order(slot, each, known.journal), lived)


def _order(slot: Slot, generation: Generation, journal: Journal) -> _Order:
    lived = journal.of_slot(slot.name).lived.get(generation.id, -1)
    return lived, *age_key(slot.name, generation.step, generation.epoch)


def _retired_at(journal: Journal) -> Mapping[tuple[str, str], float]:
    return {
        (change.slot, change.before): entry.at
        for entry in journal.entries
        for change in entry.changes
        if change.before is not None and entry.verb != "prune"
    }


# ---- what always stays ------------------------------------------------------------------------


def _last_good(slots: Sequence[Slot], journal: Journal) -> Iterator[tuple[tuple[str, str], str]]:
    """The last one that is verified and finite; while none is, the last that seems whole.

    The last by the journal and the last by its step: they differ where a run went back. Of those
    that are as old as each other for all that is known, the live one.
    """
    states = (State.LIVE, State.RETIRED, State.WITHDRAWN)
    whole = [
        (slot, each)
        for slot in slots
        for each in slot.generations
        if each.state in states and _is_whole(each) and _is_finite(each)
    ]
    verified = [pair for pair in whole if _is_intact(pair[1])]
    found = verified or [pair for pair in whole if pair[1].complete] or whole
    why = "the last one that is verified" if verified else "the last whole one: none is verified"
    for by_step in (False, True):
        orders = []
        for slot, each in found:
            lived, *age = _order(slot, each, journal)
            is_live = each.state is State.LIVE
            orders.append((*age, lived, is_live) if by_step else (lived, *age, is_live))
        last = max(orders, default=None)
        for (slot, each), order in zip(found, orders, strict=True):
            if order == last:
                yield (slot.name, each.id), why


def _is_whole(generation: Generation) -> bool:
    verified = generation.verified
    is_damaged = verified is not None and verified.verdict is Verdict.DAMAGED
    is_faulty = first_error(generation.findings) is not None
    return generation.complete is not False and not is_damaged and not is_faulty


def _is_intact(generation: Generation) -> bool:
    verified = generation.verified
    if verified is None or verified.depth is not Depth.BYTES:
        return False
    return verified.verdict is Verdict.INTACT


def _is_finite(generation: Generation) -> bool:
    is_told = any(finding.code == "nonfinite" for finding in generation.findings)
    return (
        generation.finite is not False
        and not is_told
        and (generation.loss is None or math.isfinite(generation.loss))
    )


def _kept_damaged(candidate: _Candidate, policy: Policy) -> str | None:
    if candidate.counts:
        return None
    if is_unsupported(candidate.generation.findings):
        return "of a version or kind that this program does not read"
    if policy.is_damaged_too:
        return None
    return "damaged or not whole: goes only when that is asked for"


# ---- what a policy keeps ----------------------------------------------------------------------


class _Chosen:
    """Which of the generations that count a policy keeps, and why."""

    def __init__(self, policy: Policy, now: float, counted: Sequence[_Candidate]) -> None:
        self._policy, self._now = policy, now
        self._orders: dict[str, list[_Order]] = {}
        for each in counted:
            self._orders.setdefault(each.slot, []).append(each.order)
        losses = (_loss(each.generation) for each in counted)
        self._losses = sorted(loss for loss in losses if loss is not None)

    def reason(self, candidate: _Candidate) -> str | None:
        """Say why a policy keeps it, None when none does."""
        policy, generation = self._policy, candidate.generation
        if not candidate.counts:
            return None
        if policy.keeps_all:
            return "kept: no policy says otherwise"
        newer = sum(order > candidate.order for order in self._orders[candidate.slot])
        if newer < (policy.keep_last or 0):
            return f"among the last {policy.keep_last} of its slot"
        if self._rank_by_loss(generation) < (policy.keep_best or 0):
            return f"among the {policy.keep_best} with the lowest {policy.metric}"
        step = generation.step
        if policy.keep_every and step is not None and step % policy.keep_every == 0:
            return f"its step is a multiple of {policy.keep_every}"
        lived = candidate.lived_until
        if policy.keep_s and lived is not None and self._now - lived < policy.keep_s:
            return f"it was live within the last {duration(policy.keep_s)}"
        return None

    def _rank_by_loss(self, generation: Generation) -> float:
        loss = _loss(generation)
        return math.inf if loss is None else bisect_left(self._losses, loss)


def _loss(generation: Generation) -> float | None:
    loss = generation.loss
    return loss if loss is not None and math.isfinite(loss) else None


def _over_limit(
    policy: Policy, always: Iterable[Generation], by_policy: Iterable[tuple[_Candidate, str]]
) -> frozenset[tuple[str, str]]:
    """Which of the kept ones are too much, the oldest first; what always stays counts too."""
    if policy.max_bytes is None:
        return frozenset()
    oldest_first = sorted((each for each, _ in by_policy), key=lambda each: each.order)
    total = sum(each.size_bytes or 0 for each in always)
    total += sum(each.generation.size_bytes or 0 for each in oldest_first)
    over = set()
    for each in oldest_first:
        if total <= policy.max_bytes:
            break
        over.add(each.key)
        total -= each.generation.size_bytes or 0
    return frozenset(over)


def _plan(known: Known, going: Sequence[_Candidate]) -> Plan:
    plan = Plan("prune", known.run_dir, sequence=known.journal.last_sequence)
    return replace(
        plan,
        changes=tuple(Change(each.slot, each.generation.id, None) for each in going),
        removed=tuple(each.generation for each in going),
        frees_bytes=sum(each.generation.size_bytes or 0 for each in going),
    )
