"""What reading tensors tells: pure values, made without numpy and shown without it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ckpt.checkpoint import NOTHING, Finding, Severity, Tensor, TensorStats


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


class Form(NamedTuple):
    """What a tensor is, whatever its values are."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """How far the values of one tensor moved; those that are not finite on a side are left out.

    `name` is the same in both checkpoints, `file` is where it lies in the second.
    `relative_update` is the norm (L2) of the update over that of the values before, infinite when
    they were zeros; `max_abs` is the farthest that one value moved (of a complex number: one of
    its parts). All four are None when the values cannot be told, as F6's, though the bytes differ.
    `is_moment`: the tensor is an optimizer's.
    """

    name: str
    file: str
    before: Form
    after: Form
    relative_update: float | None = None
    norm_before: float | None = None
    norm_update: float | None = None
    max_abs: float | None = None
    nonfinite_before: int = 0
    nonfinite_after: int = 0
    is_moment: bool = False


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A tensor whose shape is another one now, or whose dtypes cannot be compared."""

    name: str
    file: str
    before: Form
    after: Form


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from one checkpoint to another.

    `changed` begins with what is not finite any more, then the largest relative update. `same` are
    the tensors whose bytes are identical. Where two files of a checkpoint hold a tensor of one
    name, and in an optimizer's file, a name has its file before it (`optimizer:exp_avg.w`).
    `metadata` has every value that differs, None standing for one that is not there; nested keys
    are joined by dots, and what a trainer was set to begins with `settings.`. `files` has the
    sizes of those without tensors, as an optimizer's pickle, whose bytes differ or that one side
    lacks (None). `uncompared` are tensors and files that could not be read. `findings` tell why,
    of values that are not finite, and of errors in either checkpoint.
    """

    a: Path
    b: Path
    changed: tuple[Update, ...] = ()
    reshaped: tuple[Reshaped, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    metadata: Mapping[str, tuple[Any, Any]] = field(default_factory=lambda: NOTHING)
    files: Mapping[str, tuple[int | None, int | None]] = field(default_factory=lambda: NOTHING)
    findings: tuple[Finding, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether all that was compared is the same."""
        return not (
            self.changed
            or self.reshaped
            or self.added
            or self.removed
            or self.metadata
            or self.files
        )
