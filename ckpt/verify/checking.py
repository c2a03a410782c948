"""Verifying one checkpoint: read it to a depth, compare every recorded hash, give a verdict.

Reads only. Knows nothing of runs or slots, and nothing of what a format means by its files.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckpt import fs, pickles
from ckpt.checkpoint import (
    UNSUPPORTED_CODES,
    Checkpoint,
    Damage,
    Depth,
    FileEntry,
    Finding,
    Report,
    Severity,
    Tensor,
    Verdict,
    worst_first,
)
from ckpt.compared import Compared
from ckpt.operation import Found, Operation, Progress
from ckpt.seals import Seal
from ckpt.verify.comparing import Judged, Target, has_usable_chunks, judge, settle
from ckpt.verify.crew import TELL_EVERY_S, Step, read_all
from ckpt.verify.hashing import Part
from ckpt.verify.reading import leads_to, read_settled
from ckpt.verify.sealed import ago, with_seal

STRIDE_BYTES = 16 << 20
_NOT_OPENED = frozenset(
    {"bad-entry-name", "dangling-link", "empty-file", "missing-file", "permission-denied",
     "size-mismatch", "symlink"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Care:
    """How bytes are compared.

    `with_sha256`: the whole file's hash is computed also where chunk hashes are recorded.
    `is_polite`: what was read is dropped from the system's cache, which others may need more.
    """

    with_sha256: bool = False
    is_polite: bool = False


USUAL = Care()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run knows of a payload beyond what the payload says itself.

    `findings` say what of it cannot be used. `compared` has what was compared before, and takes
    down what is compared now.
    """

    seal: Seal | None = None
    findings: tuple[Finding, ...] = ()
    compared: Compared | None = None


NOTHING_RECORDED = Recorded()


@dataclass(frozen=True, slots=True)
class Read:
    """A checkpoint that was read down to its headers, and how its files are reached.

    `where` leads from a file's name to it; `is_there` says whether this very checkpoint still
    stands at its path. `is_whole` False: other files of its directory belong to other payloads.
    """

    seen: Checkpoint
    where: Callable[[str], str]
    is_there: Callable[[], bool]
    is_whole: bool = True


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
        return Read(seen, lambda name: str(_beside(seen.path, name)), lambda: True)
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
    tally = _Tally([*seen.findings, *extra], uncovered=uncovered, told_at=started)
    for finding in tally.findings:
        yield Found(finding)
    work = _Work(replace(read, seen=seen), care, recorded, tally)
    if depth is Depth.BYTES and tally.verdict is not Verdict.UNSUPPORTED:
        yield from _compare_all(work)
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


def verdict_of(findings: Iterable[Finding], *, is_all_compared: bool) -> Verdict:
    """Return the verdict that findings allow; warnings and notes never change it."""
    found = list(findings)
    codes = {finding.code for finding in found if finding.severity is Severity.ERROR}
    if codes - UNSUPPORTED_CODES:
        return Verdict.DAMAGED
    if any(finding.code in UNSUPPORTED_CODES for finding in found):
        return Verdict.UNSUPPORTED
    return Verdict.INTACT if is_all_compared else Verdict.UNVERIFIABLE


@dataclass(slots=True)
class _Tally:
    """What one verification has found so far.

    `left` files with a hash are not yet compared, `uncovered` have none though others were sealed.
    """

    findings: list[Finding]
    uncovered: int = 0
    damage: list[Damage] = field(default_factory=list)
    compared: int = 0
    left: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    told_bytes: int = 0
    told_at: float = 0.0

    @property
    def verdict(self) -> Verdict:
        is_all = self.compared > 0 and self.left == self.uncovered == 0
        return verdict_of(self.findings, is_all_compared=is_all)

    def step(self, step: Step) -> Operation[None]:
        """Count what was read, and say so now and then."""
        self.bytes_read += step.count
        is_far = self.bytes_read - self.told_bytes >= STRIDE_BYTES
        if is_far or time.monotonic() - self.told_at >= TELL_EVERY_S:
            yield self.progress(step.name)

    def progress(self, name: str) -> Progress:
        self.told_bytes, self.told_at = self.bytes_read, time.monotonic()
        return Progress(self.bytes_read, max(self.total_bytes, self.bytes_read), name)


@dataclass(frozen=True, slots=True)
class _Work:
    """One checkpoint that is being compared."""

    read: Read
    care: Care
    recorded: Recorded
    tally: _Tally

    @property
    def seen(self) -> Checkpoint:
        return self.read.seen


# ---- comparing bytes --------------------------------------------------------------------------


def _compare_all(work: _Work) -> Operation[None]:
    seen, tally = work.seen, work.tally
    hashed = [entry for entry in seen.files if entry.sha256 is not None or entry.chunks]
    tally.left = len(hashed)
    known = len(tally.findings)
    for entry in hashed:
        if entry.chunks and entry.size_bytes is not None and not has_usable_chunks(entry):
            message = f"{entry.name}: its chunk hashes do not fit its size, and are not used"
            finding = Finding("stale-chunks", Severity.WARNING, message, entry.name)
            yield from _take(work, Judged(finding))
    targets = yield from _not_compared_before(work, tuple(_targets(work, hashed)))
    doubtful = yield from _judge_all(work, targets, {})
    again = [
        replace(target, by_chunks=False, by_sha256=True)
        for target in targets
        if target.entry.name in doubtful
    ]
    yield from _judge_all(work, again, doubtful)
    # in the order of the files, whichever was read first
    order = {entry.name: place for place, entry in enumerate(seen.files)}
    tally.damage.sort(key=lambda damage: order[damage.file])
    found = sorted(tally.findings[known:], key=lambda each: order.get(each.file or "", -1))
    tally.findings[known:] = found


