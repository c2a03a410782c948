"""The command line, the decision what can be shown, the first frame, bytes of a keyboard."""

import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckpt.formats import ferrotensor_state
from monitor.command_line import Asked, asked_for
from monitor.driver import InputDecoder
from monitor.first_frame import OWN_KEYS, first_frame
from monitor.options import Options
from monitor.terminal import Screen, be_light

ROOT = Path(__file__).parents[2]


def parsed(*words: str) -> Asked | int:
    """What a command line asks for, or the exit code of one that is wrong."""
    seen: list[Asked] = []
    code = asked_for(words, lambda asked: seen.append(asked) or 0)
    return seen[0] if seen else code


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["runs/a"], Asked(Path("runs/a"))),
        ([], Asked()),
        (["--", "-odd"], Asked(Path("-odd"))),
        (["r", "--read-only"], Asked(Path("r"), Options(is_read_only=True))),
        (["--poll", "2.5", "r"], Asked(Path("r"), Options(poll_s=2.5))),
        (["--plain", "--ascii", "r"], Asked(Path("r"), Options(is_ascii=True), is_plain=True)),
        (["r", "--no-mouse"], Asked(Path("r"), Options(has_mouse=False))),
        (["--demo"], Asked(is_demo=True)),
        (["--demo", "--keep", "d"], Asked(is_demo=True, keep=Path("d"))),
        (["--version"], 0),
        (["--help"], 0),
        (["a", "b"], 2),
        ([""], 2),
        (["--poll", "0"], 2),
        (["--poll", "nan"], 2),
        (["--poll", "inf"], 2),
        (["--poll", "often"], 2),
        (["--keep", "d", "r"], 2),
        (["--demo", "r"], 2),
        (["--no-such-option"], 2),
    ],
)
def test_a_command_line_becomes_a_value(words: list[str], asked: Asked | int) -> None:
    assert parsed(*words) == asked


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([b"q"], "q"),
        ([b"\x1b[A"], "\x1b[A"),
        ([b"\xc3", b"\xa9"], "é"),
        ([b"a\xffb"], "a\ufffdb"),
        ([b"\x1b[M \x21\x21q"], "q"),
        ([b"\x1b[M \xa1!q"], "q"),
        ([b"\x1b[M#\xff\xfeq"], "q"),
        ([b"\x1b[M \xc3\xa9q"], "q"),
        ([b"a\x1b[M", b" ", b"\xe4", b"!q"], "aq"),
        ([b"\x1b[M   \x1b[M!!!q"], "q"),
        ([b"\x1b[<0;120;5M"], "\x1b[<0;120;5M"),
        ([b"\x1b"], "\x1b"),
        ([b"\x1b["], "\x1b["),
    ],
)
def test_any_bytes_of_a_terminal_become_text(chunks: list[bytes], text: str) -> None:
    decoder = InputDecoder()
    assert "".join(decoder.decode(chunk) for chunk in chunks) == text


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, {}),
        (
            {"SSH_CONNECTION": "1"},
            {"TEXTUAL_FPS": "10", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"},
        ),
        (
            {"TMUX": "1", "TEXTUAL_FPS": "30"},
            {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"},
        ),
    ],
)
def test_over_ssh_and_in_tmux_fewer_frames_are_the_default(
    environment: dict[str, str], added: dict[str, str]
) -> None:
    told = dict(environment)
    be_light(told)
    assert told == environment | added


