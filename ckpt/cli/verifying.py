"""The verbs that read every byte: `verify` compares them, `seal` records what to compare with."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ckpt.cli.frame import DEPTHS, as_path, in_words, verb
from ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from ckpt.checkpoint import Depth, Report
    from ckpt.named import Named
    from ckpt.output import Output
    from ckpt.verify import Care

VERDICT_CODES = {"intact": 0, "damaged": 1, "unsupported": 2, "unverifiable": 3}
POLITE = click.option("--polite", is_flag=True, help="Drop what was read from the system's cache.")


class How(NamedTuple):
    """How deep and how careful a verification looks."""

    depth: "Depth"
    care: "Care"


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, callback=as_path)
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="bytes",
    show_default=True,
    help="How deep to look: names < headers < bytes.",
)
@click.option(
    "--sha256",
    is_flag=True,
    help="Compare the hash of whole files too where those of chunks are recorded.",
)
@POLITE
@verb
def verify(
    output: "Output", paths: Sequence[Path], *, depth: str, sha256: bool, polite: bool
) -> int:
    """Verify checkpoints, or all of a run.

    Exit code 0 intact, 1 damaged, 3 unverifiable, 2 unsupported or nothing there.
    """
    from ckpt.checkpoint import Depth, worst_verdict
    from ckpt.named import find, is_whole_run
    from ckpt.verify import Care

    how = How(Depth[depth.upper()], Care(with_sha256=sha256, is_polite=polite))
    is_single = len(paths) == 1 and not is_whole_run(paths[0])
    if is_single:
        reports = [_verified(output, find(paths[0]), how)]
    else:
        reports = list(_all_verified(output, paths, how))
    if output.as_json:
        from ckpt.present.shapes import verify_json

        output.document(verify_json(reports, is_single=is_single))
    elif not is_single:
        output.summary(reports)
    return VERDICT_CODES[worst_verdict(report.verdict for report in reports)]


@click.command()
@click.argument("path", metavar="PATH", callback=as_path)
@POLITE
@verb
def seal(output: "Output", path: Path, *, polite: bool) -> int:
    """Record the hashes of a checkpoint whose format has none.

    They lie in the run's .ckpt/, never in the checkpoint; `verify` compares with them from then
    on. Exit code 1 when it is damaged or is being written: then nothing is recorded.
    """
    from ckpt.generations.sealing import seal as sealing
    from ckpt.named import find
    from ckpt.operation import drive
    from ckpt.verify import Care

    named = find(path)
    sealed = drive(
        sealing(
            named.path,
            run_dir=named.run_dir,
            generation=named.inside,
            care=Care(is_polite=polite),
        ),
        output.acting,
    )
    if output.as_json:
        from ckpt.present.shapes import seal_json

        output.document(seal_json(named.name, sealed))
    else:
        output.sealed(named.name, sealed)
    return 0


def _all_verified(output: "Output", paths: Sequence[Path], how: How) -> "Iterator[Report]":
    """Verify several paths, and all generations of those that are runs; go on after a failure."""
    from ckpt.named import all_of, find, is_whole_run
    from ckpt.operation import Found

    for path in paths:
        try:
            is_run = is_whole_run(path)
            payloads = all_of(path) if is_run else (find(path),)
            broken = tuple(_broken(path, how)) if is_run else ()
        except (CheckpointError, OSError) as error:
            yield _not_verified(output, path, how, error)
            continue
        if not payloads and not broken and len(paths) == 1:
            raise _nothing_there(path)
        if not payloads and not broken:
            yield _not_verified(output, path, how, _nothing_there(path))
        for report in broken:
            for finding in report.findings:
                output.verifying(Found(finding))
            yield _told(output, report)
        for payload in payloads:
            try:
                yield _verified(output, payload, how)
            except (CheckpointError, OSError) as error:
                yield _not_verified(output, payload.path, how, error)


def _verified(output: "Output", payload: "Named", how: How) -> "Report":
    from ckpt.named import verify_named
    from ckpt.operation import drive

    report = drive(verify_named(payload, how.depth, care=how.care), output.verifying)
    if not output.as_json:
        output.report(report)
    return report


def _not_verified(
    output: "Output", path: Path, how: How, error: CheckpointError | OSError
) -> "Report":
    """What is said of one of several paths that could not be verified at all."""
    from ckpt.checkpoint import Finding, Report, Severity, Verdict
    from ckpt.operation import Found

    known = error if isinstance(error, CheckpointError) else in_words(error)
    finding = Finding(known.code, Severity.ERROR, known.message, hint=known.hint)
    output.verifying(Found(finding))
    return _told(output, Report(path, "", how.depth, Verdict.UNSUPPORTED, (finding,), 0, 0.0))


def _broken(run_dir: Path, how: How) -> "Iterator[Report]":
    """What is said of the slots of a run at whose name no checkpoint stands, though one should."""
    from ckpt.checkpoint import Report, State, Verdict, first_error
    from ckpt.generations import scan

    for slot in scan(run_dir):
        if slot.state is State.BROKEN and first_error(slot.findings) is not None:
            found = Verdict.DAMAGED, slot.findings
            yield Report(run_dir / slot.name, slot.format, how.depth, *found, 0, 0.0)


def _told(output: "Output", report: "Report") -> "Report":
    if not output.as_json:
        output.report(report)
    return report


def _nothing_there(run_dir: Path) -> CheckpointError:
    """Say that a run has no checkpoint, or why none of what it has can be verified."""
    from ckpt.errors import NoCheckpoint
    from ckpt.generations import scan

    slots = scan(run_dir)
    told = [finding.message for slot in slots for finding in slot.findings]
    if not told:
        return NoCheckpoint(f"{run_dir}: the run has no checkpoint yet", path=str(run_dir))
    more = f" (and {len(slots) - 1} more)" if len(slots) > 1 else ""
    return NoCheckpoint(
        f"{run_dir}: no checkpoint that could be verified: {told[0]}{more}",
        path=str(run_dir),
        hint=f"`ckpt list {run_dir}` shows what there is",
    )
