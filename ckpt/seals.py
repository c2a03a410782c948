"""Hashes that we recorded of checkpoints whose formats have none: the run's `.ckpt/seals/`.

A seal is one file, whole or not there, and carries a hash of itself: one that was hurt must not
make good bytes look damaged. Nothing is ever written into the checkpoint.
"""

import errno
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.control import DIRECTORY, make_control
from ckpt.errors import DuplicateKey, TornRead

SEALS = "seals"
VERSION = 1
_MOST_BYTES = 256 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SAFE = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True)
class SealedFile:
    """What was recorded of one file; hashes are in lower case, `mtime_ns` is its time then."""

    size_bytes: int
    mtime_ns: int
    sha256: str
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """The hashes of one payload, and when (epoch s) they were recorded.

    `generation` is its id, `path` where it lay, relative to its run. `chunks` of the files are of
    `chunk_bytes` bytes each.
    """

    generation: str
    path: str
    format: str
    at: float
    chunk_bytes: int
    files: Mapping[str, SealedFile]


def write_seal(run_dir: Path, seal: Seal) -> Path:
    """Record a seal, durable when this returns; one of the same payload is replaced.

    Raises:
        OSError: the run cannot be written to, or a link stands in the way.
    """
    directory = make_control(run_dir) / SEALS
    found = fs.identity(directory, follow=False)
    if found is None:
        with suppress(FileExistsError):  # made by somebody else since
            fs.make_directory(directory)
        fs.sync_directory(directory.parent)
    elif not found.is_directory:
        raise OSError(errno.ENOTDIR, "is no directory", str(directory))
    path = directory / f"{_generation_key(seal.generation)}.{_path_key(seal.path)}.json"
    fields = _fields(seal)
    fs.replace_bytes(path, jsontext.dumps_ascii({**fields, "check": _check(fields)}).encode())
    return path


def find_seal(
    run_dir: Path, *, generation: str, path: str | None
) -> tuple[Seal | None, tuple[Finding, ...]]:
    """Return the seal of a payload: of that id, else the last one of what lay at its path.

    `path` is relative to the run; None where another id there means another payload, and not that
    this one changed. A seal that cannot be read is a finding, and then there is none.
    """
    try:
        names = [entry.name for entry in fs.scan(run_dir / DIRECTORY / SEALS) if entry.is_file]
    except OSError:
        return None, ()
    by_id = f"{_generation_key(generation)}."
    by_path = f".{_path_key(path or '')}.json"
    known = sorted(
        (name for name in names if name.endswith(".json")),
        key=lambda name: (not name.startswith(by_id), not name.endswith(by_path), name),
    )
    found: list[Seal] = []
    findings: list[Finding] = []
    for name in known:
        if not (name.startswith(by_id) or name.endswith(by_path)):
            break
        try:
            seal = _parsed(fs.read_small(run_dir / DIRECTORY / SEALS / name, _MOST_BYTES))
        except (OSError, TornRead, DuplicateKey, LookupError, TypeError, ValueError,
                ArithmeticError, AttributeError):  # fmt: skip
            text = (
                f"{DIRECTORY}/{SEALS}/{name}: cannot be read, so that nothing is compared with it"
            )
            hint = "seal the checkpoint again"
            findings.append(Finding("bad-seal", Severity.WARNING, text, hint=hint))
            continue
        if seal.generation == generation:
            return seal, ()
        if seal.path == path:
            found.append(seal)
    if found:
        return max(found, key=lambda seal: seal.at), ()
    return None, tuple(findings)


# ---- the text of a seal -----------------------------------------------------------------------


def _fields(seal: Seal) -> dict[str, Any]:
    return {
        "v": VERSION,
        "generation": seal.generation,
        "path": seal.path,
        "format": seal.format,
        "at": seal.at,
        "chunk_bytes": seal.chunk_bytes,
        "files": {
            name: {
                "size": file.size_bytes,
                "mtime_ns": file.mtime_ns,
                "sha256": file.sha256,
                "chunks": list(file.chunks),
            }
            for name, file in sorted(seal.files.items())
        },
    }


def _parsed(data: bytes) -> Seal:
    value = jsontext.parse(data, path=SEALS)
    if not isinstance(value, dict) or value.pop("check") != _check(value):
        raise ValueError("not what was written")
    if value["v"] != VERSION:
        raise ValueError("made by a newer version")
    return Seal(
        _text(value["generation"]),
        _text(value["path"]),
        _text(value["format"]),
        float(value["at"]),
        _whole(value["chunk_bytes"], least=1),
        MappingProxyType({name: _file(each) for name, each in value["files"].items()}),
    )


def _file(value: Any) -> SealedFile:
    if not _SHA256.fullmatch(value["sha256"]):
        raise ValueError("no sha256")
    chunks = value["chunks"]
    return SealedFile(
        _whole(value["size"]),
        _whole(value["mtime_ns"], least=-(1 << 63)),
        value["sha256"],
        tuple(map(_text, chunks if isinstance(chunks, list) else ())),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _whole(value: Any, *, least: int = 0) -> int:
    if not jsontext.is_whole(value, least=least):
        raise ValueError(value)
    return value


def _check(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(jsontext.dumps_ascii(dict(fields)).encode()).hexdigest()


def _generation_key(generation: str) -> str:
    return generation if _SAFE.fullmatch(generation) else _path_key(generation)


def _path_key(text: str) -> str:
    encoded = text.encode("utf-8", errors="surrogateescape")
    return hashlib.sha256(encoded).hexdigest()[:12]
