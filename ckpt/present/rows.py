"""Rows of tables: generations of a run; files, tensors, metadata and findings of a checkpoint.

Every row has a key that stays while its thing lives, so that a painter repaints what changed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckpt.checkpoint import (
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Generation,
    Leftover,
    Severity,
    Slot,
    State,
    Tensor,
    Verdict,
    Verified,
    first_error,
    is_unsupported,
)
from ckpt.phrases import loss
from ckpt.present.words import (
    Cell,
    Column,
    Row,
    Tone,
    age,
    integer,
    jsonable,
    shorten,
    size,
    spelt,
    visible,
    visible_all,
)

if TYPE_CHECKING:
    from ckpt.view import RunView

GENERATION_COLUMNS = (
    Column("slot"),
    Column("step", is_right=True, rank=1),
    Column("loss", is_right=True, rank=4),
    Column("saved", rank=3),
    Column("size", is_right=True, rank=5),
    Column("state", rank=2),
    Column("bytes"),
)
FILE_COLUMNS = (
    Column("file"),
    Column("size", is_right=True, rank=1),
    Column("sha256", rank=3),
    Column("state", rank=2),
)
TENSOR_COLUMNS = (
    Column("tensor"),
    Column("dtype", rank=1),
    Column("shape", rank=2),
    Column("size", is_right=True, rank=3),
    Column("file", rank=4),
)
METADATA_COLUMNS = (Column("key"), Column("value"))
FINDING_COLUMNS = (Column("severity", rank=1), Column("code"), Column("where"), Column("what"))

STATE_SIGNS: Mapping[State, tuple[str, Tone]] = {
    State.LIVE: ("◆", Tone.PLAIN),
    State.RETIRED: ("◇", Tone.DIM),
    State.WITHDRAWN: ("◇", Tone.WARN),
    State.SEALED: ("◇", Tone.WARN),
    State.TRASH: ("◇", Tone.DIM),
    State.BROKEN: ("✗", Tone.BAD),
}
SEVERITY_SIGNS: Mapping[Severity, tuple[str, Tone]] = {
    Severity.ERROR: ("✗", Tone.BAD),
    Severity.WARNING: ("!", Tone.WARN),
    Severity.NOTE: ("·", Tone.DIM),
}
VERDICT_SIGNS: Mapping[Verdict, tuple[str, Tone]] = {
    Verdict.INTACT: ("✓", Tone.GOOD),
    Verdict.UNVERIFIABLE: ("?", Tone.WARN),
    Verdict.UNSUPPORTED: ("?", Tone.WARN),
    Verdict.DAMAGED: ("✗", Tone.BAD),
}
_LOOKED_AT = {Depth.NAMES: "names seen", Depth.HEADERS: "headers read"}
LONGEST_ID = 12
LONGEST_VALUE = 400
NO_CELL = Cell("")


def generation_rows(view: "RunView", now: float, *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per generation and leftover, slots in the view's order; cells as GENERATION_COLUMNS.

    The key is `slot@generation`; for a slot without a live generation, its name; for a leftover,
    `slot!name`. A retired generation stands under its slot behind `├`.
    """
    return _spelt((row for slot in view.slots for row in slot_rows(slot, now)), ascii_only)


def slot_rows(slot: Slot, now: float) -> Iterator[Row]:
    """The rows of one slot, the one that stands for the slot first."""
    live = slot.live
    name = visible(slot.name)
    if live is None:
        yield Row(slot.name, _slot_cells(slot, name))
    else:
        first = Row(f"{slot.name}@{live.id}", _generation_cells(slot, live, Cell(name), now))
        yield first
    for generation in slot.generations:
        if generation is not live:
            title = Cell(f"├ {visible(generation.id)[:LONGEST_ID]}", Tone.DIM)
            yield Row(
                f"{slot.name}@{generation.id}", _generation_cells(slot, generation, title, now)
            )
    for leftover in slot.leftovers:
        yield Row(f"{slot.name}!{leftover.path.name}", _leftover_cells(leftover))


