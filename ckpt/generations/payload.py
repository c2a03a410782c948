"""One payload as names, stat and small JSON tell it, kept until something of it changed.

Looking again costs one stat: what is in a directory is trusted while the directory itself is the
same and had not changed just before it was looked at. A file overwritten in place is not seen so.
"""

import hashlib
import time
from dataclasses import dataclass, replace
from errno import ENOENT
from os import strerror
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Finding, Glance, Severity
from ckpt.control import Stamp, stamp_of
from ckpt.errors import CheckpointError
from ckpt.formats import format_of
from ckpt.formats.base import NOTHING_INSIDE, Format, Inside, generations_inside

SETTLED_S = 2.0
"""Times of a file system may be this coarse: what changed later than that is looked at again."""

UNREADABLE = "unreadable"
"""The id of a payload that cannot be read to be told from others."""

_MANIFEST_NAMES = ("manifest.json", "kt_adapter_manifest.json")
_ADDED_LATER = ("metric.jsonl", "tokenizer")
_MAX_SMALL_JSON_BYTES = 1 << 16
_SAMPLES, _SAMPLE_BYTES = 32, 4096


@dataclass(frozen=True, slots=True)
class Payload:
    """What lies at a path: `format` None when none claims it, `glance` None when it is no slot.

    `names` are the files and links of a directory (of a file: none); `error` says why the path
    cannot be looked at; `stamp` is None where it was not asked for.
    """

    path: Path
    format: Format | None = None
    glance: Glance | None = None
    inside: Inside = NOTHING_INSIDE
    id: str = ""
    names: tuple[str, ...] = ()
    has_subdirectories: bool = False
    error: OSError | None = None
    stamp: Stamp | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nothing is there (any more): it was removed while it was looked for."""
        return isinstance(self.error, FileNotFoundError)


def look(path: Path, *, with_stamp: bool = False) -> Payload:
    """Look at one path now; what is wrong with it is inside the answer."""
    return _look(path, with_stamp=with_stamp)[0]


class Payloads:
    """Payloads by path, looked at again only when they may have changed."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()

    def look(self, path: str, *, with_stamp: bool = False) -> Payload:
        """Return the payload at a path; the same object as long as nothing of it changed."""
        self._seen.add(path)
        known = self._known.get(path)
        if known is not None and known.is_good(path, with_stamp=with_stamp):
            return known.payload
        looked_at = time.time()
        payload, root = _look(Path(path), with_stamp=with_stamp)
        if known is not None and known.payload == payload:
            payload = known.payload
        is_lasting = payload.error is None and is_settled(root, looked_at)
        self._known[path] = _Known(payload, root if is_lasting else None)
        return payload

    def forget(self, path: str) -> None:
        """Look at that path anew the next time, whatever its times say."""
        known = self._known.get(path)
        if known is not None:
            self._known[path] = _Known(known.payload, None)

    def drop_unseen(self) -> None:
        """Forget the paths that were not asked for since the last call."""
        for path in self._known.keys() - self._seen:
            del self._known[path]
        self._seen.clear()


@dataclass(frozen=True, slots=True)
class _Known:
    payload: Payload
    root: fs.Identity | None
    """What the path was; None: look again, whatever it is."""

    def is_good(self, path: str, *, with_stamp: bool) -> bool:
        if self.root is None or (with_stamp and self.payload.stamp is None):
            return False
        try:
            return fs.identity(path) == self.root
        except OSError:
            return False


def is_settled(found: fs.Identity | None, looked_at: float) -> bool:
    """Whether a path had not changed so shortly before the look that its times would not tell."""
    return found is not None and looked_at - max(found.mtime_ns, found.ctime_ns) / 1e9 > SETTLED_S


def _look(path: Path, *, with_stamp: bool) -> tuple[Payload, fs.Identity | None]:
    with fs.listing_once():
        return _look_now(path, with_stamp=with_stamp)


def _look_now(path: Path, *, with_stamp: bool) -> tuple[Payload, fs.Identity | None]:
    try:
        root = fs.identity(path)
        names: tuple[str, ...] = ()
        has_subdirectories = False
        if root is None:
            raise FileNotFoundError(ENOENT, strerror(ENOENT), str(path))
        if root.is_directory:
            entries = fs.scan(path)
            names = tuple(sorted(entry.name for entry in entries if not entry.is_directory))
            has_subdirectories = len(names) < len(entries)
        stamp = _stamp(path, names) if with_stamp else None
        payload = Payload(path, names=names, has_subdirectories=has_subdirectories, stamp=stamp)
        return _claimed(payload), root
    except OSError as error:
        return Payload(path, error=error), None


def _stamp(path: Path, names: tuple[str, ...]) -> Stamp:
    kept = [name for name in names if not name.startswith(_ADDED_LATER)]
    found = {name: fs.identity(f"{path}/{name}") for name in kept}
    if not names:
        found = {"": fs.identity(path)}
    return stamp_of({name: each for name, each in found.items() if each is not None})


def _claimed(payload: Payload) -> Payload:
    path = payload.path
    format_ = format_of(path)
    if format_ is None or not format_.is_slot(path):
        return replace(payload, format=format_)
    try:
        glance = format_.glance(path)
    except CheckpointError as error:
        finding = Finding(error.code, Severity.ERROR, error.message, hint=error.hint)
        glance = Glance(path, format_.name, complete=False, findings=(finding,))
    return Payload(
        path,
        format_,
        glance,
        generations_inside(format_, path),
        glance.generation or glance.digest or _digest(payload),
        payload.names,
        payload.has_subdirectories,
        stamp=payload.stamp,
    )


def _sample(path: Path) -> bytes:
    """Blocks all over a single file: two files of one kind and size differ somewhere in values."""
    with fs.File(path) as file:
        size = file.opened_as.size_bytes
        if size <= _MAX_SMALL_JSON_BYTES:
            return file.read_at(0, size)
        last = size - _SAMPLE_BYTES
        places = [last * at // (_SAMPLES - 1) for at in range(_SAMPLES)]
        return b"".join(file.read_at(at, _SAMPLE_BYTES) for at in places)


def _digest(payload: Payload) -> str:
    """The identity of a foreign payload: of its manifest, else of its names, sizes and small JSON.

    Times are no part of it, nor the path, nor what is added after publication.
    """
    digest = hashlib.sha256()
    path = payload.path
    try:
        for name in _MANIFEST_NAMES:
            if name in payload.names:
                digest.update(fs.read_bytes(path / name))
                return digest.hexdigest()[:12]
        for name in payload.names or ("",):
            if name.startswith(_ADDED_LATER) or name.startswith("."):
                continue
            found = fs.identity(path / name)
            size = found.size_bytes if found else -1
            digest.update(f"{name}\0{size}\n".encode("utf-8", errors="surrogateescape"))
            if name.endswith(".json") and 0 < size <= _MAX_SMALL_JSON_BYTES:
                digest.update(fs.read_bytes(path / name))
            elif found and not payload.names:
                digest.update(_sample(path))
    except OSError:
        return UNREADABLE
    return digest.hexdigest()[:12]
