"""`.pt` files: written by torch.save, read without running anything unless a file is trusted.

Names which files may be unpickled and how; knows nothing of what an optimizer or scheduler is.
"""

import io
import re
from collections.abc import Collection
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import torch

from ckpt import fs
from ckpt.errors import CheckpointError, DamagedCheckpoint, PublishError, Untrusted
from ckpt.onepass import Sink
from ckpt.torch.filling import Recorded, Segment, fill

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIX = ".pt"
NOTHING_RECORDED = Recorded()
Trust: TypeAlias = bool | Collection[str]
"""What may be unpickled in full: False nothing, True all that the manifest lists, names those."""

_ADVICE = "WeightsUnpickler error: "
_NEEDS_MORE = re.compile(r"[Uu]nsupported|Cannot use `*weights_only")
_REFUSED_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def write_extra(key: str, value: Any, sink: Sink) -> None:
    """Write one extra as torch.save does.

    Raises:
        PublishError: it cannot be pickled.
        OSError: the disk refused.
    """
    try:
        torch.save(value, cast("IO[bytes]", sink))
    except (OSError, CheckpointError):
        raise
    except Exception as error:
        message = f"extras: {key!r} cannot be saved: {error}"
        raise PublishError(message, hint="save what state_dict() returns") from error


def read_pickle(
    file: fs.File, where: str, *, recorded: Recorded = NOTHING_RECORDED, is_trusted: bool = False
) -> Any:
    """Load one `.pt` file onto the CPU, its bytes compared before anything of them is used.

    `where` names it in messages. `is_trusted` lets the file run code, as pickles can.

    Raises:
        DamagedCheckpoint: the bytes are not the recorded ones, or cannot be loaded.
        Untrusted: the file needs full unpickling, and that was not allowed.
    """
    if recorded != NOTHING_RECORDED:
        _compare(file, where, recorded)
    try:
        stream = io.BufferedReader(_Stream(file))
        return torch.load(stream, map_location="cpu", weights_only=not is_trusted)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        if not is_trusted and _NEEDS_MORE.search(str(error)):
            raise _untrusted(file, where, error) from None
        message = f"{where}: cannot be loaded: {_in_short(error)}"
        raise DamagedCheckpoint(message, path=where) from error


def is_trusted(key: str, trust: Trust, *, is_listed: bool) -> bool:
    """Whether a file may be unpickled in full; one that nothing lists must be named."""
    if isinstance(trust, bool):
        return trust and is_listed
    return key in ((trust,) if isinstance(trust, str) else trust)


# ---- private ----------------------------------------------------------------------------------


def _compare(file: fs.File, where: str, recorded: Recorded) -> None:
    size = file.opened_as.size_bytes
    try:
        mismatches = fill(file, [Segment(where, 0, size, _nowhere)], recorded)
    except EOFError as error:
        raise DamagedCheckpoint(f"{where}: {error}", path=where) from error
    if mismatches:
        raise DamagedCheckpoint(f"{where}: {mismatches[0].message}", path=where)


def _nowhere(_offset: int, _data: memoryview) -> None:
    """Take bytes that are only hashed."""


def _untrusted(file: fs.File, where: str, error: Exception) -> Untrusted:
    refused = _REFUSED_GLOBAL.search(str(error))
    what = f"it holds a {refused[1]}" if refused else "it holds more than tensors and numbers"
    key = file.path.rpartition("/")[2].removesuffix(SUFFIX)
    message = f"{where}: {what}, and loading that could run code"
    hint = f"where you trust who wrote it: trust=({key!r},); without it: leave it out of extras="
    return Untrusted(message, path=where, hint=hint)


def _in_short(error: Exception) -> str:
    """Return what torch says went wrong, without its advice on how to trust a file."""
    told = str(error).rpartition(_ADVICE)[2]
    lines = (line.strip() for line in told.splitlines())
    return f"{type(error).__name__}: {next(filter(None, lines), 'no more is known')}"


class _Stream(io.RawIOBase):
    """A file of the checkpoint as torch.load wants it: seekable, read by offset."""

    def __init__(self, file: fs.File) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._at, self._file.opened_as.size_bytes)[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        count = self._file.read_into([memoryview(buffer).cast("B")], self._at)
        self._at += count
        return count
