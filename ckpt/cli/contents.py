"""The verbs that tell what a checkpoint holds: `show`, `diff`. They change nothing."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import FAILED, as_path, verb

if TYPE_CHECKING:
    from ckpt.checkpoint import Checkpoint, Tensor, TensorStats
    from ckpt.output import Output
    from ckpt.tensors import Difference
    from ckpt.tensors.payload import Place

DIFFERENT = 1
DIFF_ROWS = 40


@click.command()
@click.argument("path", metavar="PATH", callback=as_path)
@click.option(
    "--stats", "with_stats", is_flag=True, help="Read the tensors of which nothing is recorded."
)
@verb
def show(output: "Output", path: Path, *, with_stats: bool) -> int:
    """Show one checkpoint: files, tensors, metadata, findings of names and headers.

    And what the values of each tensor are like (finite, min, max, mean, norm, zeros) where its
    save recorded that; with --stats it is computed of the others.
    """
    with ExitStack() as stack:
        checkpoint, places = _looked_at(path, stack)
        stats = checkpoint.stats or None
        if with_stats:
            checkpoint, stats = _with_stats(output, checkpoint, places)
    if not output.as_json:
        output.checkpoint(checkpoint, stats)
    elif stats is None:
        from ckpt.present.shapes import show_json

        output.document(show_json(checkpoint))
    else:
        from ckpt.present.contents_json import show_stats_json

        output.document(show_stats_json(checkpoint, stats))
    return 0


@click.command()
@click.argument("a", metavar="A", callback=as_path)
@click.argument("b", metavar="B", callback=as_path)
@click.option("--all", "with_all", is_flag=True, help="Every tensor, the identical ones too.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"So many rows of tensors; on a terminal {DIFF_ROWS} unless told.",
)
@verb
def diff(output: "Output", a: Path, b: Path, *, with_all: bool, limit: int | None) -> int:
    """Tell what changed from A to B: tensors, the farthest moved first, metadata, files.

    Exit code 0 the same, 1 different, 2 something could not be compared and nothing else differs.
    """
    from ckpt.operation import drive
    from ckpt.tensors import diff as compare

    with ExitStack() as stack:
        (before, places_a), (after, places_b) = _looked_at(a, stack), _looked_at(b, stack)
        operation = compare(before, after, places_a=places_a, places_b=places_b)
        difference = drive(operation, output.progressing)
    output.progress.clear()
    if output.as_json:
        from ckpt.present.contents_json import diff_json

        output.document(diff_json(difference, with_same=with_all))
    else:
        if limit is None and output.out.is_terminal and not with_all:
            limit = DIFF_ROWS
        _write(output, difference, limit=limit, with_same=with_all)
    if not difference.is_same:
        return DIFFERENT
    return FAILED if difference.uncompared else 0


def _write(
    output: "Output", difference: "Difference", *, limit: int | None, with_same: bool
) -> None:
    """Write what changed, the farthest moved tensors first: `limit` rows of them, None: all."""
    from ckpt.present.contents import (
        CHANGE_COLUMNS,
        SAID_COLUMNS,
        change_rows,
        difference_line,
        said_rows,
    )
    from ckpt.present.words import Cell, Tone, visible

    for sign, path in (("-", difference.a), ("+", difference.b)):
        output.out.line(Cell(f"{sign} {visible(str(path))}", Tone.ACCENT))
    output.out.line(" ", *difference_line(difference))
    if difference.findings:
        output.heading("findings", len(difference.findings))
        output.findings(difference.findings)
    rows = change_rows(difference)
    if rows:
        output.heading("tensors", len(rows))
        output.out.table(CHANGE_COLUMNS, rows[:limit])
    if limit is not None and len(rows) > limit:
        output.out.line(Cell(f" … {len(rows) - limit:,} more: --all shows them", Tone.DIM))
    if said := said_rows(difference):
        output.heading("metadata, settings and files", len(said))
        output.out.table(SAID_COLUMNS, said)
    if with_same and difference.same:
        output.heading("identical", len(difference.same))
        for name in difference.same:
            output.out.line(Cell(f" {visible(name)}", Tone.DIM))


def _looked_at(path: Path, stack: ExitStack) -> "tuple[Checkpoint, Sequence[Place]]":
    """Find what a name means, read its headers, and return where its files lie.

    Raises:
        NoCheckpoint: nothing is there; the hint of a run says how to list its checkpoints.
    """
    from ckpt.errors import NoCheckpoint
    from ckpt.named import find, is_whole_run, open_named

    try:
        return open_named(find(path), stack)
    except NoCheckpoint as error:
        if error.hint is None and is_whole_run(path):
            error.hint = f"this is a run: `ckpt list {path}` shows its checkpoints"
        raise


def _with_stats(
    output: "Output", checkpoint: "Checkpoint", places: "Sequence[Place]"
) -> "tuple[Checkpoint, Mapping[Tensor, TensorStats]]":
    """Read the tensors of which nothing is recorded; what is found joins what is told."""
    from ckpt.checkpoint import worst_first
    from ckpt.operation import drive
    from ckpt.tensors import stats, stats_findings

    unknown = [tensor for tensor in checkpoint.tensors if tensor not in checkpoint.stats]
    found = drive(stats(checkpoint, unknown, places=places), output.progressing)
    output.progress.clear()
    told = worst_first((*checkpoint.findings, *stats_findings(found.items())))
    return replace(checkpoint, findings=told), {**checkpoint.stats, **found}
