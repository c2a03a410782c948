"""Reading the header of 10,000 tensors beside parsing its JSON; writing beside plain writing."""

import json
import struct
import tempfile
from pathlib import Path

from frame import Row, side_by_side

from ckpt.checkpoint import Depth
from ckpt.formats.astrai import AstrAI
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.manifest import Origin
from ckpt.tensorfile import read_header
from ckpt.tensorwriter import Buffer, write_tensors

TENSORS = 10_000
WRITTEN_BYTES = 64 << 20


def header_text() -> bytes:
    """The header of 10,000 tensors of 32 BF16 values, as the library writes it."""
    fields = {
        f"model.layers.{at // 100}.block.{at % 100}.weight": {
            "dtype": "BF16",
            "shape": [4, 8],
            "data_offsets": [64 * at, 64 * at + 64],
        }
        for at in range(TENSORS)
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def write_plainly(path: Path, data: bytes) -> None:
    """Write and hash the same bytes with nothing else around them."""
    import hashlib
    import os

    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), 1 << 18):
            block = data[at : at + (1 << 18)]
            file.write(block)
            digest.update(block)
        os.fsync(file.fileno())
    path.unlink()


def run(quick: bool) -> list[Row]:
    pairs = 5 if quick else 15
    text = header_text()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        large = home / "model.safetensors"
        large.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64 * TENSORS))
        assert len(read_header(large, large.name).tensors) == TENSORS
        reading = side_by_side(
            lambda: read_header(large, large.name), lambda: json.loads(text), pairs
        )

        data = bytes(WRITTEN_BYTES)
        quarter = WRITTEN_BYTES // 4
        buffers: list[Buffer] = [
            (name, "U8", (quarter,), memoryview(data)[at * quarter : (at + 1) * quarter])
            for at, name in enumerate("abcd")
        ]

        def write() -> None:
            write_tensors(home / "ours.safetensors", buffers)
            (home / "ours.safetensors").unlink()

        writing = side_by_side(
            write, lambda: write_plainly(home / "plain", data), 3 if quick else 5
        )

        small = home / "step_1"
        small.mkdir()
        write_checkpoint(
            small,
            {"epoch": 0, "optimizer_step": 1},
            {},
            [(f"layers.{at}.weight", "F32", (1,), memoryview(b"1234")) for at in range(400)],
            origin=Origin("0123456789ab", None, small.name),
        )
        manifest = small / "manifest.json"
        glancing = side_by_side(
            lambda: AstrAI().glance(small),
            lambda: (json.loads(manifest.read_bytes()), json.loads(b"{}")),
            100,
        )
        assert AstrAI().read(small, Depth.NAMES).complete is True
    return [
        Row("read_header of 10,000 tensors / json.loads of it", *reading, 5.0, "s"),
        Row("write_tensors / write, hash and fsync", *writing, 1.3, "s", "64 MB"),
        Row("glance at 400 tensors / json.loads of its manifest", *glancing, 6.0, "s"),
    ]
