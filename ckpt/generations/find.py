"""What is a run, and which run a path means. Reads names and the small files of checkpoints."""

from collections.abc import Iterator
from pathlib import Path

from ckpt import fs
from ckpt.control import DIRECTORY as CONTROL
from ckpt.errors import NoSuchRun
from ckpt.generations import names
from ckpt.generations.payload import look
from ckpt.generations.scanner import FILE_SUFFIXES

RUN_FILES = frozenset(
    {"training_state.json", "metrics.jsonl", "run.json", "trainer_log.jsonl", "running_log.txt"}
)
"""Progress files that lie in a run and never in one of its checkpoints."""

LOOKED_FOR = (
    "a progress file (training_state.json, metrics.jsonl, run.json, trainer_log.jsonl, "
    "trainer_state.json) or a checkpoint, here or two levels below"
)
MOST_CHILDREN = 1000


def is_run(path: Path) -> bool:
    """Whether a directory is one run; False as well when it cannot be looked at.

    An empty directory is a run in which nothing has happened yet. A directory whose children are
    runs is a list of runs and no run itself; one child that holds checkpoints and no progress is
    where a run keeps them.
    """
    try:
        entries = fs.scan(path)
        if all(entry.name.startswith(".") for entry in entries) or _is_run(path, entries):
            return True
        holding = [inside for child, inside in _children(path, entries) if _is_run(child, inside)]
        return len(holding) == 1 and not _has_progress(holding[0])
    except OSError:
        return False


def require_run(path: Path) -> Path:
    """Return the path when it is a run.

    Raises:
        NoSuchRun: it is not; the message says why, or what was looked for.
    """
    try:
        found = fs.identity(path)
        if found is None:
            is_link = fs.identity(path, follow=False) is not None
            why = "a link that leads nowhere" if is_link else "no such directory"
            raise NoSuchRun(f"{path}: {why}", path=str(path))
        if not found.is_directory:
            message = f"{path}: a file, expected the directory of a run"
            hint = f"name its directory: {path.parent}"
            raise NoSuchRun(message, path=str(path), hint=hint)
        fs.scan(path)
    except OSError as error:
        raise NoSuchRun(f"{path}: {_in_words(error)}", path=str(path)) from error
    if is_run(path):
        return path
    children = child_runs(path)
    if children:
        listed = ", ".join(str(child) for child in children[:3])
        more = f" and {len(children) - 3} more" if len(children) > 3 else ""
        message = f"{path}: a directory of {len(children)} runs, expected one run"
        raise NoSuchRun(message, path=str(path), hint=f"name one of them: {listed}{more}")
    raise NoSuchRun(f"{path}: no run: looked for {LOOKED_FOR}", path=str(path))


def child_runs(path: Path) -> tuple[Path, ...]:
    """Return the runs directly in a directory that is no run itself, by name."""
    try:
        entries = fs.scan(path)
        if _is_run(path, entries):
            return ()
        return tuple(child for child, inside in _children(path, entries) if _is_run(child, inside))
    except OSError:
        return ()


def find_run(directory: Path) -> Path:
    """Return the run that a directory means: itself, the one it lies in, or the only one in it.

    Raises:
        NoSuchRun: it means none, or more than one.
    """
    absolute = directory.absolute()
    if look(absolute).glance is not None and is_run(absolute.parent):
        return absolute.parent
    children = child_runs(directory)
    if len(children) == 1 and not is_run(directory):
        return children[0]
    return require_run(directory)


def run_of(payload: Path) -> Path | None:
    """Return the run that a checkpoint belongs to, None when no directory above says so."""
    for parent in list(payload.absolute().parents)[:3]:
        try:
            held = {entry.name for entry in fs.scan(parent)}
        except OSError:
            return None
        if CONTROL in held or held & RUN_FILES:
            return parent
    return None


def home_of(target: Path) -> Path:
    """Return the run whose journal tells of a published name: the one it lies in, or around it."""
    return run_of(target) or target.absolute().parent


def slot_name(run_dir: Path, target: Path) -> str:
    """Return a published name as the run's journal and scan spell it: relative to the run."""
    absolute, run = target.absolute(), run_dir.absolute()
    if not absolute.is_relative_to(run) or absolute == run:
        raise NoSuchRun(f"{target}: does not lie in the run {run_dir}", path=str(target))
    return str(absolute.relative_to(run))


# ---- private ----------------------------------------------------------------------------------


def _is_run(path: Path, entries: tuple[fs.Entry, ...]) -> bool:
    """Whether progress files or checkpoints lie directly in a directory.

    A lone file of weights beside several runs does not make one run of them.
    """
    if _has_progress(entries) or any(entry.name == "trainer_state.json" for entry in entries):
        return True
    if any(_is_checkpoint(path, entry) for entry in entries if not entry.is_file):
        return True
    if any(_is_checkpoint(path, entry) for entry in entries if entry.is_file):
        return sum(_has_progress(inside) for _, inside in _children(path, entries)) < 2
    return False


def _has_progress(entries: tuple[fs.Entry, ...]) -> bool:
    return any(entry.name == CONTROL or entry.name in RUN_FILES for entry in entries)


def _is_checkpoint(path: Path, entry: fs.Entry) -> bool:
    name = entry.name
    if names.hidden(name):
        return True
    if name.startswith(".") or entry.is_symlink:
        return False
    if entry.is_directory:
        if names.looks_like_checkpoint(name):
            return True
        found = look(path / name)
        return found.glance is not None and not _holds_checkpoints(path / name)
    return name.endswith(FILE_SUFFIXES) and look(path / name).glance is not None


def _holds_checkpoints(path: Path) -> bool:
    """Whether a directory that is a checkpoint itself is a run as well: its final save."""
    return any(
        entry.is_directory and names.looks_like_checkpoint(entry.name) for entry in fs.scan(path)
    )


def _children(
    path: Path, entries: tuple[fs.Entry, ...]
) -> Iterator[tuple[Path, tuple[fs.Entry, ...]]]:
    for entry in sorted(entries, key=lambda each: each.name)[:MOST_CHILDREN]:
        if not entry.is_directory or entry.name.startswith("."):
            continue
        try:
            yield path / entry.name, fs.scan(path / entry.name)
        except OSError:
            continue


def _in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
