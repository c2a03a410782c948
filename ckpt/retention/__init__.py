"""Retention: which generations stay, as policies that compose, and the removal of those that go.

Only what is not live ever goes: what live checkpoints take is the trainer's own choice.
"""

from ckpt.retention.policies import (
    Kept,
    Policy,
    Preview,
    always_kept,
    plan_prune,
    preview_prune,
)
from ckpt.retention.pruning import prune, retain

__all__ = [
    "Kept",
    "Policy",
    "Preview",
    "always_kept",
    "plan_prune",
    "preview_prune",
    "prune",
    "retain",
]
