"""AstrAI's manifest.json, version 1, and our `ckpt` extension in it.

Turns its bytes into a value plus findings, and builds the bytes of a new one. Knows what a
manifest says, never what lies on the disk beside it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt import jsontext
from ckpt.checkpoint import NOTHING, Finding, Severity, TensorStats
from ckpt.errors import DuplicateKey, TornRead
from ckpt.recorded import Recorded, is_finite, nonfinite, problem_of, record_of

NAME = "manifest.json"
VERSION = 1
REQUIRED = ("meta.json", "config.json", "model.safetensors")
EXTENSION = "ckpt"
EXTENSION_VERSION = 1
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_GENERATION = re.compile(r"[0-9A-Za-z_-]{1,64}")
_FACTS = {"created_at": str, "optimizer_step": int, "policy_version": int}
_KINDS = {str: "text", int: "an integer", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Listed:
    """What a manifest records of one file: its size, and its sha256 in lower case."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a payload of ours comes from, as the extension records it.

    `generation` is its own id; `parent` that of the generation that was live when it was written,
    None when there was none; `slot` is the name it is published under.
    """

    generation: str
    parent: str | None
    slot: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says, and everything that is wrong with it.

    `files` holds only entries that can be trusted to name a file of this directory. `tensors` is
    None when the list is unusable. `generation` and `parent` come from our extension; None in a
    manifest that another program wrote, and where the extension cannot be used. `chunks` maps a
    file to the hashes of its chunks of `chunk_bytes` bytes. `stats` is what is recorded of the
    values of tensors, empty where nothing is or it cannot be used. `digest` is the start of the
    sha256 of the manifest's own bytes.
    """

    created_at: str | None = None
    optimizer_step: int | None = None
    policy_version: int | None = None
    tensors: tuple[str, ...] | None = None
    files: Mapping[str, Listed] = field(default_factory=lambda: NOTHING)
    generation: str | None = None
    parent: str | None = None
    chunk_bytes: int | None = None
    chunks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)
    stats: Recorded = field(default_factory=lambda: NOTHING)
    digest: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def finite(self) -> bool | None:
        """Whether every recorded value was finite; None where nothing was recorded."""
        return is_finite(self.stats)


def read_manifest(data: bytes, *, required: Collection[str] = REQUIRED) -> Manifest:
    """Read the bytes of a manifest.json; whatever is wrong with them becomes findings.

    `required` are the files that it must list: those of AstrAI, or of another kind of directory.
    """
    try:
        value = jsontext.parse(data, path=NAME)
    except DuplicateKey as error:
        return _unusable("duplicate-key", error.message)
    except TornRead as error:
        return _unusable("bad-manifest", error.message)
    if not isinstance(value, dict):
        return _unusable("bad-manifest", f"{NAME}: expected an object, found {_kind(value)}")
    version = value.get("format_version")
    if type(version) is not int or version < 1:
        return _unusable(
            "bad-manifest", f"{NAME}: format_version: expected the integer 1, found {version!r}"
        )
    if version != VERSION:
        text = f"{NAME}: made by a newer version ({version}), this program reads {VERSION}"
        return _unusable("unsupported-version", text)
    extension = value.get(EXTENSION)
    unusable = list(_extension_problems(extension))
    odd = list(_oddities(data, value, unusable))
    wrong = [_error("bad-manifest", f"{NAME}: {text}") for text in _problems(value)]
    if wrong:
        return Manifest(findings=(*wrong, *odd))
    usable = NOTHING if extension is None or unusable else extension
    return _from_fields(value, usable, odd, required)


