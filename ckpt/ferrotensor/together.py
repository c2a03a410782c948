"""Adapter, training state and optimizer saved as one generation, so that they cannot be torn."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckpt import fs
from ckpt.errors import DamagedCheckpoint, NoCheckpoint, UnreadableCheckpoint
from ckpt.ferrotensor.adapter import (
    Adapter,
    LoraSettings,
    adapter_buffers,
    adapter_metadata,
    load_adapter,
)
from ckpt.ferrotensor.checkpoint import (
    TrainingCheckpoint,
    checkpoint_text,
    in_pieces,
    load_checkpoint,
)
from ckpt.ferrotensor.saving import KEEP_LAST, publish_and_retain
from ckpt.formats.ferrotensor import ADAPTER_NAME, CHECKPOINT_NAME, STATE_NAME
from ckpt.formats.ferrotensor_set import REQUIRED, SetText, write_set
from ckpt.formats.ferrotensor_write import state_text
from ckpt.generations.publishing import Staging, Write
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import read_manifest
from ckpt.retention import Policy
from ckpt.tensorwriter import Buffer

_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LoraSet:
    """What was saved together."""

    adapter: Adapter
    checkpoint: TrainingCheckpoint


def save_set(  # noqa: PLR0913 - the parts of a set, then by name where and what stays
    directory: str | Path,
    tensors: Mapping[str, Any],
    settings: LoraSettings | None,
    checkpoint: TrainingCheckpoint,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
) -> Path:
    """Publish an adapter, its training state and its optimizer as one directory, durable.

    The directory is one generation: all three are of one step, and go back together. ferrotensor
    reads each of the files where it lies. `keep` says which older ones stay (None: all).

    Raises:
        PublishError: a value cannot be written, by its name, or the disk refused. What was there
            still is.
        Busy: another process holds the run's lock.
    """
    write = set_writer(adapter_buffers(tensors), settings, checkpoint)
    return publish_and_retain(Path(directory), write, run_dir=run_dir, keep=keep)


def load_set(directory: str | Path) -> LoraSet:
    """Load what was saved together; every file is compared with the manifest's hash first.

    Read through one descriptor: a swap in the meantime takes nothing away.

    Raises:
        NoCheckpoint: there is no such set.
        UnreadableCheckpoint: it cannot be read, or is damaged (DamagedCheckpoint).
    """
    path = Path(directory)
    try:
        with fs.Directory(path) as opened:
            _compare(opened, path)
            adapter = load_adapter(opened.inside(ADAPTER_NAME))
            checkpoint = load_checkpoint(opened.inside(CHECKPOINT_NAME))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoCheckpoint(f"{path}: no set of {', '.join(REQUIRED)}", path=str(path)) from error
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(path)) from error
    return LoraSet(adapter, replace(checkpoint, read_from=path / CHECKPOINT_NAME))


def set_writer(
    buffers: list[Buffer], settings: LoraSettings | None, checkpoint: TrainingCheckpoint
) -> Write:
    """Return what fills the staging of a set of F32 buffers; all but moments is checked here.

    Raises:
        PublishError: a value cannot be written, by its name.
    """
    metadata = adapter_metadata(settings)
    text = SetText(
        state_text(checkpoint.state, {}, file=STATE_NAME),
        in_pieces(checkpoint_text(checkpoint, CHECKPOINT_NAME)),
    )

    def write(staging: Staging) -> None:
        write_set(staging.path, buffers, metadata, text, origin=staging.origin)

    return write


def _compare(opened: fs.Directory, path: Path) -> None:
    """Refuse a set whose files are not what its manifest recorded."""
    data = fs.read_small(opened.inside(MANIFEST), _MAX_JSON_BYTES)
    manifest = read_manifest(data, required=REQUIRED)
    for finding in manifest.findings:
        raise DamagedCheckpoint(f"{path}: {finding.message}", path=str(path))
    for name, listed in manifest.files.items():
        digest = hashlib.sha256()
        with fs.File(opened.inside(name)) as file:
            for block in file.blocks():
                digest.update(block)
        if digest.hexdigest() != listed.sha256:
            message = f"{path}: {name}: its bytes are not what {MANIFEST} recorded"
            raise DamagedCheckpoint(message, path=str(path))
