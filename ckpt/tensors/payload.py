"""The files of a checkpoint, opened through their directory, and the stretches of them to read.

What is read belongs together even when another directory gets the name meanwhile.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Finding, Severity, Tensor
from ckpt.tensorfile import DTYPE_BITS, header_of, size_problem

JOB_BYTES = 8 << 20
"""So much is read by one thread before it is told how far the reading is."""

Place: TypeAlias = Path | fs.Directory
AGAIN = "it is being written: look again when the save is done"


class Payload:
    """The files of one checkpoint, each reached through a directory that stays open.

    `places` are the directories that its files may lie in, the first that has one wins; by default
    what the checkpoint's path says. One that is open already is left open.
    """

    def __init__(self, checkpoint: Checkpoint, places: Sequence[Place] = ()) -> None:
        self._path = checkpoint.path
        self._places = tuple(places)
        self._stack = ExitStack()
        self._directories: list[fs.Directory] = []

    def __enter__(self) -> Self:
        for place in self._places or (_directory_of(self._path),):
            if isinstance(place, fs.Directory):
                self._directories.append(place)
                continue
            with suppress(OSError):  # a file of it will be missing, and that is told
                self._directories.append(self._stack.enter_context(fs.Directory(place)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def open(self, name: str) -> fs.File:
        """Open one file.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        for directory in self._directories:
            with suppress(FileNotFoundError):
                return fs.File(directory.inside(name))
        raise FileNotFoundError(2, "No such file or directory", name)


def _directory_of(path: Path) -> Path:
    try:
        found = fs.identity(path)
    except OSError:
        return path
    return path if found is not None and found.is_directory else path.parent


def by_file(tensors: Iterable[Tensor]) -> dict[str, list[Tensor]]:
    """Group tensors by their files, each group in the order of its file."""
    grouped: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        grouped.setdefault(tensor.file, []).append(tensor)
    for group in grouped.values():
        group.sort(key=lambda tensor: tensor.start)
    return grouped


def moved(file: fs.File, tensors: Iterable[Tensor], name: str) -> frozenset[Tensor]:
    """Return which tensors are not, in this open file, where its header was said to have them."""
    there = set(header_of(file, name).tensors)
    return frozenset(tensor for tensor in tensors if tensor not in there)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a tensor, `start` and `end` being byte offsets in its file."""

    tensor: Tensor
    start: int
    end: int


def jobs_of(tensors: Iterable[Tensor]) -> Iterator[tuple[Stretch, ...]]:
    """Cut tensors into jobs of about equal size: many small ones, or a part of a large one."""
    job: list[Stretch] = []
    size = 0
    for tensor in tensors:
        for start in range(tensor.start, tensor.end, JOB_BYTES):
            stretch = Stretch(tensor, start, min(start + JOB_BYTES, tensor.end))
            job.append(stretch)
            size += stretch.end - stretch.start
            if size >= JOB_BYTES:
                yield tuple(job)
                job, size = [], 0
    if job:
        yield tuple(job)


def unreadable(error: OSError, name: str) -> Finding:
    """Say why a file, or a part of it, cannot be read."""
    if isinstance(error, FileNotFoundError):
        return _error("missing-file", f"{name}: not there", name)
    if isinstance(error, PermissionError):
        return _error("permission-denied", f"{name}: permission denied", name)
    return _error("unreadable-file", f"{name}: cannot be read: {error.strerror or error}", name)


def cut(tensor: Tensor) -> Finding:
    """Say that the file ends within a tensor."""
    text = f"{tensor.file}: ends within {tensor.name}, or was cut while it was read"
    return Finding("truncated", Severity.ERROR, text, tensor.file, tensor.name)


def changed(name: str) -> Finding:
    """Say that a file was written to, or replaced, while it was read."""
    text = f"{name}: changed while it was read"
    return Finding("changed-while-reading", Severity.ERROR, text, name, hint=AGAIN)


def has_changed(file: fs.File) -> bool:
    """Whether an open file was written to since it was opened."""
    now, then = file.identity(), file.opened_as
    return (now.size_bytes, now.mtime_ns) != (then.size_bytes, then.mtime_ns)


def flaw(tensor: Tensor, file: fs.File) -> Finding | None:
    """Say why the bytes of a tensor, in this open file, cannot be its values."""
    if tensor.end > file.opened_as.size_bytes:
        return cut(tensor)
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        return not_decoded(tensor)
    text = size_problem(tensor.dtype, bits, tensor.shape, tensor.size_bytes)
    if text is None:
        return None
    message = f"{tensor.file}: tensor {tensor.name!r}: {text}"
    return Finding("bad-offsets", Severity.ERROR, message, tensor.file, tensor.name)


def not_decoded(tensor: Tensor) -> Finding:
    """Say that the values of a dtype cannot be told."""
    text = f"{tensor.name}: not computed: {tensor.dtype} is not decoded"
    return Finding("not-computed", Severity.NOTE, text, tensor.file, tensor.name)


def _error(code: str, text: str, name: str) -> Finding:
    return Finding(code, Severity.ERROR, text, name)
