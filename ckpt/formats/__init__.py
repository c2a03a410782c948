"""All formats, in order of priority, and the question which of them claims a path."""

from dataclasses import replace
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, worst_first
from ckpt.errors import NoCheckpoint
from ckpt.formats.astrai import AstrAI
from ckpt.formats.base import Format
from ckpt.formats.ferrotensor import Ferrotensor
from ckpt.formats.ferrotensor_set import FerrotensorSet
from ckpt.formats.huggingface import HuggingFace
from ckpt.formats.kt_adapter import KtAdapter
from ckpt.formats.kt_full import KtFull
from ckpt.formats.plain import Plain

FORMATS: tuple[Format, ...] = (
    KtAdapter(),
    KtFull(),
    FerrotensorSet(),
    AstrAI(),
    Ferrotensor(),
    HuggingFace(),
    Plain(),
)
"""The first one that owns a path reads it: the more special before the more general."""

LOOKED_FOR = (
    "meta.json or manifest.json (AstrAI), kt_full_experts.index.json (KT Full), an adapter, "
    "state or checkpoint file of ferrotensor, safetensors weights or their index"
)


def format_of(path: Path) -> Format | None:
    """Return the format that claims a path, None when none does."""
    return next((each for each in FORMATS if each.owns(path)), None)


def format_named(name: str) -> Format | None:
    """Return the format of that stable name (`astrai`)."""
    return next((each for each in FORMATS if each.name == name), None)


def inspect(path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
    """Read a checkpoint and let its format check it; all findings, worst first.

    Raises:
        NoCheckpoint: nothing is there, or no format claims it.
        UnreadableCheckpoint, TornRead: as `Format.read`.
    """
    claimed_by = format_of(path)
    if claimed_by is None:
        raise _unclaimed(path)
    checkpoint = claimed_by.read(path, depth)
    findings = worst_first((*checkpoint.findings, *claimed_by.check(checkpoint)))
    return replace(checkpoint, findings=findings)


def _unclaimed(path: Path) -> NoCheckpoint:
    try:
        found = fs.identity(path)
        if found is not None and found.is_directory:
            fs.scan(path)
    except OSError as error:
        message = f"{path}: {(error.strerror or str(error)).lower()}"
        return NoCheckpoint(message, path=str(path))
    if found is None:
        return NoCheckpoint(f"{path}: nothing is there", path=str(path))
    kind = "directory" if found.is_directory else "file"
    message = f"{path}: no checkpoint: this {kind} is none of {LOOKED_FOR}"
    return NoCheckpoint(message, path=str(path))
