"""A small real training run: a small network learns two spirals, in numpy, in two minutes.

`running` starts it as a process of its own and ends it with the caller. The trainer half uses only
`ckpt.record`, as any training script would, and is the one place here that needs numpy.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt import fs
from ckpt.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

TOTAL_STEPS, CHECKPOINT_EVERY, EVALUATE_EVERY = 6000, 300, 100
STEPS_PER_SECOND = 50
BATCH_SIZE, HIDDEN_SIZE = 256, 48
PEAK_RATE, WARMUP_STEPS, WEIGHT_DECAY, SEED = 1.5e-3, 300, 1e-2, 7
CONFIG: Mapping[str, Any] = {
    "task": "two-spirals",
    "model_path": "mlp-2x48",
    "dataset_path": "made in memory",
    "train_modules": "full",
    "batch_size": BATCH_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "learning_rate": PEAK_RATE,
    "weight_decay": WEIGHT_DECAY,
    "warmup_steps": WARMUP_STEPS,
    "seed": SEED,
}
BETAS, EPSILON = (0.9, 0.99), 1e-8


@contextmanager
def running(keep: Path | None = None) -> Iterator[Path]:
    """Start the demo's trainer, yield its run directory, end the trainer on the way out.

    The run lies in a temporary directory that is removed afterwards, or in `keep`, which must be
    free or empty and stays.

    Raises:
        CheckpointError: `keep` holds something already, or cannot be made.
    """
    made = keep is None
    run_dir = fs.make_temporary_directory("ckpt-demo-") / "demo" if keep is None else keep
    _claim(run_dir)
    trainer = _start(run_dir)
    try:
        yield run_dir
    finally:
        _end(trainer)
        if made:
            fs.remove_tree(run_dir.parent)


def _claim(run_dir: Path) -> None:
    try:
        fs.make_directory(run_dir, parents=True)
        if fs.scan(run_dir):
            raise CheckpointError(
                f"{run_dir}: not empty, the demo needs a directory of its own",
                path=str(run_dir),
                hint="name a directory that does not exist yet",
            )
    except OSError as error:
        raise CheckpointError(
            f"{run_dir}: cannot hold the demo: {error.strerror}", path=str(run_dir)
        ) from error


def _start(run_dir: Path) -> subprocess.Popen[bytes]:
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with fs.appending(run_dir / "train.log") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "monitor.demo", str(run_dir.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **one_thread},
            start_new_session=True,
        )


def _end(trainer: subprocess.Popen[bytes]) -> None:
    trainer.terminate()
    try:
        trainer.wait(timeout=5)
    except subprocess.TimeoutExpired:
        trainer.kill()
        trainer.wait()


def train(
    run_dir: Path, *, total_steps: int = TOTAL_STEPS, pace: float = STEPS_PER_SECOND
) -> None:
    """Train to the end, or until the process that started us is gone.

    `pace` is steps a second (0: as fast as it goes), so that two minutes have something to show.
    """
    import numpy as np

    from ckpt.record import Recorder

    random = np.random.default_rng(SEED)
    points, labels = _spirals(random, 2000)
    held_points, held_labels = _spirals(random, 500)
    weights = _fresh_weights(random)
    moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    parent, started = os.getppid(), time.monotonic()
    with Recorder(run_dir, total_steps=total_steps, config=CONFIG) as recorder:
        for step in range(1, total_steps + 1):
            picked = random.integers(0, len(points), BATCH_SIZE)
            loss, gradients = _loss_and_gradients(weights, points[picked], labels[picked])
            rate = _learning_rate(step, total_steps)
            _adamw(weights, gradients, moments, rate=rate, step=step)
            norm = float(np.sqrt(sum(float((g**2).sum()) for g in gradients.values())))
            seen = step * BATCH_SIZE
            values = {"loss": loss, "learning_rate": rate, "grad_norm": norm, "tokens": seen}
            values["epoch"] = seen / len(points)
            if step % EVALUATE_EVERY == 0:
                values["eval_loss"] = _loss_and_gradients(weights, held_points, held_labels)[0]
            recorder.log(step, **values)
            if step % CHECKPOINT_EVERY == 0 or step == total_steps:
                recorder.save(step, _tensors(weights, moments))
            if os.getppid() != parent:
                return
            if pace:
                time.sleep(max(0.0, started + step / pace - time.monotonic()))


def _spirals(random: "np.random.Generator", count: int) -> tuple["Array", "Array"]:
    """`count` points (count, 2) on two interleaved spirals, and which one each is on (count,)."""
    import numpy as np

    labels = random.integers(0, 2, count)
    turns = np.sqrt(random.uniform(0.04, 1.0, count)) * 4 * np.pi
    sign = np.where(labels == 1, 1.0, -1.0)
    radius = (turns / (4 * np.pi) * sign)[:, None]
    points = np.stack([np.cos(turns), np.sin(turns)], axis=1) * radius
    return points * 2 + random.normal(0, 0.08, points.shape), labels.astype(float)


def _fresh_weights(random: "np.random.Generator") -> dict[str, "Array"]:
    import numpy as np

    wide = HIDDEN_SIZE
    sizes = {"layers.0": (2, wide), "layers.1": (wide, wide), "head": (wide, 1)}
    weights: dict[str, Array] = {}
    for name, (fan_in, fan_out) in sizes.items():
        weights[f"{name}.weight"] = random.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out))
        weights[f"{name}.bias"] = np.zeros(fan_out)
    return weights


def _loss_and_gradients(
    weights: Mapping[str, "Array"], points: "Array", labels: "Array"
) -> tuple[float, dict[str, "Array"]]:
    """Mean binary cross-entropy in nats, and its gradient for every weight."""
    import numpy as np

    first = np.tanh(points @ weights["layers.0.weight"] + weights["layers.0.bias"])
    second = np.tanh(first @ weights["layers.1.weight"] + weights["layers.1.bias"])
    logits = (second @ weights["head.weight"] + weights["head.bias"])[:, 0]
    loss = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
    to_logits = ((1 / (1 + np.exp(-logits)) - labels) / len(labels))[:, None]
    to_second = to_logits @ weights["head.weight"].T * (1 - second**2)
    to_first = to_second @ weights["layers.1.weight"].T * (1 - first**2)
    return loss, {
        "layers.0.weight": points.T @ to_first,
        "layers.0.bias": to_first.sum(axis=0),
        "layers.1.weight": first.T @ to_second,
        "layers.1.bias": to_second.sum(axis=0),
        "head.weight": second.T @ to_logits,
        "head.bias": to_logits.sum(axis=0),
    }


def _learning_rate(step: int, total_steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step <= WARMUP_STEPS:
        return PEAK_RATE * step / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, total_steps - WARMUP_STEPS)
    return PEAK_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def _adamw(
    weights: dict[str, "Array"],
    gradients: Mapping[str, "Array"],
    moments: Mapping[str, tuple["Array", "Array"]],
    *,
    rate: float,
    step: int,
) -> None:
    """One AdamW step, in place."""
    for name, gradient in gradients.items():
        mean, square = moments[name]
        mean += (1 - BETAS[0]) * (gradient - mean)
        square += (1 - BETAS[1]) * (gradient**2 - square)
        unbiased = mean / (1 - BETAS[0] ** step)
        scale = (square / (1 - BETAS[1] ** step)) ** 0.5 + EPSILON
        weights[name] -= rate * (unbiased / scale + WEIGHT_DECAY * weights[name])


def _tensors(
    weights: Mapping[str, "Array"], moments: Mapping[str, tuple["Array", "Array"]]
) -> dict[str, "Array"]:
    """Weights as F32, and AdamW's moments beside them."""
    found = {name: value.astype("float32") for name, value in weights.items()}
    for name, (mean, square) in moments.items():
        found[f"optimizer.exp_avg.{name}"] = mean.astype("float32")
        found[f"optimizer.exp_avg_sq.{name}"] = square.astype("float32")
    return found


if __name__ == "__main__":
    train(Path(sys.argv[1]))