STATE = {
    "step": 12400, "total_steps": 50000, "best_loss": 1.2, "lr": 1e-4, "epoch": 1,
    "batch_size": 2, "grad_accum_steps": 1, "sequence_length": 128, "fp16": True,
    "train_modules": "lora", "loss": 1.8342,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (json.dumps(STATE), "step 12,400 / 50,000   loss 1.8342   reading ..."),
        (json.dumps(STATE | {"loss": None}), "step 12,400 / 50,000   reading ..."),
        (json.dumps(STATE | {"loss": math.nan}), "step 12,400 / 50,000   loss NaN   reading ..."),
        (json.dumps(STATE | {"total_steps": 0}), "step 12,400   loss 1.8342   reading ..."),
        (json.dumps(STATE | {"step": "5"}), "reading ..."),
        (json.dumps(STATE | {"step": True}), "reading ..."),
        ('{"step": 5, "total_steps": 9}', "reading ..."),
        ('{"step": 5, "total_st', "reading ..."),
        ("[]", "reading ..."),
        ("\xff", "reading ..."),
        (None, "reading ..."),
    ],
)
def test_the_first_frame_tells_what_a_good_state_file_tells(
    tmp_path: Path, text: str | None, facts: str
) -> None:
    if text is not None:
        (tmp_path / "training_state.json").write_text(text, encoding="latin-1")
    assert first_frame(tmp_path, ascii_only=False) == [f" {tmp_path}", f" {facts}"]


def test_the_first_frame_knows_the_keys_that_its_reader_needs() -> None:
    assert frozenset(ferrotensor_state.REQUIRED) == OWN_KEYS


def test_the_first_frame_shows_any_name_safely() -> None:
    shown = first_frame(Path("a\x1b]0;owned\x07b\né"), ascii_only=True)
    assert shown == [r" a\x1b]0;owned\x07b\n\xe9", " reading ..."]


def test_the_first_frame_waits_for_nothing_heavy() -> None:
    code = (
        "import sys, monitor.__main__, monitor.first_frame, ckpt.terminal\n"
        "heavy = ('textual', 'rich', 'click', 'pydantic', 'watchdog', 'numpy', 'asyncio')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_screen_that_was_never_painted_writes_nothing_when_it_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as line, open(master, "rb", buffering=0) as other:
        monkeypatch.setattr(sys, "__stdin__", line)
        monkeypatch.setattr(sys, "__stderr__", line)
        with Screen() as screen:
            assert not screen.is_alternate
        os.set_blocking(other.fileno(), False)
        assert other.read() is None


# ---- without a screen -------------------------------------------------------------------------


def run_of(tmp_path: Path) -> Path:
    run = tmp_path / "exp1"
    run.mkdir()
    write_state(run, 12400)
    return run


def write_state(run: Path, step: int) -> None:
    new = run / ".new"
    new.write_text(json.dumps(STATE | {"step": step}))
    new.replace(run / "training_state.json")


def monitor(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monitor", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        cwd=cwd or ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_without_a_terminal_it_says_what_ckpt_status_says(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    shown = monitor(run)
    status = subprocess.run(
        [sys.executable, "-m", "ckpt", "status", run],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert "12,400" in shown.stdout
    assert (shown.stdout, shown.stderr, shown.returncode) == (
        status.stdout,
        status.stderr,
        status.returncode,
    )
    assert "\x1b" not in shown.stdout


def test_without_a_run_it_takes_the_one_in_the_current_directory(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert "12,400" in monitor(cwd=run).stdout
    assert "12,400" in monitor(cwd=tmp_path).stdout


def test_a_current_directory_that_holds_no_run_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    shown = monitor(cwd=tmp_path)
    assert (shown.stdout, shown.returncode) == ("", 2)
    assert shown.stderr.count("\n") == 1
    assert "no run" in shown.stderr


def test_plain_prints_a_line_a_change(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", "--plain", "--read-only", run],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(0.5)
    write_state(run, 12401)
    second = process.stdout.readline()
    process.terminate()
    rest = process.stdout.read()
    assert ("12,400" in first, "12,401" in second, rest) == (True, True, "")
    assert process.wait(20) == -signal.SIGTERM
    process.stdout.close()


def test_plain_ends_quietly_when_nobody_reads(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", "--plain", run],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    for step in range(12401, 12500):
        write_state(run, step)
        if process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.wait(20) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
