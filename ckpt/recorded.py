"""Statistics of tensors as a manifest records them: computed at a save, told without reading.

What stands there is checked by hand and kept as it is, because lists of a thousand manifests need
no more of it than whether all was finite. Pure.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from ckpt.checkpoint import Finding, Severity, Tensor, TensorStats

Recorded: TypeAlias = Mapping[str, Any]
"""By tensor: {"nan", "inf", "zeros", "min", "max", "mean", "norm"}, null where there is none."""

_COUNTS = ("nan", "inf", "zeros")
_NUMBERS = ("min", "max", "mean", "norm")
_FIELDS = itemgetter(*_COUNTS, *_NUMBERS)
_LEAST, _MOST = -(1 << 63), 1 << 64  # what integers of tensors lie between
_MOST_NAMES = 3
_MOST_NAME = 60


def record_of(stats: Mapping[str, TensorStats]) -> Recorded:
    """Return statistics as a manifest holds them: integers exact, others to nine digits.

    So many tell any two F32 apart; longer ones take three times as long to be read.
    """
    return {
        name: {
            "nan": each.nan_count,
            "inf": each.inf_count,
            "zeros": each.zero_count,
            "min": _short(each.minimum),
            "max": _short(each.maximum),
            "mean": _short(each.mean),
            "norm": _short(each.norm),
        }
        for name, each in sorted(stats.items())
    }


def problem_of(recorded: Any, tensors: Collection[str]) -> str | None:
    """Say why what a manifest holds cannot be statistics of these tensors; None: it can."""
    if type(recorded) is not dict:
        return f"expected an object, found {recorded!r:.60}"
    known = frozenset(tensors)
    for name, each in recorded.items():
        if name not in known:
            return f"{name!r:.60}: no tensor that the manifest lists"
        if not _is_usual(each) and (problem := _fault_of(each)) is not None:
            return f"{name!r:.60}: {problem}"
    return None


def is_finite(recorded: Recorded) -> bool | None:
    """Whether every value was finite; None where nothing is recorded."""
    if not recorded:
        return None
    return not any(each["nan"] or each["inf"] for each in recorded.values())


def nonfinite(recorded: Recorded, file: str) -> Finding | None:
    """Return the warning that names the tensors with values that are not finite, if there are any.

    `file` is where it is recorded.
    """
    hurt = {name: each for name, each in recorded.items() if each["nan"] or each["inf"]}
    if not hurt:
        return None
    keys = (("NaN", "nan"), ("Inf", "inf"))
    kinds = [kind for kind, key in keys if any(each[key] for each in hurt.values())]
    plural = "" if len(hurt) == 1 else "s"
    named = ", ".join(name[:_MOST_NAME] for name in list(hurt)[:_MOST_NAMES])
    more = f" and {len(hurt) - _MOST_NAMES:,} more" if len(hurt) > _MOST_NAMES else ""
    text = (
        f"holds {' and '.join(kinds)} in {len(hurt):,} tensor{plural}, "
        f"as recorded when it was saved: {named}{more}"
    )
    only = next(iter(hurt)) if len(hurt) == 1 else None
    return Finding("nonfinite", Severity.WARNING, text, file, only)


def stats_of(tensors: Sequence[Tensor], recorded: Recorded) -> Mapping[Tensor, TensorStats]:
    """Return what is recorded of tensors whose header is sound, as statistics.

    Left out is what no tensor of that shape can have: more zeros than values.
    """
    return dict(_fitting(tensors, recorded))


def _fitting(
    tensors: Sequence[Tensor], recorded: Recorded
) -> Iterator[tuple[Tensor, TensorStats]]:
    for tensor in tensors:
        each = recorded.get(tensor.name)
        if each is None:
            continue
        count = math.prod(tensor.shape)
        counts = [each[key] for key in _COUNTS]
        if sum(counts) <= count:
            yield tensor, TensorStats(count, *counts, *(each.get(key) for key in _NUMBERS))


def _is_usual(each: Any) -> bool:
    """Whether it is sound at first sight: of a thousand manifests with hundreds all are."""
    try:
        nan, inf, zeros, low, high, mean, norm = _FIELDS(each)
    except (KeyError, TypeError):
        return False
    return (
        type(nan) is type(inf) is type(zeros) is int
        and 0 <= nan < _MOST
        and 0 <= inf < _MOST
        and 0 <= zeros < _MOST
        and type(low) is type(high) is type(mean) is type(norm) is float
        and math.isfinite(low + high + mean + norm)  # it is not when one of them is not
    )


def _fault_of(each: Any) -> str | None:
    if type(each) is not dict:
        return f"expected an object, found {each!r:.60}"
    for key in _COUNTS:
        count = each.get(key)
        if type(count) is not int or not 0 <= count < _MOST:
            return f"{key}: expected a count, found {count!r:.60}"
    for key in _NUMBERS:
        number = each.get(key)
        if number is not None and not _is_number(number):
            return f"{key}: expected a finite number, found {number!r:.60}"
    return None


def _short(number: float | None) -> float | None:
    if number is None or type(number) is int:
        return number
    return float(f"{number:.9g}") if math.isfinite(number) else None


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return _LEAST <= value < _MOST
    return type(value) is float and math.isfinite(value)
