"""The verbs that tell what a checkpoint holds: `show`, `diff`. They change nothing."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import as_path, verb

if TYPE_CHECKING:
    from ckpt.checkpoint import Checkpoint, Tensor
    from ckpt.named import Named
    from ckpt.output import Output
    from ckpt.tensors import TensorStats


@click.command()
@click.argument("path", metavar="PATH", callback=as_path)
@click.option("--stats", "with_stats", is_flag=True, help="Read all tensors, and tell of each.")
@verb
def show(output: "Output", path: Path, *, with_stats: bool) -> int:
    """Show one checkpoint: files, tensors, metadata, findings of names and headers.

    With --stats what the values of each tensor are like too: finite, min, max, mean, norm, zeros.
    """
    named, checkpoint = _looked_at(path)
    stats = None
    if with_stats:
        checkpoint, stats = _with_stats(output, named, checkpoint)
    if not output.as_json:
        output.checkpoint(checkpoint, stats)
    elif stats is None:
        from ckpt.present.shapes import show_json

        output.document(show_json(checkpoint))
    else:
        from ckpt.present.contents_json import show_stats_json

        output.document(show_stats_json(checkpoint, stats))
    return 0


def _looked_at(path: Path) -> "tuple[Named, Checkpoint]":
    """Find what a name means and read its headers.

    Raises:
        NoCheckpoint: nothing is there; the hint of a run says how to list its checkpoints.
    """
    from ckpt.errors import NoCheckpoint
    from ckpt.named import find, inspect_named, is_whole_run

    try:
        named = find(path)
        return named, inspect_named(named)
    except NoCheckpoint as error:
        if error.hint is None and is_whole_run(path):
            error.hint = f"this is a run: `ckpt list {path}` shows its checkpoints"
        raise


def _with_stats(
    output: "Output", named: "Named", checkpoint: "Checkpoint"
) -> "tuple[Checkpoint, Mapping[Tensor, TensorStats]]":
    """Read all tensors; what is found of them joins what the headers told."""
    from ckpt.checkpoint import worst_first
    from ckpt.operation import drive
    from ckpt.tensors import stats, stats_findings

    found = drive(stats(checkpoint, places=_places(named)), output.progressing)
    output.progress.clear()
    told = worst_first((*checkpoint.findings, *stats_findings(found.items())))
    return replace(checkpoint, findings=told), found


def _places(named: "Named") -> tuple[Path, ...]:
    """Where the files of a generation lie that shares its slot's directory; of others: unsaid."""
    if named.inside is None:
        return ()
    from ckpt.generations.kt_links import links_of
    from ckpt.generations.kt_slot import kt_slot

    slot = kt_slot(named.path, named.run_dir)
    return (links_of(slot, named.inside.id), slot.directory)
