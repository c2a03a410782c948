"""training_state.json, run.json and the samples made of a state: torn, foreign, odd, busy."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from following import STATE, Follower, state_text

from ckpt import fs
from ckpt.health import judge
from ckpt.run import HealthState, RunView


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "exp1"
    path.mkdir()
    return path


@pytest.fixture
def follower(run: Path) -> Follower:
    return Follower(run)


def write_state(run: Path, **changes: object) -> Path:
    path = run / "training_state.json"
    path.write_text(state_text(**changes))
    return path


def codes(view: RunView) -> list[str]:
    return [warned.code for warned in judge(view, view.seen_at or 0.0).warnings]


def test_a_ferrotensor_state_gives_its_values_and_no_loss(run: Path, follower: Follower) -> None:
    path = write_state(run)
    view = follower.look()
    assert (view.step, view.total_steps, view.epoch) == (42, 100, 1.0)
    assert (view.best_loss, view.loss, view.learning_rate) == (1.25, None, 0.0001)
    assert view.task["model_path"] == "/models/tiny"
    assert view.values_from["best_loss"] == str(path)
    assert [(source.path, source.kind, source.error) for source in view.sources] == [
        (str(path), "training-state", None)
    ]


def test_our_own_state_tells_the_current_loss_too(run: Path, follower: Follower) -> None:
    write_state(run, loss=1.5, grad_norm=0.25, updated_at=1.0, lr=0.0)
    view = follower.look()
    assert (view.loss, view.grad_norm, view.learning_rate) == (1.5, 0.25, None)


@pytest.mark.parametrize("half", ["", "{", state_text()[:-1], state_text()[:40], "\0" * 300])
def test_half_a_state_keeps_the_last_good_one(run: Path, follower: Follower, half: str) -> None:
    path = write_state(run)
    before = follower.look()
    path.write_text(half)
    view = follower.look_at(path.name)
    assert (view.step, view.sources) == (42, before.sources)
    assert follower.reader.retry_at == follower.now + 0.25


def test_a_state_that_stays_half_is_called_unreadable_with_its_age(
    run: Path, follower: Follower
) -> None:
    path = write_state(run)
    follower.look()
    path.write_text('{"step": 4')
    follower.look_at(path.name)
    since = follower.now
    for _ in range(4):
        follower.look((), after_s=0.25)
    [source] = follower.view.sources
    assert source.error is not None
    assert source.error.startswith(f"{path}: not JSON at line 1 column 11")
    assert source.error_since == since
    assert (follower.view.step, follower.reader.retry_at) == (42, None)
    assert codes(follower.view)[-1] == "unreadable-source"
    path.write_text(state_text(step=43))
    view = follower.look_at(path.name)
    assert (view.step, view.sources[0].error) == (43, None)


def test_a_half_state_that_keeps_changing_is_being_written_and_not_yet_unreadable(
    run: Path, follower: Follower
) -> None:
    path = write_state(run)
    follower.look()
    for size in range(10, 46):
        path.write_text(state_text()[:size])
        follower.look_at(path.name, after_s=0.25)
    assert follower.view.sources[0].error is None
    for size in range(10, 50):
        path.write_text(state_text()[:size])
        follower.look_at(path.name, after_s=0.25)
    assert follower.view.sources[0].error is not None


def test_a_first_look_at_half_a_state_shows_no_step(run: Path, follower: Follower) -> None:
    path = run / "training_state.json"
    path.write_text("")
    assert follower.look().step is None
    path.write_text(state_text())
    assert follower.look((), after_s=0.25).step == 42


def test_a_state_that_is_gone_for_a_moment_is_no_news(run: Path, follower: Follower) -> None:
    path = write_state(run)
    follower.look()
    path.unlink()
    assert follower.look().sources[0].error is None
    write_state(run, step=43)
    assert follower.look((), after_s=0.25).step == 43


def test_an_unchanged_state_is_not_read_again(run: Path, follower: Follower) -> None:
    path = write_state(run)
    follower.look()
    calls: list[str] = []
    with fs.hooked(lambda call: calls.append(f"{call.name} {Path(call.path).name}")):
        follower.look_at(path.name)
    assert "open training_state.json" not in calls


def test_a_second_write_within_one_tick_of_the_clock_is_seen(run: Path) -> None:
    path = write_state(run, step=11)
    at = path.stat().st_mtime_ns
    follower = Follower(run, now=at / 1e9)
    follower.look(after_s=0.001)
    path.write_text(state_text(step=12))  # same size, and made to have the same time
    os.utime(path, ns=(at, at))
    assert follower.look((), after_s=0.3).step == 12


def test_a_state_of_another_program_is_named_and_not_used(run: Path, follower: Follower) -> None:
    (run / "training_state.json").write_text('{"step": 7, "optimizer": "adam"}')
    view = follower.look()
    assert view.step is None
    assert codes(view) == ["foreign-state"]
    assert "total_steps" in judge(view, 0.0).warnings[0].message


@pytest.mark.parametrize(
    ("changes", "step", "code"),
    [
        ({"step": 42.0}, 42, "bad-state"),
        ({"step": "42"}, None, "bad-state"),
        ({"step": -1}, None, "bad-state"),
        ({"best_loss": None}, 42, None),
        ({"lr": None}, 42, "upstream-refuses"),
        ({"best_loss": float("nan")}, 42, "upstream-refuses"),
        ({"total_steps": 0}, 42, None),
        ({"epoch": 0.5}, 42, "bad-state"),
        ({"tokens_seen": 5}, 42, None),
    ],
)
def test_odd_states_are_read_or_refused_in_words(
    run: Path, follower: Follower, changes: dict[str, object], step: int | None, code: str | None
) -> None:
    write_state(run, **changes)
    view = follower.look()
    assert view.step == step
    assert codes(view)[:1] == ([code] if code else [])
    assert view.best_loss in (None, 1.25)
    assert view.learning_rate in (None, 0.0001)


def test_a_state_that_is_a_directory_or_a_pipe_is_no_crash(run: Path, follower: Follower) -> None:
    (run / "training_state.json").mkdir()
    os.mkfifo(run / "metrics.jsonl")
    view = follower.look()
    assert view.step is None


def test_a_writer_in_place_never_shows_an_empty_run(run: Path) -> None:
    path = write_state(run, step=1_000_000)
    follower = Follower(run, now=time.time())
    follower.look(after_s=0.0)
    stop = threading.Event()

    def rewrite() -> None:
        step = 1_000_000
        while not stop.is_set():
            step += 1
            with path.open("w") as file:
                file.write(state_text(step=step))

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen: list[int | None] = []
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 1.5 or len(set(seen)) <= 10:
            assert time.monotonic() < begun + 60
            follower.now = time.time()
            view = follower.look_at(path.name, after_s=0.0)
            seen.append(view.step)
            assert view.sources
    finally:
        stop.set()
        writer.join()
    follower.look_at(path.name)
    assert None not in seen
    assert min(step for step in seen if step is not None) >= 1_000_000
    assert follower.view.step == json.loads(path.read_text())["step"]


# ---- samples ------------------------------------------------------------------------------------


def touch(path: Path, at: float) -> None:
    os.utime(path, (at, at))


def test_a_state_without_history_gets_one_that_outlives_the_watching(run: Path) -> None:
    follower = Follower(run, record_samples=True)
    for step, at in ((10, 1000.0), (20, 1010.0), (20, 1015.0), (30, 1020.0)):
        touch(write_state(run, step=step, best_loss=2.0 - step / 100), at)
        follower.look()
    kept = [(p.step, p.time, p.value) for p in follower.view.series["best_loss"]]
    assert kept == [(10, 1000.0, 1.9), (20, 1010.0, 1.8), (30, 1020.0, 1.7)]
    again = Follower(run)
    touch(write_state(run, step=40, best_loss=1.6), 1030.0)
    again.look()
    assert [p.step for p in again.view.series["best_loss"]] == [10, 20, 30, 40]
    assert again.view.step == 40
    lines = (run / ".ckpt" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]


def test_nothing_is_written_where_nothing_may_be(run: Path) -> None:
    follower = Follower(run, record_samples=False)
    write_state(run)
    follower.look()
    assert [path.name for path in run.iterdir()] == ["training_state.json"]
    assert [p.step for p in follower.view.series["learning_rate"]] == [42]


def test_a_restart_is_a_new_segment_of_the_samples(run: Path, follower: Follower) -> None:
    for step, at in ((10, 1000.0), (20, 1010.0), (15, 1020.0)):
        touch(write_state(run, step=step), at)
        follower.look()
    assert [(s.first_step, s.last_step) for s in follower.view.segments] == [(10, 20), (15, 15)]
    assert follower.view.step == 15


def test_a_run_with_its_own_history_is_not_sampled(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "time": 5, "loss": 2}\n')
    write_state(run)
    Follower(run, record_samples=True).look()
    assert not (run / ".ckpt").exists()


# ---- the process --------------------------------------------------------------------------------


def record(run: Path, **changes: object) -> None:
    value = {
        "schema": "ckpt.run/1",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": 1000.0,
        "process_start_ticks": fs.process_start_ticks(os.getpid()),
        "boot_id": fs.boot_id(),
        "config": {"hidden_size": 48},
        **changes,
    }
    (run / "run.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("changes", "is_alive"),
    [
        pytest.param({}, True, id="itself"),
        pytest.param({"process_start_ticks": 1}, False, id="a number given to another process"),
        pytest.param({"boot_id": "another"}, False, id="before the last boot"),
        pytest.param({"host": "elsewhere"}, None, id="a host we cannot see"),
        pytest.param({"host": "elsewhere", "pid": 2**22 + 1}, None, id="a number of another host"),
        pytest.param({"process_start_ticks": None, "boot_id": None}, True, id="only its number"),
    ],
)
def test_who_is_alive(
    run: Path, follower: Follower, changes: dict[str, object], is_alive: bool | None
) -> None:
    record(run, **changes)
    view = follower.look()
    assert view.process.is_alive is is_alive
    assert view.task == {"hidden_size": 48}


def test_a_process_that_ends_is_noticed_without_any_file_changing(
    run: Path, follower: Follower
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ticks = fs.process_start_ticks(child.pid)
        record(run, pid=child.pid, process_start_ticks=ticks)
        write_state(run)
        assert follower.look().process.is_alive is True
    finally:
        child.communicate(b"\n")
    view = judge(follower.look(()), follower.now)
    assert view.process.is_alive is False
    assert view.health.state is HealthState.DEAD
    assert view.health.reasons[0].startswith(f"process {child.pid} on this host")


def test_a_record_of_another_program_is_said_and_not_used(run: Path, follower: Follower) -> None:
    (run / "run.json").write_text('{"pid": 1, "host": "x"}')
    view = follower.look()
    assert view.process.pid is None
    assert codes(view) == ["foreign-record"]


def test_a_state_with_every_field_wrong_is_one_sentence_each(
    run: Path, follower: Follower
) -> None:
    write_state(run, **{key: [[]] for key in STATE})
    view = judge(follower.look(), follower.now)
    assert view.step is None
    assert all("\n" not in warned.message for warned in view.warnings)
