"""ferrotensor's files for a training script, without torch: states, checkpoints and adapters.

What is saved is durable and replaces nothing half-way; what is loaded was looked at whole. For
real tensors see `ckpt.torch`.
"""

from ckpt.ferrotensor.adapter import (
    Adapter,
    LoraSettings,
    apply_adapter,
    load_adapter,
    load_weights,
    save_adapter,
)
from ckpt.ferrotensor.checkpoint import (
    AdamW,
    GradScaler,
    TrainingCheckpoint,
    load_checkpoint,
    save_checkpoint,
)
from ckpt.ferrotensor.state import TrainingState, load_state, save_state, validate_resume
from ckpt.ferrotensor.together import LoraSet, load_set, save_set

__all__ = [
    "AdamW",
    "Adapter",
    "GradScaler",
    "LoraSet",
    "LoraSettings",
    "TrainingCheckpoint",
    "TrainingState",
    "apply_adapter",
    "load_adapter",
    "load_checkpoint",
    "load_set",
    "load_state",
    "load_weights",
    "save_adapter",
    "save_checkpoint",
    "save_set",
    "save_state",
    "validate_resume",
]
