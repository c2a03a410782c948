"""What tensors hold in rows: their statistics, and how two checkpoints differ."""

import math
from collections.abc import Mapping, Sequence

from ckpt.checkpoint import Severity, Tensor
from ckpt.present.rows import tensor_texts
from ckpt.present.words import Cell, Column, Row, Tone, integer, spelt
from ckpt.tensors.values import TensorStats, nonfinite_words

STATS_COLUMNS = (
    Column("tensor"),
    Column("dtype", rank=4),
    Column("shape", rank=3),
    Column("values", rank=0),
    Column("min", is_right=True, rank=1),
    Column("max", is_right=True, rank=1),
    Column("mean", is_right=True, rank=2),
    Column("norm", is_right=True, rank=1),
    Column("zeros", is_right=True, rank=2),
)
UNKNOWN = Cell("\N{EN DASH}", Tone.DIM)


def stats_rows(
    tensors: Sequence[Tensor], stats: Mapping[Tensor, TensorStats], *, ascii_only: bool = False
) -> tuple[Row, ...]:
    """One row per tensor; cells as STATS_COLUMNS, those of a tensor without statistics unknown."""
    names, dtypes, shapes, _, _ = tensor_texts(tensors)
    rows = []
    for at, tensor in enumerate(tensors):
        head = (Cell(names[at]), Cell(dtypes[at]), Cell(shapes[at]))
        cells = (*head, *_stats_cells(stats.get(tensor)))
        rows.append(Row(f"{tensor.file}:{tensor.name}", spelt(cells) if ascii_only else cells))
    return tuple(rows)


def values_cell(stats: TensorStats | None) -> Cell:
    """Whether the values of a tensor are finite, in a sign and words: `✗ 3 NaN`."""
    if stats is None:
        return UNKNOWN
    if stats.problem is not None:
        is_fault = stats.problem.severity is Severity.ERROR
        words = stats.problem.code.replace("-", " ")
        return Cell(f"✗ {words}", Tone.BAD) if is_fault else Cell(f"· {words}", Tone.DIM)
    if stats.nonfinite_count:
        return Cell(f"✗ {nonfinite_words(stats.nan_count, stats.inf_count)}", Tone.BAD)
    return Cell("✓ finite", Tone.GOOD) if stats.count else Cell("empty", Tone.DIM)


def number(value: float | None) -> str:
    """A value of a tensor in four significant digits; an integer as it is while it is short."""
    if value is None:
        return UNKNOWN.text
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if isinstance(value, int) and abs(value) < 10**9:
        return str(value)
    return f"{value:.4g}"


def _stats_cells(stats: TensorStats | None) -> tuple[Cell, ...]:
    told = stats or TensorStats()
    values = (told.minimum, told.maximum, told.mean, told.norm)
    zeros = UNKNOWN if told.zero_count is None else Cell(integer(told.zero_count))
    return (values_cell(stats), *(Cell(number(value)) for value in values), zeros)
