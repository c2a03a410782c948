"""What reading tensors tells: pure values, made without numpy and shown without it."""

from collections.abc import Iterable
from dataclasses import dataclass

from ckpt.checkpoint import Finding, Severity, Tensor


@dataclass(frozen=True, slots=True)
class TensorStats:
    """What the values of one tensor are like; complex numbers count by their magnitude.

    `count` is how many values there are; `minimum`, `maximum`, `mean` and `norm` (L2) are of the
    finite ones, None when there is none. Those of integers are exact but for mean and norm, and
    those of BOOL are 0 and 1. Every number is None when nothing was computed: `problem` says why.
    """

    count: int | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    norm: float | None = None
    problem: Finding | None = None

    @property
    def nonfinite_count(self) -> int | None:
        """How many values are NaN or infinite."""
        if self.nan_count is None or self.inf_count is None:
            return None
        return self.nan_count + self.inf_count

    @property
    def finite(self) -> bool | None:
        """Whether every value is finite; None when nothing was computed."""
        count = self.nonfinite_count
        return None if count is None else count == 0


def stats_findings(stats: Iterable[tuple[Tensor, TensorStats]]) -> tuple[Finding, ...]:
    """Return a warning for each tensor that is not finite, and why nothing was computed of others.

    What several tensors of a file suffer from is told once.
    """
    found = (stats_finding(tensor, each) for tensor, each in stats)
    return tuple(dict.fromkeys(finding for finding in found if finding is not None))


def stats_finding(tensor: Tensor, stats: TensorStats) -> Finding | None:
    """Return what is wrong with one tensor by its statistics, None when nothing is."""
    if stats.problem is not None or not stats.nonfinite_count:
        return stats.problem
    text = (
        f"{tensor.file}: {tensor.name}: {nonfinite_words(stats.nan_count, stats.inf_count)}"
        f" of {stats.count:,} values"
    )
    return Finding("nonfinite", Severity.WARNING, text, tensor.file, tensor.name)


def nonfinite_words(nan_count: int | None, inf_count: int | None) -> str:
    """Say how many values are not finite: `3 NaN, 1 Inf`."""
    counts = ((nan_count, "NaN"), (inf_count, "Inf"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count)
