"""The verbs that look: `status`, `list`, `verify`. They change nothing in a run."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import RUN, verb

if TYPE_CHECKING:
    from ckpt.output import Output
    from ckpt.view import RunView

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


def _is_well(view: "RunView") -> bool:
    """Whether the run goes on or went to its end, and has a checkpoint that could be used."""
    from ckpt.usable import newest_usable

    return view.health.state not in BAD_STATES and newest_usable(view) is not None
