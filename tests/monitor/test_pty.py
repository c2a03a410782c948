"""`ckpt-monitor` on a real terminal: what goes over the wire, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ptyharness import MONITOR, Pty, environment_of

ENDINGS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def write_state(run: Path, step: int, **more: object) -> None:
    state = {"step": step, "total_steps": 5000, "best_loss": 1.5, "lr": 1e-4, "epoch": 0,
             "batch_size": 1, "grad_accum_steps": 1, "sequence_length": 512, "fp16": False,
             "train_modules": "lora", "task": "sft", "model_path": "", "dataset_path": "",
             "seed": 0, **more}  # fmt: skip
    (run / ".state").write_text(json.dumps(state))
    (run / ".state").rename(run / "training_state.json")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "exp1"
    run.mkdir()
    write_state(run, 1234, loss=1.8342)
    return run


def is_painted(text: str) -> bool:
    return "1,234" in text and "q quit" in text


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """R running, S sleeping, T stopped, Z ended and not yet waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def assert_as_found(pty: Pty) -> None:
    assert pty.modes_left_on() == set()
    assert pty.modes == pty.modes_before


# ---- a screen -----------------------------------------------------------------------------------


def test_the_run_is_on_the_screen_before_and_after_textual_is_there(run: Path) -> None:
    with Pty([*MONITOR, str(run)]) as pty:
        pty.when(b"step 1,234 / 5,000   loss 1.8342   reading")
        assert b"\x1b[?1000h" not in pty.chunks[0].data
        text = pty.until(is_painted)
        assert "step 1,234 / 5,000" in text
        assert "reading" not in text
        assert pty.sent.count(b"\x1b[?1049h") == 1
        pty.press("q")
        assert pty.wait() == 0
        assert_as_found(pty)
        assert pty.sent.count(b"\x1b[?1049l") == 1


def test_nothing_is_sent_while_nothing_changes_and_hardly_a_thread_wakes_up(run: Path) -> None:
    with Pty([*MONITOR, str(run), "--read-only"]) as pty:
        pty.until(is_painted)
        pty.until(lambda text: "events" in text or "polling" in text)
        time.sleep(2.5)
        since, before = time.monotonic(), pty.usage()
        time.sleep(3)
        assert pty.bytes_since(since) == 0
        assert pty.usage().wake_ups - before.wake_ups <= 45
        assert pty.usage().cpu_s - before.cpu_s <= 0.1


@pytest.mark.parametrize("size", [(2, 2), (40, 10), (80, 24), (120, 40)])
def test_every_size_is_survived_and_so_is_every_other_one(
    run: Path, size: tuple[int, int]
) -> None:
    with Pty([*MONITOR, str(run)], size=size) as pty:
        if size[0] >= 40:
            text = pty.until(lambda text: "1,234" in text and "training" in text)
            assert "1.8342" in text
        else:
            pty.when(b"\x1b[?2004h")
        for columns, rows in ((120, 40), (40, 10), (2, 2), (1, 1), (80, 24)):
            pty.resize(columns, rows)
            time.sleep(0.1)
        pty.until(is_painted)
        pty.press("q")
        assert pty.wait() == 0


def test_a_size_that_was_told_at_the_start_does_not_outlive_a_resize(run: Path) -> None:
    environment = {"COLUMNS": "50", "LINES": "12"}
    with Pty([*MONITOR, str(run)], size=(100, 30), environment=environment) as pty:
        pty.until(lambda text: is_painted(text) and "─" * 100 in text)
        pty.resize(80, 24)
        pty.until(lambda text: is_painted(text) and "─" * 80 in text)


@pytest.mark.parametrize("utf8_mode", ["0", None])
def test_a_c_locale_gets_ascii_only(run: Path, utf8_mode: str | None) -> None:
    environment = {"LC_ALL": "C", "LANG": None, "PYTHONUTF8": utf8_mode}
    named = run.rename(run.with_name("läuft"))
    with Pty([*MONITOR, str(named)], environment=environment) as pty:
        text = pty.until(is_painted)
        assert "training" in text
        pty.press("q")
        assert pty.wait() == 0
        assert pty.sent.isascii()


@pytest.mark.parametrize("environment", [{"TERM": "screen"}, {"NO_COLOR": "1"}, {"TERM": "linux"}])
def test_states_are_words_whatever_the_terminal_can_colour(
    run: Path, environment: dict[str, str]
) -> None:
    with Pty([*MONITOR, str(run)], environment=environment) as pty:
        assert "training" in pty.until(is_painted)
        if "NO_COLOR" in environment:
            assert not re.search(rb"\x1b\[(\d+;)*3[1-6]m", pty.sent)
        pty.press("q")
        assert pty.wait() == 0


