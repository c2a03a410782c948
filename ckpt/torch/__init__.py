"""The trainer's side with torch: checkpoints of real tensors, saved, loaded and proven.

The only package of ckpt that imports torch; nothing in ckpt imports it.
"""

from ckpt.torch.astrai import Loaded, find, load, load_any, load_into, save
from ckpt.torch.distributed import from_rank_zero

__all__ = [
    "Loaded",
    "find",
    "from_rank_zero",
    "load",
    "load_any",
    "load_into",
    "save",
]
