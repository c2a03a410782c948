"""Clean samples of every format, for the conformance suite; a new format adds its maker here."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckpt.formats.astrai_write import write_checkpoint
from ckpt.formats.ferrotensor_set import SetText, write_set
from ckpt.formats.ferrotensor_state import TrainingState
from ckpt.formats.ferrotensor_write import checkpoint_chunks, state_text
from ckpt.manifest import Origin
from ckpt.tensorwriter import Buffer, write_tensors

ORIGIN = Origin("00112233aabb", None, "epoch_1_step_40")
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
    write_checkpoint(target, {**meta, "optimizer_step": 40}, {"hidden": 2}, tensors, origin=ORIGIN)
    return target


def lora_set(parent: Path) -> Path:
    target = parent / "lora_step_5"
    target.mkdir()
    state = TrainingState(step=5, total_steps=9)
    moments = {"q.lora_a": [0.5, 0.25]}
    adamw = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "t": 5.0}
    optimizer = {**adamw, "m_states": moments, "v_states": moments}
    text = SetText(
        state_text(state, {}, file="training_state.json"),
        checkpoint_chunks(state, optimizer, None, file="training_checkpoint.json"),
    )
    metadata = {"format": "ferrotensor-lora", "rank": "2", "alpha": "4", "target_modules": "q"}
    origin = Origin("0123456789ab", None, target.name)
    write_set(target, [floats("q.lora_a", 1, 2)], metadata, text, origin=origin)
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
    Sample("ferrotensor_set", lora_set, hashed=True),
)
