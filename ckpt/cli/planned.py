"""How a verb of `ckpt` carries out a plan: made, shown, asked about, then driven to its end."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ckpt.cli.frame import DEPTHS, Interrupted, Unasked, whole_run
from ckpt.errors import Refused

if TYPE_CHECKING:
    from ckpt.generations import Known, Plan
    from ckpt.operation import Operation
    from ckpt.output import Output
    from ckpt.retention import Kept

T = TypeVar("T")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the plan and do nothing.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


DEPTH = click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="bytes",
    show_default=True,
    help="How deep to verify what becomes live.",
)


class How(NamedTuple):
    """How a plan is to be carried out; `depth` is of no meaning to what makes nothing live."""

    is_dry_run: bool
    is_agreed: bool
    depth: str


class Planned(NamedTuple):
    """A plan and what it was made of; of a prune, what stays as well."""

    plan: "Plan"
    known: "Known"
    kept: "tuple[Kept, ...]" = ()


def with_plan(function: Callable[..., int]) -> Callable[..., int]:
    """Give a verb `--dry-run` and `--yes`, and hand it what was chosen as one `how`."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> int:
        how = How(options.pop("dry_run"), options.pop("yes"), options.pop("depth", "bytes"))
        return function(*args, how=how, **options)

    return DRY_RUN(YES(run))


def known_of(run_dir: Path) -> "Known":
    """Look at a run: its slots, and the journal as it was when they were scanned.

    Raises:
        OSError: there is a journal and it cannot be read, so that nothing can be said of undoing.
    """
    import time

    from ckpt.generations import Known
    from ckpt.reflog import read
    from ckpt.sources import read_run

    now = time.time()
    view = read_run(whole_run(run_dir), now)
    journal = view.journal
    if journal is None or any(each.code == "unreadable-file" for each in journal.findings):
        journal = read(run_dir)
    return Known(run_dir, view.slots, journal, now, view.updated_at)


def look(output: "Output", run_dir: Path, how: How) -> "Known":
    """Look at a run for a plan that will be carried out, provided that it can be agreed to.

    Raises:
        Unasked: nobody agreed, and nobody is there to be asked.
    """
    if not (how.is_dry_run or how.is_agreed or output.can_ask):
        raise Unasked("there is no terminal to ask at: nothing was touched")
    return known_of(run_dir)


def show_plan(output: "Output", planned: Planned, *, is_data: bool = True) -> None:
    """Show a plan: as the data of a dry run, else as narration."""
    if is_data and output.as_json:
        from ckpt.present.plan_shapes import plan_json

        output.document(plan_json(planned.plan, kept=planned.kept))
    else:
        output.plan(planned.plan, planned.known, planned.kept, is_data=is_data)


def agree(output: "Output", planned: Planned, how: How) -> None:
    """Show a plan and have it agreed to.

    Raises:
        Refused: whoever was asked did not agree.
    """
    show_plan(output, planned, is_data=False)
    if not how.is_agreed and not output.ask("Do it?"):
        where = str(planned.plan.run_dir)
        raise Refused("not agreed to: nothing was touched", path=where)


def carried(output: "Output", plan: "Plan", operation: "Operation[T]") -> T:
    """Drive the operation of a plan to its end, and return its result.

    Raises:
        Interrupted: Ctrl-C; the message says what became of the plan.
    """
    from ckpt.operation import drive

    try:
        return drive(operation, output.acting)
    except KeyboardInterrupt:
        raise _became(plan) from None


def _became(plan: "Plan") -> Interrupted:
    """Say what a plan that was interrupted came to."""
    from ckpt.reflog import Outcome, read

    begun = [each for each in read(plan.run_dir).entries if each.sequence > plan.sequence]
    mine = [each for each in begun if (each.verb, each.changes) == (plan.verb, plan.changes)]
    if not mine or mine[-1].outcome is Outcome.ABORTED:
        return Interrupted("interrupted: nothing was changed")
    if mine[-1].outcome is Outcome.DONE:
        return Interrupted(f"interrupted, but the {plan.verb} is done")
    return Interrupted(
        "interrupted half-way: nothing is lost", hint=f"ckpt recover {plan.run_dir} ends it"
    )
