"""What tensors hold in rows: their statistics, and how two checkpoints differ."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ckpt.checkpoint import Severity, Tensor, TensorStats
from ckpt.present.rows import shape_words, tensor_texts
from ckpt.present.words import (
    Cell,
    Column,
    Row,
    Tone,
    integer,
    jsonable,
    shorten,
    size,
    spelt,
    visible,
)
from ckpt.tensors.values import (
    Difference,
    Form,
    Reshaped,
    Update,
    nonfinite_words,
)

BAR_WIDTH = 16
NAME_WIDTH = 28  # where the middle goes, names of one layer look like those of another
STATS_COLUMNS = (
    Column("tensor", least=NAME_WIDTH),
    Column("dtype", rank=4),
    Column("shape", rank=3),
    Column("values", rank=0),
    Column("min", is_right=True, rank=1),
    Column("max", is_right=True, rank=1),
    Column("mean", is_right=True, rank=2),
    Column("norm", is_right=True, rank=1),
    Column("zeros", is_right=True, rank=2),
)
CHANGE_COLUMNS = (
    Column("tensor", least=NAME_WIDTH),
    Column("update", rank=1, least=BAR_WIDTH),
    Column("relative", is_right=True),
    Column("max change", is_right=True, rank=2),
    Column("dtype", rank=4),
    Column("shape", rank=3),
)
SAID_COLUMNS = (Column("key"), Column("before"), Column("after"))
LONGEST_VALUE = 60
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
        return "inf" if value > 0 else "-inf"
    if isinstance(value, int) and abs(value) < 10**9:
        return str(value)
    return f"{value:.4g}"


def _stats_cells(stats: TensorStats | None) -> tuple[Cell, ...]:
    told = stats or TensorStats()
    values = (told.minimum, told.maximum, told.mean, told.norm)
    zeros = UNKNOWN if told.zero_count is None else Cell(integer(told.zero_count))
    return (values_cell(stats), *(Cell(number(value)) for value in values), zeros)


# ---- a difference -----------------------------------------------------------------------------


def change_rows(difference: Difference, *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per tensor that is not the same any more; cells as CHANGE_COLUMNS.

    First those whose values moved, the farthest first, with a bar as long as the relative update
    beside the largest of the weights, or of the optimizer's moments; then those of another shape,
    the added and the removed. The key is the tensor's name.
    """
    widest = {is_moment: _widest(difference, is_moment=is_moment) for is_moment in (False, True)}
    rows = [
        Row(each.name, _update_cells(each, widest[each.is_moment])) for each in difference.changed
    ]
    rows += [Row(each.name, _reshaped_cells(each)) for each in difference.reshaped]
    rows += [Row(name, _only_cells(name, "added", Tone.GOOD)) for name in difference.added]
    rows += [Row(name, _only_cells(name, "removed", Tone.WARN)) for name in difference.removed]
    if ascii_only:
        return tuple(Row(row.key, spelt(row.cells)) for row in rows)
    return tuple(rows)


def said_rows(difference: Difference, *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per value of metadata and settings, and per file, that differs; as SAID_COLUMNS."""
    rows = [
        Row(key, (Cell(visible(key)), _said(before), _said(after)))
        for key, (before, after) in difference.metadata.items()
    ]
    for name, sizes in difference.files.items():
        told = [
            Cell("not there", Tone.DIM) if each is None else Cell(size(each)) for each in sizes
        ]
        if sizes[0] == sizes[1]:
            told[1] = Cell(f"{told[1].text}, other bytes")
        rows.append(Row(f"file:{name}", (Cell(visible(name)), *told)))
    if ascii_only:
        return tuple(Row(row.key, spelt(row.cells)) for row in rows)
    return tuple(rows)


def difference_line(difference: Difference) -> tuple[Cell, ...]:
    """Say in one line what a difference comes to."""
    counts = (
        (len(difference.changed), "changed", Tone.PLAIN),
        (len(difference.reshaped), "reshaped", Tone.WARN),
        (len(difference.added), "added", Tone.GOOD),
        (len(difference.removed), "removed", Tone.WARN),
        (len(difference.same), "identical", Tone.DIM),
        (len(difference.uncompared), "not compared", Tone.BAD),
    )
    told = [Cell(f"{count:,} {word}", tone) for count, word, tone in counts if count]
    between = [cell for each in told for cell in (Cell(", ", Tone.DIM), each)][1:]
    if difference.is_same and not difference.uncompared:
        count = len(difference.same)
        plural = "" if count == 1 else "s"
        tensors = f": {count:,} tensor{plural}" if count else ": no tensors"
        return (Cell("✓ the same", Tone.GOOD), Cell(tensors, Tone.DIM))
    return (Cell("tensors: ", Tone.DIM), *(between or [Cell("none")]))


def _widest(difference: Difference, *, is_moment: bool) -> float:
    """The largest finite relative update: what was nothing before moved infinitely far."""
    known = (each.relative_update for each in difference.changed if each.is_moment is is_moment)
    return max((each for each in known if each is not None and each < math.inf), default=0.0)


def _update_cells(update: Update, widest: float) -> tuple[Cell, ...]:
    relative = update.relative_update
    if update.nonfinite_after > update.nonfinite_before:
        count = update.nonfinite_after
        bar = Cell(f"✗ {count:,} not finite", Tone.BAD)
    elif relative is None:
        bar = Cell("· not decoded", Tone.DIM)
    else:
        share = 1.0 if relative == math.inf else relative / widest if widest else 0.0
        bar = Cell("▓" * (max(1, round(BAR_WIDTH * share)) if relative else 0), Tone.ACCENT)
    return (
        Cell(visible(update.name)),
        bar,
        Cell(number(relative)),
        Cell(number(update.max_abs)),
        *_form_cells(update.before, update.after),
    )


def _reshaped_cells(reshaped: Reshaped) -> tuple[Cell, ...]:
    word = "reshaped" if reshaped.before.shape != reshaped.after.shape else "retyped"
    return (
        Cell(visible(reshaped.name)),
        Cell(word, Tone.WARN),
        UNKNOWN,
        UNKNOWN,
        *_form_cells(reshaped.before, reshaped.after),
    )


def _only_cells(name: str, word: str, tone: Tone) -> tuple[Cell, ...]:
    return (Cell(visible(name)), Cell(word, tone), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


def _form_cells(before: Form, after: Form) -> tuple[Cell, ...]:
    sides = (
        (visible(before.dtype), visible(after.dtype)),
        (shape_words(before.shape), shape_words(after.shape)),
    )
    return tuple(
        Cell(old) if old == new else Cell(f"{old} → {new}", Tone.WARN) for old, new in sides
    )


def _said(value: Any) -> Cell:
    if value is None:
        return UNKNOWN
    text = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
    return Cell(shorten(visible(text), LONGEST_VALUE))
