"""Verifying generations of a run, one after the other, and the words for how each one ended.

The thread that verifies writes whole values, which the screen reads whenever it paints.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt.checkpoint import Depth, Finding, Generation, Slot, Verdict
from ckpt.errors import CheckpointError
from ckpt.operation import Found, Progress
from ckpt.present import Cell, Tone, size, verdict_cell, visible
from monitor.feed import sentence
from monitor.work import Work

if TYPE_CHECKING:
    from ckpt.checkpoint import Report
    from ckpt.named import Named
    from ckpt.operation import Operation

MOST_SHOWN = 1000
FEW = 3
_WORDS = {
    Verdict.INTACT: "intact",
    Verdict.UNVERIFIABLE: "cannot be verified",
    Verdict.UNSUPPORTED: "not supported",
    None: "could not be read",
    Verdict.DAMAGED: "damaged",
}
NOT_RECORDED = "not recorded under --read-only"
_BADNESS = [Tone.GOOD, Tone.WARN, Tone.BAD]


@dataclass(frozen=True, slots=True)
class Subject:
    """A generation to be verified; `key` is its row's, `named` says where it lies."""

    key: str
    name: str
    named: "Named"
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """How far one subject is: `share` of its bytes read, then a `report` or a `problem`."""

    subject: Subject
    share: float = 0.0
    findings: tuple[Finding, ...] = ()
    report: "Report | None" = None
    problem: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self.report is not None or self.problem is not None

    @property
    def cell(self) -> Cell:
        """How far it is, or how it ended: `verifying 51 %`, `✓ intact`."""
        if not self.is_over:
            return Cell(f"verifying {math.floor(self.share * 100)} %", Tone.ACCENT)
        if self.report is None:
            return Cell("✗ not verified", Tone.BAD)
        return verdict_cell(self.report.verdict)

    @property
    def tone(self) -> Tone:
        """How good that is."""
        return self.cell.tone

    @property
    def told(self) -> str:
        """What more is to be said of it: the worst that was found, or what was read."""
        if self.problem is not None:
            return visible(self.problem)
        if self.report is None:
            return ""
        if self.report.verdict is Verdict.INTACT:
            read = size(self.report.bytes_read)
            return f"{read} compared in {_seconds(self.report.seconds)}"
        worst = next(iter(self.report.findings), None)
        return visible(worst.message) if worst is not None else ""


class Verification:
    """Verifies subjects in their order; `checked` is what came of those begun so far."""

    def __init__(self, subjects: Sequence[Subject], *, is_recorded: bool = True) -> None:
        self.subjects = tuple(subjects)
        self.is_recorded = is_recorded
        self.checked: tuple[Checked, ...] = ()

    @property
    def current(self) -> Checked | None:
        """The subject that is being read, None before the first and after the last."""
        checked = self.checked
        return checked[-1] if checked and not checked[-1].is_over else None

    def of(self, key: str | None) -> Checked | None:
        """Return what is known of the subject of a row, None where it was not begun."""
        return next((each for each in self.checked if each.subject.key == key), None)

    @property
    def title(self) -> str:
        """What is at work, in few words."""
        if len(self.subjects) == 1:
            return f"verify {self.subjects[0].name}"
        current = self.current
        done = sum(each.is_over for each in self.checked)
        told = f"verify {len(self.subjects):,} checkpoints"
        if current is None:
            return told
        return f"{told}: {current.subject.name}, {len(self.subjects) - done - 1:,} left"

    def operation(self) -> "Operation[tuple[Checked, ...]]":
        """Verify all; one that is gone or cannot be read is said so, and the next one follows."""
        total = sum(each.size_bytes for each in self.subjects)
        before = 0
        for subject in self.subjects:
            self.checked = (*self.checked, Checked(subject))
            yield Progress(before, total, subject.name)
            yield from self._one(subject, before, total)
            before += subject.size_bytes
        return self.checked

    def _one(self, subject: Subject, before: int, total: int) -> "Operation[None]":
        findings: list[Finding] = []
        share = 0.0
        try:
            with closing(self._begin(subject)) as reading:
                while True:
                    try:
                        event = next(reading)
                    except StopIteration as stop:
                        self._take(Checked(subject, 1.0, tuple(findings), report=stop.value))
                        return
                    if isinstance(event, Found) and len(findings) < MOST_SHOWN:
                        findings.append(event.finding)
                    elif isinstance(event, Progress):
                        share = min(1.0, event.done / event.total) if event.total else 0.0
                        event = Progress(before + event.done, max(total, event.done), event.what)
                    self._take(Checked(subject, share, tuple(findings)))
                    yield event
        except (CheckpointError, OSError) as error:
            self._take(Checked(subject, share, tuple(findings), problem=sentence(error)))

    def _begin(self, subject: Subject) -> "Operation[Report]":
        from ckpt.named import verify_named

        return verify_named(subject.named, Depth.BYTES, is_recorded=self.is_recorded)

    def _take(self, checked: Checked) -> None:
        self.checked = (*self.checked[:-1], checked)


def verify_work(verification: Verification) -> Work:
    """Return what carries a verification out; nothing is begun yet."""
    return Work(
        verification.title,
        verification.operation(),
        lambda checked: ended_words(checked, is_recorded=verification.is_recorded),
        doing="",
        about=verification,
        tone=lambda checked: max((each.tone for each in checked), key=_BADNESS.index),
        cancelled="cancelled, without a verdict",
    )


# ---- which --------------------------------------------------------------------------------------


def subject_of(run_dir: Path, slot: Slot, generation: Generation) -> Subject:
    """Return a generation of a slot as something to be verified."""
    from ckpt.named import named_of

    key = f"{slot.name}@{generation.id}"
    name = visible(slot.name if generation is slot.live else key)
    return Subject(key, name, named_of(run_dir, slot, generation), generation.size_bytes or 0)


# ---- words --------------------------------------------------------------------------------------


def ended_words(checked: Sequence[Checked], *, is_recorded: bool) -> str:
    """Say how a verification ended, without the sign."""
    more = "" if is_recorded else f" ({NOT_RECORDED})"
    if len(checked) == 1:
        [only] = checked
        if only.report is None:
            return f"{only.subject.name} could not be verified: {only.told}"
        words = {
            Verdict.INTACT: "is intact",
            Verdict.DAMAGED: "is damaged",
            Verdict.UNVERIFIABLE: "cannot be verified",
            Verdict.UNSUPPORTED: "is not supported",
        }[only.report.verdict]
        return f"{only.subject.name} {words}: {only.told}{more}"
    bad = [each.subject.name for each in checked if each.tone is Tone.BAD]
    rest = f" and {len(bad) - FEW:,} more" if len(bad) > FEW else ""
    names = f": {', '.join(bad[:FEW])}{rest} (w shows why)" if bad else ""
    return ", ".join(_counts(checked)) + names + more


def _counts(checked: Sequence[Checked]) -> Iterator[str]:
    """Say how many are how, the worst last, so that the names of those can follow."""
    of = [each.report.verdict if each.report is not None else None for each in checked]
    for verdict, word in _WORDS.items():
        if verdict in of:
            yield f"{of.count(verdict):,} {word}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
