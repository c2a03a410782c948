"""What the suite does to its tiny runs: the very functions that everybody else calls."""

import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ckpt import fs, generations, reflog, retention
from ckpt.errors import UnreadableCheckpoint
from ckpt.generations import (
    Known,
    Plan,
    Staging,
    carry_out,
    plan_redo,
    plan_rollback,
    plan_undo,
    plan_withdraw,
    publish,
    scan,
)
from ckpt.manifest import Listed, build
from ckpt.operation import drive
from ckpt.retention import Policy, plan_prune
from ckpt.selftest.tree import tensors
from ckpt.tensorwriter import write_tensors


def save(run_dir: Path, slot: str, label: int, *, step: int | None = None) -> None:
    """Publish a tiny checkpoint; a name that ends in `.safetensors` is a single file."""
    is_file = slot.endswith(".safetensors")

    def write(staging: Staging) -> None:
        if is_file:
            write_tensors(staging.path, tensors(label), {"label": str(label)})
            return
        meta: dict[str, Any] = {"epoch": 0, "timestamp": f"2026-12-01T07:00:{label:02d}"}
        meta |= {"optimizer_step": label if step is None else step, "label": label}
        _write(staging, meta, label)

    drive(publish(run_dir / slot, write, run_dir=run_dir, is_file=is_file))


def plan_back(run_dir: Path, slot: str | None = None) -> Plan:
    """Plan to make the newest retired generation live again."""
    return plan_rollback(_known(run_dir), slot=slot)


def roll_back(run_dir: Path, slot: str | None = None) -> None:
    """Make the newest retired generation live again."""
    carry(plan_back(run_dir, slot))


def send_back(run_dir: Path, to_step: int) -> None:
    """Withdraw every later slot."""
    carry(plan_withdraw(_known(run_dir), to_step=to_step))


def undo(run_dir: Path) -> None:
    """Take the last change back."""
    carry(plan_undo(_known(run_dir)))


def prune(run_dir: Path, *, keep_last: int) -> None:
    """Remove what a policy does not keep."""
    drive(retention.prune(plan_prune(_known(run_dir), Policy(keep_last=keep_last))))


def recover(run_dir: Path) -> tuple[str, ...]:
    """End whatever was cut off."""
    return drive(generations.recover(run_dir))


def redo(run_dir: Path) -> None:
    """Do again what was undone."""
    carry(plan_redo(_known(run_dir)))


def carry(plan: Plan) -> None:
    """Do what a plan says."""
    drive(carry_out(plan))


def _write(staging: Staging, meta: dict[str, Any], label: int) -> None:
    written = write_tensors(staging.path / "model.safetensors", tensors(label))
    listed = {"model.safetensors": Listed(written.size_bytes, written.sha256)}
    for name, value in (("meta.json", meta), ("config.json", {"hidden": 3})):
        data = json.dumps(value).encode()
        fs.write_new(staging.path / name, data)
        listed[name] = Listed(len(data), hashlib.sha256(data).hexdigest())
    extension = {"v": 1, **asdict(staging.origin)}
    data = build(listed, ["w"], meta=meta, extension=extension)
    fs.replace_bytes(staging.path / "manifest.json", data)


def _known(run_dir: Path) -> Known:
    """Look at a run before a plan is made; that it cannot be looked at is said in words."""
    try:
        return Known(run_dir, scan(run_dir), reflog.read(run_dir), time.time())
    except OSError as error:
        raise UnreadableCheckpoint(str(error), path=str(run_dir)) from error