def bytes_cell(generation: Generation, now: float) -> Cell:
    """What is known of a generation's bytes: `✓ verified 2 min ago`."""
    verified = generation.verified
    verdict = None if verified is None else verified.verdict
    wrong = first_error(generation.findings)
    if verdict is not Verdict.DAMAGED and is_unsupported(generation.findings):
        return Cell("? unsupported", Tone.WARN)
    if verdict is Verdict.DAMAGED or wrong is not None:
        if wrong is None and verified is not None and verified.worst is not None:
            return Cell(f"✗ {_hurt(verified.worst, verified)}", Tone.BAD)
        return Cell(f"✗ {damage(wrong)}", Tone.BAD)
    if generation.complete is False:
        return Cell("✗ incomplete", Tone.BAD)
    if verified is None:
        unproven = "" if generation.complete else ", completeness unproven"
        return Cell(f"\N{EN DASH} never read{unproven}", Tone.DIM)
    when = age(verified.at, now)
    if verdict is Verdict.INTACT:
        return Cell(f"✓ verified {when}", Tone.GOOD)
    if verified.depth is not Depth.BYTES:
        return Cell(f"\N{EN DASH} {_LOOKED_AT[verified.depth]} {when}", Tone.DIM)
    cannot = "cannot be verified" if verdict is Verdict.UNVERIFIABLE else "unsupported"
    return Cell(f"? {cannot}", Tone.WARN)


def damage(finding: Finding | None) -> str:
    """Name the damaged thing in a few words: `model.safetensors: layers.17.up_proj`."""
    if finding is None:
        return "damaged"
    places = [visible(place) for place in (finding.file, finding.tensor) if place]
    return ": ".join(places) if finding.tensor else ": ".join([*places, finding.code])


def _hurt(worst: Finding, verified: Verified) -> str:
    """The same of what was found in the bytes: `model.safetensors: layers.17.up and 2 more`."""
    if worst.file is None or not verified.hurt:
        return damage(worst)
    more = verified.hurt_count - 1
    rest = f" and {more:,} more" if more > 0 else ""
    return f"{visible(worst.file)}: {visible(verified.hurt[0])}{rest}"


def verdict_cell(verdict: Verdict) -> Cell:
    """A verdict as a sign and a word: `✓ intact`."""
    sign, tone = VERDICT_SIGNS[verdict]
    return Cell(f"{sign} {verdict.value}", tone)


def advice_cell(view: "RunView", *, with_key: bool = False) -> Cell | None:
    """The one line of advice, else the first warning, else None.

    `with_key` names the app's key that helps: for the app only.
    """
    if view.advice is not None:
        key = f" ({view.advice.key})" if with_key and view.advice.key else ""
        return Cell(f"! {visible(view.advice.message)}{key}", Tone.WARN)
    if view.warnings:
        return Cell(f"! {visible(view.warnings[0].message)}", Tone.WARN)
    return None


