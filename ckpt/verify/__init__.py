"""Verification: read a checkpoint to a depth, compare what is recorded, give a verdict."""

from ckpt.verify.checking import Care, verdict_of, verify
from ckpt.verify.reading import inspect_settled

__all__ = ["Care", "inspect_settled", "verdict_of", "verify"]
