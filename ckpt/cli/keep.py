"""The verbs that say what is kept: `pin` and `unpin`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import RUN, verb, whole_run

if TYPE_CHECKING:
    from ckpt.output import Output

GENERATION = click.argument("generation")


@click.command()
@RUN
@GENERATION
@verb
def pin(output: "Output", run_dir: Path, generation: str) -> int:
    """Keep a generation from every prune.

    GENERATION is an id or its beginning, alone or as SLOT@GENERATION.
    """
    from ckpt.control import pin as pinning

    slots, found = _find(run_dir, generation)
    pinning(run_dir, found)
    _say(output, run_dir, slots, found, is_pinned=True)
    return 0


@click.command()
@RUN
@GENERATION
@verb
def unpin(output: "Output", run_dir: Path, generation: str) -> int:
    """Let a generation be pruned again."""
    from ckpt.control import unpin as unpinning

    slots, found = _find(run_dir, generation, with_pins=True)
    unpinning(run_dir, found)
    _say(output, run_dir, slots, found, is_pinned=False)
    return 0


def _find(run_dir: Path, wanted: str, *, with_pins: bool = False) -> tuple[list[str], str]:
    """Return the slots that have a generation, and its whole id.

    `with_pins`: what is pinned and has gone since counts too.

    Raises:
        NoCheckpoint: the run has none that begins so, or more than one.
    """
    from ckpt.checkpoint import State
    from ckpt.control import read_pins
    from ckpt.errors import NoCheckpoint
    from ckpt.generations import scan

    slots = scan(whole_run(run_dir))
    pinned = read_pins(run_dir) if with_pins else frozenset()
    known = [(slot.name, each.id) for slot in slots for each in slot.generations
             if each.state is not State.TRASH]  # fmt: skip
    slot, at, id_ = wanted.rpartition("@")
    if at:
        known = [pair for pair in known if pair[0] == slot or pair[0].endswith(f"/{slot}")]
    elif with_pins:
        known += [("", each) for each in sorted(pinned - {id_ for _, id_ in known})]
    begun = [pair for pair in known if pair[1].startswith(id_) and id_]
    found = [pair for pair in begun if pair[1] == id_] or begun
    ids = list(dict.fromkeys(each for _, each in found))
    if len(ids) == 1:
        return [name for name, _ in found if name], ids[0]
    listed = ", ".join(f"{name}@{each}" if name else each for name, each in (begun or known)[:4])
    why = "more than one generation begins with" if ids else "no generation"
    hint = f"there are {listed}" if listed else "the run has no checkpoint yet"
    raise NoCheckpoint(f"{run_dir}: {why} {wanted}", path=str(run_dir), hint=hint)


def _say(
    output: "Output", run_dir: Path, slots: list[str], generation: str, *, is_pinned: bool
) -> None:
    from ckpt.present.shapes import pin_json
    from ckpt.present.words import visible

    if output.as_json:
        output.document(pin_json(run_dir, slots, generation, pinned=is_pinned))
        return
    of = f" of {', '.join(slots)}" if slots else ""
    what = "is pinned: no prune takes it" if is_pinned else "is pinned no more"
    output.out.line(visible(f"{generation}{of} {what}"))
