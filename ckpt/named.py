"""What a name on the command line means: a payload on the disk, looked at and verified there.

A path means what stands there; `RUN:SLOT@GENERATION` means a generation of a run, which may share
its slot's directory with the live one.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt import fs, pickles
from ckpt.checkpoint import (
    Checkpoint,
    Depth,
    Finding,
    Generation,
    Report,
    Slot,
    State,
    worst_first,
)
from ckpt.errors import NoCheckpoint
from ckpt.formats import format_of
from ckpt.operation import Operation, drive
from ckpt.verify import USUAL, Care, inspect_settled


@dataclass(frozen=True, slots=True)
class Named:
    """A payload and how it was named. `run_dir` is None where no run is known to hold it.

    `inside` is the generation when it lies in its slot's directory beside the live one.
    """

    name: Path
    path: Path
    run_dir: Path | None = None
    inside: Generation | None = None


def find(name: Path) -> Named:
    """Return the payload that a name means; what is there by that very name comes first.

    A generation's id may be cut short as long as only one in its slot begins so.

    Raises:
        NoCheckpoint: nothing is there, or the run has no such generation.
    """
    if fs.identity(name, follow=False) is not None:
        return Named(name, name)
    for run_dir, wanted in _readings(str(name)):
        known = all_of(run_dir, wanted=State)
        begun = [each for each in known if str(each.name).startswith(f"{run_dir}:{wanted}")]
        exact = [each for each in begun if str(each.name) == f"{run_dir}:{wanted}"]
        if exact or len(begun) == 1:
            return (exact or begun)[0]
        there = "more than one generation begins with" if begun else "no generation"
        names = ", ".join(str(each.name) for each in (begun or known)[:4])
        hint = f"there are {names}" if names else "the run has no checkpoint yet"
        raise NoCheckpoint(f"{run_dir}: {there} {wanted}", path=str(name), hint=hint)
    raise NoCheckpoint(
        f"{name}: no such file or directory",
        path=str(name),
        hint="name a checkpoint, or a generation of a run as RUN:SLOT@GENERATION",
    )


def is_whole_run(path: Path) -> bool:
    """Whether a path means all generations of a run: a run that is no checkpoint itself.

    A trainer's state alone, as a finished run keeps it, makes a directory no checkpoint.
    """
    from ckpt.generations import is_run

    found = fs.identity(path)
    if found is None or not found.is_directory:
        return False
    format_ = format_of(path)
    return (format_ is None or not format_.is_slot(path)) and is_run(path)


USABLE = frozenset({State.LIVE, State.RETIRED, State.WITHDRAWN, State.SEALED})


def all_of(run_dir: Path, wanted: "frozenset[State] | type[State]" = USABLE) -> tuple[Named, ...]:
    """Return every generation of a run in one of these states, by default all but the trash."""
    from ckpt.generations import scan

    return tuple(
        named_of(run_dir, slot, generation)
        for slot in scan(run_dir)
        for generation in slot.generations
        if generation.state in wanted
    )


def inspect_named(named: Named) -> Checkpoint:
    """Read names and headers, and what pickles would import; what cannot be parsed is a finding.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    if named.inside is None:
        seen = inspect_settled(named.path)
        return _with_pickles(seen, named.path)
    from ckpt.generations.inside import read_inside

    seen = _with_pickles(read_inside(named.inside, Depth.HEADERS), named.path)
    return replace(seen, path=named.name)


def open_named(
    named: Named, stack: ExitStack
) -> tuple[Checkpoint, tuple[Path | fs.Directory, ...]]:
    """Read names and headers; return the directories too through which its tensors are read.

    They are those that were looked at, whatever is published meanwhile, and `stack` closes them.
    Empty for a file by itself.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    if named.inside is None:
        from ckpt.verify.reading import read_settled

        checkpoint, directory = read_settled(named.path, Depth.HEADERS, stack)
        seen = _with_pickles(checkpoint, directory or named.path)
        return seen, () if directory is None else (directory,)
    from ckpt.generations.kt_links import links_of
    from ckpt.generations.kt_slot import kt_slot

    slot = kt_slot(named.path, named.run_dir)
    return inspect_named(named), (links_of(slot, named.inside.id), slot.directory)


def verify_named(
    named: Named, depth: Depth, *, care: Care = USUAL, is_recorded: bool = True
) -> Operation[Report]:
    """Verify a payload; its run remembers the verdict, where it can be written to.

    With `is_recorded` False nothing is written.

    Raises:
        NoCheckpoint: nothing there that any format claims.
    """
    if named.inside is None:
        from ckpt.generations import verify_in_run

        return (
            yield from verify_in_run(
                named.path, depth, run_dir=named.run_dir, care=care, is_recorded=is_recorded
            )
        )
    from ckpt.generations.inside import verify_inside

    report = yield from verify_inside(named.inside, depth, care=care, is_recorded=is_recorded)
    return replace(report, path=named.name)


def _with_pickles(seen: Checkpoint, place: Path | fs.Directory) -> Checkpoint:
    """Add what loading a checkpoint's pickles would run."""
    found: list[Finding] = []
    for entry in pickles.pickled(seen):
        if isinstance(place, fs.Directory):
            where: Path | str = place.inside(entry.name)
        else:
            where = place if place.name == entry.name else place / entry.name
        found += drive(pickles.check(where, entry))
    return replace(seen, findings=worst_first((*seen.findings, *found)))


def named_of(run_dir: Path, slot: Slot, generation: Generation) -> Named:
    """Return how a generation of a run is named, and where it lies."""
    live = slot.live
    is_inside = generation is not live and generation.path == slot.path
    return Named(
        Path(f"{run_dir}:{slot.name}@{generation.id}"),
        generation.path,
        run_dir,
        generation if is_inside else None,
    )


def _readings(name: str) -> Iterator[tuple[Path, str]]:
    """Each way to read a name as RUN:SLOT@GENERATION in which RUN is a directory."""
    if "@" not in name:
        return
    at = name.find(":")
    while at > 0:
        run_dir = Path(name[:at])
        found = fs.identity(run_dir)
        if found is not None and found.is_directory:
            yield run_dir, name[at + 1 :]
        at = name.find(":", at + 1)
