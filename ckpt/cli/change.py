"""The verbs that change which generation is live, and `log`, which tells what they did.

Each makes a plan, shows it, asks, and has it carried out; nothing is decided here.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import RUN, not_empty, verb, whole_run
from ckpt.cli.planned import (
    DEPTH,
    DRY_RUN,
    How,
    Planned,
    agree,
    carried,
    known_of,
    look,
    show_plan,
    with_plan,
)

if TYPE_CHECKING:
    from ckpt.generations import Known, Plan
    from ckpt.output import Output
    from ckpt.reflog import Change


@click.command()
@RUN
@verb
def log(output: "Output", run_dir: Path) -> int:
    """Show what was done to the checkpoints of a run, the newest first."""
    import time

    from ckpt.reflog import read

    journal = read(whole_run(run_dir))
    if output.as_json:
        from ckpt.present.plan_shapes import log_json

        output.document(log_json(run_dir, journal))
    else:
        output.log(run_dir, journal, time.time())
    return 0


@click.command()
@RUN
@click.argument("slot", required=False, callback=not_empty)
@click.option(
    "--to",
    metavar="GENERATION",
    callback=not_empty,
    help="The id of a generation, or its beginning.",
)
@click.option(
    "--to-step", metavar="N", type=click.IntRange(min=0), help="Withdraw all slots after a step."
)
@DEPTH
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
        plan = plan_rollback(known, slot=_slot_name(run_dir, slot), to=to)
    return _act(output, Planned(plan, known), how)


@click.command()
@RUN
@DEPTH
@with_plan
@verb
def undo(output: "Output", run_dir: Path, *, how: How) -> int:
    """Take back the last roll back, withdrawal or publish that was not taken back."""
    from ckpt.generations import plan_undo

    known = look(output, run_dir, how)
    return _act(output, Planned(plan_undo(known), known), how)


@click.command()
@RUN
@DEPTH
@with_plan
@verb
def redo(output: "Output", run_dir: Path, *, how: How) -> int:
    """Do again what the last undo took back."""
    from ckpt.generations import plan_redo

    known = look(output, run_dir, how)
    return _act(output, Planned(plan_redo(known), known), how)


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
        show_plan(output, Planned(plan, known))
        return 0
    told = drive(recovering(run_dir), output.telling)
    if output.as_json:
        from ckpt.present.plan_shapes import done_json

        output.document(done_json(plan, changes=_ended(known), told=told))
    elif not told:
        output.out.line("nothing to recover")
        for each in plan.warnings:
            output.left_alone(each)
    return 0


# ---- private ---------------------------------------------------------------------------------


def _slot_name(run_dir: Path, typed: str | None) -> str | None:
    """Return a slot's name, which a shell may have completed to a path."""
    if typed is None:
        return None
    path = Path(typed)
    return str(path.relative_to(run_dir) if path.is_relative_to(run_dir) else path)


def _act(output: "Output", planned: Planned, how: How) -> int:
    if how.is_dry_run:
        show_plan(output, planned)
        return 0
    from ckpt.checkpoint import Depth
    from ckpt.generations import carry_out

    agree(output, planned, how)
    plan = planned.plan
    swapped = carried(output, plan, carry_out(plan, depth=Depth[how.depth.upper()]))
    if output.as_json:
        from ckpt.present.plan_shapes import done_json

        output.document(done_json(plan, sequence=swapped.sequence))
    else:
        back = "redo" if plan.verb == "undo" else "undo"
        output.done(plan, back=back if _is_kept(plan) else None)
    return 0


def _is_kept(plan: "Plan") -> bool:
    """Whether all that was live before a plan can be made live again: a broken index cannot."""
    from ckpt.generations import scan_slot
    from ckpt.reflog import read

    journal = read(plan.run_dir)
    for change in plan.changes:
        slot = scan_slot(plan.run_dir, change.slot, journal)
        known = {each.id for each in slot.generations} if slot is not None else set()
        if change.before is not None and change.before not in known:
            return False
    return True


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
