"""Two ranks over gloo: rank 0 alone touches the disk, and an error there is an error on both.

Both processes run every scene once; each test looks at what the two reported.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from ckpt.torch import save  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch

SCENES = r"""
import hashlib, json, sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ckpt import fs
from ckpt.torch import (
    find, from_rank_zero, load, load_json, load_state_dict, load_torch, save, save_model,
)

rank, home = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group(
    "gloo", init_method=f"file://{home}/meeting", rank=rank, world_size=2,
    timeout=timedelta(seconds=60),
)
found = {}


def scene(name, job):
    calls = []
    try:
        with fs.hooked(calls.append):
            outcome = job()
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    found[name] = {"outcome": outcome, "calls": len(calls)}


def told(tensors):
    return {
        name: [
            str(tensor.dtype), list(tensor.shape),
            hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest(),
        ]
        for name, tensor in tensors.items()
    }


def fail(error):
    raise error


def loaded(path, **how):
    got = load(path, broadcast=True, **how)
    twins = [a + "=" + b for a in got.state_dict for b in got.state_dict
             if a < b and got.state_dict[a] is got.state_dict[b]]
    return [got.epoch, got.meta["note"], got.extras["optimizer"]["m"].tolist(), got.is_verified,
            told(got.state_dict), twins]


own = {"w": torch.full((3,), float(rank)), "wrong": torch.eye(2).to_sparse()}
weights = home / "good" / "model.safetensors"
optimizer = home / "good" / "optimizer.pt"
facts = {"epoch": rank + 5, "consumed_samples": 0}
scene("load", lambda: loaded(home / "good"))
scene("weights", lambda: told(load_state_dict(weights, broadcast=True)))
scene("json", lambda: load_json(home / "good" / "config.json", broadcast=True))
scene("torch file", lambda: load_torch(optimizer, broadcast=True)["m"].tolist())
scene("damaged", lambda: loaded(home / "damaged"))
scene("nothing", lambda: loaded(home / "nowhere"))
scene("find nothing", lambda: find(home / "nowhere", broadcast=True))
scene("find", lambda: find(home / "cut off", broadcast=True).epoch)
scene("save", lambda: str(save(home / "new", {"w": own["w"]}, broadcast=True, **facts)))
scene("what was saved", lambda: load(home / "new", broadcast=True).epoch)
scene("refused save", lambda: str(save(home / "new", own, broadcast=True, **facts)))
scene("cannot be sent", lambda: from_rank_zero(lambda: (lambda: 0)))
scene("another error", lambda: from_rank_zero(lambda: fail(ValueError("odd"))))
scene("interrupt", lambda: from_rank_zero(lambda: fail(KeyboardInterrupt())))
scene("disk error", lambda: from_rank_zero(lambda: fail(OSError(5, "Input/output error"))))
scene("still in step", lambda: from_rank_zero(lambda: "yes"))
scene("save alone", lambda: str(save(home / "alone", {"w": own["w"]}, **facts)))
dist.barrier()
dist.destroy_process_group()
(home / f"rank{rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """What the two ranks reported of each scene: scene → (rank 0, rank 1)."""
    home = tmp_path_factory.mktemp("ranks")
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "bf16": torch.randn(3).bfloat16(),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "f8": torch.randn(5).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5),
        "tied": shared,
        "tied.too": shared,
        "u16": torch.tensor([1, 2, 60000], dtype=torch.uint16),
    }
    for name in ("good", "damaged"):
        save(
            home / name, tensors, epoch=3, consumed_samples=9, meta={"note": "é"},
            config={"hidden": 2}, extras={"optimizer": {"m": torch.ones(2)}},
        )  # fmt: skip
    weights = home / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    (home / ".cut off.tmp-0123456789ab").mkdir()
    for file in (home / "good").iterdir():
        shutil.copy(file, home / ".cut off.tmp-0123456789ab")
    root = Path(__file__).parent.parent
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCENES, str(rank), str(home)], cwd=root)
        for rank in (0, 1)
    ]
    try:
        assert [each.wait(timeout=120) for each in ranks] == [0, 0]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    reports = [json.loads((home / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return {name: (reports[0][name], reports[1][name]) for name in reports[0]}


def test_every_rank_gets_what_rank_0_read(told: dict[str, tuple[Any, Any]]) -> None:
    first, second = told["load"]
    assert second["outcome"] == first["outcome"]
    epoch, note, moments, is_verified, tensors, twins = first["outcome"]
    assert (epoch, note, moments, is_verified) == (3, "é", [1, 1], True)
    assert {name: each[:2] for name, each in tensors.items()} == {
        "bf16": ["torch.bfloat16", [3]],
        "bool": ["torch.bool", [2]],
        "empty": ["torch.float32", [0, 4]],
        "f8": ["torch.float8_e4m3fn", [5]],
        "scalar": ["torch.float32", []],
        "tied": ["torch.float32", [2, 3]],
        "tied.too": ["torch.float32", [2, 3]],
        "u16": ["torch.uint16", [3]],
    }
    assert twins == ["tied=tied.too"]


@pytest.mark.parametrize(
    ("scene", "expected"),
    [("json", {"hidden": 2}), ("torch file", [1, 1]), ("find nothing", None), ("find", 3)],
)
def test_single_files_are_read_on_rank_0_for_all(
    told: dict[str, tuple[Any, Any]], scene: str, expected: Any
) -> None:
    assert [each["outcome"] for each in told[scene]] == [expected, expected]


@pytest.mark.parametrize("scene", ["load", "weights", "json", "torch file", "damaged", "save"])
def test_only_rank_0_touches_the_disk(told: dict[str, tuple[Any, Any]], scene: str) -> None:
    first, second = told[scene]
    assert first["calls"] > 0
    assert second["calls"] == 0


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("damaged", "DamagedCheckpoint: "),
        ("nothing", "NoCheckpoint: "),
        ("refused save", "PublishError: tensor 'wrong': a sparse tensor"),
        ("cannot be sent", "CheckpointError: rank 0: what it read cannot be sent"),
        ("disk error", "OSError: [Errno 5] Input/output error"),
    ],
)
def test_an_error_on_rank_0_is_the_same_error_on_all(
    told: dict[str, tuple[Any, Any]], scene: str, words: str
) -> None:
    first, second = told[scene]
    assert first["outcome"].startswith(words)
    assert second["outcome"] == first["outcome"]


def test_an_error_that_cannot_be_made_again_is_told_in_words(
    told: dict[str, tuple[Any, Any]],
) -> None:
    assert [each["outcome"] for each in told["another error"]] == [
        "ValueError: odd",
        "CheckpointError: rank 0: ValueError: odd",
    ]
    assert [each["outcome"] for each in told["interrupt"]] == [
        "KeyboardInterrupt: ",
        "CheckpointError: rank 0 was stopped: KeyboardInterrupt",
    ]
    assert [each["outcome"] for each in told["still in step"]] == ["yes", "yes"]


def test_rank_0_alone_saves_and_all_know_when_it_is_done(
    told: dict[str, tuple[Any, Any]],
) -> None:
    first, second = told["save"]
    assert first["outcome"] == second["outcome"]
    assert [each["outcome"] for each in told["what was saved"]] == [5, 5]
    first, second = told["save alone"]
    assert first["outcome"] == second["outcome"]
    assert (first["calls"] > 0, second["calls"]) == (True, 0)
