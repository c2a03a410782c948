"""Scanning a run of 500 checkpoints against parsing their manifests; verifying against sha256."""

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

from frame import Row, side_by_side

from ckpt.checkpoint import Verdict
from ckpt.generations import Scanner
from ckpt.operation import drive
from ckpt.verify import verify

TENSORS = 400


def run(quick: bool) -> list[Row]:
    count = 50 if quick else 500
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory)
        for step in range(count):
            write_checkpoint(run_dir / f"epoch_0_step_{step}", step, b"\0" * 1600)
        size = 16 << 20 if quick else 96 << 20
        write_checkpoint(run_dir / "big", count, os.urandom(size))
        manifests = sorted(run_dir.glob("epoch_*/manifest.json"))
        time.sleep(2.1)  # times of files this young do not tell whether they changed

        def parse() -> object:
            return [json.loads(path.read_bytes()) for path in manifests]

        def first() -> object:
            return Scanner(run_dir).scan()

        scanner = Scanner(run_dir)
        assert len(scanner.scan()) == count + 1
        first_s, parse_s = side_by_side(first, parse, pairs=5)
        again_s, _ = side_by_side(scanner.scan, parse, pairs=5)
        weights = run_dir / "big" / "model.safetensors"

        def check() -> object:
            report = drive(verify(weights.parent))
            assert report.verdict is Verdict.INTACT
            return report

        def hash_once() -> object:
            with weights.open("rb", buffering=0) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        verify_s, hash_s = side_by_side(check, hash_once, pairs=5)
        note = f"{count} checkpoints of {TENSORS} tensors"
        return [
            Row("first scan / json.loads of the manifests", first_s, parse_s, 8.0, "s", note),
            Row(
                "scan again / json.loads of the manifests",
                again_s,
                parse_s,
                1.0 if quick else 0.6,
                "s",
                note,
            ),
            Row(
                "verify / hashlib.file_digest",
                verify_s,
                hash_s,
                1.15 if not quick else 1.5,
                "s",
                f"{size >> 20} MiB",
            ),
        ]


def write_checkpoint(directory: Path, step: int, data: bytes) -> None:
    """Write an AstrAI directory; its tensors share the data evenly."""
    directory.mkdir()
    each = len(data) // TENSORS // 4 * 4
    header = {
        f"layers.{index}.weight": {
            "dtype": "F32", "shape": [each // 4],
            "data_offsets": [index * each, (index + 1) * each],
        }
        for index in range(TENSORS)
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    files = {
        "config.json": b"{}",
        "meta.json": json.dumps({"epoch": 0, "optimizer_step": step}).encode(),
        "model.safetensors": len(text).to_bytes(8, "little") + text + data[: each * TENSORS],
    }
    listed = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    manifest = {
        "format_version": 1, "created_at": "2026-12-01T07:00:00", "optimizer_step": step,
        "policy_version": None, "tensors": sorted(header), "files": listed,
    }  # fmt: skip
    files["manifest.json"] = json.dumps(manifest, indent=2).encode()
    for name, content in files.items():
        (directory / name).write_bytes(content)
