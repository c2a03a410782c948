"""The verbs that look: `status`, `list`, `verify`. They change nothing in a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import DEPTHS, RUN, as_path, in_words, verb
from ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from ckpt.checkpoint import Depth, Report
    from ckpt.named import Named
    from ckpt.output import Output
    from ckpt.view import RunView

VERDICT_CODES = {"intact": 0, "damaged": 1, "unsupported": 2, "unverifiable": 3}
BAD_STATES = ("dead", "stalled", "diverged")


@click.command()
@RUN
@click.option("--line", is_flag=True, help="One line, for tmux or a prompt.")
@click.option("--series", is_flag=True, help="With --json: every recorded point too.")
@verb
def status(output: "Output", run_dir: Path, *, line: bool, series: bool) -> int:
    """Show how a run is: the dashboard, once.

    Exit code 1 when the run is dead, stalled, diverged or has no usable checkpoint.
    """
    import time

    from ckpt.generations import require_run
    from ckpt.sources import read_run

    now = time.time()
    require_run(run_dir)
    view = read_run(run_dir, now)
    if output.as_json:
        from ckpt.present.shapes import status_json

        output.document(status_json(view, series=series))
    elif line:
        output.status_line(view, now)
    else:
        output.status(view, now)
    return 0 if _is_well(view) else 1


@click.command("list")
@RUN
@verb
def list_(output: "Output", run_dir: Path) -> int:
    """List the slots of a run and every generation behind them."""
    import time

    from ckpt.generations import require_run, scan

    require_run(run_dir)
    slots = scan(run_dir)
    if output.as_json:
        from ckpt.present.shapes import list_json

        output.document(list_json(run_dir, slots))
    else:
        output.slots(run_dir, slots, time.time())
    return 0


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, callback=as_path)
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="bytes",
    show_default=True,
    help="How deep to look: names < headers < bytes.",
)
@verb
def verify(output: "Output", paths: Sequence[Path], *, depth: str) -> int:
    """Verify checkpoints, or all of a run.

    Exit code 0 intact, 1 damaged, 3 unverifiable, 2 unsupported or nothing there.
    """
    from ckpt.checkpoint import Depth, worst_verdict
    from ckpt.named import find, is_whole_run

    wanted = Depth[depth.upper()]
    is_single = len(paths) == 1 and not is_whole_run(paths[0])
    if is_single:
        reports = [_verified(output, find(paths[0]), wanted)]
    else:
        reports = list(_all_verified(output, paths, wanted))
    if output.as_json:
        from ckpt.present.shapes import verify_json

        output.document(verify_json(reports, is_single=is_single))
    elif not is_single:
        output.summary(reports)
    return VERDICT_CODES[worst_verdict(report.verdict for report in reports)]


def _all_verified(output: "Output", paths: Sequence[Path], depth: "Depth") -> "Iterator[Report]":
    """Verify several paths, and all generations of those that are runs; go on after a failure."""
    from ckpt.named import all_of, find, is_whole_run

    for path in paths:
        try:
            payloads = all_of(path) if is_whole_run(path) else (find(path),)
        except (CheckpointError, OSError) as error:
            yield _not_verified(output, path, depth, error)
            continue
        if not payloads and len(paths) == 1:
            raise _nothing_there(path)
        if not payloads:
            yield _not_verified(output, path, depth, _nothing_there(path))
        for payload in payloads:
            try:
                yield _verified(output, payload, depth)
            except (CheckpointError, OSError) as error:
                yield _not_verified(output, payload.path, depth, error)


def _verified(output: "Output", payload: "Named", depth: "Depth") -> "Report":
    from ckpt.named import verify_named
    from ckpt.operation import drive

    report = drive(verify_named(payload, depth), output.verifying)
    if not output.as_json:
        output.report(report)
    return report


def _not_verified(
    output: "Output", path: Path, depth: "Depth", error: CheckpointError | OSError
) -> "Report":
    """What is said of one of several paths that could not be verified at all."""
    from ckpt.checkpoint import Finding, Report, Severity, Verdict
    from ckpt.operation import Found

    known = error if isinstance(error, CheckpointError) else in_words(error)
    finding = Finding(known.code, Severity.ERROR, known.message, hint=known.hint)
    report = Report(path, "", depth, Verdict.UNSUPPORTED, (finding,), 0, 0.0)
    output.verifying(Found(finding))
    if not output.as_json:
        output.report(report)
    return report


def _nothing_there(run_dir: Path) -> CheckpointError:
    """Say that a run has no checkpoint, or why none of what it has can be verified."""
    from ckpt.errors import NoCheckpoint
    from ckpt.generations import scan

    slots = scan(run_dir)
    told = [finding.message for slot in slots for finding in slot.findings]
    if not told:
        return NoCheckpoint(f"{run_dir}: the run has no checkpoint yet", path=str(run_dir))
    more = f" (and {len(slots) - 1} more)" if len(slots) > 1 else ""
    return NoCheckpoint(
        f"{run_dir}: no checkpoint that could be verified: {told[0]}{more}",
        path=str(run_dir),
        hint=f"`ckpt list {run_dir}` shows what there is",
    )


def _is_well(view: "RunView") -> bool:
    """Whether the run goes on or went to its end, and has a checkpoint that could be used."""
    from ckpt.usable import newest_usable

    return view.health.state not in BAD_STATES and newest_usable(view) is not None
