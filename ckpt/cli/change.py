"""The verbs that change which generation is live, and `log`, which tells what they did.

Each makes a plan, shows it, asks, and has it carried out; nothing is decided here.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ckpt.cli.frame import DEPTHS, RUN, Interrupted, Unasked, verb, whole_run
from ckpt.errors import Refused

if TYPE_CHECKING:
    from ckpt.generations import Known, Plan, Swapped
    from ckpt.output import Output
    from ckpt.reflog import Change

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the plan and do nothing.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


class How(NamedTuple):
    """How a plan is to be carried out."""

    is_dry_run: bool
    is_agreed: bool
    depth: str


def with_plan(function: Callable[..., int]) -> Callable[..., int]:
    """Give a verb that carries out a plan its options, as one `how`."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> int:
        how = How(options.pop("dry_run"), options.pop("yes"), options.pop("depth"))
        return function(*args, how=how, **options)

    depth = click.option(
        "--depth",
        type=click.Choice(DEPTHS),
        default="bytes",
        show_default=True,
        help="How deep to verify what becomes live.",
    )
    return DRY_RUN(YES(depth(run)))


@click.command()
@RUN
@verb
def log(output: "Output", run_dir: Path) -> int:
    """Show what was done to the checkpoints of a run, the newest first."""
    import time

    from ckpt.reflog import read

    journal = read(whole_run(run_dir))
    if output.as_json:
        from ckpt.present.shapes import log_json

        output.document(log_json(run_dir, journal))
    else:
        output.log(run_dir, journal, time.time())
    return 0


@click.command()
@RUN
@click.argument("slot", required=False)
@click.option("--to", metavar="GENERATION", help="The id of a generation, or its beginning.")
@click.option(
    "--to-step", metavar="N", type=click.IntRange(min=0), help="Withdraw all slots after a step."
)
@with_plan
@verb
def rollback(  # noqa: PLR0913 - one for each thing that can be typed
    output: "Output",
    run_dir: Path,
    *,
    slot: str | None,
    to: str | None,
    to_step: int | None,
    how: How,
) -> int:
    """Make a retired generation live again, or send the run back to a step.

    Without SLOT it is the newest slot that has a retired generation, without --to its newest one.
    Exit code 1 when that is damaged or there is none, 4 when the run is busy or changed meanwhile.
    """
    if to_step is not None and (slot is not None or to is not None):
        raise click.UsageError("--to-step takes neither SLOT nor --to: it concerns the whole run")
    from ckpt.generations import plan_rollback, plan_withdraw

    known = look(output, run_dir, how)
    if to_step is not None:
        plan = plan_withdraw(known, to_step=to_step)
    else:
        plan = plan_rollback(known, slot=slot, to=to)
    return _act(output, plan, how, known)


@click.command()
@RUN
@with_plan
@verb
def undo(output: "Output", run_dir: Path, *, how: How) -> int:
    """Take back the last roll back, withdrawal or publish that was not taken back."""
    from ckpt.generations import plan_undo

    known = look(output, run_dir, how)
    return _act(output, plan_undo(known), how, known)


@click.command()
@RUN
@with_plan
@verb
def redo(output: "Output", run_dir: Path, *, how: How) -> int:
    """Do again what the last undo took back."""
    from ckpt.generations import plan_redo

    known = look(output, run_dir, how)
    return _act(output, plan_redo(known), how, known)


@click.command()
@RUN
@DRY_RUN
@verb
def recover(output: "Output", run_dir: Path, *, dry_run: bool) -> int:
    """End what a dead process left half-way; what is whole is kept."""
    from ckpt.generations import plan_recover
    from ckpt.generations import recover as recovering
    from ckpt.operation import drive

    known = known_of(run_dir)
    plan = plan_recover(known)
    if dry_run:
        show_plan(output, plan, known, is_data=True)
        return 0
    told = drive(recovering(run_dir), output.telling)
    if output.as_json:
        from ckpt.present.shapes import plan_json

        output.document(plan_json(plan, changes=_ended(known), told=told, done=True))
    elif not told:
        output.out.line("nothing to recover")
    return 0


# ---- what they share --------------------------------------------------------------------------


def known_of(run_dir: Path) -> "Known":
    """Look at a run; its journal first, so that a plan never knows more than it was made of."""
    import time

    from ckpt.generations import Known
    from ckpt.reflog import read
    from ckpt.sources import read_run

    now = time.time()
    journal = read(whole_run(run_dir))
    view = read_run(run_dir, now)
    return Known(run_dir, view.slots, journal, now, view.updated_at)


def look(output: "Output", run_dir: Path, how: How) -> "Known":
    """Look at a run for a plan that will be carried out, provided that it can be agreed to.

    Raises:
        Unasked: nobody agreed, and nobody is there to be asked.
    """
    if not (how.is_dry_run or how.is_agreed or output.can_ask):
        raise Unasked("there is no terminal to ask at: nothing was touched")
    return known_of(run_dir)


def show_plan(output: "Output", plan: "Plan", known: "Known", *, is_data: bool) -> None:
    """Show a plan: as the data of a dry run, else as narration."""
    if is_data and output.as_json:
        from ckpt.present.shapes import plan_json

        output.document(plan_json(plan))
    else:
        output.plan(plan, known, is_data=is_data)


def agree(output: "Output", plan: "Plan", how: How, known: "Known") -> None:
    """Show a plan and have it agreed to.

    Raises:
        Refused: whoever was asked did not agree.
    """
    show_plan(output, plan, known, is_data=False)
    if not how.is_agreed and not output.ask("Do it?"):
        raise Refused("not agreed to: nothing was touched", path=str(plan.run_dir))


def _act(output: "Output", plan: "Plan", how: How, known: "Known") -> int:
    if how.is_dry_run:
        show_plan(output, plan, known, is_data=True)
        return 0
    agree(output, plan, how, known)
    swapped = _carry_out(output, plan, how)
    if output.as_json:
        from ckpt.present.shapes import plan_json

        output.document(plan_json(plan, sequence=swapped.sequence, done=True))
    else:
        output.done(plan, back="redo" if plan.verb == "undo" else "undo")
    return 0


def _carry_out(output: "Output", plan: "Plan", how: How) -> "Swapped":
    from ckpt.checkpoint import Depth
    from ckpt.generations import carry_out
    from ckpt.operation import drive

    try:
        return drive(carry_out(plan, depth=Depth[how.depth.upper()]), output.acting)
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


def _ended(known: "Known") -> "list[Change]":
    """The changes that a recovery made or ended, as the journal tells them."""
    from ckpt.reflog import Outcome, read

    begun = {entry.sequence for entry in known.journal.pending}
    return [
        change
        for entry in read(known.run_dir).entries
        if entry.outcome is Outcome.DONE
        and (
            entry.sequence in begun
            or (entry.verb == "recover" and entry.sequence > known.journal.last_sequence)
        )
        for change in entry.changes
    ]
