"""What changed from one checkpoint to another, read side by side in constant memory."""

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt.checkpoint import Checkpoint, Finding, Severity, worst_first
from ckpt.operation import Found, Operation, Progress
from ckpt.tensorfile import header_of
from ckpt.tensors.pairing import Pair, Side, is_moments, metadata_changes, pair
from ckpt.tensors.payload import Payload, Place, moved, unreadable
from ckpt.tensors.values import Difference, Form, Reshaped, Update

if TYPE_CHECKING:
    from ckpt.tensors.deltas import Delta
    from ckpt.tensors.working import Workers


def diff(
    a: Checkpoint,
    b: Checkpoint,
    *,
    places_a: Sequence[Place] = (),
    places_b: Sequence[Place] = (),
) -> Operation[Difference]:
    """Compare all tensors of two checkpoints, an optimizer's too, and what else they say.

    `places_a` and `places_b` are the directories that the files of each lie in; by default what
    its path says. Nothing is raised for what cannot be read: findings say what was not compared.
    """
    from ckpt.tensors.files import other_files
    from ckpt.tensors.working import Workers

    with Payload(a, places_a) as from_a, Payload(b, places_b) as from_b, Workers() as workers:
        reading = _Reading(from_a, from_b, workers)
        for each in (*a.findings, *b.findings):
            if each.severity is Severity.ERROR:
                reading.findings.append(each)
        before, after = (_side(a, from_a, reading.findings), _side(b, from_b, reading.findings))
        reading.moments = after.moments
        paired = pair(before, after)
        others = other_files(a, b, before.files | after.files)
        reshaped = [each for each in paired.pairs if not _can_be_compared(each)]
        compared = [each for each in paired.pairs if _can_be_compared(each)]
        reading.total_bytes = others.total_bytes + sum(
            each.a.size_bytes + each.b.size_bytes for each in compared
        )
        for files, pairs in _by_files(compared).items():
            yield from _compare_files(reading, files, pairs)
        for name, size_bytes in others.read(from_a, from_b, workers):
            reading.done_bytes += size_bytes
            yield Progress(reading.done_bytes, reading.total_bytes, name)
        reading.uncompared += others.problems
        reading.findings += others.problems.values()
    for finding in worst_first(reading.findings):
        yield Found(finding)
    return Difference(
        a.path,
        b.path,
        tuple(sorted(reading.changed, key=_widest_first)),
        tuple(_reshaped(each) for each in reshaped),
        paired.added,
        paired.removed,
        tuple(reading.same),
        tuple(reading.uncompared),
        metadata_changes(a, b),
        others.differing,
        worst_first(reading.findings),
    )


@dataclass(slots=True)
class _Reading:
    """How far a comparison is, and what it has found."""

    from_a: Payload
    from_b: Payload
    workers: "Workers"
    moments: frozenset[str] = frozenset()
    total_bytes: int = 0
    done_bytes: int = 0
    changed: list[Update] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def give_up(self, pair_: Pair, problem: Finding) -> None:
        """Nothing can be said of this pair."""
        self.uncompared.append(pair_.name)
        self.findings.append(problem)

    def add(self, update: Update) -> None:
        """Keep how far a tensor moved; values that are not finite are told."""
        self.changed.append(update)
        before, after = update.nonfinite_before, update.nonfinite_after
        if before or after:
            place = f"{update.file}: {update.name}"
            text = f"{place}: {after:,} values not finite, {before:,} before"
            found = Finding("nonfinite", Severity.WARNING, text, update.file, update.name)
            self.findings.append(found)


# ---- what is compared -------------------------------------------------------------------------


def _side(checkpoint: Checkpoint, payload: Payload, findings: list[Finding]) -> Side:
    """Return the tensors of a checkpoint, with those that an optimizer keeps in files beside."""
    tensors = list(checkpoint.tensors)
    known = {tensor.file for tensor in tensors}
    moments = set()
    for entry in checkpoint.files:
        if entry.size_bytes is None or entry.name in known or not is_moments(entry.name):
            continue
        try:
            with payload.open(entry.name) as file:
                header = header_of(file, entry.name)
        except OSError as error:
            findings.append(unreadable(error, entry.name))
            continue
        moments.add(entry.name)
        tensors += header.tensors
        findings += header.findings
    return Side(tuple(tensors), checkpoint.generation, frozenset(moments))


def _can_be_compared(each: Pair) -> bool:
    from ckpt.numbers.decoding import is_decoded

    if each.a.shape != each.b.shape:
        return False
    dtypes = {each.a.dtype, each.b.dtype}
    return len(dtypes) == 1 or ("C64" not in dtypes and all(map(is_decoded, dtypes)))


def _reshaped(each: Pair) -> Reshaped:
    before, after = Form(each.a.dtype, each.a.shape), Form(each.b.dtype, each.b.shape)
    return Reshaped(each.name, each.b.file, before, after)


def _by_files(pairs: Iterable[Pair]) -> dict[tuple[str, str], list[Pair]]:
    grouped: dict[tuple[str, str], list[Pair]] = {}
    for each in pairs:
        grouped.setdefault((each.a.file, each.b.file), []).append(each)
    return grouped


def _widest_first(update: Update) -> tuple[bool, float, str]:
    relative = update.relative_update
    return (
        update.nonfinite_after <= update.nonfinite_before,
        -math.inf if relative is None else -relative,
        update.name,
    )


# ---- reading ----------------------------------------------------------------------------------


def _compare_files(
    reading: _Reading, files: tuple[str, str], pairs: Sequence[Pair]
) -> Operation[None]:
    """Compare the pairs that lie in the same two files, and say of each what was found."""
    from ckpt.tensors.comparing import Comparison

    sides = (
        (reading.from_a, files[0], [each.a for each in pairs]),
        (reading.from_b, files[1], [each.b for each in pairs]),
    )
    with ExitStack() as stack:
        opened = []
        for payload, name, tensors in sides:
            try:
                file = stack.enter_context(payload.open(name))
                opened.append((file, moved(file, tensors, name)))
            except OSError as error:
                for each in pairs:
                    reading.give_up(each, unreadable(error, name))
                return
        (a, gone_a), (b, gone_b) = opened
        comparison = Comparison(a, b)
        for each in pairs:
            comparison.admit(each, gone_a, gone_b)
        for name, size_bytes in comparison.read(reading.workers):
            reading.done_bytes += size_bytes
            yield Progress(reading.done_bytes, reading.total_bytes, name)
    for each, delta in comparison.deltas.items():
        problem = comparison.problems.get(each)
        if problem is not None:
            reading.give_up(each, problem)
        elif not delta.is_different and each.a.dtype == each.b.dtype:
            reading.same.append(each.name)
        else:
            is_moment = each.b.file in reading.moments
            reading.add(_update(each, delta, is_moment=is_moment))


def _update(each: Pair, delta: "Delta", *, is_moment: bool) -> Update:
    from ckpt.numbers.decoding import is_decoded

    is_known = is_decoded(each.a.dtype)
    return Update(
        each.name,
        each.b.file,
        Form(each.a.dtype, each.a.shape),
        Form(each.b.dtype, each.b.shape),
        delta.update.root_over(delta.before) if is_known else None,
        delta.before.root() if is_known else None,
        delta.update.root() if is_known else None,
        delta.largest if is_known else None,
        delta.nonfinite_before,
        delta.nonfinite_after,
        is_moment,
    )
