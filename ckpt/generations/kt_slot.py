"""Where the parts of a KT slot lie, and what its indices and the names of its shards tell.

Changes nothing but a directory's time, back to what it was.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.control import DIRECTORY as CONTROL
from ckpt.errors import CheckpointError, DuplicateKey, Refused, TornRead
from ckpt.formats.kt_index import INDEX_NAME, Index, group_shards, parse_index, parse_text
from ckpt.generations.names import looks_like_checkpoint

KEPT = "kt"
DAMAGED = "damaged-"
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KtSlot:
    """Where the parts of a slot lie; `name` is relative to the run, as `scan` names it."""

    directory: Path
    name: str
    run_dir: Path

    @property
    def index(self) -> Path:
        """The index that tells which generation is live."""
        return self.directory / INDEX_NAME

    @property
    def kept(self) -> Path:
        """Where the indices of its retired generations are kept."""
        return kept_root(self.run_dir) / self.name


def kept_root(run_dir: Path) -> Path:
    """Return where a run keeps the indices of all its slots."""
    return run_dir / CONTROL / KEPT


def kt_slot(path: Path, run_dir: Path | None = None) -> KtSlot:
    """Return the slot of a directory of shards or of an index file.

    `run_dir` None: the run that the directory is or lies in, else the directory around it.
    """
    directory = (path.parent if path.name == INDEX_NAME else path).absolute()
    run = (run_dir or _run_of(directory)).absolute()
    if directory == run:
        return KtSlot(directory, INDEX_NAME, run)
    inside = directory.is_relative_to(run)
    return KtSlot(directory, str(directory.relative_to(run)) if inside else directory.name, run)


def live_generation(slot: KtSlot) -> str | None:
    """Return the generation that the index names, None without an index that can be read.

    Raises:
        OSError: it is there and cannot be read.
    """
    data = read_if_there(slot.index)
    return parsed(data).generation if data is not None else None


def is_id(generation: str) -> bool:
    """Whether the name of a generation can be part of a file's name."""
    return _ID.fullmatch(generation) is not None


def index_of(slot: KtSlot, generation: str) -> bytes:
    """Return the index of a generation: the live or the kept one, else made from its shards.

    Raises:
        Refused: there is no such generation, or its shards are not what their names say.
        OSError: the disk refused.
    """
    for path in (slot.index, slot.kept / f"{generation}.json"):
        data = read_if_there(path) if is_id(generation) else None
        if data is not None and parsed(data).generation == generation:
            return data
    files = shard_groups(slot).get(generation)
    if not files:
        message = f"{slot.name}: no generation {generation}"
        raise Refused(message, path=str(slot.directory), hint="see its generations: ckpt log")
    from ckpt.formats.kt_write import rebuilt_index  # late: looking at a run needs no writer

    try:
        return rebuilt_index(slot.directory, generation, files)
    except CheckpointError as error:
        message = f"{slot.name}: generation {generation}: {error.message}"
        raise Refused(message, path=str(slot.directory)) from error


def kept_indices(slot: KtSlot) -> Iterator[tuple[str, Index]]:
    """Yield (generation, index) of every kept index, by name."""
    try:
        names = sorted(entry.name for entry in fs.scan(slot.kept) if entry.is_file)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        generation = name.removesuffix(".json")
        if name == generation or name.startswith((DAMAGED, ".")):
            continue
        data = read_if_there(slot.kept / name)
        if data is not None:
            yield generation, parsed(data)


def set_time(slot: KtSlot, mtime_ns: int | None) -> None:
    """Give the directory a time back, None: leave it."""
    if mtime_ns is not None:
        with suppress(OSError):  # another user's directory: its time is a comfort
            fs.set_modified(slot.directory, mtime_ns)


def read_if_there(path: Path) -> bytes | None:
    """Read a small file, None where there is none."""
    try:
        return fs.read_small(path, _MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def parsed(data: bytes) -> Index:
    """Read an index; what does not parse names nothing and is not usable."""
    try:
        return parse_text(data)
    except (TornRead, DuplicateKey):
        return parse_index(None)


def missing_from(directory: Path, index: Index, links: Path | None = None) -> list[str]:
    """The shards of an index that are not there, or not of the size it says.

    One that lies among the links of its generation counts as there where its own name is gone.
    """
    missing = []
    for shard in index.shards:
        found = fs.identity(directory / shard.file) if shard.file is not None else None
        if found is None and shard.file is not None and links is not None:
            found = fs.identity(links / shard.file)
        if found is None or not found.is_file or found.size_bytes != shard.size_bytes:
            missing.append(shard.file or f"layer {shard.layer}")
    if not index.is_usable:
        missing.append(INDEX_NAME)
    return missing


def shard_groups(slot: KtSlot) -> dict[str, dict[int, str]]:
    """Return the shards by generation and layer, by their names alone."""
    return group_shards(entry.name for entry in fs.scan(slot.directory) if entry.is_file)


def shard_bytes(slot: KtSlot, generation: str) -> int:
    """Return what the shards of a generation take on the disk."""
    names = shard_groups(slot).get(generation, {}).values()
    found = (fs.identity(slot.directory / name) for name in names)
    return sum(each.size_bytes for each in found if each is not None)


# ---- private ----------------------------------------------------------------------------------


def _run_of(directory: Path) -> Path:
    """The run that a directory of shards is, or lies in; else the directory around it."""
    from ckpt.generations.find import home_of  # late: finding a run scans it, and asks us

    if not looks_like_checkpoint(directory.name) and _is_run(directory):
        return directory
    return home_of(directory)


def _is_run(directory: Path) -> bool:
    """Whether a run's own files or checkpoints lie there: a final save goes beside them."""
    from ckpt.generations.find import RUN_FILES

    try:
        names = {entry.name for entry in fs.scan(directory)}
    except OSError:
        return False
    has_progress = CONTROL in names or bool(names & RUN_FILES)
    return has_progress or any(map(looks_like_checkpoint, names))
