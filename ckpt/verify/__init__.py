"""Verification: read a checkpoint to a depth, compare what is recorded, give a verdict."""

from ckpt.verify.checking import open_settled, verify, verify_read
from ckpt.verify.given import USUAL, Care, Read, Recorded
from ckpt.verify.reading import inspect_settled
from ckpt.verify.tally import verdict_of

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
