"""Checkpoints that cannot be lost: saved, read, verified. Public names are resolved when used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt.checkpoint import (
        Checkpoint,
        Depth,
        FileEntry,
        Finding,
        Generation,
        Report,
        Resolved,
        Severity,
        Slot,
        State,
        Tensor,
        Verdict,
        Verified,
    )
    from ckpt.errors import CheckpointError
    from ckpt.formats import inspect
    from ckpt.generations import (
        Known,
        Plan,
        Staging,
        Swapped,
        carry_out,
        plan_recover,
        plan_redo,
        plan_rollback,
        plan_undo,
        plan_withdraw,
        publish,
        recover,
        resolve,
        resolve_path,
        scan,
    )
    from ckpt.operation import Operation, drive
    from ckpt.record import Recorder
    from ckpt.retention import Policy, plan_prune, prune
    from ckpt.sources import RunReader, read_run
    from ckpt.view import RunView

_HOMES = {
    "Checkpoint": "ckpt.checkpoint",
    "CheckpointError": "ckpt.errors",
    "Depth": "ckpt.checkpoint",
    "FileEntry": "ckpt.checkpoint",
    "Finding": "ckpt.checkpoint",
    "Generation": "ckpt.checkpoint",
    "Known": "ckpt.generations",
    "Operation": "ckpt.operation",
    "Plan": "ckpt.generations",
    "Policy": "ckpt.retention",
    "Recorder": "ckpt.record",
    "Report": "ckpt.checkpoint",
    "Resolved": "ckpt.checkpoint",
    "RunReader": "ckpt.sources",
    "RunView": "ckpt.view",
    "Severity": "ckpt.checkpoint",
    "Slot": "ckpt.checkpoint",
    "Staging": "ckpt.generations",
    "State": "ckpt.checkpoint",
    "Swapped": "ckpt.generations",
    "Tensor": "ckpt.checkpoint",
    "Verdict": "ckpt.checkpoint",
    "Verified": "ckpt.checkpoint",
    "carry_out": "ckpt.generations",
    "drive": "ckpt.operation",
    "inspect": "ckpt.formats",
    "plan_prune": "ckpt.retention",
    "plan_recover": "ckpt.generations",
    "plan_redo": "ckpt.generations",
    "plan_rollback": "ckpt.generations",
    "plan_undo": "ckpt.generations",
    "plan_withdraw": "ckpt.generations",
    "prune": "ckpt.retention",
    "publish": "ckpt.generations",
    "read_run": "ckpt.sources",
    "recover": "ckpt.generations",
    "resolve": "ckpt.generations",
    "resolve_path": "ckpt.generations",
    "scan": "ckpt.generations",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Depth",
    "FileEntry",
    "Finding",
    "Generation",
    "Known",
    "Operation",
    "Plan",
    "Policy",
    "Recorder",
    "Report",
    "Resolved",
    "RunReader",
    "RunView",
    "Severity",
    "Slot",
    "Staging",
    "State",
    "Swapped",
    "Tensor",
    "Verdict",
    "Verified",
    "carry_out",
    "drive",
    "inspect",
    "plan_prune",
    "plan_recover",
    "plan_redo",
    "plan_rollback",
    "plan_undo",
    "plan_withdraw",
    "prune",
    "publish",
    "read_run",
    "recover",
    "resolve",
    "resolve_path",
    "scan",
]


def __getattr__(name: str) -> object:
    """Import the module that holds a public name the first time the name is used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
