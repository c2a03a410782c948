"""The trainer's side, without torch: how a training script tells what it is doing.

Owns `run.json`, `training_state.json` and `metrics.jsonl` of a run, and saves checkpoints of
anything that has a buffer, a dtype and a shape. Must not know who watches.
"""

import importlib.metadata
import math
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from ckpt import fs, jsontext
from ckpt.arrays import ArrayLike, pack
from ckpt.errors import CheckpointError
from ckpt.operation import drive
from ckpt.retention import Policy, retain

STATE_NAME, METRICS_NAME, RUN_NAME = "training_state.json", "metrics.jsonl", "run.json"
STATE_INTERVAL_S = 0.25
KEEP_LAST = Policy(keep_last=1)
MEASURED_BYTES = 64 << 20
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_ENV_PREFIXES = ("CUDA_", "NCCL_", "OMP_", "PYTORCH_", "SLURM_", "TORCH_", "HF_", "XLA_")
_ENV_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
              "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")  # fmt: skip
_PACKAGES = ("torch", "numpy", "safetensors", "transformers", "accelerate", "peft", "ckpt-monitor")


class Recorder:
    """Records one run from inside its training script.

        with Recorder("runs/exp1", total_steps=10_000, config={"learning_rate": 3e-4}) as recorder:
            for step in range(1, 10_001):
                ...
                recorder.log(step, loss=loss, learning_rate=rate)
                if step % 1000 == 0:
                    recorder.save(step, tensors)

    `config` is free JSON; the fields of `training_state.json` (`batch_size`, `sequence_length`,
    `task`, `model_path`, …) are taken from it by name. Only rank 0 should make one.

    Raises:
        CheckpointError: a setting is of the wrong kind, or the directory cannot be written.
    """

    def __init__(
        self, run_dir: str | Path, *, total_steps: int = 0, config: Mapping[str, Any] | None = None
    ) -> None:
        self.run_dir = Path(run_dir)
        self._config = dict(config or {})
        self._state = _fresh_state(total_steps, self._config)
        self._state_written_at = 0.0
        self._is_torn = False
        try:
            fs.make_directory(self.run_dir, parents=True)
            fs.replace_bytes(self.run_dir / RUN_NAME, _encode(_run_record(self._config)))
        except OSError as error:
            raise _cannot_write(self.run_dir, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write_state(finished=kind is None)

    def log(self, step: int, **values: float | None) -> None:
        """Append one line to `metrics.jsonl` and bring `training_state.json` up to date.

        `values` are numbers by name: `loss`, `eval_loss`, `learning_rate`, `grad_norm`, `epoch`,
        `tokens` and any other. A NaN or infinite one is recorded as such; None is left out. The
        state file is replaced at most four times a second, and at every save.
        """
        now = time.time()
        numbers = {
            name: _number(name, value) for name, value in values.items() if value is not None
        }
        lost = [name for name, value in numbers.items() if not math.isfinite(value)]
        line: dict[str, Any] = {"step": step, "time": round(now, 3)}
        line |= {name: None if name in lost else value for name, value in numbers.items()}
        if lost:
            line["nonfinite"] = lost
        self._append(jsontext.dumps(line).encode() + b"\n")
        self._take(step, numbers, now)
        if now - self._state_written_at >= STATE_INTERVAL_S:
            self._write_state()

    def save(  # noqa: PLR0913 - the later ones by name
        self,
        step: int,
        tensors: Mapping[str, ArrayLike],
        *,
        name: str | None = None,
        meta: Mapping[str, Any] | None = None,
        keep: Policy = KEEP_LAST,
        stats: bool | None = None,
    ) -> Path:
        """Save a checkpoint as an AstrAI directory, durable before this returns; return its path.

        `name` is `epoch_<E>_step_<S>` when not given. `meta` is merged into meta.json under the
        recorder's own step and epoch, which always win. `keep` says which generations that were
        live under this name before stay; the others are deleted once the new one is durable, and
        a failure to do so is a warning. With `stats` the manifest says of each tensor what its
        values are like (finite, min, max, mean, norm, zeros), which takes about as long again as
        the save; by default it does where the tensors have no more than 64 MiB together.

        Raises:
            PublishError: no checkpoint stands at the name, or the disk refused; what was live is.
            Busy: somebody else was changing the run all the time.
        """
        from ckpt.formats.astrai_write import write_checkpoint
        from ckpt.generations import Staging, publish

        self._write_state()
        epoch = self._state["epoch"]
        target = self.run_dir / (name or f"epoch_{epoch}_step_{step}")
        packed = pack(tensors)
        if stats is None:
            stats = packed.size_bytes <= MEASURED_BYTES
        full_meta = {
            **(meta or {}),
            "epoch": epoch,
            "consumed_samples": step * self._state["batch_size"] * self._state["grad_accum_steps"],
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "optimizer_step": step,
        }
        if (loss := self._state.get("loss")) is not None:
            full_meta["loss"] = loss

        def write(staging: Staging) -> None:
            write_checkpoint(
                staging.path,
                full_meta,
                self._config,
                packed.buffers,
                origin=staging.origin,
                tied=packed.tied,
                stats=stats,
            )

        swapped = drive(publish(target, write, run_dir=self.run_dir))
        retain(self.run_dir, keep, slot=swapped.changes[0].slot)
        return target

    def _append(self, line: bytes) -> None:
        """Append one line; after a failure the next starts anew, behind whatever half is there."""
        path = self.run_dir / METRICS_NAME
        try:
            fs.append_bytes(path, b"\n" + line if self._is_torn else line)
        except OSError as error:
            self._is_torn = True
            raise _cannot_write(path, error) from error
        self._is_torn = False

    def _take(self, step: int, numbers: Mapping[str, float], now: float) -> None:
        state = self._state
        state["step"] = step
        if "epoch" in numbers:
            state["epoch"] = int(numbers["epoch"])
        if "learning_rate" in numbers:
            state["lr"] = jsontext.finite_or_none(numbers["learning_rate"]) or 0.0
        for name in ("loss", "grad_norm", "tokens"):
            if name in numbers:
                state[name] = jsontext.finite_or_none(numbers[name])
        loss, best = numbers.get("loss"), state["best_loss"]
        if loss is not None and math.isfinite(loss) and (best is None or loss < best):
            state["best_loss"] = loss
        state["updated_at"] = round(now, 3)

    def _write_state(self, *, finished: bool = False) -> None:
        if finished:
            self._state["finished"] = True
        try:
            fs.replace_bytes(self.run_dir / STATE_NAME, _encode(self._state), durable=False)
        except OSError as error:
            raise _cannot_write(self.run_dir / STATE_NAME, error) from error
        self._state_written_at = time.time()


class _Settings(BaseModel):
    """The settings that training_state.json has a field for; a config may hold any others."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    batch_size: NonNegativeInt = 1
    grad_accum_steps: NonNegativeInt = 1
    sequence_length: NonNegativeInt = 128
    fp16: bool = False
    train_modules: str = "full"
    task: str = "sft"
    model_path: str = ""
    dataset_path: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0


def _fresh_state(total_steps: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ferrotensor's training_state.json in its order; ours are added behind."""
    try:
        settings = _Settings.model_validate(config)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise CheckpointError(
            f"config: {name}: {problem['msg'].lower()}, found {problem['input']!r:.60}"
        ) from None
    return {
        "step": 0,
        "total_steps": total_steps,
        "best_loss": None,
        "lr": settings.learning_rate,
        "epoch": 0,
        **settings.model_dump(exclude={"learning_rate"}),
    }


def _run_record(config: Mapping[str, Any]) -> dict[str, Any]:
    """How this process was started, for a later resume; never a secret."""
    return {
        "schema": "ckpt.run/1",
        "argv": [sys.executable, *sys.orig_argv[1:]],
        "cwd": os.getcwd(),  # noqa: PTH109 - a fact about the process, not a path to use
        "python": sys.version.split()[0],
        "env": _named_environment(os.environ),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start_ticks": fs.process_start_ticks(os.getpid()),
        "boot_id": fs.boot_id(),
        "started_at": time.time(),
        "git": {"commit": _git_commit(Path.cwd()), "dirty": None},
        "versions": _versions(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "gpus": _gpus(),
        "config": dict(config),
    }


def _named_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(_ENV_PREFIXES) or name in _ENV_NAMES)
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _gpus() -> list[dict[str, Any]]:
    """The GPUs that this process already uses through torch; asking never starts CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": device.name,
                "capability": f"{device.major}.{device.minor}",
                "memory_bytes": device.total_memory,
            }
        )
    return found


def _git_commit(directory: Path) -> str | None:
    """The commit checked out around a directory, read from .git itself; None outside of one."""
    for parent in (directory, *directory.parents):
        try:
            head = fs.read_bytes(parent / ".git" / "HEAD", limit=4096).decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        try:
            return fs.read_bytes(parent / ".git" / reference, limit=4096).decode().strip()
        except OSError:
            return _packed_commit(parent / ".git" / "packed-refs", reference)
    return None


def _packed_commit(packed: Path, reference: str) -> str | None:
    try:
        lines = fs.read_bytes(packed).decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in lines if line.endswith(f" {reference}")), None)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: expected a number, found {value!r}") from error
    return int(value) if number.is_integer() and isinstance(value, int) else number


def _encode(value: Mapping[str, Any]) -> bytes:
    try:
        return jsontext.dumps(value, indent=2).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"a value cannot be written as JSON: {error}") from error


def _cannot_write(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written: {error.strerror or error}", path=str(path))
