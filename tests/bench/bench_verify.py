"""Verifying beside what the processor, openssl, sha256sum and dd reach with the same bytes."""

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3
from frame import Row, seconds

from ckpt.checkpoint import Report, Verdict
from ckpt.operation import drive
from ckpt.verify import verify

CKPT = [sys.executable, "-m", "ckpt"]
CHUNK_BYTES = 1 << 26
BLOCK_BYTES = 1 << 20
NO_BAR = float("inf")


def run(quick: bool) -> list[Row]:
    size = (1 << 28) if quick else (1 << 30)
    rounds = 3 if quick else 5
    with room() as home:
        one = put_checkpoint(home / "one", size, 1, with_chunks=False)
        chunked = with_chunks(home / "chunked", one)
        rows = [
            *in_process(chunked, size, rounds),
            *whole_process(one, size, rounds),
            *cold(chunked, rounds),
            memory(chunked),
        ]
        shutil.rmtree(chunked)
        shutil.rmtree(one)
        eight = put_checkpoint(home / "eight", 2 * size, 8, with_chunks=False)
        rows.append(eight_files(eight, 2 * size, rounds))
    return rows


# ---- the bars ---------------------------------------------------------------------------------


def eight_files(path: Path, size: int, rounds: int) -> Row:
    """By sha256 on two cores, beside two threads that hash as many bytes of memory."""
    block = memoryview(os.urandom(1 << 25))

    def pure() -> None:
        def work() -> None:
            digest = hashlib.sha256()
            for _ in range(size // 2 // len(block)):
                digest.update(block)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ratio, ours, other = pairs(lambda: intact(path), pure, rounds)
    note = f"{size / ours / 1e9:.2f} GB/s, pure {size / other / 1e9:.2f}"
    return Row("8 files by sha256 / two threads of sha256", ratio, None, 1 / 0.85, "times", note)


def in_process(path: Path, size: int, rounds: int) -> list[Row]:
    """One file by its chunks, beside the loop that AstrAI hashes with."""
    model = path / "model.safetensors"

    def astrai() -> None:
        digest = hashlib.sha256()
        with model.open("rb") as file:
            for block in iter(lambda: file.read(BLOCK_BYTES), b""):
                digest.update(block)

    ratio, ours, other = pairs(lambda: intact(path), astrai, rounds)
    note = f"{size / ours / 1e9:.2f} GB/s, AstrAI's {size / other / 1e9:.2f}"
    return [Row("one file by chunks / AstrAI's _sha256", ratio, None, 1 / 3, "times", note)]


def whole_process(path: Path, size: int, rounds: int) -> list[Row]:
    """`ckpt verify` from its start, beside the programs that people use."""
    model = str(path / "model.safetensors")
    rows = []
    for name, command, bar in (
        ("sha256sum -c", ["sha256sum", model], 0.2),
        ("openssl dgst -sha256", ["openssl", "dgst", "-sha256", model], 1.15),
    ):
        if shutil.which(command[0]) is None:
            rows.append(Row(f"ckpt verify / {name}", 0.0, None, NO_BAR, "times", "not installed"))
            continue
        ratio, ours, other = pairs(
            lambda: child([*CKPT, "verify", str(path)]), lambda c=command: child(c), rounds
        )
        note = f"{size >> 20} MiB: {ours:.2f} s, {other:.2f} s"
        rows.append(Row(f"ckpt verify / {name}", ratio, None, bar, "times", note))
    return rows


def cold(path: Path, rounds: int) -> list[Row]:
    """By chunks and with nothing in the cache, beside reading the file to nowhere.

    By sha256 a core hashes less a second than a good disk reads; by chunks the disk is the limit.
    """
    model = path / "model.safetensors"

    def ours() -> None:
        forget(model)
        child([*CKPT, "verify", str(path)])

    def dd() -> None:
        forget(model)
        child(["dd", f"if={model}", "of=/dev/null", "bs=1M"])

    if shutil.which("dd") is None:
        return [Row("cold ckpt verify / dd", 0.0, None, NO_BAR, "times", "not installed")]
    ratio, one, two = pairs(ours, dd, rounds)
    note = f"{one:.2f} s, {two:.2f} s"
    return [Row("cold ckpt verify / dd", ratio, None, 1.3, "times", note)]


def memory(path: Path) -> Row:
    """Peak memory of a whole `ckpt verify` over that of one that reads no byte."""
    idle = peak(path, "--depth", "names")
    busy = peak(path)
    return Row("memory over the idle command", busy - idle, None, 40.0, "MiB", f"idle {idle:.0f}")


# ---- private ----------------------------------------------------------------------------------


def intact(path: Path) -> Report:
    report = drive(verify(path))
    assert report.verdict is Verdict.INTACT, report.findings
    return report


def pairs(
    ours: Callable[[], object], other: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """The median of the ratios of pairs, and the medians of both; by turns the one goes first."""
    ours()
    other()
    one, two = [], []
    for turn in range(rounds):
        if turn % 2:
            two.append(seconds(other))
        one.append(seconds(ours))
        if not turn % 2:
            two.append(seconds(other))
    ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
    return ratio, statistics.median(one), statistics.median(two)


def child(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done


def peak(path: Path, *options: str) -> float:
    """MiB that a `ckpt verify` takes at its peak."""
    code = (
        "import sys, ckpt.cli\n"
        "try:\n"
        "    ckpt.cli.main(sys.argv[1:])\n"
        "finally:\n"
        "    print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", str(path), *options],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def forget(path: Path) -> None:
    """Drop a file from the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextmanager
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as directory:
        yield Path(directory)


def put_checkpoint(path: Path, size: int, files: int, *, with_chunks: bool) -> Path:
    """An AstrAI directory: so many files of `size` bytes in all, and a manifest with sha256."""
    path.mkdir()
    each = size // files
    listed = {}
    for name, data in (
        ("meta.json", b'{"epoch": 0, "optimizer_step": 1}'),
        ("config.json", b"{}"),
    ):
        (path / name).write_bytes(data)
        listed[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for place in range(files):
        name = "model.safetensors" if place == 0 else f"extra_{place}.dat"
        head = header(each) if place == 0 else b""
        digest, left = hashlib.sha256(head), each
        with (path / name).open("wb") as file:
            file.write(head)
            while left:
                block = os.urandom(min(left, 1 << 24))
                file.write(block)
                digest.update(block)
                left -= len(block)
        listed[name] = {"size": len(head) + each, "sha256": digest.hexdigest()}
    manifest = {
        "format_version": 1, "created_at": None, "optimizer_step": 1, "policy_version": None,
        "tensors": [f"layers.{at:04d}.weight" for at in range(1024)],
        "files": dict(sorted(listed.items())),
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def with_chunks(path: Path, source: Path) -> Path:
    """The same checkpoint, by links, with the hashes of its chunks in the manifest."""
    path.mkdir()
    chunks = {}
    for file in source.iterdir():
        if file.name == "manifest.json":
            continue
        os.link(file, path / file.name)
        with file.open("rb") as content:
            blocks = iter(lambda: content.read(CHUNK_BYTES), b"")
            chunks[file.name] = [blake3(block).hexdigest() for block in blocks]
    manifest = json.loads((source / "manifest.json").read_bytes())
    manifest["ckpt"] = {
        "v": 1, "generation": "00112233aabb", "parent": None, "slot": path.name,
        "chunk_bytes": CHUNK_BYTES, "chunks": chunks,
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def header(size: int) -> bytes:
    """The head of a safetensors file of 1,024 tensors with `size` bytes in all."""
    each = size // 1024
    fields = {
        f"layers.{at:04d}.weight": {
            "dtype": "U8",
            "shape": [each],
            "data_offsets": [each * at, each * at + each],
        }
        for at in range(1024)
    }
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