ODD_INPUT = {
    "an old mouse report past column 95": b"\x1b[M\x20\xe0\x25",
    "one that would be a letter in UTF-8": b"\x1b[M\x20\xc3\xa9",
    "one that comes in two parts": (b"\x1b[", b"M\x20\xe0\x25"),
    "bytes that are no UTF-8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "a key beyond Unicode": b"\x1b[99999999999u",
    "a mouse beyond the screen": b"\x1b[<0;9999;9999M\x1b[<0;9999;9999m",
    "a paste": b"\x1b[200~words\x1b[201~",
}


def test_no_bytes_cost_the_user_the_keyboard(run: Path) -> None:
    with Pty([*MONITOR, str(run)]) as pty:
        pty.until(is_painted)
        for data in ODD_INPUT.values():
            for part in data if isinstance(data, tuple) else (data,):
                pty.press(part)
                time.sleep(0.03)
        time.sleep(0.3)
        pty.press("?")
        pty.until(lambda text: "Keys of the dashboard" in text)
        pty.press("q")
        assert pty.wait() == 0
        assert_as_found(pty)


# ---- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ENDINGS, ids=lambda number: number.name)
def test_a_signal_leaves_a_sane_terminal(run: Path, number: signal.Signals) -> None:
    with Pty([*MONITOR, str(run)], ignores_hangup=True) as pty:
        pty.until(is_painted)
        pty.process.send_signal(number)
        assert pty.wait(5) == 128 + number
        assert_as_found(pty)
        assert b"Traceback" not in pty.sent


def test_a_signal_before_the_app_is_there_leaves_a_sane_terminal(run: Path) -> None:
    with Pty([*MONITOR, str(run)]) as pty:
        pty.when(b"reading")
        pty.process.send_signal(signal.SIGTERM)
        assert pty.wait(5) == 128 + signal.SIGTERM
        assert_as_found(pty)
        assert b"Traceback" not in pty.sent


@pytest.mark.parametrize("ignores_hangup", [False, True])
def test_a_terminal_that_is_closed_ends_it(run: Path, *, ignores_hangup: bool) -> None:
    with Pty([*MONITOR, str(run)], ignores_hangup=ignores_hangup) as pty:
        pty.until(is_painted)
        pty.hang_up()
        assert pty.wait(5) == 128 + signal.SIGHUP


def test_a_closed_terminal_ends_it_also_where_no_signal_says_so(run: Path) -> None:
    shell = f"trap '' HUP; {' '.join(MONITOR)} '{run}'; echo $? > '{run}/code'"
    with Pty(["sh", "-c", shell]) as pty:
        pty.until(is_painted)
        pty.hang_up()
        pty.wait(5)
    assert (run / "code").read_text() == "129\n"


def test_a_link_that_takes_nothing_does_not_keep_it(run: Path) -> None:
    with Pty([*MONITOR, str(run)], size=(200, 60)) as pty:
        pty.until(is_painted)
        pty.is_reading.clear()
        for _ in range(60):
            pty.press("?\x1b")
            time.sleep(0.02)
        pty.process.send_signal(signal.SIGTERM)
        assert pty.process.wait(6) == 128 + signal.SIGTERM
        assert pty.modes == pty.modes_before


@pytest.mark.parametrize(
    "number", [signal.SIGTSTP, signal.SIGSTOP], ids=lambda number: number.name
)
def test_a_stop_and_a_return_paint_the_screen_anew(run: Path, number: signal.Signals) -> None:
    with Pty([*MONITOR, str(run)]) as pty:
        pty.until(is_painted)
        pty.process.send_signal(number)
        wait_until(lambda: state_of(pty.process.pid) == "T")
        if number == signal.SIGTSTP:
            time.sleep(0.2)
            assert_as_found(pty)
        pty.chunks.clear()
        pty.process.send_signal(signal.SIGCONT)
        pty.until(is_painted)
        write_state(run, 1300)
        pty.until(lambda text: "1,300" in text)
        pty.press("q")
        assert pty.wait() == 0
        assert_as_found(pty)


def test_a_fault_inside_is_told_once_the_screen_is_gone(run: Path) -> None:
    code = (
        "from monitor.screens.dashboard import DashboardScreen\n"
        "def paint_all(self): raise ZeroDivisionError('on purpose')\n"
        "DashboardScreen.paint_all = paint_all\n"
        "from monitor.__main__ import main\n"
        f"main([{str(run)!r}])"
    )
    with Pty([sys.executable, "-c", code]) as pty:
        assert pty.wait() == 1
        assert_as_found(pty)
        told = pty.sent.rpartition(b"Traceback")[2].decode()
    assert "ckpt-monitor: a fault in ckpt-monitor itself: ZeroDivisionError: on purpose" in told
    assert "\x1b" not in told


def test_the_demo_ends_its_trainer_when_the_session_drops(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Pty([*MONITOR, "--demo", "--keep", str(kept)]) as pty:
        wait_until((kept / "run.json").exists)
        pty.until(lambda text: "training" in text)
        trainer = json.loads((kept / "run.json").read_text())["pid"]
        pty.hang_up()
        pty.wait(8)
    wait_until(lambda: not Path(f"/proc/{trainer}").exists())


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["screen", "plain"])
def test_the_demo_leaves_nothing_behind_when_it_is_ended(tmp_path: Path, plain: list[str]) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    with Pty([*MONITOR, "--demo", *plain], environment=environment) as pty:
        wait_until(lambda: bool(list(tmp_path.glob("ckpt-demo-*/demo/run.json"))))
        pty.until(lambda text: "training" in text)
        pty.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        pty.process.send_signal(signal.SIGHUP)
        # of two signals that wait together the kernel delivers the lower number first
        assert pty.wait(8) in (128 + signal.SIGTERM, 128 + signal.SIGHUP)
        assert_as_found(pty)
    assert list(tmp_path.iterdir()) == []


# ---- no screen ----------------------------------------------------------------------------------


def said(*arguments: object, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MONITOR, *map(str, arguments)], text=True, check=False, timeout=20,
        **{"capture_output": True, "env": environment_of({}), **streams},
    )  # fmt: skip


