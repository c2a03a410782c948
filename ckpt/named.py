"""Which checkpoint a name on the command line means: a path, or `RUN:SLOT@GENERATION`."""

from collections.abc import Iterator
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Generation, Slot, State
from ckpt.errors import NoCheckpoint
from ckpt.formats import format_of


def payload_named(name: Path) -> Path:
    """Return where the payload lies that a name means; what is there by that name comes first.

    Raises:
        NoCheckpoint: nothing is there, or the run has no such generation.
    """
    if fs.identity(name) is not None or fs.identity(name, follow=False) is not None:
        return name
    from ckpt.generations import scan

    for run_dir, wanted in _readings(str(name)):
        slots = scan(run_dir)
        for slot in slots:
            for generation in slot.generations:
                if wanted == f"{slot.name}@{generation.id}":
                    return generation.path
        raise NoCheckpoint(
            f"{run_dir}: no generation {wanted}",
            path=str(name),
            hint=_known(slots) or f"`ckpt list {run_dir}` shows what there is",
        )
    raise NoCheckpoint(
        f"{name}: no such file or directory",
        path=str(name),
        hint="name a checkpoint, or a generation of a run as RUN:SLOT@GENERATION",
    )


def is_whole_run(path: Path) -> bool:
    """Whether a path means all generations of a run: a run that is no checkpoint itself."""
    from ckpt.generations import is_run

    found = fs.identity(path)
    return found is not None and found.is_directory and format_of(path) is None and is_run(path)


def payloads_of_run(run_dir: Path) -> tuple[tuple[Slot, Generation], ...]:
    """Return every generation of a run that somebody could still use, with its slot."""
    from ckpt.generations import scan

    return tuple(
        (slot, generation)
        for slot in scan(run_dir)
        for generation in slot.generations
        if generation.state is not State.TRASH
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


def _known(slots: tuple[Slot, ...]) -> str:
    names = [f"{slot.name}@{generation.id}" for slot in slots for generation in slot.generations]
    return f"there are {', '.join(names)}" if 0 < len(names) <= 4 else ""
