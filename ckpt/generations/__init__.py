"""Slots and the generations behind them: finding runs, scanning, resolving, publishing.

Only this package publishes; formats write payloads. It decides nothing by a file's time.
"""

from ckpt.generations.find import child_runs, find_run, is_run, require_run, run_of
from ckpt.generations.publish import publish_new
from ckpt.generations.resolving import resolve
from ckpt.generations.scanner import Scanner, scan
from ckpt.generations.verified import verify_in_run

__all__ = [
    "Scanner",
    "child_runs",
    "find_run",
    "is_run",
    "publish_new",
    "require_run",
    "resolve",
    "run_of",
    "scan",
    "verify_in_run",
]
