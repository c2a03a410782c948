"""Statistics and differences beside numpy over numbers in memory; listing 100,000 tensors."""

import json
import struct
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from frame import Row, side_by_side
from safetensors import safe_open

from ckpt.checkpoint import Checkpoint
from ckpt.operation import drive
from ckpt.tensorfile import read_header
from ckpt.tensors import diff, stats
from ckpt.verify import inspect_settled

TENSORS = 100_000
MEMORY = """
import re, sys
from pathlib import Path
from ckpt.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
status = Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], file=sys.stderr)
"""


def put(path: Path, dtype: str, values: np.ndarray) -> Checkpoint:
    """Write one tensor, `w`, as a file, and read its header."""
    place = [0, values.nbytes]
    header = {"w": {"dtype": dtype, "shape": [values.size], "data_offsets": place}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(values.data)
    return inspect_settled(path)


def peak_mib(*arguments: str) -> float:
    """The most memory that a command had resident."""
    command = [sys.executable, "-c", MEMORY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / 1024


def drive_stats(checkpoint: Checkpoint) -> None:
    drive(stats(checkpoint))


def measured(values: np.ndarray) -> list[object]:
    """What one would type to know the same of numbers that are in memory as float32."""
    return [
        np.isfinite(values).all(), values.min(), values.max(), values.mean(dtype=np.float64),
        np.linalg.norm(values), np.count_nonzero(values),
    ]  # fmt: skip


def listed_by_library(path: Path) -> int:
    """Every name, shape and dtype as the library tells them."""
    with safe_open(path, framework="numpy") as file:
        found = []
        for name in file.keys():  # noqa: SIM118 - no mapping
            part = file.get_slice(name)
            found.append((name, part.get_shape(), part.get_dtype()))
    return len(found)


def many(path: Path) -> None:
    """A file of 100,000 tensors of four BF16 values."""
    fields = {
        f"model.layers.{at // 1000}.experts.{at % 1000}.up_proj.weight": {
            "dtype": "BF16",
            "shape": [2, 2],
            "data_offsets": [8 * at, 8 * at + 8],
        }
        for at in range(TENSORS)
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * TENSORS))


def run(quick: bool) -> list[Row]:
    count = 1 << 27 if quick else 1 << 29  # 1 GiB of BF16
    pairs = 3
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        floats = np.tile(
            np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32), count >> 20
        )
        halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
        before = put(home / "before.safetensors", "BF16", halves)
        reading = side_by_side(partial(drive_stats, before), partial(measured, floats), pairs)
        del floats
        idle = peak_mib("show", str(before.path))
        peak = peak_mib("show", "--stats", str(before.path))

        halves = halves[: 1 << 27]
        before = put(home / "before.safetensors", "BF16", halves)
        same = put(home / "same.safetensors", "BF16", halves)
        halves ^= 1
        moved = put(home / "moved.safetensors", "BF16", halves)
        del halves
        comparing = side_by_side(
            lambda: drive(diff(before, moved)), partial(drive_stats, before), pairs
        )
        frozen = side_by_side(
            lambda: drive(diff(before, same)),
            lambda: subprocess.run(["cmp", before.path, same.path], check=False),
            pairs,
        )
        many(home / "many.safetensors")
        assert len(read_header(home / "many.safetensors", "many.safetensors").tensors) == TENSORS
        listing = side_by_side(
            lambda: read_header(home / "many.safetensors", "many.safetensors"),
            lambda: listed_by_library(home / "many.safetensors"),
            pairs,
        )
    size = f"{count >> 29 or 0.25} GiB of BF16"
    return [
        Row(f"statistics of {size} vs numpy over float32 in memory", *reading, 1.0, "s"),
        Row("memory for them above `ckpt show`", peak - idle, None, 64, "MiB", f"idle {idle:.0f}"),
        Row("a difference of twice 0.25 GiB vs statistics of one", *comparing, 4, "s"),
        Row("the same where nothing changed vs cmp", *frozen, 2, "s"),
        Row("listing 100,000 tensors vs safe_open", *listing, 1.5, "s"),
    ]
