"""The generations of a KT slot that are not live: which there are, and pruning them.

Mark and sweep: a file goes only if its name matches KT's pattern and the very generation that is
pruned, and no index that stays names it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.errors import Refused
from ckpt.formats.kt_index import Index, generation_of
from ckpt.generations.kt_links import linked, links_of, set_links_aside, sweep_links
from ckpt.generations.kt_slot import (
    KtSlot,
    is_id,
    kept_indices,
    kt_slot,
    missing_from,
    parsed,
    read_if_there,
    set_time,
    shard_bytes,
    shard_groups,
)
from ckpt.generations.names import hidden, hidden_name
from ckpt.lock import writer_of

_TOKEN_LENGTH = 8


@dataclass(frozen=True, slots=True)
class RetiredIndex:
    """A generation that is not live and could be: `is_kept` where its own index was kept.

    Without one an index can be made anew from its shards. `missing` are shards that are not there
    or not of their size: with any it cannot be made live. `size_bytes` is what pruning would free.
    """

    generation: str
    is_kept: bool
    missing: tuple[str, ...]
    size_bytes: int


def list_retired(path: Path, *, run_dir: Path | None = None) -> tuple[RetiredIndex, ...]:
    """Return the generations that a slot could go back to, sorted by id; kept or made anew.

    Told by names, sizes and kept indices; no shard is opened.

    Raises:
        OSError: the directory cannot be listed.
    """
    slot = kt_slot(path, run_dir)
    data = read_if_there(slot.index)
    live = parsed(data) if data is not None else Index()
    groups = shard_groups(slot)
    found: dict[str, RetiredIndex] = {}
    for generation, index in kept_indices(slot):
        if generation != live.generation:
            missing = missing_from(slot.directory, index, links_of(slot, generation))
            size = shard_bytes(slot, generation)
            if not size:
                size = sum(linked(slot, generation).values())
            found[generation] = RetiredIndex(generation, True, tuple(missing), size)
    expected = {shard.layer for shard in live.shards}
    expected = expected or {layer for layers in groups.values() for layer in layers}
    for generation, layers in groups.items():
        if generation in found or live.file_names.intersection(layers.values()):
            continue
        if expected <= layers.keys() and writer_of(slot.run_dir, generation) is None:
            found[generation] = RetiredIndex(generation, False, (), shard_bytes(slot, generation))
    return tuple(found[generation] for generation in sorted(found))


def abandoned(path: Path, *, run_dir: Path | None = None) -> tuple[str, ...]:
    """Return the generations that nothing names, that are not whole and that nobody writes.

    Raises:
        OSError: the directory cannot be listed.
    """
    slot = kt_slot(path, run_dir)
    data = read_if_there(slot.index)
    live = parsed(data) if data is not None else Index()
    usable = {each.generation for each in list_retired(path, run_dir=run_dir)}
    marked = _marked(slot, live, ())
    found = set()
    for entry in fs.scan(slot.directory):
        generation = generation_of(entry.name)
        if generation is not None and entry.name not in marked and generation not in usable:
            found.add(generation)
    return tuple(sorted(each for each in found if writer_of(slot.run_dir, each) is None))


def prune_kt(path: Path, generations: Collection[str], *, run_dir: Path | None = None) -> int:
    """Remove generations that are not live; return the bytes freed. The caller holds the lock.

    Raises:
        Refused, OSError: as `set_aside_kt`.
    """
    set_aside_kt(path, generations, run_dir=run_dir)
    return sweep_kt(path, run_dir=run_dir)


def set_aside_kt(path: Path, generations: Collection[str], *, run_dir: Path | None = None) -> None:
    """Rename the shards of generations that are not live to trash; the caller holds the lock.

    Mark and sweep: a shard that the live index or the index of a generation that stays names is
    left, whatever its name says. Quick: a TiB of shards is removed by `sweep_kt`, after the lock.

    Raises:
        Refused: one of them is live or being written, or it cannot be known what is live.
        OSError: the disk refused; what is left is there still, or partial.
    """
    slot = kt_slot(path, run_dir)
    data = read_if_there(slot.index)
    live = parsed(data) if data is not None else Index()
    if data is not None and not live.is_usable:
        message = f"{slot.name}: nothing pruned: {live.findings[0].message}"
        raise Refused(message, path=str(slot.index), hint="roll back to a whole generation first")
    for generation in generations:
        writer = writer_of(slot.run_dir, generation) if is_id(generation) else None
        if generation == live.generation or writer is not None:
            why = "is live" if writer is None else f"is being written by {writer}"
            raise Refused(f"{slot.name}: generation {generation} {why}", path=str(slot.directory))
    marked = _marked(slot, live, generations)
    _forget_kept(slot, generations)
    for generation in generations:
        if is_id(generation):
            set_links_aside(slot, generation)
    before = fs.identity(slot.directory)
    for entry in fs.scan(slot.directory):
        owner = None if entry.is_directory else generation_of(entry.name)
        if owner is not None and owner in generations and entry.name not in marked:
            trash = hidden_name(entry.name, "trash", owner[:_TOKEN_LENGTH])
            fs.rename(slot.directory / entry.name, slot.directory / trash)
    set_time(slot, before.mtime_ns if before else None)
    fs.sync_directory(slot.directory)


def sweep_kt(path: Path, *, run_dir: Path | None = None) -> int:
    """Remove the shards that were set aside, also by a prune that died; return the bytes freed.

    Nobody may use them any more, so that no lock is needed. The directory keeps its time: a
    trainer may tell by it which checkpoint is the oldest.

    Raises:
        OSError: the disk refused.
    """
    slot = kt_slot(path, run_dir)
    before = fs.identity(slot.directory)
    trash = [entry.name for entry in fs.scan(slot.directory) if entry.is_file]
    trash = [name for name in trash if is_trash(name)]
    freed = 0
    for name in trash:
        path = slot.directory / name
        found = fs.identity(path, follow=False)
        if found is not None and fs.link_count(path) == 1:
            freed += found.size_bytes
        fs.unlink(path)
    if trash:
        set_time(slot, before.mtime_ns if before else None)
    return freed + sweep_links(slot)


def is_trash(name: str) -> bool:
    """Whether a name is a shard's, or a half-written one's, that was set aside to be removed."""
    found = hidden(name)
    return found is not None and found.kind == "trash" and generation_of(found.slot) is not None


def _forget_kept(slot: KtSlot, generations: Collection[str]) -> None:
    """Remove kept indices first, so that half a generation is never offered as a whole one."""
    names = [f"{each}.json" for each in generations if is_id(each)]
    there = [name for name in names if fs.identity(slot.kept / name) is not None]
    for name in there:
        fs.unlink(slot.kept / name)
    if there:
        fs.sync_directory(slot.kept)


def _marked(slot: KtSlot, live: Index, leaving: Collection[str]) -> frozenset[str]:
    """The files that an index which stays names."""
    marked = set(live.file_names)
    groups = shard_groups(slot)
    for generation, index in kept_indices(slot):
        if generation not in leaving:
            marked |= index.file_names
            marked |= set(groups.get(generation, {}).values())
    return frozenset(marked)
