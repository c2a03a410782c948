"""A KT slot: the index file is swapped in place, the shards of every generation stay beside it.

The index is the commit point. Retired indices are kept in the run's `.ckpt/kt/`; a roll back
writes nothing into the checkpoint's directory but the index. A file whose name does not match
KT's pattern and the very generation that goes is never removed.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.errors import CheckpointError, PublishError, Refused
from ckpt.formats.kt_index import INDEX_NAME
from ckpt.formats.kt_write import new_generation, remove_own_files
from ckpt.generations.kt_links import bring_back, links_of, make_kept
from ckpt.generations.kt_slot import (
    DAMAGED,
    KtSlot,
    index_of,
    is_id,
    kt_slot,
    live_generation,
    missing_from,
    parsed,
    read_if_there,
    set_time,
)
from ckpt.generations.plans import Swapped
from ckpt.lock import swap_lock, writing
from ckpt.operation import Note, Operation
from ckpt.reflog import Change, Outcome, conclude, intend

WriteShards = Callable[[Path, str], bytes]
"""Writes the shards of a generation into a directory, each durable; returns the index's bytes."""


# ---- publish ----------------------------------------------------------------------------------


def publish_kt(
    path: Path, write_shards: WriteShards, *, run_dir: Path | None = None
) -> Operation[Swapped]:
    """Publish a new generation into a directory of shards, over the one that is live or none.

    `path` is the directory or its index. When this returns the generation is durable, and the one
    before it can be rolled back to. Whatever is raised before the index is replaced, only shards
    of this very save are removed.

    Raises:
        PublishError: the path cannot hold a checkpoint, the disk refused, or what was written is
            not whole.
        Busy: another process holds the run's lock.
    """
    slot = kt_slot(path, run_dir)
    attempt = _Attempt(new_generation())
    try:
        _prepare(slot)
        with writing(slot.run_dir, attempt.generation, slot.name):
            try:
                yield Note(f"writing {slot.name}")
                index = write_shards(slot.directory, attempt.generation)
                _check_written(slot, attempt.generation, index)
                fs.sync_directory(slot.directory)
                return _commit(slot, attempt, index)
            except BaseException:
                if not attempt.may_be_live:
                    remove_own_files(slot.directory, attempt.generation)
                raise
    except OSError as error:
        raise _failed(slot, attempt, error) from error


@dataclass(slots=True)
class _Attempt:
    """One save; once `may_be_live` nothing of it may be removed."""

    generation: str
    may_be_live: bool = False


def _prepare(slot: KtSlot) -> None:
    """Refuse what cannot hold a checkpoint; make the directory where there is none."""
    found = fs.identity(slot.directory, follow=False)
    if found is None:
        fs.make_directory(slot.directory, parents=True)
        fs.sync_directory(slot.directory.parent)
    elif not found.is_directory:
        what = "a link" if found.is_symlink else "a file"
        message = f"{slot.directory}: {what}, expected the directory of a checkpoint"
        raise PublishError(
            message, path=str(slot.directory), hint="save to a directory's own path"
        )
    index = fs.identity(slot.index, follow=False)
    if index is not None and not index.is_file:
        what = "a link" if index.is_symlink else "no file"
        message = f"{slot.index}: {what}, expected an index or nothing"
        raise PublishError(message, path=str(slot.index), hint="nothing was written")


def _check_written(slot: KtSlot, generation: str, data: bytes) -> None:
    index = parsed(data)
    wrong = next((each.message for each in index.findings), None)
    if wrong is None and index.generation != generation:
        wrong = f"the index says generation {index.generation}, expected {generation}"
    if wrong is None and (missing := missing_from(slot.directory, index)):
        wrong = f"{missing[0]} is not whole"
    if wrong is not None:
        raise PublishError(f"{slot.directory}: not published: {wrong}", path=str(slot.directory))


def _commit(slot: KtSlot, attempt: _Attempt, index: bytes) -> Swapped:
    with swap_lock(slot.run_dir, "publish"):
        change = Change(slot.name, _keep_live(slot), attempt.generation)
        sequence = intend(slot.run_dir, "publish", (change,))
        attempt.may_be_live = True
        try:
            _replace_index(slot, index)
        except BaseException:
            attempt.may_be_live = _may_be_live(slot, attempt.generation)
            if not attempt.may_be_live:
                with suppress(OSError):  # the first failure is the one to tell
                    conclude(slot.run_dir, sequence, Outcome.ABORTED)
            raise
        with suppress(OSError):  # the disk says it too
            conclude(slot.run_dir, sequence, Outcome.DONE)
    return Swapped(slot.directory, (change,), sequence)


def _may_be_live(slot: KtSlot, generation: str) -> bool:
    try:
        return live_generation(slot) == generation
    except OSError:
        return True


def _failed(slot: KtSlot, attempt: _Attempt, error: OSError) -> CheckpointError:
    why = error.strerror or str(error)
    path = str(slot.directory)
    if attempt.may_be_live:
        hint = "the checkpoint is whole now; a power cut may bring the index before it back"
        message = f"{slot.directory}: published, but not known to be durable: {why}"
        return PublishError(message, path=path, hint=hint)
    message = f"{slot.directory}: not published: {why}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            message += f" ({fs.disk_usage(slot.directory)[0]} bytes are free there)"
    return PublishError(message, path=path)


# ---- the swap itself --------------------------------------------------------------------------


def make_live(path: Path, generation: str, *, run_dir: Path | None = None) -> None:
    """Let the index name a retired generation; the directory keeps its time.

    The caller holds the run's lock and has recorded what it means to do. The index that was live
    is kept first.

    Raises:
        Refused: there is no such generation, or one of its shards is not whole.
        OSError: the disk refused; the index names the one or the other generation.
    """
    slot = kt_slot(path, run_dir)
    data = index_of(slot, generation)
    missing = missing_from(slot.directory, parsed(data), links_of(slot, generation))
    if missing:
        message = f"{slot.name}: generation {generation} is not whole: {missing[0]} is missing"
        raise Refused(message, path=str(slot.directory))
    _keep_live(slot)
    before = fs.identity(slot.directory)
    bring_back(slot, generation, parsed(data))
    _replace_index(slot, data, mtime_ns=before.mtime_ns if before else None)


def _replace_index(slot: KtSlot, data: bytes, *, mtime_ns: int | None = None) -> None:
    """Replace the index atomically and durably; with `mtime_ns` the directory gets that time."""
    temporary = slot.directory / f".{INDEX_NAME}.new-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with fs.NewFile(temporary) as file:
            file.write(data)
            file.sync()
        _rename(temporary, slot.index, data)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to tell
            fs.unlink(temporary)
            set_time(slot, mtime_ns)
        raise
    set_time(slot, mtime_ns)
    fs.sync_directory(slot.directory)


def _rename(temporary: Path, index: Path, data: bytes) -> None:
    """Rename; an error after which the index holds the new text anyway is none (NFS)."""
    try:
        fs.rename(temporary, index)
    except OSError:
        if read_if_there(index) != data:
            raise


def _keep_live(slot: KtSlot) -> str | None:
    """Keep a copy of the live index, durable; return its generation, None without one."""
    data = read_if_there(slot.index)
    if data is None:
        return None
    generation = parsed(data).generation
    name = generation if generation is not None and is_id(generation) else None
    kept = slot.kept / f"{name or DAMAGED + hashlib.sha256(data).hexdigest()[:12]}.json"
    if read_if_there(kept) != data:
        make_kept(slot)
        fs.replace_bytes(kept, data)
    return generation
