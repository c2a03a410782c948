"""What all verbs of `ckpt` share: `--json`, the run they take, words and a code for every failure.

Everything but click is imported by the verb that needs it, so that `ckpt --help` is quick.
"""

import errno
import functools
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from ckpt.errors import Busy, CannotWrite, CheckpointError, PublishError, Refused, StalePlan

if TYPE_CHECKING:
    from ckpt.output import Output

P = ParamSpec("P")
INTERRUPTED, STDOUT_GONE = 130, 141
FAILED, REFUSED, BUSY = 2, 1, 4
DEPTHS = ("names", "headers", "bytes")


class Commands(click.Group):
    """The group whose end is ours: quiet when stdout closes, a clean line after Ctrl-C."""

    def main(  # type: ignore[override]  # click's overloads promise what only its own exit keeps
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a verb and leave with its exit code."""
        is_standalone = extra.pop("standalone_mode", True)
        run = functools.partial(
            super().main, args, prog_name or self.name, standalone_mode=False, **extra
        )
        if not is_standalone:
            return run()
        sys.exit(_exit_code(run))


def _exit_code(run: Callable[[], Any]) -> int:
    gc.disable()  # a command lives for a moment; looking for cycles would cost it a tenth of that
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except CannotWrite as failure:
        return _stdout_failed(failure.error)
    except OSError as error:
        return _stdout_failed(error)
    finally:
        gc.enable()
    return int(code or 0)


def as_path(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Take what was typed for a path, or for several."""
    texts = (value,) if isinstance(value, str) else value
    if not all(texts):
        raise click.BadParameter("the path is empty", param=parameter)
    return Path(value) if isinstance(value, str) else tuple(Path(text) for text in texts)


def not_empty(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse an empty name: a shell variable that was never set must not mean anything at all."""
    if value == "":
        raise click.BadParameter("it is empty", param=parameter)
    return value


def verb(function: Callable[Concatenate["Output", P], int]) -> Callable[P, int]:
    """Give a verb `--json`, its output, and words for whatever goes wrong."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> int:
        from ckpt.output import Output

        output = Output.of_process(as_json=bool(options.pop("as_json")))
        try:
            code = function(output, *args, **options)
            output.out.flush()
            return code
        except KeyboardInterrupt:
            output.fail(Interrupted("interrupted"))
            return INTERRUPTED
        except CannotWrite:
            raise
        except CheckpointError as error:
            return output.fail(error, _code_of(error))
        except OSError as error:
            return output.fail(in_words(error))
        except Exception as error:
            if os.environ.get("CKPT_TRACEBACK"):
                raise
            return output.fail(Fault(error))

    return click.option("--json", "as_json", is_flag=True, help="One JSON document.")(run)


def _code_of(error: CheckpointError) -> int:
    match error:
        case Busy() | StalePlan():
            return BUSY
        case Interrupted():
            return INTERRUPTED
        case Refused() | PublishError():
            return REFUSED
    return FAILED


RUN = click.argument("run_dir", metavar="RUN", callback=as_path)


def whole_run(path: Path) -> Path:
    """Return the path when it is a run and no checkpoint in one.

    Raises:
        NoSuchRun: it is not; the hint names the run that a checkpoint lies in.
    """
    from ckpt.errors import NoSuchRun
    from ckpt.generations import find_run, require_run

    meant = find_run(require_run(path))
    if meant not in (path, path.absolute()):
        hint = f"name its run: {meant}"
        raise NoSuchRun(f"{path}: a checkpoint, expected its run", path=str(path), hint=hint)
    return path


class Interrupted(CheckpointError):
    """Ctrl-C: nothing is claimed of what was being done."""

    code = "interrupted"


class Unasked(CheckpointError):
    """What would change a run was neither agreed to nor could be asked about."""

    code = "not-agreed"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="give --yes to do it, or --dry-run to see the plan")


class Fault(CheckpointError):
    """Something that no input should be able to cause."""

    code = "internal-error"

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"a fault in ckpt itself: {type(error).__name__}: {error}",
            hint="please report it, with what CKPT_TRACEBACK=1 prints",
        )


def in_words(error: OSError) -> CheckpointError:
    """Say what the operating system refused as an error of ours."""
    from ckpt.errors import UnreadableCheckpoint

    path = None if error.filename is None else os.fsdecode(error.filename)
    reason = (error.strerror or str(error)).lower()
    words = UnreadableCheckpoint(f"{path}: {reason}" if path else reason, path=path)
    if isinstance(error, PermissionError):
        words.code = "permission-denied"
        words.hint = "ask its owner for access, or do it as its owner"
    return words


def _stdout_failed(error: OSError) -> int:
    """End quietly when nobody reads stdout any more, else say why it cannot be written.

    What is still buffered goes nowhere, so that the interpreter's own last flush is quiet too.
    """
    from ckpt import fs

    if sys.stdout is not None:
        with fs.appending(Path(os.devnull)) as descriptor:
            os.dup2(descriptor, sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return STDOUT_GONE
    click.echo(f"ckpt: stdout cannot be written: {error.strerror}", err=True)
    return 2
