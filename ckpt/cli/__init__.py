"""The `ckpt` command: verbs over the library, for people at a terminal and for programs.

Stdout is data, stderr is narration. With `--json` every exit but a usage error is one document.
"""

import click

from ckpt.cli.change import log, recover, redo, rollback, undo
from ckpt.cli.contents import diff, show
from ckpt.cli.frame import Commands
from ckpt.cli.keep import guard, pin, prune, unpin
from ckpt.cli.look import list_, status
from ckpt.cli.prove import selftest
from ckpt.cli.verifying import seal, verify

__all__ = ["main"]


def _version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        click.echo(f"ckpt {version('ckpt-monitor')}")
        context.exit()


@click.group("ckpt", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Watch training runs and know which checkpoint can be trusted.

    PATH is a directory, an index, a state, a checkpoint or a safetensors file; a generation of a
    run is RUN:SLOT@GENERATION.
    """


for command in (
    *(status, list_, show, diff, verify, seal),
    *(log, rollback, undo, redo, recover),
    *(prune, pin, unpin, guard, selftest),
):
    main.add_command(command)
