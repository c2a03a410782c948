"""Slots and the generations behind them: finding, scanning, resolving, publishing, going back.

Only this package publishes; formats write payloads. It decides nothing by a file's time. What
changes a run is imported when it is used, so that looking at one stays quick.
"""

from typing import TYPE_CHECKING

from ckpt.generations.find import child_runs, find_run, is_run, require_run, run_of
from ckpt.generations.resolving import resolve, resolve_path
from ckpt.generations.scanner import Scanner, scan, scan_slot
from ckpt.generations.verified import verify_in_run

if TYPE_CHECKING:
    from ckpt.generations.acting import carry_out
    from ckpt.generations.plans import (
        Known,
        Plan,
        Swapped,
        plan_recover,
        plan_redo,
        plan_rollback,
        plan_undo,
        plan_withdraw,
    )
    from ckpt.generations.publishing import Staging, publish
    from ckpt.generations.recovering import recover

_HOMES = {
    "Known": "plans",
    "Plan": "plans",
    "Staging": "publishing",
    "Swapped": "plans",
    "carry_out": "acting",
    "plan_recover": "plans",
    "plan_redo": "plans",
    "plan_rollback": "plans",
    "plan_undo": "plans",
    "plan_withdraw": "plans",
    "publish": "publishing",
    "recover": "recovering",
}

__all__ = [
    "Known",
    "Plan",
    "Scanner",
    "Staging",
    "Swapped",
    "carry_out",
    "child_runs",
    "find_run",
    "is_run",
    "plan_recover",
    "plan_redo",
    "plan_rollback",
    "plan_undo",
    "plan_withdraw",
    "publish",
    "recover",
    "require_run",
    "resolve",
    "resolve_path",
    "run_of",
    "scan",
    "scan_slot",
    "verify_in_run",
]


def __getattr__(name: str) -> object:
    """Import the module that holds a name the first time the name is used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ckpt.generations' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"ckpt.generations.{home}"), name)
    globals()[name] = value
    return value
