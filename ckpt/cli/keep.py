"""The verbs that say what is kept and let the rest go: `prune`, `pin`, `unpin`, `guard`."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt.cli.frame import RUN, not_empty, verb, whole_run
from ckpt.cli.planned import How, Planned, agree, carried, look, show_plan, with_plan

if TYPE_CHECKING:
    from ckpt.operation import Event
    from ckpt.output import Output
    from ckpt.retention import Policy

GENERATION = click.argument("generation", callback=not_empty)
COUNT = click.IntRange(min=0)
SIZES = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20,
         "gib": 2**30, "tib": 2**40}  # fmt: skip
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def _measure(units: Mapping[str, float]) -> Callable[..., float | None]:
    """Take a number with a unit, such as `20GB` or `36h`; without one it counts in the first."""

    def convert(
        _context: click.Context, parameter: click.Parameter, value: str | None
    ) -> float | None:
        if value is None:
            return None
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)", value.strip().lower())
        unit = (found[2] or next(iter(units))) if found else ""
        number = float(found[1]) * units[unit] if found and unit in units else math.inf
        if math.isinf(number):
            message = f"{value!r}: expected a number and one of {', '.join(units)}"
            raise click.BadParameter(message, param=parameter)
        return number

    return convert


@click.command()
@RUN
@click.option("--keep-last", metavar="N", type=COUNT, help="The last N of each slot. [default: 1]")
@click.option("--keep-best", metavar="N", type=COUNT, help="The N with the lowest loss.")
@click.option("--keep-every", metavar="N", type=COUNT, help="Those whose step N divides.")
@click.option(
    "--keep-for", "keep_s", metavar="TIME", callback=_measure(TIMES), help="Live so shortly ago."
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=_measure(SIZES),
    help="No more than this, oldest go first.",
)
@click.option("--damaged", is_flag=True, help="Let damaged and incomplete ones go too.")
@with_plan
@verb
def prune(output: "Output", /, run_dir: Path, *, how: How, **chosen: Any) -> int:
    """Delete retired and withdrawn generations that no policy keeps.

    A generation stays when any --keep option keeps it; --max-bytes alone limits what all of them
    take. TIME is such as 36h or 7d, SIZE such as 20GB. What is live, pinned, needed to undo what
    was done, or the last that is verified always stays.
    """
    from ckpt.retention import preview_prune
    from ckpt.retention import prune as pruning

    policy = _policy(**chosen)
    known = look(output, run_dir, how)
    preview = preview_prune(known, policy)
    plan, kept = preview.plan, preview.kept
    planned = Planned(plan, known, kept)
    if how.is_dry_run:
        show_plan(output, planned)
        return 0
    if plan.removed:
        agree(output, planned, how)
    freed_bytes = carried(output, plan, pruning(plan))
    if output.as_json:
        from dataclasses import replace

        from ckpt.present.plan_shapes import done_json

        output.document(done_json(replace(plan, frees_bytes=freed_bytes), kept=kept))
    else:
        output.pruned(plan, freed_bytes)
    return 0


def _policy(*, damaged: bool, **chosen: Any) -> "Policy":
    """Make a policy of what was typed; whoever asks for nothing keeps the last of each slot."""
    from ckpt.retention import Policy

    if all(value is None for value in chosen.values()):
        return Policy(is_damaged_too=damaged)
    if (limit := chosen.pop("max_bytes")) is not None:
        limit = int(limit)
    return Policy(is_damaged_too=damaged, max_bytes=limit, **chosen)


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


@click.command()
@RUN
@click.option("--keep-last", metavar="N", type=COUNT, default=1, show_default=True,
              help="How many generations of each slot stay behind the live one.")  # fmt: skip
@click.option("--poll", "poll_s", metavar="SECONDS", type=click.FloatRange(min=0.1, max=3600),
              help="Look this often, without file events.")  # fmt: skip
@verb
def guard(output: "Output", run_dir: Path, *, keep_last: int, poll_s: float | None) -> int:
    """Keep the generations of a trainer that deletes its own, until stopped by a signal.

    What it publishes by a rename is hard-linked, at no extra space until the trainer deletes it;
    what is written in place cannot be kept, and is said.
    """
    from ckpt.guard import guard as guarding
    from ckpt.operation import drive
    from ckpt.retention import Policy

    policy = Policy(keep_last=keep_last)
    told: list[str] = []

    def tell(event: "Event") -> None:
        told.append(getattr(event, "text", ""))
        output.telling(event)
        output.out.flush()

    with _until_stopped() as is_stopped:
        count = drive(
            guarding(whole_run(run_dir), is_stopped=is_stopped, keep=policy, poll_s=poll_s), tell
        )
    if output.as_json:
        from ckpt.present.plan_shapes import guard_json

        output.document(guard_json(run_dir, count, told))
    else:
        output.out.line(f"stopped: {count:,} generation{'' if count == 1 else 's'} kept")
    return 0


@contextmanager
def _until_stopped() -> Iterator[Callable[[], bool]]:
    """Take the first signal to stop as a wish; a second one ends the process at once."""
    import signal

    wishes: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def wish(number: int, _frame: object) -> None:
        wishes.append(number)
        for name in names:
            signal.signal(name, before[name])

    before = {name: signal.signal(name, wish) for name in names}
    try:
        yield lambda: bool(wishes)
    finally:
        for name in names:
            signal.signal(name, before[name])


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
    from ckpt.present.plan_shapes import pin_json
    from ckpt.present.words import visible

    if output.as_json:
        output.document(pin_json(run_dir, slots, generation, pinned=is_pinned))
        return
    of = f" of {', '.join(slots)}" if slots else ""
    what = "is pinned: no prune takes it" if is_pinned else "is pinned no more"
    output.out.line(visible(f"{generation}{of} {what}"))
