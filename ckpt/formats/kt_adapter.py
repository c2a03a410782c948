"""KT's adapter bundle: PEFT files and fused expert LoRA under a manifest that records hashes.

The manifest speaks only of the adapter's own files; what else lies in the directory is the
trainer's. `status` "ready" is written last.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from ckpt import fs, jsontext
from ckpt.checkpoint import Checkpoint, Depth, FileEntry, Finding, Glance, Severity, Tensor
from ckpt.errors import DuplicateKey, NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats.base import glance_of
from ckpt.formats.directory import Listing, is_pickle, list_files, sentence_of, step_in_name
from ckpt.manifest import is_safe_name
from ckpt.tensorfile import Header, read_header

MANIFEST_NAME = "kt_adapter_manifest.json"
FUSED_NAME = "fused_expert_lora.safetensors"
VERSION = 1
READY = "ready"
_MAX_JSON_BYTES = 64 << 20
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


class KtAdapter:
    """A directory with `kt_adapter_manifest.json`, or that file."""

    name: ClassVar[str] = "kt_adapter"
    label: ClassVar[str] = "KT adapter"

    def owns(self, path: Path) -> bool:
        """Whether it is the manifest, or a directory that holds it or the fused weights."""
        if path.name == MANIFEST_NAME:
            return True
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        return MANIFEST_NAME in names or FUSED_NAME in names

    def is_slot(self, path: Path) -> bool:
        """Always: the manifest stands for its directory."""
        del path
        return True

    def glance(self, path: Path) -> Glance:
        """Tell what the manifest and the sizes of its files tell."""
        try:
            seen = self.read(path, Depth.NAMES)
        except (TornRead, UnreadableCheckpoint) as error:
            finding = Finding(_code_of(error), _ERROR, error.message, MANIFEST_NAME)
            return Glance(path, self.name, complete=False, findings=(finding,))
        return glance_of(seen)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read the manifest, the sizes and at `HEADERS` the headers of the files it lists.

        Raises:
            UnreadableCheckpoint: the path may not be listed, or is not there (NoCheckpoint).
            TornRead: the manifest does not parse.
        """
        directory = path.parent if path.name == MANIFEST_NAME else path
        listing = list_files(directory)
        manifest, findings = _read_manifest(listing)
        artifacts = manifest.get("artifacts")
        listed = artifacts if isinstance(artifacts, dict) else {}
        files: list[FileEntry] = []
        tensors: list[Tensor] = []
        for name, told in sorted(listed.items()):
            problems = list(_entry_findings(name, told, listing))
            findings += problems
            if any(problem.code == "bad-entry-name" for problem in problems):
                continue
            files.append(FileEntry(name, listing.sizes.get(name), _hash_of(told), listed=True))
            if (
                depth >= Depth.HEADERS
                and name.endswith(".safetensors")
                and listing.sizes.get(name)
            ):
                header = read_header(directory / name, name)
                tensors += header.tensors
                findings += _header_findings(header, told, name)
        if MANIFEST_NAME in listing.sizes:
            files.insert(0, FileEntry(MANIFEST_NAME, listing.sizes[MANIFEST_NAME]))
        if path.name != MANIFEST_NAME:
            files += [
                FileEntry(name, size, listed=False)
                for name, size in listing.sizes.items()
                if name != MANIFEST_NAME and name not in listed
            ]
        return Checkpoint(
            path,
            self.name,
            self.label,
            step=step_in_name(directory.name),
            created_at=listing.modified.get(MANIFEST_NAME),
            complete=not any(finding.severity is _ERROR for finding in findings),
            files=tuple(files),
            tensors=tuple(tensors),
            metadata=MappingProxyType(
                {key: value for key, value in manifest.items() if key not in ("artifacts", "lora")}
            ),
            settings=MappingProxyType(_lora(manifest)),
            findings=tuple(findings),
        )

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield a warning for each pickle beside the adapter: no hash covers it."""
        for entry in checkpoint.files:
            if entry.listed is False and is_pickle(entry.name):
                message = f"{entry.name}: a pickle that nothing lists; it is never loaded here"
                yield Finding("unlisted-pickle", _WARNING, message, entry.name)


def _code_of(error: TornRead | UnreadableCheckpoint) -> str:
    if isinstance(error, TornRead):
        return error.finding_code or "bad-manifest"
    return "missing-file" if isinstance(error, NoCheckpoint) else "permission-denied"


def _read_manifest(listing: Listing) -> tuple[dict[str, Any], list[Finding]]:
    notes = [each for each in listing.findings if each.severity is Severity.NOTE]
    told = [each for each in listing.findings if each.file == MANIFEST_NAME]
    if any(finding.severity is _ERROR for finding in told):
        return {}, told
    if MANIFEST_NAME not in listing.sizes:
        message = f"{MANIFEST_NAME}: not there; it is written last, so this save is not whole"
        return {}, [Finding("missing-file", _ERROR, message, MANIFEST_NAME)]
    try:
        data = fs.read_small(listing.directory / MANIFEST_NAME, _MAX_JSON_BYTES)
        value = jsontext.parse(data, path=MANIFEST_NAME)
    except DuplicateKey as twice:
        return {}, [Finding("duplicate-key", _ERROR, twice.message, MANIFEST_NAME)]
    except TornRead as torn:
        raise TornRead(torn.message, path=torn.path, finding_code="bad-manifest") from None
    except OSError as error:
        code = "permission-denied" if isinstance(error, PermissionError) else "bad-manifest"
        return {}, [Finding(code, _ERROR, f"{MANIFEST_NAME}: {sentence_of(error)}", MANIFEST_NAME)]
    if not isinstance(value, dict):
        return {}, [_bad(f"is a {type(value).__name__}, expected an object")]
    return value, [*_manifest_findings(value), *notes]


def _manifest_findings(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    version = manifest.get("version")
    if not jsontext.is_whole(version, least=1):
        yield _bad(f"version is {version!r}, expected the integer {VERSION}")
    elif version != VERSION:
        message = (
            f"{MANIFEST_NAME}: made by a newer version ({version}), this program reads {VERSION}"
        )
        yield Finding("unsupported-version", _ERROR, message, MANIFEST_NAME)
    if manifest.get("status") != READY:
        yield _bad(f"status is {manifest.get('status')!r}, expected {READY!r}: not finished")
    artifacts = manifest.get("artifacts")
    if not isinstance(artifacts, dict):
        yield _bad("has no object of artifacts")
    elif FUSED_NAME not in artifacts:
        yield _bad(f"does not list {FUSED_NAME}")


def _entry_findings(name: str, told: Any, listing: Listing) -> Iterator[Finding]:
    if not is_safe_name(name):
        message = f"{MANIFEST_NAME}: {name!r} is no plain file name"
        yield Finding("bad-entry-name", _ERROR, message, MANIFEST_NAME)
        return
    size = told.get("size") if isinstance(told, dict) else None
    if not jsontext.is_whole(size):
        yield _bad(f"{name}: size is {size!r}, expected a size in bytes")
        size = None
    if _hash_of(told) is None:
        yield _bad(f"{name}: sha256 is no hash of 64 hexadecimal digits")
    there = listing.sizes.get(name)
    blocked = [each for each in listing.findings if each.file == name and each.severity is _ERROR]
    if blocked:
        yield from blocked
    elif there is None:
        yield Finding("missing-file", _ERROR, f"{name}: listed, not there", name)
    elif there == 0 and size != 0:
        yield Finding("empty-file", _ERROR, f"{name}: is empty", name)
    elif size is not None and there != size:
        message = f"{name}: size {there} bytes, the manifest says {size}"
        yield Finding("size-mismatch", _ERROR, message, name)


def _hash_of(told: Any) -> str | None:
    value = told.get("sha256") if isinstance(told, dict) else None
    return value.lower() if isinstance(value, str) and _HASH.fullmatch(value) else None


def _header_findings(header: Header, told: Any, file: str) -> Iterator[Finding]:
    yield from header.findings
    listed = told.get("tensors") if isinstance(told, dict) else None
    if not isinstance(listed, dict) or any(each.severity is _ERROR for each in header.findings):
        return
    count = told.get("tensor_count")
    names = {tensor.name for tensor in header.tensors}
    if names != listed.keys() or count not in (None, len(names)):
        differing = sorted(names ^ listed.keys())
        message = f"{file}: {len(names)} tensors, the manifest says {count or len(listed)}"
        if differing:
            message += f"; the first that differs is {differing[0]!r}"
        yield Finding("tensor-list-mismatch", _ERROR, message, file)
    for tensor in header.tensors:
        entry = listed.get(tensor.name)
        if not isinstance(entry, dict):
            continue
        if entry.get("dtype") != tensor.dtype:
            message = f"{file}: {tensor.name} is {tensor.dtype}, expected {entry.get('dtype')}"
            yield Finding("dtype-mismatch", _ERROR, message, file, tensor.name)
        if entry.get("shape") != list(tensor.shape):
            message = (
                f"{file}: {tensor.name} has shape {list(tensor.shape)},"
                f" the manifest says {entry.get('shape')}"
            )
            yield Finding("shape-mismatch", _ERROR, message, file, tensor.name)


def _lora(manifest: Mapping[str, Any]) -> dict[str, Any]:
    lora = manifest.get("lora")
    return dict(lora) if isinstance(lora, dict) else {}


def _bad(message: str) -> Finding:
    return Finding("bad-manifest", _ERROR, f"{MANIFEST_NAME}: {message}", MANIFEST_NAME)
