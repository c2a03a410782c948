"""The verb that proves: `selftest`, the crash suite on one's own file system."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt.cli.frame import FAILED, as_path, verb
from ckpt.errors import PublishError

if TYPE_CHECKING:
    from ckpt.output import Output


@click.command()
@click.argument("directory", metavar="DIR", callback=as_path)
@verb
def selftest(output: "Output", directory: Path) -> int:
    """Try what ckpt promises on the file system of DIR, with every crash and error.

    Works in a directory of its own, which it removes. Exit code 1 when a promise does not hold.
    """
    from ckpt.operation import drive
    from ckpt.selftest import run

    try:
        result = drive(run(directory), output.trying)
    except PublishError as error:
        return output.fail(error, FAILED)
    if output.as_json:
        from ckpt.present.plan_shapes import selftest_json

        output.document(selftest_json(result))
    else:
        output.selftest(result)
    return 0 if result.holds else 1
