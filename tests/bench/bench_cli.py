"""Whole processes: `ckpt status` of 500 checkpoints, `ckpt show` of 10,000 tensors, `--help`."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from frame import Row, side_by_side

PYDANTIC = "from pydantic import BaseModel\nclass A(BaseModel): a: int"
INSTALLED = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
"""An installed program is compiled once, whatever this environment says of byte code."""

HEAVY = ("textual", "rich", "torch", "watchdog", "numpy")


def process(*arguments: str, may_fail: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=INSTALLED
    )
    if done.returncode and not may_fail:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def ckpt(*arguments: str) -> str:
    return process("-c", "from ckpt.cli import main; main()", *arguments, may_fail=True)


def safetensors_bytes(count: int) -> bytes:
    """A whole file of `count` tensors of 16 values each."""
    header = {
        f"model.layers.{at // 8}.block.{at % 8}.weight": {
            "dtype": "BF16",
            "shape": [4, 4],
            "data_offsets": [32 * at, 32 * at + 32],
        }
        for at in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(32 * count)


def make_run(run: Path, checkpoints: int, tensors: int) -> None:
    """A run of AstrAI checkpoints that share one model file, and its state file."""
    weights = safetensors_bytes(tensors)
    header_bytes = struct.unpack("<Q", weights[:8])[0]
    names = sorted(json.loads(weights[8 : 8 + header_bytes]))
    for at in range(1, checkpoints + 1):
        directory = run / f"epoch_0_step_{100 * at}"
        directory.mkdir(parents=True)
        meta = {"epoch": 0, "consumed_samples": 800 * at, "timestamp": "2026-12-01T07:00:41",
                "optimizer_step": 100 * at}  # fmt: skip
        files = {
            "config.json": b"{}",
            "meta.json": json.dumps(meta).encode(),
            "model.safetensors": weights,
        }
        for name, data in files.items():
            (directory / name).write_bytes(data)
        manifest = {
            "format_version": 1,
            "created_at": meta["timestamp"],
            "optimizer_step": 100 * at,
            "policy_version": None,
            "tensors": names,
            "files": {
                name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            },
        }
        (directory / "manifest.json").write_text(json.dumps(manifest, indent=2))
    state = {"step": 100 * checkpoints, "total_steps": 100_000, "best_loss": 1.5, "lr": 1e-4,
             "epoch": 0, "batch_size": 1, "grad_accum_steps": 1, "sequence_length": 512,
             "fp16": False, "train_modules": "lora", "task": "sft", "model_path": "",
             "dataset_path": "", "seed": 0}  # fmt: skip
    (run / "training_state.json").write_text(json.dumps(state))


def heavy_modules(run: Path) -> list[str]:
    code = (
        "import sys, ckpt, ckpt.cli\n"
        "try:\n"
        f"    ckpt.cli.main(['status', {str(run)!r}, '--json'])\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print('\\n' + ' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    return process("-c", code).split("\n")[-2].split()


def run(quick: bool) -> list[Row]:
    pairs = 3 if quick else 7
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        INSTALLED.setdefault("PYTHONPYCACHEPREFIX", str(home / "compiled"))
        make_run(home / "run", 500, 400)
        (home / "large.safetensors").write_bytes(safetensors_bytes(10_000))
        status = side_by_side(
            lambda: ckpt("status", str(home / "run"), "--json"),
            lambda: process("-c", PYDANTIC),
            pairs,
        )
        show = side_by_side(
            lambda: ckpt("show", str(home / "large.safetensors")),
            lambda: process("-c", "import json, click"),
            pairs,
        )
        document = side_by_side(
            lambda: ckpt("show", "--json", str(home / "large.safetensors")),
            lambda: process("-c", "import json, click"),
            pairs,
        )
        usage = side_by_side(
            lambda: ckpt("--help"), lambda: process("-c", "import json, click"), pairs
        )
        heavy = heavy_modules(home / "run")
    return [
        Row("ckpt status --json, 500 checkpoints, vs pydantic", *status, 2.5, "s"),
        Row("ckpt show, 10,000 tensors, vs json and click", *show, 3.0, "s"),
        Row("ckpt show --json, 10,000 tensors, vs json and click", *document, 3.0, "s"),
        Row("ckpt --help vs json and click", *usage, 1.5, "s"),
        Row("heavy modules that a status loads", len(heavy), None, 0, "", " ".join(heavy)),
    ]
