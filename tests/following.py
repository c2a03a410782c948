"""Follow a run in a test: a reader, the view so far, and a clock that is moved by hand."""

import json
from collections.abc import Iterable
from pathlib import Path

from ckpt.run import RunView, apply
from ckpt.sources import RunReader

STATE = {
    "step": 42,
    "total_steps": 100,
    "best_loss": 1.25,
    "lr": 0.0001,
    "epoch": 1,
    "batch_size": 2,
    "grad_accum_steps": 8,
    "sequence_length": 128,
    "fp16": True,
    "train_modules": "lora",
    "task": "pretrain",
    "model_path": "/models/tiny",
    "dataset_path": "./data/train.bin",
    "seed": 7,
}


def state_text(**changes: object) -> str:
    """A training_state.json as ferrotensor writes it; a change to None writes null."""
    return json.dumps({**STATE, **changes}, indent=2)


class Follower:
    """Looks when it is told to; `now` is the reader's clock."""

    def __init__(self, run: Path, *, now: float = 2e9, record_samples: bool = False) -> None:
        self.run = run
        self.now = now
        self.reader = RunReader(run, record_samples=record_samples)
        self.view = RunView(run=run)

    def look(self, changed: Iterable[Path] | None = None, *, after_s: float = 1.0) -> RunView:
        self.now += after_s
        self.view = apply(self.view, list(self.reader.read(changed, self.now)))
        return self.view

    def look_at(self, *names: str, after_s: float = 1.0) -> RunView:
        return self.look([self.run / name for name in names], after_s=after_s)

    def finish(self) -> RunView:
        while self.reader.has_more:
            self.look((), after_s=0.0)
        return self.view
