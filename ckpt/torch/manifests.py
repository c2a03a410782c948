"""The manifest of a checkpoint that is there: built from its files, read, compared with them.

Looks at no tensor; `ckpt.manifest` and `ckpt.verify` do the work and need no torch.
"""

import hashlib
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Depth, Finding, Severity, first_error
from ckpt.errors import DamagedCheckpoint, NoCheckpoint, UnreadableCheckpoint
from ckpt.formats.astrai import AstrAI
from ckpt.manifest import NAME, REQUIRED, Listed, Manifest, build
from ckpt.manifest import read_manifest as parse_manifest
from ckpt.operation import drive
from ckpt.torch.extras import SUFFIX
from ckpt.verify import verify as verify_payload

_MAX_JSON_BYTES = 64 << 20


def build_manifest(path: str | Path) -> bytes:
    """Return the manifest of a checkpoint that lies there, as AstrAI would have written it.

    The three files that it must list and every `.pt` are read whole for their hashes; nothing is
    written. Whoever records it vouches for the bytes as they are now.

    Raises:
        NoCheckpoint: nothing is there.
        DamagedCheckpoint: a file that must be there is not, or is not sound.
        UnreadableCheckpoint: a file cannot be read.
    """
    place = Path(path)
    seen = AstrAI().read(place)
    wrong = next((each for each in seen.findings if _is_of_the_files(each)), None)
    if wrong is not None:
        raise DamagedCheckpoint(f"{path}: {wrong.message}", path=str(path), hint=wrong.hint)
    there = [entry.name for entry in seen.files if entry.size_bytes is not None]
    names = [name for name in there if name in REQUIRED or name.endswith(SUFFIX)]
    if absent := sorted(set(REQUIRED) - set(names)):
        raise DamagedCheckpoint(f"{path}: {absent[0]}: not there", path=str(path))
    try:
        files = {name: _listed(place / name) for name in names}
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(path)) from error
    return build(files, [tensor.name for tensor in seen.tensors], meta=seen.metadata)


def read_manifest(path: str | Path) -> Manifest:
    """Read the manifest of a checkpoint's directory; its files are not looked at.

    Raises:
        NoCheckpoint: there is none.
        DamagedCheckpoint: it is no manifest, or does not list what it must.
        UnreadableCheckpoint: it cannot be read.
    """
    place = Path(path) / NAME
    try:
        manifest = parse_manifest(fs.read_small(place, _MAX_JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise NoCheckpoint(f"{place}: not there", path=str(path)) from None
    except OSError as error:
        message = f"{place}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(path)) from error
    wrong = first_error(manifest.findings)
    if wrong is not None:
        raise DamagedCheckpoint(f"{path}: {wrong.message}", path=str(path), hint=wrong.hint)
    return manifest


def validate_manifest(path: str | Path, *, verify: bool = False) -> Manifest:
    """Compare a checkpoint with its manifest: names, sizes, and with `verify` every byte.

    Raises:
        NoCheckpoint: there is no manifest.
        DamagedCheckpoint: they differ; the message says where first.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    report = drive(verify_payload(directory, Depth.BYTES if verify else Depth.NAMES))
    wrong = first_error(report.findings)
    if wrong is not None:
        raise DamagedCheckpoint(f"{path}: {wrong.message}", path=str(path), hint=wrong.hint)
    return manifest


# ---- private ----------------------------------------------------------------------------------


def _is_of_the_files(finding: Finding) -> bool:
    """Whether an error is about the files themselves, not about a manifest that they have."""
    is_bearable = finding.file == NAME or finding.code == "unlisted-pickle"
    return finding.severity is Severity.ERROR and not is_bearable


def _listed(path: Path) -> Listed:
    digest = hashlib.sha256()
    size = 0
    with fs.File(path) as file:
        for block in file.blocks():
            digest.update(block)
            size += len(block)
    return Listed(size, digest.hexdigest())
