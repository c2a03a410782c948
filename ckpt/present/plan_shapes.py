"""JSON documents of what is done to a run: plans, the journal, pins, guards, self-tests.

The rules are those of `shapes`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt.present.shapes import Json, findings_json, generation_json
from ckpt.present.words import iso_time, jsonable

if TYPE_CHECKING:
    from ckpt.generations import Plan
    from ckpt.reflog import Change, Journal
    from ckpt.retention import Kept
    from ckpt.selftest import SelfTest


def plan_json(plan: "Plan", kept: "Sequence[Kept]" = ()) -> Json:
    """`ckpt.plan/1`, of what is only planned.

    Of a prune each of `changes` has what goes at the same place in `removed`, and `kept` says what
    stays.
    """
    return {
        "schema": "ckpt.plan/1",
        "verb": plan.verb,
        "run": jsonable(plan.run_dir),
        "changes": _changes(plan.changes),
        "given_up": {"steps": plan.steps_given_up, "seconds": jsonable(plan.seconds_given_up)},
        "warnings": jsonable(plan.warnings),
        "frees_bytes": plan.frees_bytes,
        "done": False,
        "target": None if plan.target is None else generation_json(plan.target),
        "removed": [generation_json(gone) for gone in plan.removed],
        "undoes": plan.undoes,
        "sequence": None,
        "told": [],
        "kept": [
            {
                "slot": jsonable(each.slot),
                "generation": jsonable(each.generation.id),
                "reason": jsonable(each.reason),
            }
            for each in kept
        ],
    }


def done_json(
    plan: "Plan",
    *,
    sequence: int | None = None,
    changes: "Sequence[Change] | None" = None,
    told: Sequence[str] = (),
    kept: "Sequence[Kept]" = (),
) -> Json:
    """`ckpt.plan/1`, of what was done.

    `sequence` is the entry of the journal that the plan became, `told` what was said while it was
    carried out; `changes` are those that were made, where they may differ from the planned ones.
    """
    made = plan.changes if changes is None else changes
    return {
        **plan_json(plan, kept),
        "changes": _changes(made),
        "done": True,
        "sequence": sequence,
        "told": jsonable(told),
    }


def log_json(run: Path, journal: "Journal") -> Json:
    """`ckpt.log/1`: one entry per slot that was changed, in the order in which it was done.

    What changed several slots at once stands under one `sequence` several times.
    """
    return {
        "schema": "ckpt.log/1",
        "run": jsonable(run),
        "entries": [
            {
                "sequence": entry.sequence,
                "at": iso_time(entry.at),
                "verb": jsonable(entry.verb),
                "slot": jsonable(change.slot),
                "from": jsonable(change.before),
                "to": jsonable(change.after),
                "by": jsonable(entry.by),
                "done": entry.outcome == "done",
                "undone_by": entry.undone_by,
                "undoes": entry.undoes,
                "outcome": None if entry.outcome is None else entry.outcome.value,
            }
            for entry in journal.entries
            for change in entry.changes
        ],
        "findings": findings_json(journal.findings),
    }


def pin_json(run: Path, slots: Sequence[str], generation: str, *, pinned: bool) -> Json:
    """`ckpt.pin/1`: a generation, the slots behind which it lies, whether it is pinned now."""
    return {
        "schema": "ckpt.pin/1",
        "run": jsonable(run),
        "slots": jsonable(slots),
        "generation": jsonable(generation),
        "pinned": pinned,
    }


def guard_json(run: Path, kept: int, told: Sequence[str]) -> Json:
    """`ckpt.guard/1`: how many generations were kept until it was stopped, and what was said."""
    return {"schema": "ckpt.guard/1", "run": jsonable(run), "kept": kept, "told": jsonable(told)}


def selftest_json(result: "SelfTest") -> Json:
    """`ckpt.selftest/1`; `holds` is null for what is merely reported."""
    return {
        "schema": "ckpt.selftest/1",
        "path": jsonable(result.path),
        "cases": result.cases,
        "seconds": jsonable(result.seconds),
        "promises": [
            {
                "code": promise.code,
                "holds": promise.holds,
                "cases": promise.cases,
                "detail": jsonable(promise.detail),
            }
            for promise in result.promises
        ],
    }


def _changes(changes: "Iterable[Change]") -> list[Json]:
    return [
        {"slot": jsonable(each.slot), "from": jsonable(each.before), "to": jsonable(each.after)}
        for each in changes
    ]
