"""The command `ckpt-monitor`: decides what can be shown here, then shows it.

The order of things is the point: a first frame is on the screen before Textual is imported.
"""

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt import fs
from ckpt.errors import CannotWrite, CheckpointError
from monitor.options import Options
from monitor.terminal import (
    Leaving,
    Screen,
    be_light,
    has_keyboard,
    is_drawable,
    measure_ourselves,
)

if TYPE_CHECKING:
    from monitor.command_line import Asked

FAULT, USAGE, INTERRUPTED, STDOUT_GONE = 1, 2, 130, 141
GARBAGE_AFTER_S = 2.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `ckpt-monitor` and leave with its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(_run(words))
    except CheckpointError as error:
        _say(f"{error.message}; {error.hint}" if error.hint else error.message)
        sys.exit(USAGE)
    except CannotWrite:
        _drop_stdout()
        sys.exit(STDOUT_GONE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(words: Sequence[str]) -> int:
    if len(words) == 1 and words[0] and not words[0].startswith("-"):
        return _watch(Path(words[0]), Options())  # the usual way, without waiting for click
    from monitor.command_line import asked_for

    return asked_for(words, _do)


def _do(asked: "Asked") -> int:
    if not asked.is_demo:
        return _watch(asked.run_dir or _run_here(), asked.options, is_plain=asked.is_plain)
    if not (asked.is_plain or is_drawable(os.environ)):
        raise CheckpointError(
            "the demo is there to be watched, and this is no terminal to draw on",
            hint="`ckpt-monitor --demo --plain` prints its lines",
        )
    from monitor.demo import running

    Leaving(Screen())  # or a signal would leave the demo's directory behind
    with running(asked.keep) as run_dir:
        code = _watch(run_dir, asked.options, is_plain=asked.is_plain)
    if asked.keep is not None:
        _say(f"the demo's run is kept: {asked.keep}")
    return code


def _watch(run_dir: Path, options: Options, *, is_plain: bool = False) -> int:
    """Show a run as this terminal allows it."""
    if is_plain:
        from monitor.plain import follow

        follow(run_dir, options)
        return 0
    if not is_drawable(os.environ):
        from monitor.plain import report

        return report(run_dir)
    if not has_keyboard():
        _say("stdin is no terminal: no key could be read (`ckpt status` needs none)")
        return USAGE
    return _show(run_dir, options)


def _show(run_dir: Path, options: Options) -> int:
    if not fs.is_directory(run_dir):
        from ckpt.generations import require_run

        require_run(run_dir)  # says what is wrong with it, unless it has just appeared
    gc.disable()  # looking for cycles while modules are imported costs a tenth of the start
    with Screen() as screen:
        leaving = Leaving(screen)
        options = _with_signs(options)
        from monitor.first_frame import first_frame

        screen.paint(first_frame(run_dir, ascii_only=options.is_ascii))
        be_light(os.environ)
        measure_ourselves(os.environ)
        fault = _run_app(run_dir, options, screen, leaving)
    if fault is not None:
        sys.stderr.write(fault)
        _say(f"a fault in ckpt-monitor itself: {fault.rstrip().splitlines()[-1]}")
        return FAULT
    return leaving.exit_code


def _run_app(run_dir: Path, options: Options, screen: Screen, leaving: Leaving) -> str | None:
    """Run the app to its end; return the traceback of what ended it, None when nothing did."""
    import asyncio

    from monitor.app import MonitorApp
    from monitor.driver import TerminalDriver

    TerminalDriver.screen = screen
    app = MonitorApp(run_dir, options)
    app.driver_class = TerminalDriver

    async def run() -> None:
        loop = asyncio.get_running_loop()
        leaving.by(lambda: loop.call_soon_threadsafe(app.exit))
        loop.call_later(GARBAGE_AFTER_S, _collect_garbage)
        try:
            await app.run_async(mouse=options.has_mouse)
        finally:
            leaving.done()

    asyncio.run(run())
    return app.fault


def _collect_garbage() -> None:
    """Let cycles be looked for from now on, among what is made from now on."""
    gc.freeze()
    gc.enable()


def _with_signs(options: Options) -> Options:
    """Choose the ASCII signs where the terminal is not known to show others."""
    from dataclasses import replace

    from ckpt.terminal import is_ascii_only

    assert sys.__stderr__ is not None
    return replace(
        options,
        is_ascii=options.is_ascii or is_ascii_only(sys.__stderr__.encoding, os.environ),
    )


def _run_here() -> Path:
    """Return the run that the current directory means, or itself where it holds several."""
    from ckpt.generations import child_runs, find_run

    here = Path()
    return here if len(child_runs(here)) > 1 else find_run(here)


def _say(sentence: str) -> None:
    from ckpt.present.words import visible

    if sys.stderr is not None:
        sys.stderr.write(f"ckpt-monitor: {visible(sentence)}\n")


def _drop_stdout() -> None:
    """Let the interpreter's last flush go nowhere, quietly."""
    with fs.appending(Path(os.devnull)) as descriptor:
        os.dup2(descriptor, sys.stdout.fileno())


if __name__ == "__main__":
    main()
