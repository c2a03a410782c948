"""Publishing: a payload is staged beside its name, made durable, then takes the name.

What was live becomes retired. Before the swap only our own staging is ever removed, after it
nothing.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import first_error
from ckpt.errors import PublishError
from ckpt.formats import format_of
from ckpt.generations.find import home_of, slot_name
from ckpt.generations.names import TOKEN_LENGTH, hidden_name
from ckpt.generations.payload import UNREADABLE, look
from ckpt.generations.plans import Swapped
from ckpt.generations.swap import Move, carry, id_at, settle
from ckpt.lock import swap_lock, writing
from ckpt.manifest import Origin
from ckpt.operation import Note, Operation
from ckpt.reflog import Change, Outcome, conclude, intend


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a payload is written, and what it records of itself.

    `path` is a fresh, empty directory; for a single file the name at which it must be made.
    """

    path: Path
    origin: Origin


Write = Callable[[Staging], None]


def publish(
    target: Path, write: Write, *, run_dir: Path | None = None, is_file: bool = False
) -> Operation[Swapped]:
    """Publish what `write` puts into a staging place as `target`; durable when this returns.

    A checkpoint that stands at the name becomes a retired generation. `write` makes every file
    durable, its manifest last. `run_dir` None: the run that the target lies in, else the
    directory around it.

    Raises:
        PublishError: the name cannot be published to, the disk refused, or what was written is
            not whole. What was live is whole and live, unless the message says "published".
        Busy: somebody else held the run's lock all the time.
    """
    attempt = _Attempt(target, run_dir or home_of(target), os.urandom(TOKEN_LENGTH // 2).hex())
    try:
        before = _prepare(attempt, is_file=is_file)
        with writing(attempt.run_dir, attempt.generation, target.name):
            try:
                if not is_file:
                    fs.make_directory(attempt.staging)
                yield Note(f"writing {target.name}")
                write(Staging(attempt.staging, Origin(attempt.generation, before, target.name)))
                after = _sealed(attempt)
                with swap_lock(attempt.run_dir, "publish"):
                    return _commit(attempt, after)
            except BaseException:
                _remove_staging(attempt)
                raise
    except OSError as error:
        raise _failed(attempt, error) from error


@dataclass(slots=True)
class _Attempt:
    """One publish: where it goes and how far it came.

    `sealed` is what lies in staging once it is whole; `may_be_live` once it may have the name.
    """

    target: Path
    run_dir: Path
    generation: str
    sealed: fs.Identity | None = None
    may_be_live: bool = False

    @property
    def staging(self) -> Path:
        return self.target.with_name(hidden_name(self.target.name, "tmp", self.generation))


def _prepare(attempt: _Attempt, *, is_file: bool) -> str | None:
    """Refuse a name that cannot be published to; return the id of what is live there."""
    target = attempt.target
    if not target.name or target.name == ".." or target.name.startswith("."):
        raise PublishError(f"{target}: no name for a checkpoint", path=str(target))
    found = fs.identity(target, follow=False)
    if found is None:
        _make_parents(target.parent)
        return None
    if found.is_symlink:
        _refuse(target, "a link stands there", "publish to what it leads to, or remove the link")
    if found.is_directory is is_file:
        kinds = ("a directory", "a file") if is_file else ("a file", "a directory")
        _refuse(target, f"{kinds[0]} stands there, expected {kinds[1]}")
    if look(target).glance is None:
        _refuse(target, "what stands there is no checkpoint")
    return id_at(target)


def _refuse(target: Path, why: str, hint: str = "save under another name") -> None:
    raise PublishError(f"{target}: {why}; it is untouched", path=str(target), hint=hint)


def _make_parents(directory: Path) -> None:
    """Make the directories above a new name, each durable."""
    missing = []
    while fs.identity(directory) is None:
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            fs.make_directory(each)
        fs.sync_directory(each.parent)


def _sealed(attempt: _Attempt) -> str:
    """Make the staging durable and return the payload's id; refuse what is not whole."""
    staging, target = attempt.staging, attempt.target
    attempt.sealed = fs.identity(staging, follow=False)
    format_ = format_of(staging) if attempt.sealed is not None else None
    if attempt.sealed is None or format_ is None:
        raise PublishError(f"{target}: not published: nothing was written", path=str(target))
    payload = look(staging)
    wrong = first_error(payload.glance.findings) if payload.glance else None
    if payload.id == UNREADABLE:
        raise OSError(errno.EIO, "what was written cannot be read back", str(staging))
    if payload.glance is None or wrong or payload.glance.complete is False:
        why = wrong.message if wrong else "what was written is not whole"
        raise PublishError(f"{target}: not published: {why}", path=str(target))
    if attempt.sealed.is_directory:
        fs.sync_directory(staging)
    return payload.id


def _commit(attempt: _Attempt, after: str) -> Swapped:
    run_dir, target = attempt.run_dir, attempt.target
    change = Change(slot_name(run_dir, target), id_at(target), after)
    fs.sync_directory(target.parent)  # who swapped it last may have died before this
    sequence = intend(run_dir, "publish", (change,))
    attempt.may_be_live = True
    try:
        carry(Move(run_dir, change, attempt.staging))
    except BaseException:
        attempt.may_be_live = _has_the_name(attempt)
        _conclude_failed(attempt, change, sequence)
        raise
    with suppress(OSError):  # the disk says it too
        conclude(run_dir, sequence, Outcome.DONE)
    return Swapped(target, (change,), sequence)


def _conclude_failed(attempt: _Attempt, change: Change, sequence: int) -> None:
    """After an error in the swap: put the old one back, and record how it ended."""
    with suppress(OSError):  # the first failure is the one to tell; recovery will do the rest
        is_done = settle(attempt.run_dir, change, is_forward=False)
        conclude(attempt.run_dir, sequence, Outcome.DONE if is_done else Outcome.ABORTED)


def _has_the_name(attempt: _Attempt) -> bool:
    """Whether our payload stands at the name; where that cannot be known it may."""
    try:
        found = fs.identity(attempt.target, follow=False)
    except OSError:
        return True
    return found is not None and attempt.sealed is not None and found.is_same_file(attempt.sealed)


def _remove_staging(attempt: _Attempt) -> None:
    """Remove our own staging and nothing else: after an exchange the old payload has its name."""
    with suppress(OSError):  # the first failure is the one to tell; recovery sweeps what is left
        found = fs.identity(attempt.staging, follow=False)
        if found is None or attempt.may_be_live:
            return
        if attempt.sealed is None or found.is_same_file(attempt.sealed):
            fs.remove_tree(attempt.staging, first="manifest.json")


def _failed(attempt: _Attempt, error: OSError) -> PublishError:
    target, why = attempt.target, error.strerror or str(error)
    if attempt.may_be_live:
        message = f"{target}: published, but not known to be durable: {why}"
        hint = "the checkpoint is whole now; a power cut may bring the one before it back"
        return PublishError(message, path=str(target), hint=hint)
    message = f"{target}: not published: {why}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            message += f" ({fs.disk_usage(target.parent)[0]} bytes are free there)"
    return PublishError(message, path=str(target))
