"""The swap of one slot on the disk, and what is made of one that was cut off.

Renames and exchanges only, and makes them durable; nothing is ever deleted here. The caller holds
the run's lock and has recorded its intent.
"""

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import first_error
from ckpt.generations import kt, names
from ckpt.generations.payload import UNREADABLE, Payload, look
from ckpt.reflog import Change


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a slot and where the payload lies that becomes live (None: none does).

    `is_inside`: it lies among the files of the slot itself, and an index says which is live.
    """

    run_dir: Path
    change: Change
    source: Path | None
    is_inside: bool = False

    @property
    def path(self) -> Path:
        """The published name."""
        return self.run_dir / self.change.slot


def carry(move: Move) -> None:
    """Make the change, durable when this returns.

    The one that was live keeps lying beside the name, retired, or withdrawn where nothing takes
    its place.

    Raises:
        OSError: the disk refused; `settle` says what stands at the name and tidies up.
    """
    path, change = move.path, move.change
    if move.is_inside and change.after is not None:
        kt.make_live(path, change.after, run_dir=move.run_dir)
        return
    if move.source is None:
        rename(path, free_name(path, "withdrawn", change.before))
    elif fs.identity(path, follow=False) is None:
        rename(move.source, path)
    else:
        _swap(move.source, path, free_name(path, "retired", change.before))
        return
    fs.sync_directory(path.parent)


def _swap(source: Path, path: Path, retired: Path) -> None:
    """Let the source take the name, and what had it become retired.

    After an exchange the old one lies whole under the source's name; that it gets one of its own
    need not be durable, as what it holds says which generation it is.
    """
    if fs.exchange(source, path):
        fs.sync_directory(path.parent)
        rename(source, retired)
        return
    rename(path, retired)
    fs.sync_directory(path.parent)  # or a power cut may keep the second rename and lose this one
    rename(source, path)
    fs.sync_directory(path.parent)


def settle(run_dir: Path, change: Change, *, is_forward: bool) -> bool:
    """End a change that was cut off; True: the slot is as it was meant to be after it.

    What stands at the name stays. If nothing does, the new payload takes it (`is_forward`) or the
    old one, and the other where that one is not whole. Going forward builds on what a dead process
    did, so that is made durable first.

    Raises:
        OSError: the disk refused.
    """
    path = run_dir / change.slot
    if is_forward and fs.identity(path.parent) is not None:
        fs.sync_directory(path.parent)  # or a power cut may lose that and keep what we do now
    live = id_at(path)
    if change.after is None:
        return live is None
    if live == change.after:
        _tidy(path, change.before)
        return True
    if live is not None or fs.identity(path, follow=False) is not None:
        return False
    if not is_forward and change.before is None:
        return False
    order = (change.after, change.before)
    for wanted in order if is_forward else order[::-1]:
        source = _lying(path, wanted)
        if source is not None:
            if is_forward:
                make_durable(source)
            rename(source, path)
            fs.sync_directory(path.parent)
            return wanted == change.after
    return False


def make_durable(payload: Path) -> None:
    """Make all of a payload durable: who wrote it may have died before that, or never does it.

    Raises:
        OSError: the disk refused.
    """
    found = fs.identity(payload, follow=False)
    if found is None or not found.is_directory:
        if found is not None:
            fs.sync_file(payload)
        return
    for entry in fs.scan(payload):
        if entry.is_file or entry.is_directory:
            make_durable(payload / entry.name)
    fs.sync_directory(payload)


def id_at(path: Path) -> str | None:
    """Return the id of the payload that stands at a name, None when no checkpoint does.

    Raises:
        OSError: what stands there cannot be looked at, or not be told from others.
    """
    payload = look(path)
    if payload.error is not None and not payload.is_gone:
        raise payload.error
    if payload.id == UNREADABLE:
        raise OSError(errno.EIO, "cannot be read, to tell which generation it is", str(path))
    return payload.id if payload.glance is not None else None


def foreign_at(path: Path, source: Path) -> str | None:
    """Say what stands at a name that no save left there, so that no other payload may take it.

    None: nothing stands there, or what is left of a save. `source` is what would take the name.

    Raises:
        OSError: one of the two cannot be looked at.
    """
    found = fs.identity(path, follow=False)
    if found is None:
        return None
    if found.is_symlink:
        return "a link stands there"
    wanted = fs.identity(source, follow=False)
    if wanted is not None and found.is_directory is not wanted.is_directory:
        return "a directory stands there" if found.is_directory else "a file stands there"
    payload = look(path)
    if payload.format is None and (payload.names or payload.has_subdirectories):
        return "what stands there is no checkpoint"
    return None


def free_name(path: Path, kind: str, generation: str | None) -> Path:
    """Return a hidden name beside a slot that nothing has: `.SLOT.KIND-GENERATION`."""
    token = generation if generation and names.fits_a_name(generation) else "unknown"
    candidate = path.with_name(names.hidden_name(path.name, kind, token))
    number = 1
    while fs.identity(candidate, follow=False) is not None:
        number += 1
        candidate = path.with_name(names.hidden_name(path.name, kind, f"{token}-{number}"))
    return candidate


def rename(source: Path, target: Path) -> None:
    """Rename to a free name; an error after which it has that name anyway is none (NFS).

    Raises:
        OSError: it was not renamed; FileExistsError: the name is taken.
    """
    staged = fs.identity(source, follow=False)
    try:
        fs.rename_to_free_name(source, target)
    except OSError:
        with suppress(OSError):
            found = fs.identity(target, follow=False)
            if found is not None and staged is not None and found.is_same_file(staged):
                return
        raise


def siblings(path: Path) -> Iterator[tuple[names.Hidden, Payload]]:
    """Yield the hidden payloads beside a slot."""
    for entry in sorted(fs.scan(path.parent), key=lambda each: each.name):
        hidden = names.hidden(entry.name)
        if hidden and not entry.is_symlink and names.belongs_to(entry.name, path.name):
            payload = look(path.parent / entry.name)
            if payload.error is None:
                yield hidden, payload


def _tidy(path: Path, before: str | None) -> None:
    """Name the old payload as what it is: it may lie under the name of what replaced it."""
    for hidden, payload in siblings(path):
        is_misnamed = hidden.kind == "retired" and not hidden.token.startswith(payload.id)
        if payload.id == before and (hidden.kind == "tmp" or is_misnamed):
            rename(payload.path, free_name(path, "retired", before))
    fs.sync_directory(path.parent)


def _lying(path: Path, wanted: str | None) -> Path | None:
    """Where a whole payload of that id lies beside a slot."""
    for hidden, payload in siblings(path):
        glance = payload.glance
        if payload.id != wanted or hidden.kind == "trash" or glance is None:
            continue
        if glance.complete is not False and first_error(glance.findings) is None:
            return payload.path
    return None
