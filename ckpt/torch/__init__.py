"""The trainer's side with torch: checkpoints of real tensors, saved, loaded and proven.

The only package of ckpt that imports torch; nothing in ckpt imports it.
"""

from ckpt.torch.astrai import Loaded, find, load, load_any, load_into, save
from ckpt.torch.asynchronous import AsyncSaver
from ckpt.torch.distributed import from_rank_zero
from ckpt.torch.files import (
    load_json,
    load_model_config,
    load_model_weights,
    load_safetensors,
    load_state_dict,
    load_torch,
    save_model,
)

__all__ = [
    "AsyncSaver",
    "Loaded",
    "find",
    "from_rank_zero",
    "load",
    "load_any",
    "load_into",
    "load_json",
    "load_model_config",
    "load_model_weights",
    "load_safetensors",
    "load_state_dict",
    "load_torch",
    "save",
    "save_model",
]
