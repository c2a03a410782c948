"""AstrAI's manifest.json, version 1, and our `ckpt` extension in it.

Turns its bytes into a value plus findings, and builds the bytes of a new one. Knows what a
manifest says, never what lies on the disk beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckpt import jsontext
from ckpt.checkpoint import NOTHING, Finding, Severity
from ckpt.errors import DuplicateKey, TornRead

if TYPE_CHECKING:
    from pydantic import ValidationError

    from ckpt.manifest_model import Model

NAME = "manifest.json"
VERSION = 1
REQUIRED = ("meta.json", "config.json", "model.safetensors")
EXTENSION = "ckpt"


@dataclass(frozen=True, slots=True)
class Listed:
    """What a manifest records of one file: its size, and its sha256 in lower case."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says, and everything that is wrong with it.

    `files` holds only entries that can be trusted to name a file of this directory. `tensors` is
    None when the list is unusable. `generation` and `parent` come from our extension; None in a
    manifest that another program wrote. `chunks` maps a file to the hashes of its chunks of
    `chunk_bytes` bytes. `digest` is the start of the sha256 of the manifest's own bytes.
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
    digest: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether nothing in it is an error: a directory with such a manifest was finished."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def read_manifest(data: bytes) -> Manifest:
    """Read the bytes of a manifest.json; whatever is wrong with them becomes findings."""
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
    from pydantic import ValidationError

    from ckpt.manifest_model import Model

    try:
        return _from_model(Model.model_validate(value))
    except ValidationError as error:
        return Manifest(findings=tuple(_findings_of(error)))


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


def is_safe_name(name: str) -> bool:
    """Whether a name is one path component of the directory itself: no separator, `..` or NUL."""
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _from_model(model: "Model") -> Manifest:
    findings = []
    files = {}
    for name, entry in model.files.items():
        if is_safe_name(name):
            files[name] = Listed(entry.size, entry.sha256.lower())
        else:
            text = f"{NAME}: lists {name!r}, which is no plain file name of this directory"
            findings.append(_error("bad-entry-name", text))
    missing = [name for name in REQUIRED if name not in files]
    findings += [_error("bad-manifest", f"{NAME}: does not list {name}") for name in missing]
    extension = model.extension
    return Manifest(
        created_at=model.created_at,
        optimizer_step=model.optimizer_step,
        policy_version=model.policy_version,
        tensors=model.tensors,
        files=files,
        generation=extension.generation,
        parent=extension.parent,
        chunk_bytes=extension.chunk_bytes,
        chunks=extension.chunks,
        findings=tuple(findings),
    )


def _findings_of(error: "ValidationError") -> Iterable[Finding]:
    for problem in error.errors(include_url=False, include_input=True):
        where = ".".join(str(part) for part in problem["loc"])
        text = f"{NAME}: {where}: {problem['msg']}, found {problem.get('input')!r:.60}"
        yield _error("bad-manifest", text)


def _unusable(code: str, message: str) -> Manifest:
    return Manifest(findings=(_error(code, message),))


def _error(code: str, message: str) -> Finding:
    return Finding(code, Severity.ERROR, message, NAME)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)[:60]
