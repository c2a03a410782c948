"""Links to the shards of KT generations, kept in the run's `.ckpt/` for slots that are guarded.

A trainer removes its own names of superseded shards; by these they are brought back. The links of
a generation lie in a directory of their own, which gets its name when all of them are there.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from ckpt import fs
from ckpt.control import make_control
from ckpt.formats.kt_index import Index
from ckpt.generations.kt_slot import KEPT, KtSlot, missing_from, parsed, read_if_there
from ckpt.generations.names import hidden, hidden_name
from ckpt.lock import writer_of, writing

_TOKEN_BYTES = 6


def links_of(slot: KtSlot, generation: str) -> Path:
    """Return where the links of a generation lie, whether there are any or not."""
    return slot.kept / generation


def linked(slot: KtSlot, generation: str) -> dict[str, int]:
    """Return the sizes of the shards of a generation that links are kept of, by file name."""
    directory = links_of(slot, generation)
    try:
        names = [entry.name for entry in fs.scan(directory) if entry.is_file]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = {name: fs.identity(directory / name) for name in names}
    return {name: each.size_bytes for name, each in found.items() if each is not None}


def shard_path(slot: KtSlot, generation: str, file: str) -> Path:
    """Return where a shard lies: among the links of its generation, or at its own name alone.

    Both are one file where both are there.
    """
    link = links_of(slot, generation) / file
    return link if fs.stamp(link) is not None else slot.directory / file


def keep_links(slot: KtSlot, generation: str, data: bytes) -> None:
    """Keep an index, `data`, and a link to each shard that it names; durable when this returns.

    Raises:
        FileNotFoundError: the trainer removed a shard meanwhile, or it is not whole.
        OSError: the disk refused, or it has no hard links; no link is kept.
    """
    make_kept(slot)
    sweep_links(slot)
    index = parsed(data)
    kept = slot.kept / f"{generation}.json"
    if read_if_there(kept) != data:
        fs.replace_bytes(kept, data)  # first: links without an index would be nobody's
    token = os.urandom(_TOKEN_BYTES).hex()
    staging = slot.kept / hidden_name(generation, "tmp", token)
    with writing(slot.run_dir, token, slot.name):
        fs.make_directory(staging)
        try:
            for name in sorted(index.file_names):
                fs.link(slot.directory / name, staging / name)
            if missing := missing_from(staging, index):
                raise FileNotFoundError(errno.ENOENT, "is not whole", missing[0])
            fs.sync_directory(staging)
            fs.rename_to_free_name(staging, links_of(slot, generation))
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell
                fs.remove_tree(staging)
            raise
    fs.sync_directory(slot.kept)


def bring_back(slot: KtSlot, generation: str, index: Index) -> None:
    """Give the shards of a generation their names again where the trainer removed them.

    Raises:
        OSError: the disk refused; what has its name already is whole.
    """
    there = linked(slot, generation)
    names = [name for name in index.file_names if name in there]
    missing = [name for name in names if fs.identity(slot.directory / name) is None]
    for name in sorted(missing):
        fs.link(links_of(slot, generation) / name, slot.directory / name)
    if missing:
        fs.sync_directory(slot.directory)


def set_links_aside(slot: KtSlot, generation: str) -> None:
    """Rename the links of a generation to trash, durably; there may be none.

    Raises:
        OSError: the disk refused.
    """
    if fs.identity(links_of(slot, generation), follow=False) is None:
        return
    trash = slot.kept / hidden_name(generation, "trash", os.urandom(_TOKEN_BYTES).hex())
    fs.rename_to_free_name(links_of(slot, generation), trash)
    fs.sync_directory(slot.kept)


def sweep_links(slot: KtSlot) -> int:
    """Remove what was set aside and what a dead guard left half linked; return the bytes freed.

    Bytes that another name still holds are not freed.

    Raises:
        OSError: the disk refused.
    """
    freed = 0
    try:
        entries = fs.scan(slot.kept)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    for entry in entries:
        sibling = hidden(entry.name)
        if sibling is None or not entry.is_directory or sibling.kind not in ("tmp", "trash"):
            continue
        if sibling.kind == "tmp" and writer_of(slot.run_dir, sibling.token) is not None:
            continue
        directory = slot.kept / entry.name
        for name in (inside.name for inside in fs.scan(directory) if inside.is_file):
            found = fs.identity(directory / name, follow=False)
            is_last = found is not None and fs.link_count(directory / name) == 1
            freed += found.size_bytes if found is not None and is_last else 0
        fs.remove_tree(directory)
    return freed


def make_kept(slot: KtSlot) -> None:
    """Make the directory of what is kept of a slot, each level durable; never through a link.

    Raises:
        OSError: the run cannot be written to, or a link stands in the way.
    """
    directory = make_control(slot.run_dir)
    for part in (KEPT, *Path(slot.name).parts):
        above, directory = directory, directory / part
        found = fs.identity(directory, follow=False)
        if found is None:
            with suppress(FileExistsError):
                fs.make_directory(directory)
            fs.sync_directory(above)
        elif not found.is_directory:
            raise OSError(errno.ENOTDIR, "is no directory", str(directory))