def build(
    files: Mapping[str, Listed],
    tensors: Iterable[str],
    *,
    meta: Mapping[str, Any],
    extension: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the bytes of a manifest as AstrAI writes it, key order included.

    `created_at`, `optimizer_step` and `policy_version` come from the checkpoint's `meta`.
    """
    value: dict[str, Any] = {
        "format_version": VERSION,
        "created_at": meta.get("timestamp"),
        "optimizer_step": meta.get("optimizer_step"),
        "policy_version": meta.get("policy_version"),
        "tensors": sorted(tensors),
        "files": {
            name: {"size": listed.size_bytes, "sha256": listed.sha256}
            for name, listed in sorted(files.items())
        },
    }
    if extension is not None:
        value[EXTENSION] = dict(extension)
    return jsontext.dumps(value, indent=2).encode()


def extension_of(
    origin: Origin,
    *,
    chunk_bytes: int,
    chunks: Mapping[str, Sequence[str]],
    stats: Mapping[str, TensorStats] | None = None,
) -> Mapping[str, Any]:
    """Return our extension: where the payload comes from, and the hashes of its files' chunks.

    With `stats` also what the values of its tensors are like.
    """
    extension = {
        "v": EXTENSION_VERSION,
        "generation": origin.generation,
        "parent": origin.parent,
        "slot": origin.slot,
        "chunk_bytes": chunk_bytes,
        "chunks": {name: list(hashes) for name, hashes in sorted(chunks.items())},
    }
    return extension if stats is None else {**extension, "stats": record_of(stats)}


def is_safe_name(name: str) -> bool:
    """Whether a name is one path component of the directory itself: no separator, `..` or NUL."""
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


# ---- fields: by hand, as hundreds of manifests are read before a run's first line is shown -----


def _problems(value: Mapping[str, Any]) -> Iterator[str]:
    """Say where the two lists are not what version 1 wants; nothing can be trusted then."""
    yield from _if_no_texts("tensors", value.get("tensors"))
    files = value.get("files")
    yield from _if_not("files", files, dict)
    for name, entry in files.items() if isinstance(files, dict) else ():
        where = f"files.{name}"
        yield from _if_not(where, entry, dict)
        if not isinstance(entry, dict):
            continue
        size, digest = entry.get("size"), entry.get("sha256")
        if type(size) is not int or size < 0:
            yield f"{where}.size: expected a number of bytes, found {size!r:.60}"
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            yield f"{where}.sha256: expected 64 hexadecimal digits, found {digest!r:.60}"


def _oddities(data: bytes, value: Mapping[str, Any], unusable: Iterable[str]) -> Iterator[Finding]:
    """Say what is odd and makes no file less sound; unknown fields are nobody's fault."""
    if jsontext.has_bom(data):
        text = f"{NAME}: starts with a byte order mark, which AstrAI does not read"
        yield Finding("upstream-refuses", Severity.WARNING, text, NAME)
    for key, kind in _FACTS.items():
        for text in _if_not(key, value.get(key), kind, or_none=True):
            yield Finding("bad-manifest", Severity.WARNING, f"{NAME}: {text}", NAME)
    for text in unusable:
        yield Finding("bad-manifest", Severity.WARNING, f"{NAME}: {text}", NAME)


def _extension_problems(extension: Any) -> Iterator[str]:
    yield from _if_not(EXTENSION, extension, dict, or_none=True)
    if not isinstance(extension, dict):
        return
    yield from _if_not(f"{EXTENSION}.v", extension.get("v"), int, or_none=True)
    for key in ("generation", "parent"):  # becomes part of names on disk
        name = extension.get(key)
        if name is not None and not (isinstance(name, str) and _GENERATION.fullmatch(name)):
            yield f"{EXTENSION}.{key}: expected letters and digits, found {name!r:.60}"
    size = extension.get("chunk_bytes")
    if size is not None and (type(size) is not int or size < 1):
        yield f"{EXTENSION}.chunk_bytes: expected a number of bytes, found {size!r:.60}"
    chunks = extension.get("chunks")
    yield from _if_not(f"{EXTENSION}.chunks", chunks, dict, or_none=True)
    for name, hashes in chunks.items() if isinstance(chunks, dict) else ():
        yield from _if_no_texts(f"{EXTENSION}.chunks.{name}", hashes)


def _if_not(where: str, found: Any, kind: type, *, or_none: bool = False) -> Iterator[str]:
    """Say so when a value is not exactly of a kind: true is no integer."""
    if type(found) is not kind and not (or_none and found is None):
        yield f"{where}: expected {_KINDS[kind]}, found {found!r:.60}"


def _if_no_texts(where: str, found: Any) -> Iterator[str]:
    if not isinstance(found, list):
        yield f"{where}: expected a list of text, found {found!r:.60}"
    elif set(map(type, found)) - {str}:
        odd = next(item for item in found if not isinstance(item, str))
        yield f"{where}: expected a list of text, found {odd!r:.60} in it"


def _from_fields(
    value: Mapping[str, Any],
    extension: Mapping[str, Any],
    odd: Iterable[Finding],
    required: Collection[str],
) -> Manifest:
    findings = []
    files = {}
    for name, entry in value["files"].items():
        if is_safe_name(name):
            files[name] = Listed(entry["size"], entry["sha256"].lower())
        else:
            text = f"{NAME}: lists {name!r}, which is no plain file name of this directory"
            findings.append(_error("bad-entry-name", text))
    missing = [name for name in required if name not in files]
    findings += [_error("bad-manifest", f"{NAME}: does not list {name}") for name in missing]
    stats = extension.get("stats")
    problem = None if stats is None else problem_of(stats, value["tensors"])
    if problem is not None:  # nothing else of the extension is less sound for it
        text = f"{NAME}: {EXTENSION}.stats: {problem}"
        findings.append(Finding("bad-manifest", Severity.WARNING, text, NAME))
    recorded: Recorded = stats if stats is not None and problem is None else NOTHING
    told = nonfinite(recorded, NAME)
    findings += [] if told is None else [told]
    facts = {key: value.get(key) for key, kind in _FACTS.items() if type(value.get(key)) is kind}
    return Manifest(
        created_at=facts.get("created_at"),
        optimizer_step=facts.get("optimizer_step"),
        policy_version=facts.get("policy_version"),
        tensors=tuple(value["tensors"]),
        files=files,
        generation=extension.get("generation"),
        parent=extension.get("parent"),
        chunk_bytes=extension.get("chunk_bytes"),
        chunks={name: tuple(hashes) for name, hashes in (extension.get("chunks") or {}).items()},
        stats=recorded,
        findings=(*findings, *odd),
    )


def _unusable(code: str, message: str) -> Manifest:
    return Manifest(findings=(_error(code, message),))


def _error(code: str, message: str) -> Finding:
    return Finding(code, Severity.ERROR, message, NAME)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)[:60]
