"""Runs and checkpoints as literals, for tests that damage them."""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any


def weights(*values: float, count: int = 1) -> bytes:
    """A safetensors file of one F32 tensor `w`: the values, `count` times."""
    size = 4 * len(values) * count
    header = {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values) * count


def put_checkpoint(
    directory: Path,
    step: int,
    *values: float,
    count: int = 1,
    epoch: int = 0,
    ckpt: dict[str, Any] | None = None,
) -> Path:
    """Write an AstrAI directory with its manifest."""
    files = {
        "config.json": b"{}",
        "meta.json": json.dumps({"epoch": epoch, "optimizer_step": step}).encode(),
        "model.safetensors": weights(*(values or (float(step),)), count=count),
    }
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    manifest = {
        "format_version": 1, "created_at": f"2026-12-01T07:00:{step % 60:02d}",
        "optimizer_step": step, "policy_version": None, "tensors": ["w"], "files": listed,
        **({"ckpt": ckpt} if ckpt else {}),
    }  # fmt: skip
    files["manifest.json"] = json.dumps(manifest, indent=2).encode()
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every path below a directory with its bytes (None: a directory; of a link: its target)."""
    return {str(path.relative_to(directory)): _content(path) for path in directory.rglob("*")}


def _content(path: Path) -> bytes | None:
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return None if path.is_dir() else path.read_bytes()
