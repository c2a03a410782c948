"""Saving in the background: what was given is what is saved, and no error is lost."""

import errno
import logging
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckpt import fs
from ckpt.checkpoint import State, Verdict
from ckpt.errors import PublishError
from ckpt.generations import scan
from ckpt.operation import drive
from ckpt.verify import verify

torch = pytest.importorskip("torch")
from ckpt.torch import AsyncSaver, load  # noqa: E402 - needs torch
from ckpt.torch.snapshot import Snapshot  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch
FACTS = {"epoch": 1, "consumed_samples": 8}
ROOT = Path(__file__).parent.parent


@contextmanager
def held() -> Iterator[threading.Event]:
    """Let no weights be written before the event is set; what is begun then waits."""
    gate = threading.Event()

    def wait(call: fs.Call) -> None:
        if call.name == "create" and call.path.endswith("model.safetensors"):
            assert gate.wait(30)

    with fs.hooked(wait):
        try:
            yield gate
        finally:
            gate.set()


@contextmanager
def refusing() -> Iterator[None]:
    """Let the disk be full for weights."""

    def refuse(call: fs.Call) -> None:
        if call.name == "create" and call.path.endswith("model.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    with fs.hooked(refuse):
        yield


def test_what_is_saved_is_what_was_given_whatever_training_does_then(tmp_path: Path) -> None:
    weight, moment = torch.ones(4), torch.full((3,), 2.0)
    extras = {"optimizer": {"state": {0: {"m": moment}}, "lr": [0.1]}}
    meta = {"optimizer_step": 5, "history": [1, 2]}
    with held() as gate, AsyncSaver() as saver:
        saver.save(tmp_path / "step_5", {"w": weight}, extras=extras, meta=meta, **FACTS)
        weight.zero_()
        moment.zero_()
        extras["optimizer"]["lr"][0] = 0.9
        meta["history"].append(3)
        gate.set()
        assert saver.wait() == tmp_path / "step_5"
    loaded = load(tmp_path / "step_5")
    assert loaded.state_dict["w"].tolist() == [1.0] * 4
    assert loaded.extras["optimizer"]["state"][0]["m"].tolist() == [2.0] * 3
    assert loaded.extras["optimizer"]["lr"] == [0.1]
    assert (loaded.meta["optimizer_step"], loaded.meta["history"]) == (5, [1, 2])
    assert drive(verify(tmp_path / "step_5")).verdict is Verdict.INTACT


def test_a_call_returns_while_the_save_is_being_written(tmp_path: Path) -> None:
    with held() as gate, AsyncSaver() as saver:
        saver.save(tmp_path / "step_1", {"w": torch.ones(4)}, **FACTS)
        assert not (tmp_path / "step_1").exists()
        gate.set()
        saver.wait()
        assert (tmp_path / "step_1").exists()


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    weight = torch.ones(4)
    calls: list[str] = []
    with fs.hooked(lambda call: calls.append(f"{call.name} {call.path}")), AsyncSaver() as saver:
        for step in (1, 2):
            saver.save(tmp_path / f"step_{step}", {"w": weight.mul(step)}, **FACTS)
    of_first = [at for at, call in enumerate(calls) if "step_1" in call]
    of_second = [at for at, call in enumerate(calls) if "step_2" in call]
    assert max(of_first) < min(of_second)
    for step in (1, 2):
        assert load(tmp_path / f"step_{step}").state_dict["w"].tolist() == [step] * 4


def test_a_ctrl_c_while_waiting_does_not_let_the_next_copy_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.ones(4)
    with held() as gate, AsyncSaver() as saver:
        saver.save(tmp_path / "step_1", {"w": weight}, **FACTS)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "join", interrupt)
            with pytest.raises(KeyboardInterrupt):
                saver.save(tmp_path / "step_2", {"w": weight.mul(2)}, **FACTS)
        gate.set()
        assert saver.wait() == tmp_path / "step_1"
    assert load(tmp_path / "step_1").state_dict["w"].tolist() == [1.0] * 4
    assert not (tmp_path / "step_2").exists()


def interrupt(_thread: threading.Thread) -> None:
    raise KeyboardInterrupt


def test_a_failure_is_raised_once_at_the_next_call_and_the_one_after_saves(
    tmp_path: Path,
) -> None:
    saver = AsyncSaver()
    tensors = {"w": torch.ones(4)}
    with refusing():
        saver.save(tmp_path / "step_1", tensors, **FACTS)
        with pytest.raises(PublishError, match="step_1: not published: No space left on device"):
            saver.save(tmp_path / "step_2", tensors, **FACTS)
    saver.save(tmp_path / "step_2", tensors, **FACTS)
    assert saver.wait() == tmp_path / "step_2"
    assert saver.wait() is None
    saver.close()
    assert [slot.name for slot in scan(tmp_path)] == ["step_2"]


def test_a_failure_is_raised_at_the_end_of_the_block(tmp_path: Path) -> None:
    words = "step_1: not published"
    with refusing(), pytest.raises(PublishError, match=words), AsyncSaver() as saver:
        saver.save(tmp_path / "step_1", {"w": torch.ones(4)}, **FACTS)


