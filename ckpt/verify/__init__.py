"""Verification: read a checkpoint to a depth, compare what is recorded, give a verdict."""

from ckpt.verify.checking import (
    USUAL,
    Care,
    Read,
    Recorded,
    open_settled,
    verdict_of,
    verify,
    verify_read,
)
from ckpt.verify.reading import inspect_settled

__all__ = [
    "USUAL",
    "Care",
    "Read",
    "Recorded",
    "inspect_settled",
    "open_settled",
    "verdict_of",
    "verify",
    "verify_read",
]
