"""Saving in the background and verified loads of real tensors, beside DCP and AstrAI's own way.

Each job runs in a process of its own. Without torch there are no rows: `skipped` says so.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TENSORS = 200
FACTS = {"epoch": 0, "consumed_samples": 0}


def run(quick: bool) -> list[Any]:
    from frame import Row

    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed (pip install '.[torch]')", flush=True)
        return []
    size = (128 if quick else 1024) << 20
    pairs = 3 if quick else 7
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-") as home:
        ours = ask("asynchronous", home, size, pairs)
        dcp = ask("dcp", home, size, pairs)
        load = ask("load", home, size, pairs)
        memory = ask("memory", home, size, pairs)
    note = f"{size >> 20} MiB"
    copying = f"{note}; DCP later calls {dcp['later'] / ours['copy']:.2f} of the copy"
    warm, cold = load["warm theirs"], load["cold theirs"]
    without = f"{note}, no chunk hashes recorded"
    theirs = f"AstrAI's way: {memory['theirs'] / 1e6:.0f}"
    return [
        Row("first asynchronous save / DCP's first", ours["first"], dcp["first"], 0.4, "s", note),
        Row("asynchronous save / plain copy", ours["later"], ours["copy"], 1.15, "s", copying),
        Row("verified load, warm / AstrAI's", load["warm"], warm, 0.65, "s", note),
        Row("verified load, cold / AstrAI's", load["cold"], cold, 0.75, "s", note),
        Row("verified load, warm / AstrAI's", load["warm sha"], warm, 0.65, "s", without),
        Row("verified load, cold / AstrAI's", load["cold sha"], cold, 0.75, "s", without),
        Row("extra memory of a verified load", memory["ours"] / 1e6, None, 16.0, "MB", theirs),
    ]


def ask(job: str, home: str, size: int, pairs: int) -> dict[str, float]:
    """Run one job of this file in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, job, home, str(size), str(pairs)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


# ---- in the child -----------------------------------------------------------------------------


def state_dict(size: int) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    rows = size // TENSORS // 4 // 256
    tensors = {}
    for at in range(TENSORS):
        wide = torch.randn(rows, 256 * (1 + at % 2))
        tensors[f"layers.{at}.weight"] = wide.bfloat16() if at % 2 else wide
    return tensors


def seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def asynchronous(home: Path, size: int, pairs: int) -> dict[str, float]:
    import numpy as np
    import torch

    from ckpt.torch import AsyncSaver

    tensors = state_dict(size)
    reused = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

    def copy() -> None:
        for name, tensor in tensors.items():
            reused[name].copy_(tensor)

    def copy_in_one_thread() -> None:
        for name, tensor in tensors.items():
            np.copyto(*(each.view(torch.uint8).numpy() for each in (reused[name], tensor)))

    copies, blocked = [], []
    with AsyncSaver() as saver:
        saver.prepare(tensors)
        saver._join_preparing()
        for at in range(pairs + 1):
            path = home / f"step_{at}"
            copies.append(min(seconds(copy), seconds(copy_in_one_thread)))
            blocked.append(seconds(lambda path=path: saver.save(path, tensors, **FACTS)))
            saver.wait()
            shutil.rmtree(path)
    return {"first": blocked[0], "later": median(blocked[1:]), "copy": median(copies[1:])}


def dcp(home: Path, size: int, pairs: int) -> dict[str, float]:
    import warnings

    import torch.distributed as dist
    import torch.distributed.checkpoint as saving

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{home}/meeting", rank=0, world_size=1)
    tensors = state_dict(size)
    stager = None
    blocked = []
    for at in range(1 + min(pairs, 3)):
        path = home / f"dcp_{at}"
        start = time.perf_counter()
        future = saving.async_save(tensors, checkpoint_id=path, async_stager=stager)
        blocked.append(time.perf_counter() - start)
        future.result()
        shutil.rmtree(path)
    dist.destroy_process_group()
    return {"first": blocked[0], "later": median(blocked[1:])}


def prepared(home: Path, size: int) -> tuple[Path, Path, dict[str, Any]]:
    """A checkpoint of ours, one as AstrAI's manifest records it, and a model to load into."""
    import torch

    from ckpt.torch import save

    model = state_dict(size)
    chunked, plain = home / "step_chunks", home / "step_sha256"
    if not plain.exists():
        save(chunked, model, **FACTS)
        shutil.copytree(chunked, plain)
        manifest = json.loads((plain / "manifest.json").read_text())
        del manifest["ckpt"]
        (plain / "manifest.json").write_text(json.dumps(manifest, indent=2))
    for tensor in model.values():
        torch.Tensor.zero_(tensor)
    return chunked, plain, model


def as_astrai(path: Path, model: dict[str, Any]) -> None:
    """Every file's sha256 in blocks of 1 MiB, then the weights once more, then into the model."""
    from safetensors.torch import load_file

    manifest = json.loads((path / "manifest.json").read_text())
    for name, listed in manifest["files"].items():
        digest = hashlib.sha256()
        with (path / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        assert digest.hexdigest() == listed["sha256"]
    for name, tensor in load_file(path / "model.safetensors").items():
        model[name].copy_(tensor)


def forget(path: Path) -> None:
    """Let the system drop what it has cached of a directory's files."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def load(home: Path, size: int, pairs: int) -> dict[str, float]:
    from ckpt.torch import load_into

    chunked, plain, model = prepared(home, size)
    jobs: dict[str, tuple[Path, Callable[[], object]]] = {
        "": (chunked, lambda: load_into(model, chunked)),
        " theirs": (plain, lambda: as_astrai(plain, model)),
        " sha": (plain, lambda: load_into(model, plain)),
    }
    for _, job in jobs.values():
        job()
    found: dict[str, list[float]] = {}
    for state in ("warm", "cold"):
        for _ in range(pairs):
            for name, (path, job) in jobs.items():
                if state == "cold":
                    forget(path)
                found.setdefault(state + name, []).append(seconds(job))
    return {name: median(times) for name, times in found.items()}


def memory(home: Path, size: int, _pairs: int) -> dict[str, float]:
    from ckpt.torch import load_into

    chunked, plain, model = prepared(home, size)
    small = home / "step_small"
    if not small.exists():
        from ckpt.torch import save

        save(small, {"w": next(iter(model.values()))[:1].clone()}, **FACTS)
    import safetensors.torch as _imported  # noqa: F401 - its code is not what is measured

    load_into({"w": next(iter(model.values()))[:1].clone()}, small)
    ours = max(peak(lambda: load_into(model, chunked)), peak(lambda: load_into(model, plain)))
    return {"ours": ours, "theirs": peak(lambda: as_astrai(plain, model))}


def peak(job: Callable[[], object]) -> float:
    """How many bytes more than before a job had in memory at its worst."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    job()
    return max(0, status("VmHWM") - before)


def status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    jobs = {"asynchronous": asynchronous, "dcp": dcp, "load": load, "memory": memory}
    chosen = jobs[sys.argv[1]]
    print(json.dumps(chosen(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
