"""Saving small checkpoints in tests, and what a run looks like without its control directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samples import floats
from trees import snapshot

from ckpt import fs, reflog
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import Known, Staging, publish, scan
from ckpt.operation import drive


def meta(step: int) -> dict[str, Any]:
    return {
        "epoch": 1,
        "consumed_samples": 8 * step,
        "timestamp": "2026-12-01T07:00:00",
        "optimizer_step": step,
    }


def fill(staging: Staging, step: int, *values: float) -> None:
    buffers = [floats("w", *(values or (float(step), 2.0)))]
    write_checkpoint(staging.path, meta(step), {"hidden": 2}, buffers, origin=staging.origin)


def save(target: Path, step: int, *values: float, run_dir: Path | None = None) -> str:
    """Publish a checkpoint; return the id of its generation."""
    run = run_dir or target.parent
    done = drive(publish(target, lambda staging: fill(staging, step, *values), run_dir=run))
    after = done.changes[0].after
    assert after is not None
    return after


def known(run: Path, now: float = 2e9, written_at: float | None = None) -> Known:
    return Known(run, scan(run), reflog.read(run), now, written_at)


def lying(run: Path) -> dict[str, bytes | None]:
    """All that lies in a run but its control directory."""
    return {name: data for name, data in snapshot(run).items() if not name.startswith(".ckpt")}


@contextmanager
def without_exchange() -> Iterator[None]:
    """As on a file system that cannot exchange two names."""

    def refuse(call: fs.Call) -> None:
        if call.name == "exchange":
            raise OSError(22, "Invalid argument", call.path)

    with fs.hooked(refuse):
        yield