def _targets(work: _Work, hashed: Sequence[FileEntry]) -> Iterator[Target]:
    """Yield what is to be read, and how; not what is known to be damaged without reading."""
    seen, seal = work.seen, work.recorded.seal
    tensors: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in seen.tensors:
        tensors[tensor.file].append(tensor)
    errors = {
        finding.file
        for finding in seen.findings
        if finding.severity is Severity.ERROR and finding.code in _NOT_OPENED
    }
    links = {
        finding.file
        for finding in seen.findings
        if finding.severity is not Severity.ERROR and finding.code == "symlink"
    }
    for entry in hashed:
        if entry.name in errors or entry.size_bytes is None:
            continue
        by_chunks = has_usable_chunks(entry)
        sealed = seal.files.get(entry.name) if seal is not None else None
        yield Target(
            entry,
            work.read.where(entry.name),
            entry.size_bytes,
            tuple(tensors.get(entry.name, ())),
            by_chunks,
            entry.sha256 is not None and (work.care.with_sha256 or not by_chunks),
            may_be_link=entry.name in links,
            sealed_mtime_ns=sealed.mtime_ns if sealed is not None else None,
        )


def _not_compared_before(
    work: _Work, targets: tuple[Target, ...]
) -> Operation[tuple[Target, ...]]:
    """Leave out what a verification that was cancelled had compared, and say so."""
    compared = work.recorded.compared
    if compared is None or compared.is_empty:
        return targets
    left, times = [], []
    for target in targets:
        try:
            found = fs.identity(target.where)
        except OSError:
            found = None
        at = compared.lookup(found, target.hashes) if found is not None else None
        if at is None:
            left.append(target)
        else:
            times.append(at)
    if times:
        work.tally.left -= len(times)
        work.tally.compared += len(times)
        when = ago(min(times), time.time())
        message = (
            f"{len(times):,} of {len(targets):,} files were compared {when}, before that"
            " verification was cancelled, and did not change since"
        )
        finding = Finding("compared-before", Severity.NOTE, message)
        work.tally.findings.append(finding)
        yield Found(finding)
    return tuple(left)


def _judge_all(
    work: _Work, targets: Sequence[Target], doubtful: Mapping[str, Judged]
) -> Operation[Mapping[str, Judged]]:
    """Read and judge files; return what is still to be decided by the whole file's hash.

    `doubtful` is that of an earlier call, decided now.
    """
    tally, by_name = work.tally, {target.entry.name: target for target in targets}
    stretches = {name: tuple(target.stretches()) for name, target in by_name.items()}
    tally.total_bytes += sum(target.size_bytes for target in targets)
    undecided: dict[str, Judged] = {}
    parts: dict[str, list[Part]] = defaultdict(list)
    every = [stretch for each in stretches.values() for stretch in each]
    with closing(read_all(every, is_forgetful=work.care.is_polite)) as reading:
        for told in reading:
            if isinstance(told, Step):
                yield from tally.step(told)
                continue
            name = told.stretch.name
            parts[name].append(told)
            if len(parts[name]) < len(stretches[name]):
                continue
            judged = judge(by_name[name], parts.pop(name))
            if name in doubtful:
                judged = settle(doubtful[name], judged)
            if judged.is_doubtful:
                undecided[name] = judged
                continue
            yield from _take(work, judged)
            if judged.is_same and work.recorded.compared is not None and told.before is not None:
                work.recorded.compared.note(told.before, by_name[name].hashes)
            yield tally.progress(name)
    return undecided


def _take(work: _Work, judged: Judged) -> Operation[None]:
    """Count what came of a file, and say what is wrong with it."""
    tally, finding, damage = work.tally, judged.finding, judged.damage
    if judged.is_same:
        tally.left -= 1
        tally.compared += 1
    if finding is None:
        return
    is_error = finding.severity is Severity.ERROR
    if is_error and not work.read.is_there():
        finding, damage = _replaced(finding.file or ""), None
    tally.findings.append(finding)
    if damage is not None:
        tally.damage.append(damage)
    yield Found(finding)


def _look_at_pickles(work: _Work, depth: Depth) -> Operation[None]:
    """Say what loading the pickles of a checkpoint would run, and whether they are whole."""
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
            yield from _take(work, Judged(finding))


def _beside(path: Path, name: str) -> Path:
    return path if path.name == name else path.parent / name


def _replaced(name: str) -> Finding:
    message = f"{name}: the checkpoint was replaced or removed while it was read"
    hint = "verify it again: what stands there now is another one"
    return Finding("changed-while-reading", Severity.WARNING, message, name, hint=hint)


def _notes(seen: Checkpoint, depth: Depth, tally: _Tally) -> Iterator[Finding]:
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
