"""JSON documents that say what tensors hold: the statistics of `ckpt show`, and `ckpt diff`.

As in `shapes`: keys are only ever added, and what comes out holds only what strict JSON can hold.
"""

from collections.abc import Mapping
from typing import Any

from ckpt.checkpoint import Checkpoint, Tensor
from ckpt.present.shapes import show_json
from ckpt.present.words import jsonable
from ckpt.tensors.values import TensorStats

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
