"""Pickled files, which are never loaded: what a load would import, and whether they are whole.

A walk over opcodes takes down names; nothing is imported, made or called. No file is ever called
harmless: bytes that a hash covers are unchanged bytes, no more.
"""

from ckpt.pickles.looking import (
    PickleReport,
    check,
    check_zip_bytes,
    is_pickle_name,
    pickled,
    walk,
)
from ckpt.pickles.meaning import Risk, risk_of

__all__ = [
    "PickleReport",
    "Risk",
    "check",
    "check_zip_bytes",
    "is_pickle_name",
    "pickled",
    "risk_of",
    "walk",
]
