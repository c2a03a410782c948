"""A durable, hashed save of 1 GiB beside AstrAI's way, safetensors alone, torch.save and DCP.

Every way ends with the content and the name on the disk. In each round all of them run once, one
after the other, each on a disk with nothing left to write; what a round wrote is removed between.
"""

import gc
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from frame import Row

from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import Staging, publish
from ckpt.operation import drive
from ckpt.tensorwriter import Buffer, write_tensors

TENSORS = 200
META = {"epoch": 0, "consumed_samples": 1, "timestamp": "2026-12-01T07:00:00", "optimizer_step": 1}
HAS_TORCH = importlib.util.find_spec("torch") is not None


def run(quick: bool) -> list[Row]:
    size = (64 << 20) if quick else (1 << 30)
    arrays = state_dict(size)
    with room() as home:
        ways = Ways(home, arrays)
        rounds = measure(ways, 3 if quick else 11)
        extra = memory_over_the_state_dict(home, size)
    seconds = {name: statistics.median(times) for name, times in rounds.items()}
    note = f"{size >> 20} MiB; median of {len(rounds['ours'])} pairs; durable save "

    def beside(name: str, other: str, bar: float = NO_BAR, ours: str = "ours") -> Row:
        pairs = zip(rounds[ours], rounds[other], strict=False)  # of some there are fewer rounds
        ratio = statistics.median(one / two for one, two in pairs)
        text = f"{note}{seconds[ours]:.2f} s, this {seconds[other]:.2f} s"
        return Row(name, ratio, None, bar, "times", text)

    rows = [
        beside("durable save / AstrAI's way", "astrai", 0.5),
        beside("durable save / save_file + fsync", "save_file", 1.0),
        beside("republish over a name / fresh save", "ours", 1.3 if quick else 1.05, "republish"),
        Row("memory over the state dict", extra, None, 64.0, "MiB"),
    ]
    others = [name for name in BESIDE if name in rounds]
    return rows + [beside(f"durable save / {name}", name) for name in others]


NO_BAR = float("inf")
BESIDE = ("write_tensors", "sha256", "torch.save", "DCP")  # a few rounds tell enough of these


def state_dict(size: int) -> dict[str, Any]:
    """200 tensors, by turns 2 and 4 bytes an element; bf16 goes as uint16 where torch is not."""
    numbers = np.random.default_rng(1)
    each = size // TENSORS // 8 * 8
    return {
        f"layers.{at}.weight": numbers.integers(0, 60_000, each // 2, np.uint16)
        if at % 2
        else numbers.random(each // 4, np.float32)
        for at in range(TENSORS)
    }


def buffers_of(arrays: Mapping[str, Any]) -> list[Buffer]:
    spelt = {2: "BF16", 4: "F32"}
    return [
        (name, spelt[array.itemsize], array.shape, array.view(np.uint8).data)
        for name, array in arrays.items()
    ]


class Ways:
    """Every way to save the same state dict into `home`."""

    def __init__(self, home: Path, arrays: Mapping[str, Any]) -> None:
        self.home = home
        self.buffers = buffers_of(arrays)
        self.tensors: Mapping[str, Any] = arrays
        self.jobs: dict[str, Callable[[], object]] = {
            "ours": lambda: self.ours("fresh"),
            "republish": lambda: self.ours("standing"),
            "astrai": self.astrai,
            "save_file": self.save_file,
            "write_tensors": self.write_tensors,
            "sha256": self.sha256,
        }
        if HAS_TORCH:
            import torch

            kinds = {2: torch.bfloat16, 4: torch.float32}
            self.tensors = {
                name: torch.from_numpy(array).view(kinds[array.itemsize])
                for name, array in arrays.items()
            }
            self.jobs |= {"torch.save": self.torch_save, "DCP": self.dcp}

    def ours(self, name: str) -> None:
        def write(staging: Staging) -> None:
            write_checkpoint(staging.path, META, {}, self.buffers, origin=staging.origin)

        drive(publish(self.home / "run" / name, write, run_dir=self.home / "run"))

    def write_tensors(self) -> None:
        write_tensors(self.home / "alone.safetensors", self.buffers)
        sync(self.home)

    def astrai(self) -> None:
        target = self.home / "astrai"
        target.mkdir()
        self._library_saves(target / "model.safetensors")
        digest = hashlib.sha256()
        with (target / "model.safetensors").open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        for name, value in (("meta.json", META), ("manifest.json", digest.hexdigest())):
            (target / name).write_text(json.dumps(value))
            sync(target / name)
        sync(target / "model.safetensors", target, self.home)

    def save_file(self) -> None:
        self._library_saves(self.home / "alone.safetensors")
        sync(self.home / "alone.safetensors", self.home)

    def sha256(self) -> None:
        digest = hashlib.sha256()
        for _, _, _, data in self.buffers:
            assert isinstance(data, memoryview)
            digest.update(data)

    def torch_save(self) -> None:
        import torch

        torch.save(self.tensors, self.home / "alone.pt")
        sync(self.home / "alone.pt", self.home)

    def dcp(self) -> None:
        import torch.distributed.checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process only
            dcp.save(dict(self.tensors), checkpoint_id=self.home / "dcp")
        sync(self.home / "dcp", self.home)

    def _library_saves(self, path: Path) -> None:
        if HAS_TORCH:
            from safetensors.torch import save_file
        else:
            from safetensors.numpy import save_file
        save_file(dict(self.tensors), path)


def measure(ways: Ways, rounds: int) -> dict[str, list[float]]:
    """The times of every way, the first round of all left out; the order turns round by round."""
    times: dict[str, list[float]] = {name: [] for name in ways.jobs}
    for turn in range(rounds + 1):
        names = list(ways.jobs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if name in BESIDE and turn > 3:
                continue
            if name == "republish":
                ways.ours("standing")
            os.sync()
            gc.collect()
            started = time.perf_counter()
            ways.jobs[name]()
            times[name].append(time.perf_counter() - started)
            for path in ways.home.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            (ways.home / "run").mkdir()
    return {name: every[1:] for name, every in times.items()}


def sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def room() -> Iterator[Path]:
    """A directory on the file system of this file, with a run in it."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as directory:
        (Path(directory) / "run").mkdir()
        yield Path(directory)


def memory_over_the_state_dict(home: Path, size: int) -> float:
    """MiB that a save takes at its peak, in a process of its own."""
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    code = f"import sys; sys.path[:0] = {places!r}; import bench_save; bench_save.child()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(home / "run"), str(size)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def child() -> None:
    """Print by how many MiB the highest memory of a first save is over what was used before."""
    run_dir, size = Path(sys.argv[1]), int(sys.argv[2])
    buffers = buffers_of(state_dict(size))

    def write(staging: Staging) -> None:
        write_checkpoint(staging.path, META, {}, buffers, origin=staging.origin)

    Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew from here
    before = memory("VmRSS")
    drive(publish(run_dir / "child", write, run_dir=run_dir))
    print((memory("VmHWM") - before) / (1 << 20))


def memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise LookupError(field)