def file_rows(files: Sequence[FileEntry], *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per file; cells as FILE_COLUMNS, the hash shortened to twelve digits."""
    return _spelt((Row(entry.name, _file_cells(entry)) for entry in files), ascii_only)


def tensor_rows(tensors: Sequence[Tensor], *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per tensor; cells as TENSOR_COLUMNS."""
    names, dtypes, shapes, sizes, files = tensor_texts(tensors)
    rows = (
        Row(
            f"{tensor.file}:{tensor.name}",
            (
                Cell(names[at]),
                Cell(dtypes[at]),
                Cell(shapes[at]),
                Cell(sizes[at]),
                Cell(files[at], Tone.DIM),
            ),
        )
        for at, tensor in enumerate(tensors)
    )
    return _spelt(rows, ascii_only)


def tensor_texts(tensors: Sequence[Tensor]) -> tuple[list[str], ...]:
    """The texts of TENSOR_COLUMNS, column by column; what repeats is made into words once."""
    shapes = {shape: shape_words(shape) for shape in {tensor.shape for tensor in tensors}}
    sizes = {count: size(count) for count in {tensor.size_bytes for tensor in tensors}}
    return (
        visible_all([tensor.name for tensor in tensors]),
        visible_all([tensor.dtype for tensor in tensors]),
        [shapes[tensor.shape] for tensor in tensors],
        [sizes[tensor.size_bytes] for tensor in tensors],
        visible_all([tensor.file for tensor in tensors]),
    )


def shape_words(shape: tuple[int, ...]) -> str:
    """A shape as people write it, by its extents; `scalar` when it has none."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"


def metadata_rows(checkpoint: Checkpoint, *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per value that the checkpoint says of itself, then what its trainer was set to."""
    told = [*_flat(checkpoint.metadata, ""), *_flat(checkpoint.settings, "settings")]
    rows = (
        Row(key, (Cell(visible(key)), Cell(shorten(visible(text), LONGEST_VALUE))))
        for key, text in told
    )
    return _spelt(rows, ascii_only)


def finding_rows(findings: Sequence[Finding], *, ascii_only: bool = False) -> tuple[Row, ...]:
    """One row per finding, in the given order; cells as FINDING_COLUMNS, the hint in the last."""
    return _spelt(
        (
            Row(f"{at}:{finding.code}", _finding_cells(finding))
            for at, finding in enumerate(findings)
        ),
        ascii_only,
    )


# ---- cells ----------------------------------------------------------------------------------


def _generation_cells(
    slot: Slot, generation: Generation, title: Cell, now: float
) -> tuple[Cell, ...]:
    sign, tone = STATE_SIGNS[generation.state]
    pin = ", pinned" if generation.pinned else ""
    state = Cell(f"{sign} {generation.state.value}{pin}", tone)
    if generation.state is State.LIVE and slot.state is State.BROKEN:
        state = Cell("✗ broken", Tone.BAD)
    return (
        title,
        Cell(integer(generation.step)),
        Cell("" if generation.loss is None else loss(generation.loss)),
        Cell(age(generation.created_at, now), Tone.DIM),
        Cell(size(generation.size_bytes)),
        state,
        bytes_cell(generation, now),
    )


def _slot_cells(slot: Slot, name: str) -> tuple[Cell, ...]:
    sign, tone = STATE_SIGNS[slot.state]
    wrong = first_error(slot.findings)
    if wrong is None and slot.findings:  # a first save that is under way is nothing broken
        said = Cell(f"· {visible(slot.findings[0].message.partition('; ')[0])}", Tone.DIM)
        state = Cell("· unfinished", Tone.DIM)
        return (Cell(name), Cell(integer(slot.step)), NO_CELL, NO_CELL, NO_CELL, state, said)
    if wrong is not None:
        said = Cell(f"✗ {visible(wrong.message.partition('; ')[0])}", Tone.BAD)
    elif slot.state is State.WITHDRAWN:
        said = Cell("withdrawn on purpose", Tone.DIM)
    else:
        said = Cell("✗ nothing usable at this name", Tone.BAD)
    state = Cell(f"{sign} {slot.state.value}", tone)
    return (Cell(name), Cell(integer(slot.step)), NO_CELL, NO_CELL, NO_CELL, state, said)


def _leftover_cells(leftover: Leftover) -> tuple[Cell, ...]:
    title = Cell(f"├ {visible(leftover.path.name)}", Tone.DIM)
    state = Cell(f"· {leftover.kind.replace('-', ' ')}", Tone.DIM)
    said = Cell(visible(leftover.reason), Tone.DIM)
    return (title, NO_CELL, NO_CELL, NO_CELL, NO_CELL, state, said)


def _file_cells(entry: FileEntry) -> tuple[Cell, ...]:
    if entry.size_bytes is None:
        state = Cell("✗ missing", Tone.BAD)
    elif entry.listed is None:
        state = Cell("\N{EN DASH}", Tone.DIM)
    elif entry.listed:
        state = Cell("listed")
    else:
        state = Cell("! unlisted", Tone.WARN)
    digest = Cell("\N{EN DASH}" if entry.sha256 is None else entry.sha256[:12], Tone.DIM)
    return (Cell(visible(entry.name)), Cell(size(entry.size_bytes)), digest, state)


def _finding_cells(finding: Finding) -> tuple[Cell, ...]:
    sign, tone = SEVERITY_SIGNS[finding.severity]
    where = ": ".join(visible(place) for place in (finding.file, finding.tensor) if place)
    hint = f" ({visible(finding.hint)})" if finding.hint else ""
    return (
        Cell(f"{sign} {finding.severity.value}", tone),
        Cell(visible(finding.code)),
        Cell(where),
        Cell(visible(finding.message) + hint),
    )


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Nested objects become dotted keys; a list stays one value."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        elif isinstance(value, str):
            yield name, value
        elif isinstance(value, float):
            yield name, repr(value)
        else:
            yield name, json.dumps(jsonable(value), ensure_ascii=False)


def _spelt(rows: Iterable[Row], ascii_only: bool) -> tuple[Row, ...]:
    if not ascii_only:
        return tuple(rows)
    return tuple(Row(row.key, spelt(row.cells)) for row in rows)
