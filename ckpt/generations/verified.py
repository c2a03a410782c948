"""Verifying a payload of a run with what the run knows of it, so that the run remembers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Depth, Report, Severity, Verified
from ckpt.compared import Compared
from ckpt.control import DIRECTORY as CONTROL
from ckpt.control import VerifiedCache, VerifiedEntry
from ckpt.generations.find import run_of
from ckpt.generations.payload import look
from ckpt.operation import Operation
from ckpt.seals import find_seal
from ckpt.verify import USUAL, Care, Recorded, verify

LONGEST_WORDS = 4096
MOST_NAMES = 3


def verify_in_run(
    path: Path,
    depth: Depth = Depth.BYTES,
    *,
    run_dir: Path | None = None,
    care: Care = USUAL,
    is_recorded: bool = True,
) -> Operation[Report]:
    """Verify as `verify.verify` does, with the payload's seal, and record the verdict.

    `run_dir` None: the run is found above the path, by its progress files or its `.ckpt/`. Nothing
    is recorded where there is none, where it cannot be written to, or when the files changed
    meanwhile or just before. Cancelled, it leaves what it had compared to the next one. With
    `is_recorded` False nothing is written at all.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    run_dir = run_dir or control_home(path)
    began_at = time.time()
    before = look(path, with_stamp=True)

    def checking(recorded: Recorded) -> Operation[Report]:
        return verify(path, depth, care=care, recorded=recorded)

    # a writer that names its generations puts a new one at the path: the old one did not change
    is_named = before.glance is not None and before.glance.generation is not None
    payload = Payload(run_dir, before.id, None if is_named else path)
    report = yield from with_recorded(checking, payload, depth, is_recorded=is_recorded)
    after = look(path, with_stamp=True)
    if run_dir is None or before.stamp is None or before.stamp != after.stamp or not is_recorded:
        return report
    verified = _remembered(report, time.time())
    name = in_run(path, run_dir)
    entry = VerifiedEntry(name, before.id, before.stamp.digest, verified)
    VerifiedCache(run_dir).remember(entry, before.stamp, began_at=began_at)
    return report


def _remembered(report: Report, at: float) -> Verified:
    """Return what is to be remembered of a verdict: short, whatever the damaged file names."""
    worst = next((each for each in report.findings if each.severity is not Severity.NOTE), None)
    if worst is None or len(repr(worst)) > LONGEST_WORDS:
        return Verified(report.verdict, report.depth, at)
    damage = next((each for each in report.damage if each.file == worst.file), None)
    hurt = damage.tensors if damage is not None else ()
    names = tuple(name for name in hurt[:MOST_NAMES] if len(name) <= LONGEST_WORDS)
    return Verified(report.verdict, report.depth, at, worst, names, len(hurt))


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload as its run knows it.

    `path` None: what lies at its path is told by the id alone.
    """

    run_dir: Path | None
    generation: str
    path: Path | None = None


def with_recorded(
    checking: Callable[[Recorded], Operation[Report]],
    payload: Payload,
    depth: Depth,
    *,
    is_recorded: bool = True,
) -> Operation[Report]:
    """Verify with what a run knows of a payload; what was compared outlives a cancellation."""
    run_dir, path = payload.run_dir, payload.path
    if run_dir is None:
        return (yield from checking(Recorded()))
    name = in_run(path, run_dir) if path is not None else None
    seal, findings = find_seal(run_dir, generation=payload.generation, path=name)
    if depth is not Depth.BYTES or not is_recorded:
        return (yield from checking(Recorded(seal, findings)))
    compared = Compared(run_dir)
    try:
        report = yield from checking(Recorded(seal, findings, compared))
    except BaseException:  # closed, interrupted, or a fault: what was compared stays so
        compared.keep()
        raise
    compared.forget()
    return report


def control_home(path: Path) -> Path | None:
    """Return the run that knows of a payload: itself, or one above; None where there is none."""
    if fs.is_directory(path / CONTROL):
        return path
    return run_of(path)


def in_run(path: Path, run_dir: Path) -> str:
    """Return a path as a run's own records spell it: relative to the run where it lies in it."""
    absolute, run = path.absolute(), run_dir.absolute()
    return str(absolute.relative_to(run)) if absolute.is_relative_to(run) else str(absolute)
