"""Opening what stands at a path for loading: one directory, judged as a whole, read to its end.

The directory is opened once, so that a save meanwhile does not mix two generations. Where the
name is missing or unusable, the generation that should be used instead is, and the reason is said.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ckpt import fs, jsontext
from ckpt.checkpoint import (
    UNSUPPORTED_CODES,
    Checkpoint,
    Finding,
    Severity,
    Tensor,
)
from ckpt.errors import (
    DamagedCheckpoint,
    NoCheckpoint,
    UnreadableCheckpoint,
    UnsupportedVersion,
)
from ckpt.formats.astrai import AstrAI
from ckpt.formats.astrai_listing import INDEX, META, WEIGHTS
from ckpt.formats.huggingface import HuggingFace
from ckpt.generations import resolve_path
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Manifest, read_manifest
from ckpt.torch.filling import Recorded

LOOKED_FOR = f"{META} (a checkpoint), {WEIGHTS} or {INDEX} (weights)"
ATTEMPTS = 3
_MAX_JSON_BYTES = 64 << 20
_ADAPTER = "adapter_model.safetensors"
_BEARABLE = frozenset({"unlisted-pickle"})  # AstrAI would run it; here it is not opened
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """One payload, opened and found whole as far as names, sizes and headers tell.

    `path` is where it was found; `manifest` is None where there is none, `is_checkpoint` False for
    weights alone. `reason` says why it is another one than the name's, None when it is the name's.
    """

    path: Path
    directory: fs.Directory
    seen: Checkpoint
    manifest: Manifest | None
    is_checkpoint: bool
    reason: str | None = None

    @property
    def weights(self) -> dict[str, tuple[Tensor, ...]]:
        """The tensors of each weights file, in the order of the file."""
        whole = (entry.name for entry in self.seen.files if entry.name == WEIGHTS)
        files: dict[str, list[Tensor]] = {name: [] for name in whole}
        for tensor in self.seen.tensors:
            files.setdefault(tensor.file, []).append(tensor)
        return {file: tuple(tensors) for file, tensors in files.items()}

    def recorded(self, name: str) -> Recorded:
        """What is recorded of the bytes of a file."""
        if self.manifest is None or name not in self.manifest.files:
            return Recorded()
        chunks = self.manifest.chunks.get(name, ())
        return Recorded(self.manifest.files[name].sha256, self.manifest.chunk_bytes, chunks)

    def json(self, name: str) -> tuple[dict[str, Any], bytes]:
        """Return an object and the bytes that it was read from; nothing where it is not there."""
        try:
            data = fs.read_small(self.directory.inside(name), _MAX_JSON_BYTES)
        except FileNotFoundError:
            return {}, b""
        value = jsontext.parse(data, path=f"{self.path}/{name}")
        if not isinstance(value, dict):
            message = f"{self.path}: {name}: expected an object, found {value!r:.40}"
            raise DamagedCheckpoint(message, path=str(self.path))
        return value, data


def with_opened(path: Path, read: Callable[[Opened], T]) -> T:
    """Open what a path stands for and read it; again when it was replaced and removed meanwhile.

    Raises:
        NoCheckpoint: nothing is there, and no other generation of it either.
        UnreadableCheckpoint: what is there is not whole, and there is no other to use.
    """
    for attempt in range(1, ATTEMPTS + 1):
        before = _stands_at(path)
        try:
            with ExitStack() as stack:
                return read(_opened_or_resolved(path, stack))
        except (OSError, UnreadableCheckpoint) as error:
            if attempt < ATTEMPTS and _stands_at(path) != before:
                continue
            if isinstance(error, OSError):
                raise _unreadable(path, error) from error
            raise
    raise AssertionError("the last attempt returns or raises")


# ---- private ----------------------------------------------------------------------------------


def _opened_or_resolved(path: Path, stack: ExitStack) -> Opened:
    try:
        return _open(path, stack)
    except UnreadableCheckpoint as error:
        problem = error
    try:
        resolved = resolve_path(path)
    except (OSError, NoCheckpoint):
        raise problem from None
    if resolved.path is None and isinstance(problem, NoCheckpoint):
        raise NoCheckpoint(f"{problem.message} ({resolved.reason})", path=str(path))
    if resolved.path is None or resolved.path == path:
        raise problem
    opened = replace(_open(resolved.path, stack), reason=resolved.reason)
    _log.warning("%s: using %s instead: %s", path, resolved.path.name, resolved.reason)
    return opened


def _open(path: Path, stack: ExitStack) -> Opened:
    try:
        directory = stack.enter_context(fs.Directory(path))
        inside = Path(directory.inside("."))
        names = {entry.name for entry in fs.scan(inside)}
    except FileNotFoundError:
        raise _nothing(path, "nothing is there") from None
    except NotADirectoryError:
        raise _nothing(path, "a file, expected a directory") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if META in names or MANIFEST in names:
        opened = _open_checkpoint(path, directory, inside, names)
    elif WEIGHTS in names or INDEX in names:
        seen = _shards(inside)
        opened = Opened(path, directory, seen, None, is_checkpoint=False)
    else:
        raise _nothing(path, "neither a checkpoint nor weights")
    _refuse(path, opened.seen)
    return opened


def _open_checkpoint(path: Path, directory: fs.Directory, inside: Path, names: set[str]) -> Opened:
    seen = AstrAI().read(inside)
    if INDEX in names and WEIGHTS not in names:
        shards = _shards(inside)
        findings = (*seen.findings, *shards.findings)
        seen = replace(seen, tensors=shards.tensors, findings=findings)
    manifest = None
    if MANIFEST in names:
        manifest = read_manifest(fs.read_small(inside / MANIFEST, _MAX_JSON_BYTES))
    return Opened(path, directory, seen, manifest, is_checkpoint=True)


def _shards(inside: Path) -> Checkpoint:
    """Read weights as their index tells; an adapter that lies beside them is not of them."""
    seen = HuggingFace().read(inside)
    return replace(seen, tensors=tuple(t for t in seen.tensors if t.file != _ADAPTER))


def _refuse(path: Path, seen: Checkpoint) -> None:
    """Raise the first error among the findings."""
    wrong = next(filter(_is_unbearable, seen.findings), None)
    if wrong is None:
        return
    kind = UnsupportedVersion if wrong.code in UNSUPPORTED_CODES else DamagedCheckpoint
    raise kind(f"{path}: {wrong.message}", path=str(path), hint=wrong.hint)


def _is_unbearable(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.code not in _BEARABLE


def _unreadable(path: Path, error: OSError) -> UnreadableCheckpoint:
    message = f"{path}: cannot be read: {error.strerror or error}"
    return UnreadableCheckpoint(message, path=str(path))


def _nothing(path: Path, what: str) -> NoCheckpoint:
    return NoCheckpoint(f"{path}: {what}: looked for {LOOKED_FOR}", path=str(path))


def _stands_at(path: Path) -> tuple[int, int] | None:
    """What tells that another directory took the name."""
    try:
        found = fs.identity(path)
    except OSError:
        return None
    return None if found is None else (found.device, found.inode)
