"""The demo trains for real, ends with its caller and leaves only what was asked for."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.errors import CheckpointError
from monitor import demo


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_loss_really_falls(tmp_path: Path) -> None:
    demo.train(tmp_path / "run", total_steps=1500, pace=0)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    losses = [row["loss"] for row in rows]
    assert len(losses) == 1500
    assert sum(losses[:100]) / 100 > 0.6
    assert sum(losses[-100:]) / 100 < 0.52
    assert [row["step"] for row in rows if "eval_loss" in row][:2] == [100, 200]
    saved = sorted(path.name for path in (tmp_path / "run").glob("epoch_*"))
    assert len(saved) == 5


def test_the_trainer_is_a_process_of_its_own_and_ends_with_the_demo() -> None:
    with demo.running() as run_dir:
        wait_until((run_dir / "training_state.json").exists)
        pid = json.loads((run_dir / "run.json").read_text())["pid"]
        assert fs.is_process_alive(pid)
        parent = run_dir.parent
    assert not fs.is_process_alive(pid)
    assert not parent.exists()


def test_the_directory_is_kept_when_asked(tmp_path: Path) -> None:
    with demo.running(tmp_path / "kept") as run_dir:
        wait_until((run_dir / "training_state.json").exists)
    assert run_dir == tmp_path / "kept"
    assert json.loads((run_dir / "training_state.json").read_text())["total_steps"] == 6000


def test_a_directory_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(CheckpointError, match="not empty, the demo needs a directory of its own"):
        demo.running(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
