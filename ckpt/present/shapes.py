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
    from ckpt.generations.sealing import Sealed
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
        "findings": findings_json(checkpoint.findings),
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


def seal_json(path: Path, sealed: "Sealed") -> Json:
    """`ckpt.seal/1`; `sealed` is false where the format records hashes of its own."""
    seal = sealed.seal
    return {
        "schema": "ckpt.seal/1",
        "path": jsonable(path),
        "run": jsonable(sealed.run_dir),
        "format": sealed.format,
        "sealed": seal is not None,
        "generation": jsonable(seal.generation) if seal is not None else None,
        "at": iso_time(seal.at) if seal is not None else None,
        "seal": jsonable(sealed.written) if sealed.written is not None else None,
        "files": [
            {"name": jsonable(name), "size_bytes": file.size_bytes, "sha256": file.sha256}
            for name, file in (seal.files.items() if seal is not None else ())
        ],
        "bytes_read": sealed.bytes_read,
        "seconds": jsonable(sealed.seconds),
    }


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
        "findings": findings_json(report.findings),
        "bytes_read": report.bytes_read,
        "seconds": jsonable(report.seconds),
        "damage": [
            {
                "file": jsonable(each.file),
                "ranges": [list(extent) for extent in each.ranges],
                "tensors": jsonable(each.tensors),
                "tensor_count": each.tensor_count,
                "proven_count": each.proven_count,
                "located": each.is_located,
            }
            for each in report.damage
        ],
        "sealed_at": iso_time(report.sealed_at),
    }


def _slot(slot: Slot) -> Json:
    return {
        "name": jsonable(slot.name),
        "format": slot.format,
        "path": jsonable(slot.path),
        "state": slot.state.value,
        "generations": [generation_json(generation) for generation in slot.generations],
        "leftovers": [_leftover(leftover) for leftover in slot.leftovers],
        "findings": findings_json(slot.findings),
    }


def generation_json(generation: Generation) -> Json:
    """One generation, as in every document that names one."""
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
        "findings": findings_json(generation.findings),
        "finite": generation.finite,
    }


def _leftover(leftover: Leftover) -> Json:
    return {
        "path": jsonable(leftover.path),
        "kind": leftover.kind,
        "reason": jsonable(leftover.reason),
    }


def findings_json(findings: Iterable[Finding]) -> list[Json]:
    """Findings, as in every document that has some."""
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