def test_without_a_terminal_it_says_what_status_says(run: Path) -> None:
    command = [sys.executable, "-m", "ckpt", "status", str(run)]
    status = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment_of({})
    )
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        done = said(run, stdin=stdin)
        assert (done.stdout, done.stderr) == (status.stdout, "")
        assert done.returncode == status.returncode == 1
    assert "step 1,234 / 5,000" in status.stdout
    assert not CONTROL.search(status.stdout)


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_can_nothing_gets_the_report(run: Path, term: str | None) -> None:
    with Pty([*MONITOR, str(run)], environment={"TERM": term}) as pty:
        assert pty.wait() == 1
        assert b"step 1,234 / 5,000" in pty.sent
        assert b"\x1b" not in pty.sent


def test_a_terminal_beside_a_file_gets_the_report_without_colours(
    run: Path, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w") as out:
        for descriptor in (1, 2):
            with Pty([*MONITOR, str(run)], redirect={descriptor: out.fileno()}) as pty:
                assert pty.wait() == 1
                assert b"\x1b" not in pty.sent
    assert "\x1b" not in (tmp_path / "out").read_text()


def test_a_stdin_that_is_no_terminal_is_one_line_and_exit_code_2(run: Path) -> None:
    with Path(os.devnull).open() as nothing:
        for stdin in (nothing.fileno(), None):
            with Pty([*MONITOR, str(run)], redirect={0: stdin}) as pty:
                assert pty.wait() == 2
                [line] = pty.sent.decode().splitlines()
                assert line.startswith("ckpt-monitor: stdin is no terminal")


def test_the_demo_without_a_terminal_is_refused_before_it_trains(tmp_path: Path) -> None:
    done = said("--demo", env=environment_of({"TMPDIR": str(tmp_path)}))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--demo --plain" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_all_streams_closed_is_no_traceback(run: Path) -> None:
    with Pty([*MONITOR, str(run)], redirect={0: None, 1: None, 2: None}) as pty:
        assert pty.wait() in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/nowhere"], "/nowhere: no such directory"),
        (["--poll", "soon", "."], "soon"),
        (["--poll", "nan", "."], "nan"),
        (["--keep", "x"], "--keep"),
        (["--demo", "x"], "--demo"),
        (["a", "b"], "b"),
        (["--nonsense"], "--nonsense"),
        ([""], "the path is empty"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    with Pty([*MONITOR, *arguments]) as pty:
        assert pty.wait() == 2
        told = pty.sent.decode()
    assert sentence in told
    assert "Traceback" not in told
    assert "\x1b[?1049h" not in told


def test_plain_prints_a_line_a_change_until_it_is_ended(run: Path) -> None:
    process = subprocess.Popen(
        [*MONITOR, str(run), "--plain", "--poll", "0.1"], stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, env=environment_of({}),
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert "1,234" in process.stdout.readline()
        write_state(run, 1300, loss=1.5)
        assert "1,300" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(10) == 130
