"""What the `ckpt` command says: documents, tables and sentences on stdout, narration on stderr.

Values come in, lines go out; nothing here reads a run or decides an exit code.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ckpt.checkpoint import Checkpoint, Depth, Finding, Report, Slot, Verdict
from ckpt.errors import CheckpointError
from ckpt.operation import Event, Found, Note, Progress
from ckpt.phrases import duration
from ckpt.present.rows import (
    FILE_COLUMNS,
    FINDING_COLUMNS,
    GENERATION_COLUMNS,
    METADATA_COLUMNS,
    TENSOR_COLUMNS,
    advice_cell,
    file_rows,
    finding_rows,
    metadata_rows,
    slot_rows,
    tensor_texts,
    verdict_cell,
)
from ckpt.present.words import Cell, Tone, integer, size, visible
from ckpt.terminal import ProgressLine, Terminal

if TYPE_CHECKING:
    from ckpt.checkpoint import Tensor
    from ckpt.generations import Known, Plan
    from ckpt.generations.sealing import Sealed
    from ckpt.reflog import Journal
    from ckpt.retention import Kept
    from ckpt.selftest import SelfTest
    from ckpt.tensors import TensorStats
    from ckpt.view import RunView

STATUS_ROWS = 12
LOG_ROWS = 100  # on a terminal, where the newest would be out of sight behind more


class Output:
    """The two streams of one command."""

    def __init__(self, out: Terminal, err: Terminal, *, as_json: bool = False) -> None:
        self.out = out
        self.err = err
        self.as_json = as_json
        self.progress = ProgressLine(err)

    @classmethod
    def of_process(cls, *, as_json: bool) -> Self:
        """Take this process's own streams and environment."""
        return cls(
            Terminal.of(sys.stdout, os.environ),
            Terminal.of(sys.stderr, os.environ),
            as_json=as_json,
        )

    # ---- ends -----------------------------------------------------------------------------------

    def document(self, document: Mapping[str, Any]) -> None:
        """Write the one JSON document: a line of strict JSON in ASCII, right in every locale."""
        import json

        self.out.line(json.dumps(document, allow_nan=False))

    def fail(self, error: CheckpointError, code: int = 2) -> int:
        """Say what went wrong, as a document or a sentence with a hint; return the exit code."""
        self.progress.clear()
        if self.as_json:
            from ckpt.present.shapes import error_json

            self.document(error_json(error))
            return code
        self.err.line(Cell("ckpt: ", Tone.BAD), visible(error.message))
        if error.hint:
            self.err.line(Cell(f"      {visible(error.hint)}", Tone.DIM))
        return code

    # ---- a run ----------------------------------------------------------------------------------

    def status(self, view: "RunView", now: float) -> None:
        """Write the dashboard once: the head, the generations, all warnings, the advice."""
        from ckpt.present.header import header_lines

        width = self.out.layout_width
        for line in header_lines(view, now, width, ascii_only=self.out.ascii_only):
            self.out.line(*line)
        self._newest(view, now)
        for warned in view.warnings:
            if view.advice is None or view.advice.message != warned.message:
                self.out.line(Cell(f" ! {visible(warned.message)}", Tone.WARN))
        if view.advice is not None and (advice := advice_cell(view)) is not None:
            self.out.line(Cell(f" {advice.text}", advice.tone))

    def _newest(self, view: "RunView", now: float) -> None:
        """Write the first rows, and every damaged one after them; `ckpt list` has the rest."""
        rows = [row for slot in view.slots for row in slot_rows(slot, now)]
        shown = [
            row
            for place, row in enumerate(rows)
            if place < STATUS_ROWS or any(cell.tone is Tone.BAD for cell in row.cells)
        ]
        if shown:
            self.out.table(GENERATION_COLUMNS, shown)
        if len(rows) > len(shown):
            left = f" … {len(rows) - len(shown):,} more: ckpt list {visible(str(view.run))}"
            self.out.line(Cell(left, Tone.DIM))

    def status_line(self, view: "RunView", now: float) -> None:
        """Write the run in one line."""
        from ckpt.present.line import status_line

        self.out.line(status_line(view, now, ascii_only=self.out.ascii_only))

    def slots(self, run_dir: Path, slots: Sequence[Slot], now: float) -> None:
        """Write the slots of a run and all their generations."""
        if not slots:
            self.out.line(f"{visible(str(run_dir))}: no checkpoint yet")
            return
        self._generations(slots, now)
        findings = [finding for slot in slots for finding in slot.findings]
        if findings:
            self.heading("findings", len(findings))
            self.findings(findings)

    def _generations(self, slots: Sequence[Slot], now: float) -> None:
        rows = [row for slot in slots for row in slot_rows(slot, now)]
        if rows:
            self.out.table(GENERATION_COLUMNS, rows)

    # ---- a checkpoint ---------------------------------------------------------------------------

    def checkpoint(
        self, checkpoint: Checkpoint, stats: "Mapping[Tensor, TensorStats] | None" = None
    ) -> None:
        """Write one checkpoint: what it is, its findings, then files, tensors and metadata.

        With `stats`, which are of all its tensors, what their values are like.
        """
        complete = {True: "complete", False: "✗ incomplete", None: "? completeness unproven"}
        facts = [checkpoint.format_label]
        if checkpoint.step is not None:
            facts.append(f"step {integer(checkpoint.step)}")
        if checkpoint.epoch is not None:
            facts.append(f"epoch {checkpoint.epoch:.6g}")
        facts += [size(checkpoint.size_bytes), complete[checkpoint.complete]]
        self.out.line(Cell(visible(str(checkpoint.path)), Tone.ACCENT))
        self.out.line(" " + " · ".join(facts))
        if checkpoint.findings:
            self.heading("findings", len(checkpoint.findings))
            self.findings(checkpoint.findings)
        if checkpoint.files:
            self.heading("files", len(checkpoint.files))
            self.out.table(FILE_COLUMNS, file_rows(checkpoint.files))
        if checkpoint.tensors:
            title = "tensors, values as recorded at the save" if checkpoint.stats else "tensors"
            self.heading(title, len(checkpoint.tensors))
            self._tensors(checkpoint.tensors, stats)
        metadata = metadata_rows(checkpoint)
        if metadata:
            self.heading("metadata and settings", len(metadata))
            self.out.table(METADATA_COLUMNS, metadata)

    def _tensors(
        self, tensors: "Sequence[Tensor]", stats: "Mapping[Tensor, TensorStats] | None"
    ) -> None:
        if stats is None:
            self.out.columns(TENSOR_COLUMNS, tensor_texts(tensors))
            return
        from ckpt.present.contents import STATS_COLUMNS, stats_rows

        self.out.table(STATS_COLUMNS, stats_rows(tensors, stats))

    def findings(self, findings: Sequence[Finding]) -> None:
        """Write findings as a table."""
        self.out.table(FINDING_COLUMNS, finding_rows(findings))

    def heading(self, title: str, count: int) -> None:
        """Write the title of a table and how many rows it has."""
        self.out.line()
        self.out.line(Cell(f" {title}", Tone.ACCENT), Cell(f" {count:,}", Tone.DIM))

    def progressing(self, event: Event) -> None:
        """Take what a reading yields: how far it is; what it found is written with its result."""
        if isinstance(event, Progress):
            self.progress.show(_how_far(event))

    # ---- a plan and a journal -------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits at a terminal, to read what is asked and to answer."""
        return self.err.is_terminal and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Ask on stderr; only a plain yes is one."""
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def plan(
        self, plan: "Plan", known: "Known", kept: Sequence["Kept"] = (), *, is_data: bool
    ) -> None:
        """Write what a plan will do: the data of a dry run, else narration on stderr."""
        from ckpt.present.plans import kept_lines, plan_lines

        lines = (*plan_lines(plan, known.now, journal=known.journal), *kept_lines(kept))
        for line in lines:
            (self.out if is_data else self.err).line(*line)

    def done(self, plan: "Plan", *, back: str | None) -> None:
        """Write what is live after a plan was carried out, and the verb that takes it back.

        `back` None: none does, what was live before was not whole.
        """
        from ckpt.present.plans import done_line

        self.progress.clear()
        undo = f"  (ckpt {back} {_quoted(plan.run_dir)} takes it back)" if back else ""
        self.out.line(done_line(plan), Cell(undo, Tone.DIM))

    def left_alone(self, warning: str) -> None:
        """Write what a recovery knows of and does not touch."""
        self.out.line(Cell(f"  left alone: {visible(warning)}", Tone.DIM))

    def pruned(self, plan: "Plan", freed_bytes: int) -> None:
        """Write what a prune came to."""
        self.progress.clear()
        count = len(plan.removed)
        plural = "" if count == 1 else "s"
        told = f"{count:,} generation{plural} deleted, {size(freed_bytes)} freed"
        self.out.line(told if count else "nothing to prune")

    def acting(self, event: Event) -> None:
        """Take what a change of a run yields: progress and findings, all of it narration."""
        if isinstance(event, Progress):
            self.progress.show(_how_far(event))
            return
        self.progress.clear()
        if isinstance(event, Found):
            self.finding(event.finding, self.err)
        elif isinstance(event, Note):
            self.err.line(Cell(visible(event.text), Tone.DIM))

    def telling(self, event: Event) -> None:
        """Take what a recovery yields: each sentence says what was done."""
        if isinstance(event, Note) and not self.as_json:
            self.out.line(visible(event.text))

    def log(self, run_dir: Path, journal: "Journal", now: float) -> None:
        """Write a run's journal, the newest entry first, and what is wrong with it."""
        from ckpt.present.plans import LOG_COLUMNS, log_rows

        rows = log_rows(journal, now)
        shown = rows[:LOG_ROWS] if self.out.is_terminal else rows
        if rows:
            self.out.table(LOG_COLUMNS, shown)
        else:
            self.out.line(f"{visible(str(run_dir))}: nothing was done to its checkpoints yet")
        if len(rows) > len(shown):
            left = f" … {len(rows) - len(shown):,} more: ckpt log {_quoted(run_dir)} | less"
            self.out.line(Cell(left, Tone.DIM))
        if journal.pending:
            self.out.line(
                Cell(f" ! interrupted: ckpt recover {_quoted(run_dir)} ends it", Tone.WARN)
            )
        for finding in journal.findings:
            self.finding(finding)

    # ---- a self-test ----------------------------------------------------------------------------

    def trying(self, event: Event) -> None:
        """Take what a self-test yields: how far it is."""
        if isinstance(event, Note):
            self.progress.show(visible(event.text))

    def selftest(self, result: "SelfTest") -> None:
        """Write which promises hold, the broken ones in full after the table."""
        from ckpt.present.plans import PROMISE_COLUMNS, promise_rows

        self.progress.clear()
        self.out.table(PROMISE_COLUMNS, promise_rows(result))
        broken = [each for each in result.promises if each.holds is False]
        for each in broken:
            self.out.line(Cell(f" ✗ {each.code}: {visible(each.detail)}", Tone.BAD))
        verdict = "every promise holds" if not broken else f"broken promises: {len(broken)}"
        took = f"{result.cases:,} cases in {_duration(result.seconds)}"
        self.out.line(f" {verdict} in {visible(str(result.path))}: {took}")

    # ---- a verification -------------------------------------------------------------------------

    def verifying(self, event: Event) -> None:
        """Take what a verification yields: findings as they come, progress on stderr."""
        if isinstance(event, Progress):
            self.progress.show(_how_far(event))
        elif self.as_json:
            return
        elif isinstance(event, Found):
            self.progress.clear()
            self.finding(event.finding)
        elif isinstance(event, Note):
            self.progress.clear()
            self.err.line(visible(event.text))

    def finding(self, finding: Finding, to: Terminal | None = None) -> None:
        """Write one finding as a line, on stdout unless told where."""
        [row] = finding_rows([finding])
        severity, code, where, what = row.cells
        place = f"{where.text}: " if where.text and not what.text.startswith(where.text) else ""
        (to or self.out).line("  ", severity, " ", Cell(code.text, Tone.DIM), f"  {place}", what)

    def report(self, report: Report) -> None:
        """Write what a verification of one path came to, in one line."""
        self.progress.clear()
        facts = []
        if report.bytes_read:
            facts.append(f"{size(report.bytes_read)} read")
        if report.seconds >= 0.1:
            facts.append(f"in {_duration(report.seconds)}")
        if report.depth is not Depth.BYTES:
            facts.append(f"{report.depth.name.lower()} only")
        if report.sealed_at is not None and report.verdict is Verdict.INTACT:
            facts.append("as it was sealed")
        self.out.line(
            verdict_cell(report.verdict),
            f"  {visible(str(report.path))}",
            Cell("  " + " ".join(facts), Tone.DIM),
        )
        self.out.flush()

    def sealed(self, path: Path, sealed: "Sealed") -> None:
        """Write what was sealed, or why nothing was."""
        self.progress.clear()
        if sealed.seal is None:
            self.out.line(f"{visible(str(path))}: nothing to seal: it brings hashes of its own")
            return
        count = len(sealed.seal.files)
        plural = "" if count == 1 else "s"
        told = f"{count:,} file{plural}, {size(sealed.bytes_read)}"
        if sealed.seconds >= 0.1:
            told += f" in {_duration(sealed.seconds)}"
        where = Cell(f"  {visible(str(sealed.written))}", Tone.DIM)
        self.out.line(Cell("sealed", Tone.GOOD), f"  {visible(str(path))}  {told}", where)

    def summary(self, reports: Sequence[Report]) -> None:
        """Write how many verifications came to which verdict."""
        counts = [(each, sum(report.verdict is each for report in reports)) for each in Verdict]
        words = ", ".join(f"{count} {verdict.value}" for verdict, count in counts if count)
        plural = "" if len(reports) == 1 else "s"
        read = size(sum(report.bytes_read for report in reports))
        self.out.line(f"{len(reports)} checkpoint{plural}: {words}; {read} read")


def _quoted(path: Path) -> str:
    """A path as a shell takes it."""
    import shlex

    return visible(shlex.quote(str(path)))


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _how_far(progress: Progress) -> str:
    if not progress.total:
        return f"{visible(progress.what)}  {size(progress.done)}"
    percent = 100 * progress.done // progress.total
    filled = min(20, 20 * progress.done // progress.total)
    bar = "▓" * filled + "░" * (20 - filled)
    return f"{bar} {percent:3d} %  {size(progress.total)}  {visible(progress.what)}"
