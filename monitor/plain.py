"""The run without a screen: what `ckpt status` prints, or one line a change."""

import os
import queue
import sys
from pathlib import Path

from ckpt import fs
from ckpt.present.line import status_line
from ckpt.terminal import Terminal
from monitor.feed import Feed, Shown
from monitor.options import Options


def report(run_dir: Path) -> int:
    """Print what `ckpt status` prints; return its exit code."""
    from ckpt.cli import main

    os.environ["NO_COLOR"] = (
        "1"  # stdout may be a terminal where stderr is none: no sequence at all
    )
    try:
        main(["status", "--", str(run_dir)], "ckpt")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def follow(run_dir: Path, options: Options) -> None:
    """Print a line whenever the run has changed, until interrupted.

    Raises:
        NoSuchRun: the path is no directory, or holds several runs.
        CannotWrite: stdout takes no more.
        KeyboardInterrupt: Ctrl-C.
    """
    from ckpt.generations import child_runs, require_run

    if not fs.is_directory(run_dir) or child_runs(run_dir):
        require_run(run_dir)  # one in which nothing has happened yet is waited for
    terminal = Terminal.of(sys.stdout, os.environ)
    ascii_only = options.is_ascii or terminal.ascii_only
    views: queue.SimpleQueue[Shown] = queue.SimpleQueue()
    feed = Feed(run_dir, views.put, poll_s=options.poll_s, is_read_only=options.is_read_only)
    feed.start()
    said = ""
    try:
        while True:
            shown = views.get()
            view = shown.view
            ageless = status_line(view, view.updated_at or 0.0)
            if shown.is_whole and ageless != said:
                said = ageless
                terminal.line(status_line(view, shown.now, ascii_only=ascii_only))
                terminal.flush()
    finally:
        feed.stop()
