"""JSON documents that say what tensors hold: the statistics of `ckpt show`, and `ckpt diff`.

As in `shapes`: keys are only ever added, and what comes out holds only what strict JSON can hold.
"""

from collections.abc import Mapping
from typing import Any

from ckpt.checkpoint import Checkpoint, Tensor, TensorStats
from ckpt.present.shapes import findings_json, show_json
from ckpt.present.words import jsonable
from ckpt.tensors.values import Difference, Reshaped, Update

Json = dict[str, Any]


def show_stats_json(checkpoint: Checkpoint, stats: Mapping[Tensor, TensorStats]) -> Json:
    """`ckpt.show/1` with `stats` in each tensor; null where nothing was computed."""
    document = show_json(checkpoint)
    for tensor, shape in zip(checkpoint.tensors, document["tensors"], strict=True):
        shape["stats"] = stats_json(stats.get(tensor))
    return document


def stats_json(stats: TensorStats | None) -> Json | None:
    """The statistics of one tensor; min and max of integers are exact."""
    if stats is None or stats.problem is not None:
        return None
    return {
        "finite": stats.finite,
        "count": stats.count,
        "nan_count": stats.nan_count,
        "inf_count": stats.inf_count,
        "zero_count": stats.zero_count,
        "min": jsonable(stats.minimum),
        "max": jsonable(stats.maximum),
        "mean": jsonable(stats.mean),
        "norm": jsonable(stats.norm),
    }


def diff_json(difference: Difference, *, with_same: bool = False) -> Json:
    """`ckpt.diff/1`; `with_same` names the tensors that are identical, too.

    `changed` has those of another shape last, with `relative_update` null. That is null also where
    the tensor held zeros before: then `norm_before` is 0. Values that are not finite are left out
    of all numbers and counted in `nonfinite`.
    """
    changed = [_update(each) for each in difference.changed]
    return {
        "schema": "ckpt.diff/1",
        "a": jsonable(difference.a),
        "b": jsonable(difference.b),
        "added": jsonable(difference.added),
        "removed": jsonable(difference.removed),
        "changed": changed + [_reshaped(each) for each in difference.reshaped],
        "same_count": len(difference.same),
        "metadata": {
            str(jsonable(key)): jsonable(values) for key, values in difference.metadata.items()
        },
        "same": jsonable(difference.same) if with_same else None,
        "files": {str(jsonable(name)): list(sizes) for name, sizes in difference.files.items()},
        "uncompared": jsonable(difference.uncompared),
        "findings": findings_json(difference.findings),
    }


def _update(update: Update) -> Json:
    kind = "updated" if update.before == update.after else "retyped"
    return {
        **_form(update, kind),
        "relative_update": jsonable(update.relative_update),
        "max_abs": jsonable(update.max_abs),
        "norm_before": jsonable(update.norm_before),
        "norm_update": jsonable(update.norm_update),
        "nonfinite": [update.nonfinite_before, update.nonfinite_after],
        "is_moment": update.is_moment,
    }


def _reshaped(reshaped: Reshaped) -> Json:
    kind = "reshaped" if reshaped.before.shape != reshaped.after.shape else "retyped"
    nothing = (
        "relative_update",
        "max_abs",
        "norm_before",
        "norm_update",
        "nonfinite",
        "is_moment",
    )
    return {**_form(reshaped, kind), **dict.fromkeys(nothing)}


def _form(change: Update | Reshaped, kind: str) -> Json:
    before, after = change.before, change.after
    return {
        "name": jsonable(change.name),
        "file": jsonable(change.file),
        "kind": kind,
        "dtype": jsonable(after.dtype),
        "shape": list(after.shape),
        "before": {"dtype": jsonable(before.dtype), "shape": list(before.shape)},
    }
