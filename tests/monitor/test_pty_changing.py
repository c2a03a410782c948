"""Changing a run through a real terminal: keys in, the disk looked at, bytes counted."""

import signal
import sys
import time
from pathlib import Path

import pytest
import views
from ptyharness import MONITOR, Pty
from saving import lying, save

from ckpt import reflog
from ckpt.checkpoint import State
from ckpt.generations import scan

SLOW = """
import time
from ckpt import fs

def wait(call):
    if call.name in {names!r} and {part!r} in call.path:
        time.sleep({seconds})

with fs.hooked(wait):
    from monitor.__main__ import main
    main([{run!r}])
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "exp1"
    run.mkdir()
    (run / "training_state.json").write_text(views.state_file(40))
    for value in (1.0, 2.0):
        save(run / "step_40", 40, value)
    return run


def live(run: Path) -> str:
    [slot] = scan(run)
    assert slot.live is not None
    return slot.live.id


def retired(run: Path) -> str:
    [slot] = scan(run)
    [found] = [each.id for each in slot.generations if each.state is State.RETIRED]
    return found


def is_painted(text: str) -> bool:
    return "◇ retired" in text and "q quit" in text


def ask(pty: Pty) -> None:
    """Press `r` and wait until the question listens."""
    pty.until(is_painted)
    pty.press("r")
    pty.until(lambda text: "Roll back step_40?" in text)
    time.sleep(0.6)


def slow(run: Path, part: str, *names: str, seconds: float) -> list[str]:
    """The app, on a disk on which some calls take long."""
    values = {"run": str(run), "names": names, "part": part, "seconds": seconds}
    return [sys.executable, "-c", SLOW.format(**values)]


def test_a_roll_back_is_confirmed_and_done_and_seen(run: Path) -> None:
    before, target = live(run), retired(run)
    with Pty([*MONITOR, str(run)]) as pty:
        ask(pty)
        pty.press("y")
        pty.until(lambda text: f"{target} is live (z undoes it)" in text)
        pty.until(lambda text: f"├ {before}" in text)
        assert live(run) == target
        pty.press("q")
        assert pty.wait() == 0
        assert pty.modes_left_on() == set()
        assert pty.modes == pty.modes_before


@pytest.mark.parametrize("is_bracketed", [True, False])
def test_what_is_pasted_changes_nothing(run: Path, *, is_bracketed: bool) -> None:
    before = lying(run)
    text = "roy y\ty\r\tr\ty\ry"
    with Pty([*MONITOR, str(run)]) as pty:
        pty.until(is_painted)
        pty.press(f"\x1b[200~{text}\x1b[201~" if is_bracketed else text)
        time.sleep(1.0)
        pty.press("\x1b")
        time.sleep(0.3)  # or the next key would be alt and that key
        pty.until(is_painted)
        pty.press("q")
        assert pty.wait() == 0
    assert lying(run) == before


def test_a_signal_during_the_swap_lets_it_end(run: Path) -> None:
    target = retired(run)
    command = slow(run, ".step_40", "exchange", "rename", seconds=0.5)
    with Pty(command, size=(100, 30)) as pty:
        ask(pty)
        pty.press("y")
        pty.until(lambda text: "changing the run: this ends by itself" in text)
        pty.process.send_signal(signal.SIGTERM)
        assert pty.wait() == 128 + signal.SIGTERM
        assert pty.modes_left_on() == set()
    assert live(run) == target
    assert reflog.read(run).pending == ()


def test_q_during_the_swap_waits_for_it(run: Path) -> None:
    target = retired(run)
    command = slow(run, ".step_40", "exchange", "rename", seconds=1.5)
    with Pty(command, size=(100, 30)) as pty:
        ask(pty)
        pty.press("y")
        pty.until(lambda text: "changing the run: this ends by itself" in text)
        pty.press("q")
        pty.until(lambda text: "leaving as soon as this has ended" in text)
        assert pty.wait() == 0
        assert pty.modes_left_on() == set()
    assert live(run) == target


def test_q_during_the_verification_leaves_at_once_and_changes_nothing(run: Path) -> None:
    before = lying(run)
    command = slow(run, "model.safetensors", "open", "read", seconds=3)
    with Pty(command, size=(100, 30)) as pty:
        ask(pty)
        pty.press("y")
        pty.until(lambda text: "verifying" in text)
        pressed_at = time.monotonic()
        pty.press("q")
        assert pty.wait() == 0
        assert time.monotonic() - pressed_at < 2.5
    assert lying(run) == before
