"""The trainer's side with torch: checkpoints of real tensors, saved, loaded and proven.

The only package of ckpt that imports torch; nothing in ckpt imports it.
"""

from ckpt.ferrotensor import TrainingState, validate_resume
from ckpt.torch.adapter import (
    LoraAdapter,
    LoraSet,
    LoraSettings,
    apply_adapter,
    load_adapter,
    load_set,
    load_weights,
    save_adapter,
    save_set,
)
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
from ckpt.torch.kt import load_kt, load_kt_layer, resolve_kt, save_kt
from ckpt.torch.kt_layers import KtWrapper
from ckpt.torch.manifests import build_manifest, read_manifest, validate_manifest

__all__ = [
    "AsyncSaver",
    "KtWrapper",
    "Loaded",
    "LoraAdapter",
    "LoraSet",
    "LoraSettings",
    "TrainingState",
    "apply_adapter",
    "build_manifest",
    "find",
    "from_rank_zero",
    "load",
    "load_adapter",
    "load_any",
    "load_into",
    "load_json",
    "load_kt",
    "load_kt_layer",
    "load_model_config",
    "load_model_weights",
    "load_safetensors",
    "load_set",
    "load_state_dict",
    "load_torch",
    "load_weights",
    "read_manifest",
    "resolve_kt",
    "save",
    "save_adapter",
    "save_kt",
    "save_model",
    "save_set",
    "validate_manifest",
    "validate_resume",
]
