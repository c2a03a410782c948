"""All files of one checkpoint, read and compared with what is recorded of them."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from ckpt import fs
from ckpt.checkpoint import Checkpoint, FileEntry, Finding, Severity, Tensor
from ckpt.operation import Found, Operation
from ckpt.verify.comparing import Judged, Target, has_usable_chunks, judge, settle
from ckpt.verify.crew import Step, read_all
from ckpt.verify.given import Care, Read, Recorded
from ckpt.verify.hashing import Part
from ckpt.verify.sealed import ago
from ckpt.verify.tally import Tally

_NOT_OPENED = frozenset(
    {"bad-entry-name", "dangling-link", "empty-file", "missing-file", "permission-denied",
     "size-mismatch", "symlink"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One checkpoint that is being compared."""

    read: Read
    care: Care
    recorded: Recorded
    tally: Tally

    @property
    def seen(self) -> Checkpoint:
        """What was read of it down to its headers."""
        return self.read.seen


def compare_all(work: Work) -> Operation[None]:
    """Compare every file that something is recorded of; each finding as it comes."""
    seen, tally = work.seen, work.tally
    hashed = [entry for entry in seen.files if entry.sha256 is not None or entry.chunks]
    tally.left = len(hashed)
    known = len(tally.findings)
    for finding in _unusable_chunks(hashed):
        yield from take(work, Judged(finding))
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


def take(work: Work, judged: Judged) -> Operation[None]:
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


# ---- private ----------------------------------------------------------------------------------


def _unusable_chunks(hashed: Sequence[FileEntry]) -> Iterator[Finding]:
    for entry in hashed:
        if entry.chunks and entry.size_bytes is not None and not has_usable_chunks(entry):
            message = f"{entry.name}: its chunk hashes do not fit its size, and are not used"
            yield Finding("stale-chunks", Severity.WARNING, message, entry.name)


def _targets(work: Work, hashed: Sequence[FileEntry]) -> Iterator[Target]:
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


def _not_compared_before(work: Work, targets: tuple[Target, ...]) -> Operation[tuple[Target, ...]]:
    """Leave out what a verification that was cancelled had compared, and say so."""
    compared = work.recorded.compared
    if compared is None or compared.is_empty:
        return targets
    left, times = [], []
    for target in targets:
        at = None
        with suppress(OSError):  # it will be told when it is read
            found = fs.identity(target.where)
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
        yield from take(work, Judged(Finding("compared-before", Severity.NOTE, message)))
    return tuple(left)


def _judge_all(
    work: Work, targets: Sequence[Target], doubtful: Mapping[str, Judged]
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
                yield from tally.step(told.name, told.count)
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
            yield from take(work, judged)
            if judged.is_same and work.recorded.compared is not None and told.before is not None:
                work.recorded.compared.note(told.before, by_name[name].hashes)
            yield tally.progress(name)
    return undecided


def _replaced(name: str) -> Finding:
    message = f"{name}: the checkpoint was replaced or removed while it was read"
    hint = "verify it again: what stands there now is another one"
    return Finding("changed-while-reading", Severity.WARNING, message, name, hint=hint)
