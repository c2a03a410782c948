"""`training_state` out of a training checkpoint of 93 MB, against `json.load` of the file."""

import json
import random
import tempfile
from pathlib import Path

from frame import Row, seconds, side_by_side

from ckpt.formats.ferrotensor_checkpoint import read_training_checkpoint

SIZE_BYTES = 93_000_000
STATE = {
    "step": 42, "total_steps": 100, "best_loss": 1.2345678, "lr": 0.0001, "epoch": 1,
    "batch_size": 2, "grad_accum_steps": 8, "sequence_length": 128, "fp16": True,
    "train_modules": "lora", "task": "pretrain", "model_path": "/models/tiny",
    "dataset_path": "./data/train.bin", "seed": 7,
}  # fmt: skip
SCALER = {
    "scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
    "consecutive_good_steps": 3, "found_overflow": False, "enabled": True,
}  # fmt: skip


def run(quick: bool) -> list[Row]:
    size = SIZE_BYTES // 10 if quick else SIZE_BYTES
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "training_checkpoint.json"
        write(path, size)

        def parse() -> object:
            with path.open() as file:
                return json.load(file)

        def ends() -> object:
            return read_training_checkpoint(path)

        ours, baseline = side_by_side(ends, parse, pairs=3)
        whole = seconds(lambda: read_training_checkpoint(path, whole=True))
        found = read_training_checkpoint(path)
        assert (found.step, found.is_whole) == (42, False)
        note = f"{path.stat().st_size / 1e6:.0f} MB"
        bar = 1 / 50 if quick else 1 / 500
        return [
            Row("training_state from both ends / json.load", ours, baseline, bar, "s", note),
            Row("every byte, no moment built / json.load", whole, baseline, 1.0, "s", note),
        ]


def write(path: Path, size_bytes: int) -> None:
    """Write moments as ferrotensor does: pretty, one number a line."""
    rng = random.Random(7)
    numbers = ",\n          ".join(repr(rng.gauss(0, 1e-3)) for _ in range(20_000))
    each = f"[\n          {numbers}\n        ]"
    count = max(1, size_bytes // (2 * len(each)))
    moments = ",\n        ".join(f'"layers.{index}.lora_a": {each}' for index in range(count))
    state = json.dumps(STATE, indent=2)
    with path.open("w") as file:
        file.write(f'{{\n  "training_state": {state},\n  "optimizer_state": {{\n    "AdamW": {{\n')
        file.write('      "lr": 0.0001,\n      "beta1": 0.9,\n      "beta2": 0.999,\n')
        file.write('      "eps": 1e-8,\n      "weight_decay": 0.01,\n      "t": 42.0,\n')
        for kind, end in (("m_states", ","), ("v_states", "")):
            file.write(f'      "{kind}": {{\n        {moments}\n      }}{end}\n')
        file.write(f'    }}\n  }},\n  "grad_scaler_state": {json.dumps(SCALER, indent=2)}\n}}\n')
