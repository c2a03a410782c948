"""ferrotensor's training checkpoint: state, AdamW's moments and the loss scaler in one file.

A checkpoint that was read from a file is never written anew: its text may hold what parsed values
do not, so the file itself is what to copy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import first_error
from ckpt.errors import NoCheckpoint, PublishError, TornRead, UnreadableCheckpoint
from ckpt.ferrotensor.saving import KEEP_LAST, publish_and_retain
from ckpt.formats.ferrotensor_checkpoint import OPTIMIZER, read_training_checkpoint
from ckpt.formats.ferrotensor_state import TrainingState, state_from
from ckpt.formats.ferrotensor_write import checkpoint_chunks
from ckpt.generations.publishing import Staging
from ckpt.retention import Policy

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW's numbers and moments; `t` counts its steps, a float as ferrotensor has it.

    `m_states` and `v_states` hold the values of each parameter by name: an array (its `tolist()`
    is written, of float32 in that type's shortest text), or numbers in nested lists.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    t: float
    m_states: Mapping[str, Any] = field(default_factory=dict)
    v_states: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GradScaler:
    """The state of a loss scaler."""

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    consecutive_good_steps: int
    found_overflow: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """Everything that a resume needs but the adapter.

    `read_from` is the file that it was loaded from, None for one of our own objects.
    """

    state: TrainingState
    optimizer: AdamW | None = None
    scaler: GradScaler | None = None
    read_from: Path | None = None


def save_checkpoint(
    path: str | Path,
    checkpoint: TrainingCheckpoint,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
) -> Path:
    """Publish a training checkpoint as one file, durable; the one before it can be rolled back to.

    `keep` says which older ones stay (None: all).

    Raises:
        PublishError: a value is not finite, or none that ferrotensor reads, by its name; the
            checkpoint was read from a file; or the disk refused. What was there still is.
        Busy: another process holds the run's lock.
    """
    target = Path(path)
    chunks = checkpoint_text(checkpoint, target.name)

    def write(staging: Staging) -> None:
        with fs.NewFile(staging.path) as file:
            for piece in in_pieces(chunks):
                file.write(piece)
            file.sync()

    return publish_and_retain(target, write, run_dir=run_dir, keep=keep, is_file=True)


def load_checkpoint(path: str | Path) -> TrainingCheckpoint:
    """Load a training checkpoint with all of its moments, as nested lists of numbers.

    Raises:
        NoCheckpoint: nothing is there.
        UnreadableCheckpoint: ferrotensor could not resume from it; the message says why.
        TornRead: the text does not parse, or the file was replaced meanwhile.
    """
    source = Path(path)
    try:
        before = fs.identity(source)
        if before is None:
            raise NoCheckpoint(f"{source}: nothing is there", path=str(source))
        wrong = first_error(read_training_checkpoint(source, whole=True).findings)
        if wrong is not None:
            raise UnreadableCheckpoint(wrong.message, path=str(source), hint=wrong.hint)
        value = jsontext.parse(fs.read_bytes(source), path=source.name)
        if fs.identity(source) != before:
            raise TornRead(f"{source}: changed while it was read", path=str(source))
    except OSError as error:
        message = f"{source}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(source)) from error
    return _from_value(value, source)


def checkpoint_text(checkpoint: TrainingCheckpoint, file: str) -> Iterable[bytes]:
    """Return the text of one of our own checkpoints, in pieces; all but moments is checked here.

    Raises:
        PublishError: it was read from a file.
    """
    if checkpoint.read_from is not None:
        message = f"{file}: not saved: its values were read from {checkpoint.read_from}"
        hint = "copy that file: parsed values may not be all that it holds"
        raise PublishError(message, path=file, hint=hint)
    return checkpoint_chunks(
        checkpoint.state, _members(checkpoint.optimizer), _members(checkpoint.scaler), file=file
    )


def in_pieces(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Join small pieces of text into larger ones: a moment's text comes number by number."""
    gathered: list[bytes] = []
    size = 0
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= _PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


# ---- private ----------------------------------------------------------------------------------


def _members(value: AdamW | GradScaler | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _from_value(value: Mapping[str, Any], source: Path) -> TrainingCheckpoint:
    parsed = state_from(value["training_state"], f"{source.name}: training_state")
    if parsed.state is None:
        message = f"{source.name}: its training_state cannot be read"
        raise UnreadableCheckpoint(message, path=str(source))
    optimizer, scaler = value.get("optimizer_state"), value.get("grad_scaler_state")
    return TrainingCheckpoint(
        parsed.state,
        None if optimizer is None else AdamW(**_known(AdamW, optimizer[OPTIMIZER])),
        None if scaler is None else GradScaler(**_known(GradScaler, scaler)),
        source,
    )


def _known(kind: type[AdamW] | type[GradScaler], value: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: value[each.name] for each in fields(kind)}
