"""Publishing a new payload under a free name: staged beside it, durable, then renamed.

The rename is the commit point. Before it only our own staging is ever removed, after it nothing.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Severity
from ckpt.errors import CheckpointError, PublishError
from ckpt.formats import format_of
from ckpt.generations.names import TOKEN_LENGTH, staging_name
from ckpt.operation import Note, Operation

_TOKEN_TRIES = 8


def publish_new(target: Path, write: Callable[[Path], None]) -> Operation[Path]:
    """Publish what `write` puts into a staging directory as `target`; return the target.

    `write` makes every file durable and its manifest last. When this returns, the checkpoint is
    durable. Whatever is raised, the name is absent or holds the whole checkpoint.

    Raises:
        PublishError: the name is taken, the disk refused, or what was written is not whole.
    """
    parent, name = target.parent, target.name
    if not name or name == ".." or name.startswith("."):
        raise PublishError(f"{target}: no name for a checkpoint", path=str(target))
    try:
        if fs.identity(target, follow=False) is not None:
            raise _occupied(target)
        staging = _make_staging(parent, name)
    except OSError as error:
        raise _failed(target, error) from error
    try:
        yield Note(f"writing {name}")
        write(staging)
        _check_sealed(target, staging)
        fs.sync_directory(staging)
        _commit(staging, target)
    except BaseException as error:
        _remove_staging(staging)
        if isinstance(error, FileExistsError):
            raise _occupied(target) from error
        if isinstance(error, OSError):
            raise _failed(target, error) from error
        raise
    try:
        fs.sync_directory(parent)
    except OSError as error:
        why = error.strerror or error
        message = f"{target}: published, but not known to be durable: {why}"
        hint = "the checkpoint is whole now; a power cut may still lose its name"
        raise PublishError(message, path=str(target), hint=hint) from error
    return target


def _make_staging(parent: Path, name: str) -> Path:
    for _ in range(_TOKEN_TRIES):
        staging = parent / staging_name(name, os.urandom(TOKEN_LENGTH // 2).hex())
        with suppress(FileExistsError):
            fs.make_directory(staging)
            return staging
    raise FileExistsError(errno.EEXIST, "no free name for the staging directory", str(parent))


def _check_sealed(target: Path, staging: Path) -> None:
    """Refuse to publish what a reader would call incomplete."""
    format_ = format_of(staging)
    if format_ is None:
        raise PublishError(f"{target}: not published: nothing was written", path=str(target))
    glance = format_.glance(staging)
    wrong = next((each for each in glance.findings if each.severity is Severity.ERROR), None)
    if wrong or glance.complete is False:
        why = wrong.message if wrong else "what was written is not whole"
        raise PublishError(f"{target}: not published: {why}", path=str(target))


def _commit(staging: Path, target: Path) -> None:
    """Rename; an error after which the staged directory has the name anyway is none (NFS)."""
    staged = fs.identity(staging)
    try:
        fs.rename_to_free_name(staging, target)
    except OSError:
        if staged is None or not _has_name(target, staged):
            raise


def _has_name(target: Path, staged: fs.Identity) -> bool:
    with suppress(OSError):
        found = fs.identity(target, follow=False)
        return found is not None and (found.device, found.inode) == (staged.device, staged.inode)
    return False


def _remove_staging(staging: Path) -> None:
    """Remove our own staging; once it has been renamed there is none, and nothing is removed."""
    with suppress(OSError):
        if fs.identity(staging, follow=False) is not None:
            fs.remove_tree(staging)


def _occupied(target: Path) -> PublishError:
    message = f"{target}: the name is taken; what stands there is untouched"
    return PublishError(message, path=str(target), hint="save under another name")


def _failed(target: Path, error: OSError) -> CheckpointError:
    message = f"{target}: not published: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            message += f" ({fs.disk_usage(target.parent)[0]} bytes are free there)"
    return PublishError(message, path=str(target))
