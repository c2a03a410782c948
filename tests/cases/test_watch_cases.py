"""Reported faults of what a trainer writes while it runs, as `ckpt status` tells them.

Events, mounts and directories that come and go are followed in test_watch and test_sources_*.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from asking import ask, say
from following import STATE, Follower
from samples import huggingface
from trees import put_checkpoint

from ckpt.health import judge


def state(**changes: object) -> bytes:
    return json.dumps({**STATE, **changes}, indent=2).encode()


def status_of(run: Path, content: bytes, name: str = "training_state.json") -> dict[str, Any]:
    (run / name).write_bytes(content)
    return ask("status", run).told


def warned(told: dict[str, Any]) -> list[str]:
    return [each["code"] for each in told["warnings"]]


NAN, INF = float("nan"), float("inf")
STATES = {
    "A025 nan": (state(best_loss=NAN), {"step": 42, "best_loss": None}, ["upstream-refuses"]),
    "A025 inf": (state(best_loss=INF), {"step": 42, "best_loss": None}, ["upstream-refuses"]),
    "A025 lr": (state(lr=NAN), {"step": 42, "learning_rate": None}, ["upstream-refuses"]),
    "A025 ours": (state(loss=NAN), {"step": 42, "loss": None}, ["upstream-refuses"]),
    "A027 best": (state(best_loss=None), {"step": 42, "best_loss": None}, []),
    "A027 lr": (state(lr=None), {"step": 42, "learning_rate": None}, ["upstream-refuses"]),
    "A027 step": (state(step=None), {"step": None}, ["bad-state"]),
    "A030 mark": (b"\xef\xbb\xbf" + state(), {"step": 42}, ["upstream-refuses"]),
    "A030 line ends": (state().replace(b"\n", b"\r\n"), {"step": 42}, []),
    "A030 both": (
        b"\xef\xbb\xbf" + state().replace(b"\n", b"\r\n"), {"step": 42}, ["upstream-refuses"],
    ),
    "A040 epoch": (state(epoch=0.0203), {"step": 42, "epoch": 0.0203}, ["bad-state"]),
    "A040 float": (state(step=42.0), {"step": 42}, ["bad-state"]),
    "A040 half": (state(step=42.5), {"step": None}, ["bad-state"]),
    "A040 text": (state(step="42"), {"step": None}, ["bad-state"]),
    "A040 true": (state(step=True), {"step": None}, ["bad-state"]),
    "A040 below": (state(step=-5), {"step": None}, ["bad-state"]),
    "A040 beyond": (state(step=2**64), {"step": None}, ["bad-state"]),
    "A040 large": (state(step=2**63), {"step": 2**63, "points": 0}, []),
    "A040 infinite": (state().replace(b"42", b"1e400"), {"step": None}, ["bad-state"]),
    "A041": (state(total_steps=0), {"step": 42, "total_steps": None, "eta_seconds": None}, []),
    "A041 less": (state(total_steps=10), {"step": 42, "total_steps": 10}, []),
    "A041 null": (state(total_steps=None), {"step": None}, ["bad-state"]),
    "A032 twice": (b'{"step": 1,' + state()[1:], {"step": None}, ["duplicate-key"]),
    "a list": (b"[1, 2]", {"step": None}, ["bad-state"]),
}  # fmt: skip


@pytest.mark.parametrize(("content", "told", "codes"), STATES.values(), ids=STATES)
def test_an_odd_state_is_told_as_far_as_it_goes(
    tmp_path: Path, content: bytes, told: dict[str, object], codes: list[str]
) -> None:
    seen = status_of(tmp_path, content)
    assert {name: seen[name] for name in told} == told
    assert warned(seen) == codes
    assert seen["health"]["state"] != "waiting"  # never as if there were no run


TORN = {
    "A029 empty": b"",
    "A029 half": state()[:60],
    "A029 zeros": bytes(300),
    "A029 more": state() + b"}",
    "A030 UTF-16": state().decode().encode("utf-16"),
    "deep": b"[" * 100_000,
    "digits": b'{"step":' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_a029_a_state_that_stays_unreadable_is_called_that_and_tells_no_step(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "training_state.json").write_bytes(content)
    follower = Follower(tmp_path)
    view = follower.look()
    for _ in range(5):
        view = follower.look((), after_s=0.25)
    [source] = view.sources
    assert (source.error_since, view.step) == (2e9 + 1, None)
    judged = judge(view, follower.now)
    assert [each.code for each in judged.warnings] == ["unreadable-source"]
    assert judged.warnings[0].message.startswith("unreadable since ")
    assert judged.health.state.value == "unknown"  # never as if there were no run


def rows(*found: dict[str, object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in found).encode()


@pytest.mark.parametrize("spelt", [NAN, "NaN", "nan"], ids=["bare", "text", "lower case"])
def test_a026_a_loss_that_turned_to_nan_is_never_better_and_never_dropped(
    tmp_path: Path, spelt: object
) -> None:
    lost = [{"step": step, "loss": spelt} for step in range(1201, 1801)]
    told = status_of(tmp_path, rows({"step": 1200, "loss": 0.045}, *lost), "metrics.jsonl")
    assert (told["best_loss"], told["best_step"]) == (0.045, 1200)
    assert (told["loss_nonfinite"], told["loss"]) == (600, None)
    assert told["health"]["state"] == "diverged"
    [reason] = told["health"]["reasons"]
    assert reason.startswith("the loss is NaN since step 1,201 (600 points); the best was 0.045")


@pytest.mark.parametrize(("spelt", "word"), [(INF, "inf"), (-INF, "-inf"), ("Infinity", "inf")])
def test_a026_an_infinite_loss_is_none_either(tmp_path: Path, spelt: object, word: str) -> None:
    lost = [{"step": step, "loss": spelt} for step in range(2, 300)]
    told = status_of(tmp_path, rows({"step": 1, "loss": 0.5}, *lost), "metrics.jsonl")
    assert (told["best_loss"], told["loss_nonfinite"]) == (0.5, 298)
    assert told["health"]["state"] == "diverged"
    assert word.lstrip("-") in told["health"]["reasons"][0]


def test_a026_a_loss_that_came_back_is_no_divergence(tmp_path: Path) -> None:
    found = [{"step": s, "loss": NAN if 50 < s < 60 else 1 / s} for s in range(1, 300)]
    told = status_of(tmp_path, rows(*found), "metrics.jsonl")
    assert (told["loss_nonfinite"], told["health"]["state"]) == (9, "training")


def test_a025_a_history_with_nan_is_counted_and_written_as_null(tmp_path: Path) -> None:
    log = [{"step": 10, "loss": 2.5, "epoch": 0.1}, {"step": 20, "loss": NAN, "epoch": 0.2}]
    content = {"global_step": 20, "max_steps": 100, "epoch": 0.2, "log_history": log}
    told = status_of(tmp_path, json.dumps(content).encode(), "trainer_state.json")
    assert (told["step"], told["loss_nonfinite"], told["best_loss"]) == (20, 1, 2.5)
    series = ask("status", tmp_path, "--series").told["series"]
    assert series["loss"] == [[0, 10, 2.5], [0, 20, None]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"global_step": 20.0}, {"step": 20}),
        ({"global_step": "20"}, {"step": 20}),
        ({"epoch": 0.0203}, {"epoch": 0.0203}),
        ({"epoch": NAN}, {"epoch": None}),
        ({"max_steps": 0}, {"total_steps": None}),
        ({"max_steps": -1}, {"total_steps": None}),
        ({"log_history": None}, {"step": 20, "best_loss": None}),
        ({"log_history": [1, None, {"step": None}, {"loss": 1}]}, {"step": 20, "best_loss": None}),
    ],
)
def test_a040_odd_values_of_a_trainers_state_are_read_or_unknown(
    tmp_path: Path, changes: dict[str, object], told: dict[str, object]
) -> None:
    log = [{"step": 10, "loss": 2.5, "epoch": 0.1}]
    content = {"global_step": 20, "max_steps": 100, "epoch": 0.2, "log_history": log, **changes}
    seen = status_of(tmp_path, json.dumps(content).encode(), "trainer_state.json")
    assert {name: seen[name] for name in told} == told
    assert warned(seen) == []


def test_a029_a_writer_in_place_never_makes_the_last_good_state_go(tmp_path: Path) -> None:
    path = tmp_path / "training_state.json"
    path.write_bytes(state())
    follower = Follower(tmp_path)
    assert follower.look().step == 42
    for torn in (b"", state(step=43)[:9], state(step=43)[:-1], bytes(50)):
        path.write_bytes(torn)
        view = follower.look()
        assert (view.step, view.best_loss) == (42, 1.25)
    path.write_bytes(state(step=43))
    assert follower.look().step == 43


ODD_LINES = (
    b'{"step": 1, "loss": 1}\r\n\xef\xbb\xbf{"step": 2, "loss": 1}\n[]\nnull\n5\n\xff\xfe\n\n'
    b'{"step": "x", "loss": 1}\n{"step": 3, "loss": true}\n{"step": 4}\n{"loss": 3}\n'
    b'{"step": 5, "loss": 1e400}\n{"step": 1e3, "loss": 2}\n{"step": -5, "loss": 2}\n'
    b'{"step": %s, "loss": 1}\n{"step": 7, "lo'
)


def test_a030_odd_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    told = status_of(tmp_path, ODD_LINES % (b"9" * 5000), "metrics.jsonl")
    assert (told["step"], told["loss"], told["best_loss"]) == (1000, 2.0, 1.0)
    assert told["loss_nonfinite"] == 1
    assert warned(told) == ["bad-lines"]
    assert "8 lines were passed over" in told["warnings"][0]["message"]


@pytest.mark.parametrize("total", [NAN, INF, "many", None, [1], -3])
def test_a041_a_total_of_a_log_that_is_no_number_is_none(tmp_path: Path, total: object) -> None:
    line = rows({"current_steps": 5, "total_steps": total, "loss": 1.5, "epoch": 0.1})
    told = status_of(tmp_path, line, "trainer_log.jsonl")
    assert (told["step"], told["total_steps"], told["loss"]) == (5, None, 1.5)


def test_a043_a_clock_ahead_is_neither_fresh_nor_of_a_negative_age(tmp_path: Path) -> None:
    (tmp_path / "training_state.json").write_bytes(state())
    put_checkpoint(tmp_path / "step_5", 5)
    ahead = time.time() + 1200
    for path in [*tmp_path.iterdir(), *(tmp_path / "step_5").iterdir()]:
        os.utime(path, (ahead, ahead))
    told = ask("status", tmp_path).told
    assert told["health"]["state"] == "unknown"
    assert warned(told) == ["clock-ahead"]
    assert "clock ahead 20 min" in say("list", tmp_path)
    assert not re.search(r"(?<!e)-\d", say("list", tmp_path) + say("status", tmp_path, "--line"))


@pytest.mark.parametrize("stamp", ["2099-01-01T00:00:00+09:00", "0001-01-01T00:00:00", "soon", 5])
def test_a043_order_is_by_step_whatever_the_clocks_say(tmp_path: Path, stamp: object) -> None:
    for step in (5, 6):
        put_checkpoint(tmp_path / f"step_{step}", step)
    manifest = tmp_path / "step_5" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "created_at": stamp}))
    ahead = time.time() + 9999
    os.utime(tmp_path / "step_5", (ahead, ahead))
    assert [slot["name"] for slot in ask("list", tmp_path).told["slots"]] == ["step_6", "step_5"]
    assert not re.search(r"-\d", say("list", tmp_path))


@pytest.mark.parametrize("at", [0, -(10**9), 10**10])
def test_a043_a_time_of_no_sense_is_survived(tmp_path: Path, at: int) -> None:
    (tmp_path / "training_state.json").write_bytes(state())
    put_checkpoint(tmp_path / "step_5", 5)
    for path in [*tmp_path.iterdir(), *(tmp_path / "step_5").iterdir()]:
        os.utime(path, (at, at))
    assert ask("status", tmp_path).told["step"] == 42
    assert "step_5" in say("status", tmp_path)


@pytest.mark.parametrize(
    "recorded", ["/other/machine/checkpoint-10", "C:\\x\\checkpoint-10", "/x/\ud800"]
)
def test_a044_a_best_checkpoint_of_another_machine_is_said_to_be_not_here(
    tmp_path: Path, recorded: str
) -> None:
    content = {"global_step": 20, "max_steps": 100, "best_model_checkpoint": recorded}
    told = status_of(
        tmp_path, json.dumps({**content, "log_history": []}).encode(), "trainer_state.json"
    )
    assert warned(told) == ["best-not-here"]
    assert recorded.replace("\ud800", r"\ud800") in told["warnings"][0]["message"]


def test_a072_a_restart_drops_nothing_and_is_marked(tmp_path: Path) -> None:
    steps = [*range(1, 301), *range(250, 320)]
    told = status_of(
        tmp_path, rows(*({"step": step, "loss": 2.0} for step in steps)), "metrics.jsonl"
    )
    assert (told["step"], told["points"]) == (319, 370)
    assert [(each["first_step"], each["last_step"]) for each in told["segments"]] == [
        (1, 300),
        (250, 319),
    ]


def test_a072_a_directory_and_a_state_of_two_steps_are_reported(tmp_path: Path) -> None:
    huggingface(tmp_path).rename(tmp_path / "checkpoint-45")
    told = ask("status", tmp_path).told
    assert (told["step"], warned(told)) == (8, ["name-mismatch"])
    put_checkpoint(tmp_path / "step_50", 26)
    assert warned(ask("status", tmp_path).told) == ["name-mismatch", "name-mismatch"]


@pytest.mark.parametrize("name", ["run-3", "llama-7b", "2026", "epoch_3"])
def test_a072_a_number_that_is_no_step_clashes_with_none(tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    run.mkdir()
    content = {"global_step": 20, "max_steps": 100, "log_history": []}
    put_checkpoint(run / "lora-2", 20)
    assert warned(status_of(run, json.dumps(content).encode(), "trainer_state.json")) == []
