"""Checkpoints that cannot be lost: read, verify, watch. Public names are resolved when used."""

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
    from ckpt.generations import resolve, scan
    from ckpt.operation import Operation, drive
    from ckpt.record import Recorder
    from ckpt.sources import RunReader, read_run
    from ckpt.view import RunView

_HOMES = {
    "Checkpoint": "ckpt.checkpoint",
    "CheckpointError": "ckpt.errors",
    "Depth": "ckpt.checkpoint",
    "FileEntry": "ckpt.checkpoint",
    "Finding": "ckpt.checkpoint",
    "Generation": "ckpt.checkpoint",
    "Operation": "ckpt.operation",
    "Recorder": "ckpt.record",
    "Report": "ckpt.checkpoint",
    "Resolved": "ckpt.checkpoint",
    "RunReader": "ckpt.sources",
    "RunView": "ckpt.view",
    "Severity": "ckpt.checkpoint",
    "Slot": "ckpt.checkpoint",
    "State": "ckpt.checkpoint",
    "Tensor": "ckpt.checkpoint",
    "Verdict": "ckpt.checkpoint",
    "Verified": "ckpt.checkpoint",
    "drive": "ckpt.operation",
    "inspect": "ckpt.formats",
    "read_run": "ckpt.sources",
    "resolve": "ckpt.generations",
    "scan": "ckpt.generations",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Depth",
    "FileEntry",
    "Finding",
    "Generation",
    "Operation",
    "Recorder",
    "Report",
    "Resolved",
    "RunReader",
    "RunView",
    "Severity",
    "Slot",
    "State",
    "Tensor",
    "Verdict",
    "Verified",
    "drive",
    "inspect",
    "read_run",
    "resolve",
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
