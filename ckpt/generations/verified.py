"""Verifying a payload of a run so that the run remembers the verdict."""

import time
from pathlib import Path

from ckpt.checkpoint import Depth, Report, Verified
from ckpt.control import VerifiedCache, VerifiedEntry
from ckpt.generations.find import run_of
from ckpt.generations.payload import look
from ckpt.operation import Operation
from ckpt.verify import verify


def verify_in_run(
    path: Path, depth: Depth = Depth.BYTES, *, run_dir: Path | None = None
) -> Operation[Report]:
    """Verify as `verify.verify` does, and record the verdict in the run's `.ckpt/`.

    `run_dir` None: the run is found above the path, by its progress files or its `.ckpt/`. Nothing
    is recorded where there is none, where it cannot be written to, or when the files changed
    meanwhile or just before.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    run_dir = run_dir or run_of(path)
    before = look(path, with_stamp=True)
    report = yield from verify(path, depth)
    after = look(path, with_stamp=True)
    if run_dir is None or before.stamp is None or before.stamp != after.stamp:
        return report
    verified = Verified(report.verdict, report.depth, time.time())
    name = _relative(path, run_dir)
    entry = VerifiedEntry(name, before.id, before.stamp.digest, verified)
    VerifiedCache(run_dir).remember(entry, before.stamp)
    return report


def _relative(path: Path, run_dir: Path) -> str:
    absolute, run = path.absolute(), run_dir.absolute()
    return str(absolute.relative_to(run)) if absolute.is_relative_to(run) else str(absolute)
