"""`ckpt-monitor`'s options, through click; the plain `ckpt-monitor RUN` does not wait for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from monitor.options import Options

SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 3600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for. `run_dir` None: the run in the current directory."""

    run_dir: Path | None = None
    options: Options = field(default_factory=Options)
    is_plain: bool = False
    is_demo: bool = False
    keep: Path | None = None


def _version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        click.echo(f"ckpt-monitor {version('ckpt-monitor')}")
        context.exit()


def _not_empty(_context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value == "":
        raise click.BadParameter("the path is empty", param=parameter)
    return None if value is None else Path(value)


def _often_enough(
    _context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None and not SHORTEST_POLL_S <= value <= LONGEST_POLL_S:  # nan is neither
        message = f"{value:g} is not between {SHORTEST_POLL_S:g} and {LONGEST_POLL_S:g} seconds"
        raise click.BadParameter(message, param=parameter)
    return value


@click.command("ckpt-monitor", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", metavar="[RUN]", required=False, callback=_not_empty)
@click.option("--read-only", is_flag=True, help="Write nothing into the run.")
@click.option(
    "--poll",
    metavar="SECONDS",
    type=float,
    callback=_often_enough,
    help="Look this often, without file events.",
)
@click.option("--plain", is_flag=True, help="Print one line a change, draw no screen.")
@click.option("--ascii", is_flag=True, help="Use ASCII signs only.")
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@click.option("--demo", is_flag=True, help="Start a small real training run and show it.")
@click.option(
    "--keep", metavar="DIR", callback=_not_empty, help="With --demo: train in DIR and keep it."
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def command(context: click.Context, /, **said: Any) -> Asked:
    """Watch a training run and its checkpoints.

    RUN is the directory that a trainer writes into; without it, the run in the current directory.
    """
    if said["keep"] is not None and not said["demo"]:
        raise click.UsageError("--keep goes with --demo", context)
    if said["demo"] and said["run_dir"] is not None:
        raise click.UsageError("--demo makes a run of its own: name no RUN", context)
    return Asked(
        said["run_dir"],
        Options(
            is_read_only=said["read_only"],
            poll_s=said["poll"],
            is_ascii=said["ascii"],
            has_mouse=not said["no_mouse"],
        ),
        is_plain=said["plain"],
        is_demo=said["demo"],
        keep=said["keep"],
    )


def asked_for(arguments: Sequence[str], run: Callable[[Asked], int]) -> int:
    """Parse a command line and run what it asks for; return the exit code."""
    try:
        asked = command.main(list(arguments), "ckpt-monitor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return run(asked) if isinstance(asked, Asked) else int(asked or 0)
