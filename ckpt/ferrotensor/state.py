"""ferrotensor's training state: loaded as strictly as its own program does, saved atomically."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpt import fs
from ckpt.checkpoint import NOTHING
from ckpt.errors import CheckpointError, NoCheckpoint, PublishError, UnreadableCheckpoint
from ckpt.formats.ferrotensor_state import (
    ParsedState,
    TrainingState,
    parse_state,
    resume_mismatch,
)
from ckpt.formats.ferrotensor_write import state_text

_MAX_JSON_BYTES = 64 << 20

__all__ = ["TrainingState", "load_state", "save_state", "validate_resume"]


def load_state(path: str | Path) -> TrainingState:
    """Load a `training_state.json`.

    Raises:
        NoCheckpoint: nothing is there.
        UnreadableCheckpoint: ferrotensor would refuse it; the message says why.
        TornRead: the text does not parse.
    """
    parsed = _parsed(Path(path))
    if parsed.findings or parsed.state is None:
        message = parsed.findings[0].message if parsed.findings else f"{path}: no training state"
        raise UnreadableCheckpoint(message, path=str(path))
    return parsed.state


def save_state(
    path: str | Path, state: TrainingState, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Replace a `training_state.json`, durable: a reader sees the old or the new one, never half.

    `extra` are keys behind ferrotensor's own, which it ignores; None keeps those that the file
    holds now.

    Raises:
        PublishError: a value is not what ferrotensor would read, or the disk refused.
    """
    target = Path(path)
    kept = _extra_there(target) if extra is None else extra
    text = state_text(state, kept, file=target.name)
    try:
        fs.replace_bytes(target, text)
    except OSError as error:
        message = f"{target}: not saved: {error.strerror or error}"
        raise PublishError(message, path=str(target)) from error


def validate_resume(recorded: TrainingState, wanted: TrainingState) -> None:
    """Refuse a resume with other settings than the checkpoint's, as ferrotensor does.

    Compared in this order: train_modules, task, sequence_length, model_path; an empty text or 0
    in the checkpoint is not recorded and fits everything.

    Raises:
        CheckpointError: the first that differs.
    """
    problem = resume_mismatch(recorded, wanted)
    if problem is not None:
        raise CheckpointError(problem, hint="resume with the settings of the checkpoint")


def _parsed(path: Path) -> ParsedState:
    try:
        return parse_state(fs.read_small(path, _MAX_JSON_BYTES), path.name)
    except FileNotFoundError as error:
        raise NoCheckpoint(f"{path}: nothing is there", path=str(path)) from error
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(path)) from error


def _extra_there(path: Path) -> Mapping[str, Any]:
    """The keys of a present file that are not ferrotensor's; none where it cannot be read."""
    try:
        return _parsed(path).extra
    except CheckpointError:
        return NOTHING
