"""JSON documents of the `ckpt` command: keys, their order and their units are other people's API.

Every key is always there, null when unknown; keys are only ever added. What comes out holds only
what strict JSON can hold.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt.checkpoint import (
    Checkpoint,
    FileEntry,
    Finding,
    Generation,
    Leftover,
    Report,
    Slot,
    Tensor,
    worst_verdict,
)
from ckpt.errors import CheckpointError
from ckpt.present.words import iso_time, jsonable

if TYPE_CHECKING:
    from ckpt.generations import Plan
    from ckpt.reflog import Change, Journal
    from ckpt.retention import Kept
    from ckpt.series import SeriesView
    from ckpt.view import Advice, RunView, Source, Warned

Json = dict[str, Any]


def status_json(view: "RunView", *, series: bool = False) -> Json:
    """`ckpt.status/1`; with `series` every point too, as [segment, step, value or null]."""
    document: Json = {
        "schema": "ckpt.status/1",
        "run": jsonable(view.run),
        "health": {"state": view.health.state.value, "reasons": jsonable(view.health.reasons)},
        "step": view.step,
        "total_steps": view.total_steps,
        "epoch": jsonable(view.epoch),
        "loss": jsonable(view.loss),
        "loss_nonfinite": view.loss_nonfinite,
        "loss_trend": jsonable(view.loss_trend),
        "eval_loss": jsonable(view.eval_loss),
        "best_loss": jsonable(view.best_loss),
        "best_step": view.best_step,
        "learning_rate": jsonable(view.learning_rate),
        "grad_norm": jsonable(view.grad_norm),
        "steps_per_second": jsonable(view.steps_per_second),
        "eta_seconds": jsonable(view.eta_seconds),
        "eta_error_seconds": jsonable(view.eta_error_seconds),
        "updated_at": iso_time(view.updated_at),
        "sources": [_source(source) for source in view.sources],
        "values_from": jsonable(view.values_from),
        "points": view.points,
        "segments": [
            {
                "first_step": segment.first_step,
                "last_step": segment.last_step,
                "source": jsonable(segment.source),
            }
            for segment in view.segments
        ],
        "task": jsonable(view.task),
        "watching": {"mode": view.watching.mode, "reason": jsonable(view.watching.reason)},
        "slots": [_slot(slot) for slot in view.slots],
        "newest_verified": jsonable(view.newest_verified),
        "at_risk": {
            "steps": view.at_risk.steps,
            "seconds": jsonable(view.at_risk.seconds),
        },
        "disk": {
            "free_bytes": view.disk.free_bytes,
            "save_bytes": view.disk.save_bytes,
            "saves_left": view.disk.saves_left,
        },
        "advice": None if view.advice is None else _advice(view.advice),
        "warnings": [_warning(warned) for warned in view.warnings],
        "gpus": [],
        "cause_of_death": None,
    }
    if series:
        document["series"] = {
            str(jsonable(name)): _points(points) for name, points in view.series.items()
        }
    return document


def list_json(run: Path, slots: Iterable[Slot]) -> Json:
    """`ckpt.list/1`."""
    return {
        "schema": "ckpt.list/1",
        "run": jsonable(run),
        "slots": [_slot(slot) for slot in slots],
    }


def show_json(checkpoint: Checkpoint) -> Json:
    """`ckpt.show/1`."""
    return {
        "schema": "ckpt.show/1",
        "path": jsonable(checkpoint.path),
        "format": checkpoint.format,
        "format_label": checkpoint.format_label,
        "step": checkpoint.step,
        "epoch": jsonable(checkpoint.epoch),
        "complete": checkpoint.complete,
        "files": [_file(entry) for entry in checkpoint.files],
        "tensors": _tensors(checkpoint.tensors),
        "metadata": jsonable(checkpoint.metadata),
        "settings": jsonable(checkpoint.settings),
        "findings": _findings(checkpoint.findings),
    }


def verify_json(reports: Iterable[Report], *, is_single: bool) -> Json:
    """`ckpt.verify/1`: one report's own keys, or the worst verdict and all reports."""
    shaped = [(report, _report(report)) for report in reports]
    if is_single:
        [(_, only)] = shaped
        return {"schema": "ckpt.verify/1", **only}
    return {
        "schema": "ckpt.verify/1",
        "verdict": worst_verdict(report.verdict for report, _ in shaped).value,
        "reports": [shape for _, shape in shaped],
    }


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
        "target": None if plan.target is None else _generation(plan.target),
        "removed": [_generation(gone) for gone in plan.removed],
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
        "findings": _findings(journal.findings),
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


