"""Verifying one checkpoint: read it to a depth, compare every recorded hash, give a verdict.

Reads only. Knows nothing of runs or slots, and nothing of what a format means by its files.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from ckpt.checkpoint import Checkpoint, Depth, Finding, Report, Severity, Verdict, worst_first
from ckpt.operation import Found, Operation, Progress
from ckpt.verify.comparing import Judged
from ckpt.verify.files import Work, compare_all, take
from ckpt.verify.given import NOTHING_RECORDED, USUAL, Care, Read, Recorded
from ckpt.verify.reading import leads_to, read_settled
from ckpt.verify.sealed import with_seal
from ckpt.verify.tally import Tally

_NO_PICKLES = (".safetensors", ".json", ".jsonl")


def verify(
    path: Path,
    depth: Depth = Depth.BYTES,
    *,
    care: Care = USUAL,
    recorded: Recorded = NOTHING_RECORDED,
) -> Operation[Report]:
    """Check a checkpoint and report; closing the operation cancels it and leaves no claim.

    A directory that is replaced meanwhile is still read whole: its files are reached through one
    open descriptor. Files whose size already tells are not hashed. Where hashes of chunks are
    recorded the bytes are compared by those; where they differ, the whole file's hash decides.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        report = yield from verify_read(open_settled(path, depth, stack), depth, care, recorded)
    return replace(report, path=path, seconds=time.monotonic() - started)


def open_settled(path: Path, depth: Depth, stack: ExitStack) -> Read:
    """Read a checkpoint once nothing in it changes; `stack` closes what is open of it.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    seen, opened = read_settled(path, depth, stack)
    if opened is None:
        # of an index or a lone file: what else lies there was not asked for
        where = partial(_beside, seen.path)
        return Read(seen, where, lambda: True, is_whole=False)
    return Read(seen, opened.inside, lambda: leads_to(path, opened.opened_as))


def verify_read(
    read: Read, depth: Depth, care: Care = USUAL, recorded: Recorded = NOTHING_RECORDED
) -> Operation[Report]:
    """Check a checkpoint that was read to that depth."""
    started, seal = time.monotonic(), recorded.seal
    seen, extra, uncovered = read.seen, recorded.findings, 0
    if seal is not None and not any(entry.sha256 is not None for entry in seen.files):
        sealed = with_seal(seen, seal, time.time(), is_whole=read.is_whole)
        seen, uncovered = sealed.seen, sealed.uncovered
        extra = (*extra, *sealed.findings) if depth is Depth.BYTES else extra
    else:
        seal = None
    tally = Tally([*seen.findings, *extra], uncovered=uncovered, told_at=started)
    for finding in tally.findings:
        yield Found(finding)
    work = Work(replace(read, seen=seen), care, recorded, tally)
    if depth is Depth.BYTES and tally.verdict is not Verdict.UNSUPPORTED:
        yield from compare_all(work)
    if depth is not Depth.NAMES:
        yield from _look_at_pickles(work, depth)
    for finding in _notes(seen, depth, tally):
        tally.findings.append(finding)
        yield Found(finding)
    return Report(
        seen.path,
        seen.format,
        depth,
        tally.verdict,
        worst_first(tally.findings),
        tally.bytes_read,
        time.monotonic() - started,
        tuple(tally.damage),
        seal.at if seal is not None and depth is Depth.BYTES else None,
    )


# ---- private ----------------------------------------------------------------------------------


def _beside(path: Path, name: str) -> str:
    return str(path if path.name == name else path.parent / name)


def _look_at_pickles(work: Work, depth: Depth) -> Operation[None]:
    """Say what loading the pickles of a checkpoint would run, and whether they are whole."""
    if all(entry.name.endswith(_NO_PICKLES) for entry in work.seen.files):
        return
    from ckpt import pickles  # late: most checkpoints hold none

    tally = work.tally
    for entry in pickles.pickled(work.seen):
        before = tally.bytes_read
        checking = pickles.check(work.read.where(entry.name), entry, depth)
        while True:
            try:
                event = next(checking)
            except StopIteration as stop:
                findings: tuple[Finding, ...] = stop.value
                break
            if isinstance(event, Progress):
                tally.bytes_read = before + event.done
                yield tally.progress(entry.name)
        for finding in findings:
            yield from take(work, Judged(finding))


def _notes(seen: Checkpoint, depth: Depth, tally: Tally) -> Iterator[Finding]:
    """Say why nothing, or not everything, was compared though nothing is wrong."""
    if tally.verdict in (Verdict.DAMAGED, Verdict.UNSUPPORTED):
        return
    has_hashes = any(entry.sha256 is not None for entry in seen.files)
    if depth is not Depth.BYTES:
        looked = "file names and sizes" if depth is Depth.NAMES else "names, sizes and headers"
        message = f"only {looked} were looked at, no byte was compared"
        yield Finding("not-compared", Severity.NOTE, message, hint="--depth bytes compares them")
    elif not has_hashes and all(finding.code != "no-manifest" for finding in seen.findings):
        message = "no hash is recorded that the bytes could be compared with"
        hint = "record them now, so that later damage shows: ckpt seal"
        yield Finding("no-hashes", Severity.NOTE, message, hint=hint)
