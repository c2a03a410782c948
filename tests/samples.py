"""Clean samples of every format, for the conformance suite; a new format adds its maker here."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckpt.formats.astrai import write_checkpoint
from ckpt.tensorfile import Buffer, write_tensors

GOLDEN = Path(__file__).parent / "data" / "golden"


@dataclass(frozen=True)
class Sample:
    """How to make a clean checkpoint of one format.

    `hashed` says that a flipped byte of any listed file is noticed at the depth of bytes;
    `optional` are files without which it is no more than unverifiable.
    """

    format: str
    make: Callable[[Path], Path]
    hashed: bool = False
    optional: tuple[str, ...] = ()


def floats(name: str, *values: float) -> Buffer:
    import struct

    return name, "F32", (len(values),), memoryview(struct.pack(f"<{len(values)}f", *values))


def astrai(parent: Path) -> Path:
    target = parent / "epoch_1_step_40"
    target.mkdir()
    meta = {"epoch": 1, "consumed_samples": 80, "timestamp": "2026-01-01T00:00:00"}
    tensors = [floats("head.bias", 1, 2), floats("head.weight", 3, 4, 5)]
    write_checkpoint(
        target, {**meta, "optimizer_step": 40}, {"hidden": 2}, tensors, slot=target.name
    )
    return target


def golden(*parts: str) -> Callable[[Path], Path]:
    """Take a checkpoint that the real program wrote."""

    def copy(parent: Path) -> Path:
        source = GOLDEN.joinpath(*parts)
        target = parent / source.name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return target

    return copy


def huggingface(parent: Path) -> Path:
    target = parent / "checkpoint-8"
    target.mkdir()
    for place, name in enumerate(("a", "b"), start=1):
        write_tensors(target / f"model-0000{place}-of-00002.safetensors", [floats(name, 1, 2)])
    index = {
        "metadata": {"total_size": 16},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        },
    }
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    (target / "config.json").write_text('{"model_type": "tiny"}')
    state = {"global_step": 8, "max_steps": 20, "epoch": 0.5, "log_history": []}
    (target / "trainer_state.json").write_text(json.dumps(state))
    return target


def adapter(parent: Path) -> Path:
    target = parent / "adapter"
    target.mkdir()
    (target / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 16}')
    write_tensors(target / "adapter_model.safetensors", [floats("lora_A", 1, 2)], {"format": "pt"})
    return target


def plain(parent: Path) -> Path:
    write_tensors(parent / "weights_step_3.safetensors", [floats("w", 1, 2)], {"note": "x"})
    return parent / "weights_step_3.safetensors"


SAMPLES = (
    Sample("astrai", astrai, hashed=True, optional=("manifest.json",)),
    Sample(
        "astrai",
        golden("astrai", "good", "tree", "epoch_1_step_9"),
        hashed=True,
        optional=("manifest.json",),
    ),
    Sample("kt_full", golden("kt_full", "tiny3", "tree", "ckpt")),
    Sample("kt_full", golden("kt_full", "sparse_layers", "tree", "ckpt")),
    Sample(
        "kt_adapter",
        golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"),
        hashed=True,
    ),
    Sample("ferrotensor", golden("ferrotensor", "adapter_f32", "tree", "adapter.safetensors")),
    Sample("ferrotensor", golden("ferrotensor", "state_full", "tree", "training_state.json")),
    Sample(
        "ferrotensor",
        golden("ferrotensor", "checkpoint_adamw_scaler", "tree", "training_checkpoint.json"),
    ),
    Sample("huggingface", huggingface, optional=("config.json",)),
    Sample("safetensors", plain),
    Sample("huggingface", adapter),
    Sample(
        "huggingface", golden("astrai", "sharded_hf", "tree", "base"), optional=("config.json",)
    ),
)