def test_an_error_of_the_block_is_raised_and_that_of_the_save_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with refusing(), pytest.raises(ZeroDivisionError), AsyncSaver() as saver:
        saver.save(tmp_path / "step_1", {"w": torch.ones(4)}, **FACTS)
        raise ZeroDivisionError
    assert "step_1: not published: No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"state_dict": {"w": torch.eye(2).to_sparse()}}, "tensor 'w': a sparse tensor"),
        ({"extras": {"a/b": 1}}, "'a/b' cannot name a file"),
        ({"extras": {"a": [threading.Lock()]}}, "extras.a.0: a lock cannot be copied"),
        ({"meta": {"x": {1}}}, "meta.json: 'x' cannot be written"),
        ({"epoch": -1}, "epoch: expected a whole number"),
    ],
)
def test_what_cannot_be_saved_is_refused_at_the_call(
    tmp_path: Path, parts: dict[str, Any], words: str
) -> None:
    with AsyncSaver() as saver, pytest.raises(PublishError, match=words):
        saver.save(tmp_path / "step_1", **{"state_dict": {}, **FACTS, **parts})
    assert list(tmp_path.iterdir()) == []


def test_saving_over_a_checkpoint_retires_it(tmp_path: Path) -> None:
    with AsyncSaver(run_dir=tmp_path) as saver:
        for value in (1.0, 2.0):
            saver.save(tmp_path / "best", {"w": torch.full((2,), value)}, **FACTS)
    (slot,) = scan(tmp_path)
    assert [each.state for each in slot.generations] == [State.LIVE, State.RETIRED]
    assert load(slot.generations[1].path).state_dict["w"].tolist() == [1.0, 1.0]


# ---- the interpreter's end --------------------------------------------------------------------

SCRIPT = """
import sys, torch
from ckpt.torch import AsyncSaver
good, bad = AsyncSaver(), AsyncSaver()
bad.save(sys.argv[1] + "/mine", {"w": torch.ones(3)}, epoch=0, consumed_samples=0)
good.save(sys.argv[1] + "/step_1", {"w": torch.ones(3_000_000)}, epoch=0, consumed_samples=0,
          extras={"optimizer": {"m": torch.ones(3_000_000)}})
"""


@pytest.mark.parametrize("end", ["", "raise KeyError"], ids=["it falls off", "an error"])
def test_an_interpreter_that_ends_finishes_what_is_saved_and_says_what_failed(
    tmp_path: Path, end: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert drive(verify(tmp_path / "step_1")).verdict is Verdict.INTACT
    assert f"{tmp_path / 'mine'}: what stands there is no checkpoint" in done.stderr
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert "step_1" not in done.stderr


# ---- the copy ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


def test_a_tree_is_copied_with_its_shapes_kinds_and_twins() -> None:
    shared = torch.arange(3.0)
    tree = {
        "list": [shared, (shared, 1, "x", None)],
        "ordered": OrderedDict(b=torch.tensor(2), a=torch.empty(0, 2)),
        "pair": Pair(torch.ones(2).t(), {3: torch.zeros(2, 3).t()}),
        "sparse": torch.eye(2).to_sparse(),
        "other": defaultdict(list, x=[1]),
    }
    copy = Snapshot().take(tree)
    assert copy["list"][0] is copy["list"][1][0]
    assert copy["list"][0].data_ptr() != shared.data_ptr()
    assert copy["list"][1][1:] == (1, "x", None)
    assert (type(copy["ordered"]), list(copy["ordered"])) == (OrderedDict, ["b", "a"])
    assert copy["ordered"]["a"].shape == (0, 2)
    assert isinstance(copy["pair"], Pair)
    assert copy["pair"].right[3].shape == (3, 2)
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(2))
    assert copy["other"] == {"x": [1]}
    assert copy["other"] is not tree["other"]


def places(tree: dict[str, Any]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tree.items()}


def test_memory_is_used_again_where_shapes_stay() -> None:
    snapshot = Snapshot()
    snapshot.prepare({"a": torch.ones(5), "b": torch.ones(2, 2)})
    first = snapshot.take({"a": torch.ones(5), "b": torch.ones(2, 2)})
    before = places(first)
    second = snapshot.take({"a": torch.full((5,), 7.0), "b": torch.ones(2, 3)})
    assert second["a"].data_ptr() == before["a"]
    assert second["a"].tolist() == [7.0] * 5
    assert second["b"].shape == (2, 3)


REORDERED: list[tuple[str, Callable[[], Any]]] = [
    ("conjugate", lambda: torch.randn(3, dtype=torch.complex64).conj()),
    ("turned", lambda: torch.arange(6.0).reshape(2, 3).t()),
    ("parameter", lambda: torch.nn.Parameter(torch.ones(3))),
]


@pytest.mark.parametrize(("name", "make"), REORDERED, ids=[row[0] for row in REORDERED])
def test_an_odd_layout_is_saved_by_its_values(
    tmp_path: Path, name: str, make: Callable[[], Any]
) -> None:
    tensor = make()
    with AsyncSaver() as saver:
        saver.save(tmp_path / "step_1", {name: tensor}, **FACTS)
    assert torch.equal(load(tmp_path / "step_1").state_dict[name], tensor.detach())


def test_nothing_is_said_where_nothing_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), AsyncSaver() as saver:
        saver.prepare({"w": torch.ones(4)})
        saver.save(tmp_path / "step_1", {"w": torch.ones(4)}, **FACTS)
    assert caplog.text == ""
