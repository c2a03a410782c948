"""The feed on real directories: what it reads, what it says when it cannot, and how it ends."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import views

from ckpt import fs
from ckpt.errors import NoSuchRun
from monitor.feed import Feed, Shown, sentence


def write_state(run: Path, step: int) -> None:
    fs.replace_bytes(run / "training_state.json", views.state_file(step).encode(), durable=False)


@contextmanager
def following(run: Path) -> Iterator[Callable[[Callable[[Shown], bool]], Shown]]:
    """Run a feed; the value waits for a view that a condition holds of."""
    posted: queue.Queue[Shown] = queue.Queue()
    feed = Feed(run, posted.put, poll_s=0.1, is_read_only=True)
    feed.start()

    def wait_for(condition: Callable[[Shown], bool]) -> Shown:
        deadline = time.monotonic() + 10
        while True:
            shown = posted.get(timeout=max(0.0, deadline - time.monotonic()))
            if condition(shown):
                return shown

    try:
        yield wait_for
    finally:
        feed.stop()


def has_step(step: int) -> Callable[[Shown], bool]:
    return lambda shown: shown.view.step == step


def test_a_changed_state_file_becomes_a_view(tmp_path: Path) -> None:
    write_state(tmp_path, 7)
    with following(tmp_path) as wait_for:
        wait_for(has_step(7))
        write_state(tmp_path, 8)
        wait_for(has_step(8))


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "later"
    with following(run) as wait_for:
        wait_for(lambda shown: not shown.view.is_reachable)
        run.mkdir()
        write_state(run, 3)
        wait_for(has_step(3))


def test_a_failure_is_said_and_reading_goes_on(tmp_path: Path) -> None:
    write_state(tmp_path, 1)
    broken = threading.Event()
    broken.set()

    def fail(call: fs.Call) -> None:
        if broken.is_set() and call.name == "statvfs":
            raise RuntimeError("the disk is on fire")

    with fs.hooked(fail), following(tmp_path) as wait_for:
        shown = wait_for(lambda shown: bool(shown.view.warnings))
        assert shown.view.warnings[0].message == (
            "a fault in ckpt-monitor itself: RuntimeError: the disk is on fire"
        )
        broken.clear()
        wait_for(lambda shown: shown.view.step == 1 and not shown.view.warnings)


def test_stop_ends_the_thread_soon(tmp_path: Path) -> None:
    with following(tmp_path) as wait_for:
        wait_for(lambda shown: True)
        assert any(thread.name == "feed" for thread in threading.enumerate())
    deadline = time.monotonic() + 5
    while any(thread.name == "feed" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoSuchRun("x: no such directory", hint="give a run"), "x: no such directory; give a run"),
        (PermissionError(13, "Permission denied", "x/y"), "x/y: permission denied"),
        (ValueError("boo"), "a fault in ckpt-monitor itself: ValueError: boo"),
    ],
)
def test_an_error_is_one_sentence(error: Exception, words: str) -> None:
    assert sentence(error) == words