def error_json(error: CheckpointError) -> Json:
    """`ckpt.error/1`."""
    return {
        "schema": "ckpt.error/1",
        "code": error.code,
        "message": jsonable(error.message),
        "path": jsonable(error.path),
        "hint": jsonable(error.hint),
    }


def _report(report: Report) -> Json:
    return {
        "path": jsonable(report.path),
        "format": report.format or None,
        "depth": report.depth.name.lower(),
        "verdict": report.verdict.value,
        "findings": _findings(report.findings),
        "bytes_read": report.bytes_read,
        "seconds": jsonable(report.seconds),
    }


def _slot(slot: Slot) -> Json:
    return {
        "name": jsonable(slot.name),
        "format": slot.format,
        "path": jsonable(slot.path),
        "state": slot.state.value,
        "generations": [_generation(generation) for generation in slot.generations],
        "leftovers": [_leftover(leftover) for leftover in slot.leftovers],
        "findings": _findings(slot.findings),
    }


def _generation(generation: Generation) -> Json:
    verified = generation.verified
    return {
        "id": jsonable(generation.id),
        "state": generation.state.value,
        "format": generation.format,
        "path": jsonable(generation.path),
        "step": generation.step,
        "epoch": jsonable(generation.epoch),
        "loss": jsonable(generation.loss),
        "created_at": iso_time(generation.created_at),
        "size_bytes": generation.size_bytes,
        "file_count": generation.file_count,
        "tensor_count": generation.tensor_count,
        "verified": None
        if verified is None
        else {
            "verdict": verified.verdict.value,
            "depth": verified.depth.name.lower(),
            "at": iso_time(verified.at),
        },
        "pinned": generation.pinned,
        "complete": generation.complete,
        "findings": _findings(generation.findings),
    }


def _leftover(leftover: Leftover) -> Json:
    return {
        "path": jsonable(leftover.path),
        "kind": leftover.kind,
        "reason": jsonable(leftover.reason),
    }


def _changes(changes: "Iterable[Change]") -> list[Json]:
    return [
        {"slot": jsonable(each.slot), "from": jsonable(each.before), "to": jsonable(each.after)}
        for each in changes
    ]


def _findings(findings: Iterable[Finding]) -> list[Json]:
    return [
        {
            "code": finding.code,
            "severity": finding.severity.value,
            "file": jsonable(finding.file),
            "tensor": jsonable(finding.tensor),
            "message": jsonable(finding.message),
            "hint": jsonable(finding.hint),
        }
        for finding in findings
    ]


def _file(entry: FileEntry) -> Json:
    return {
        "name": jsonable(entry.name),
        "size_bytes": entry.size_bytes,
        "sha256": entry.sha256,
        "listed": entry.listed,
    }


def _tensors(tensors: Sequence[Tensor]) -> list[Json]:
    spelt = {text: jsonable(text) for tensor in tensors for text in (tensor.dtype, tensor.file)}
    return [
        {
            "name": name if name.isascii() else jsonable(name),
            "dtype": spelt[dtype],
            "shape": list(shape),
            "size_bytes": size_bytes,
            "file": spelt[file],
        }
        for name, dtype, shape, size_bytes, file, _start, _end in tensors
    ]


def _advice(advice: "Advice") -> Json:
    return {"code": advice.code, "message": jsonable(advice.message), "key": advice.key}


def _warning(warned: "Warned") -> Json:
    return {
        "code": warned.code,
        "message": jsonable(warned.message),
        "path": jsonable(warned.path),
    }


def _source(source: "Source") -> Json:
    return {
        "path": jsonable(source.path),
        "kind": source.kind,
        "modified_at": iso_time(source.modified_at),
        "read_at": iso_time(source.read_at),
        "error": jsonable(source.error),
    }


def _points(points: "SeriesView") -> list[list[Any]]:
    return [[point.segment, point.step, jsonable(point.value)] for point in points]
