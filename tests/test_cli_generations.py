"""The verbs of `ckpt` that change a run end to end: plans, answers, documents, exit codes."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from saving import lying
from trees import put_checkpoint, snapshot

from ckpt import fs, reflog
from ckpt.cli import main
from ckpt.control import read_pins
from ckpt.generations import scan
from ckpt.lock import swap_lock
from ckpt.operation import Note, Operation
from ckpt.reflog import Change
from ckpt.selftest import Promise, SelfTest

PROGRAM = [sys.executable, "-c", "from ckpt.cli import main; main()"]
OLD, NEW, LATER = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
SAVED_AT = 1_764_590_400
PLAN_KEYS = [
    "schema", "verb", "run", "changes", "given_up", "warnings", "frees_bytes", "done", "target",
    "removed", "undoes", "sequence", "told", "kept",
]  # fmt: skip
ENTRY_KEYS = [
    "sequence", "at", "verb", "slot", "from", "to", "by", "done", "undone_by", "undoes", "outcome",
]  # fmt: skip


def ckpt(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def document(*arguments: str | Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(ckpt(*arguments, "--json").stdout)
    return parsed


def save(path: Path, step: int, generation: str, value: float = 1.0) -> Path:
    slot = path.name[1:].partition(".")[0] if path.name.startswith(".") else path.name
    origin = {"generation": generation, "parent": None, "slot": slot}
    put_checkpoint(path, step, value, ckpt=origin)
    for each in (*path.rglob("*"), path):  # old enough for a verdict to be remembered
        os.utime(each, (SAVED_AT + step,) * 2)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Step 8 was saved twice, step 9 once after it."""
    directory = tmp_path / "run"
    save(directory / ".step_8.retired-old", 8, OLD, 1.0)
    save(directory / "step_8", 8, NEW, 2.0)
    save(directory / "step_9", 9, LATER, 3.0)
    return directory


def live(run: Path) -> dict[str, str | None]:
    return {slot.name: slot.live.id if slot.live else None for slot in scan(run)}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# ---- there and back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            (),
            [
                ["roll back step_8"],
                ["becomes live", "step_8", OLD],
                ["is retired", "step_8", NEW],
                [f"! the bytes of {OLD} were never verified"],
            ],
        ),
        (
            ("--to-step", "8"),
            [
                ["send the run back to step 8: withdraw step_9"],
                ["is withdrawn", "step_9", LATER],
                ["stays newest", "step_8", NEW],
                ["given up", "1 step, 1 s of training"],
                [f"! the bytes of {NEW} were never verified"],
            ],
        ),
    ],
)
def test_a_dry_run_tells_the_plan_and_touches_nothing(
    run: Path, arguments: tuple[str, ...], told: list[list[str]]
) -> None:
    before = snapshot(run)
    result = ckpt("rollback", run, *arguments, "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [
        [part.strip() for part in line.split("  ") if part.strip()]
        for line in result.stdout.splitlines()
    ]
    assert [line[:3] for line in lines] == told
    assert snapshot(run) == before


def test_a_roll_back_says_what_is_live_and_how_to_take_it_back(run: Path) -> None:
    before = lying(run)
    result = ckpt("rollback", run, "step_8", "--to", "aaa", "--yes")
    assert result.exit_code == 0
    assert result.stdout == f"step_8: {OLD} is live  (ckpt undo {run} takes it back)\n"
    assert result.stderr.startswith("roll back step_8\n")
    assert live(run) == {"step_9": LATER, "step_8": OLD}

    result = ckpt("undo", run, "--yes")
    assert result.stdout == f"step_8: {NEW} is live  (ckpt redo {run} takes it back)\n"
    assert result.stderr.startswith("undo #1: step_8  (rollback, just now)\n")
    assert lying(run) == {
        name.replace(".retired-old", f".retired-{OLD}"): data for name, data in before.items()
    }

    result = ckpt("redo", run, "--yes")
    assert result.stdout == f"step_8: {OLD} is live  (ckpt undo {run} takes it back)\n"
    assert live(run) == {"step_9": LATER, "step_8": OLD}


@pytest.mark.parametrize("name", ["step_8", "step_8/", "RUN/step_8", "RUN/step_8/"])
def test_a_slot_is_named_as_a_shell_completes_it(run: Path, name: str) -> None:
    planned = document("rollback", run, name.replace("RUN", str(run)), "--dry-run")
    assert planned["changes"] == [{"slot": "step_8", "from": NEW, "to": OLD}]


def test_a_run_is_sent_back_to_a_step_and_one_undo_brings_it_back(run: Path) -> None:
    save(run / "step_10", 10, "dddddddddddd")
    before = lying(run)
    result = ckpt("rollback", run, "--to-step", "8", "--yes")
    assert result.exit_code == 0
    assert result.stdout == (
        f"step_10 is withdrawn; step_9 is withdrawn  (ckpt undo {run} takes it back)\n"
    )
    assert live(run) == {"step_10": None, "step_9": None, "step_8": NEW}
    assert ckpt("undo", run, "--yes").exit_code == 0
    assert lying(run) == before


def test_the_newest_of_what_an_undo_brings_back_is_verified(run: Path) -> None:
    save(run / "step_10", 10, "dddddddddddd")
    ckpt("rollback", run, "--to-step", "8", "--yes")
    flip(run / ".step_10.withdrawn-dddddddddddd" / "model.safetensors")
    before = lying(run)
    result = ckpt("undo", run, "--yes")
    assert result.exit_code == 1
    assert "ckpt: generation dddddddddddd is damaged: model.safetensors: sha256" in result.stderr
    assert lying(run) == before


# ---- whom to ask ----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("rollback",), ("undo",), ("redo",), ("prune",)])
def test_without_a_terminal_nothing_is_done_unasked(run: Path, arguments: tuple[str]) -> None:
    before = snapshot(run)
    result = ckpt(*arguments, run)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "ckpt: there is no terminal to ask at: nothing was touched\n"
        "      give --yes to do it, or --dry-run to see the plan\n"
    )
    assert snapshot(run) == before


class OnTerminal:
    """A command with a terminal for all its streams; `said` is what came out so far."""

    def __init__(self, *arguments: str | Path) -> None:
        self.controller, terminal = os.openpty()
        self.child = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "200"},
        )
        os.close(terminal)
        self.said = ""

    def until(self, text: str) -> None:
        while text not in self.said and self._read():
            pass
        assert text in self.said

    def answer(self, text: str) -> tuple[int, str]:
        """Type an answer; return the exit code and what was said after it."""
        self.said = ""
        os.write(self.controller, text.encode())
        while self._read():
            pass
        os.close(self.controller)
        return self.child.wait(), self.said

    def _read(self) -> bool:
        try:
            part = os.read(self.controller, 65536)
        except OSError:  # the child, the last one that had the terminal, is gone
            return False
        self.said += part.decode().replace("\r\n", "\n")
        return bool(part)


@pytest.mark.parametrize("answer", ["\n", "yeah\n", "\x04"])
def test_only_a_plain_yes_is_one(run: Path, answer: str) -> None:
    before = snapshot(run)
    asked = OnTerminal("rollback", run)
    asked.until("Do it? [y/N] ")
    assert f"becomes live   step_8  {OLD}" in asked.said
    code, said = asked.answer(answer)
    assert code == 1
    assert "ckpt: not agreed to: nothing was touched" in said
    assert snapshot(run) == before


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_a_yes_has_it_done(run: Path, answer: str) -> None:
    asked = OnTerminal("rollback", run)
    asked.until("Do it? [y/N] ")
    code, said = asked.answer(answer)
    assert code == 0
    assert f"step_8: {OLD} is live" in said
    assert live(run) == {"step_9": LATER, "step_8": OLD}


def test_ctrl_c_at_the_question_touches_nothing(run: Path) -> None:
    before = snapshot(run)
    asked = OnTerminal("rollback", run, "--json")
    asked.until("Do it? [y/N] ")
    asked.child.send_signal(2)
    code, said = asked.answer("")
    assert code == 130
    assert json.loads(said.strip().splitlines()[-1])["code"] == "interrupted"
    assert snapshot(run) == before


def remove_target(run: Path) -> None:
    shutil.rmtree(run / ".step_8.retired-old")


def save_again(run: Path) -> None:
    (run / "step_8").rename(run / ".step_8.retired-new")
    save(run / "step_8", 8, "eeeeeeeeeeee", 5.0)


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        (remove_target, f"the plan is out of date: generation {OLD} is not there any more"),
        (save_again, f"the plan is out of date: step_8: eeeeeeeeeeee is live, not {NEW}"),
    ],
)
def test_a_plan_that_grew_old_while_it_was_asked_about_is_refused(
    run: Path, meanwhile: Callable[[Path], None], why: str
) -> None:
    asked = OnTerminal("rollback", run)
    asked.until("Do it? [y/N] ")
    meanwhile(run)
    before = lying(run)
    code, said = asked.answer("y\n")
    assert code == 4
    assert f"ckpt: {run}: {why}\n      look at it anew and decide again" in said
    assert lying(run) == before


# ---- what is refused ------------------------------------------------------------------------


def damage_target(run: Path) -> None:
    flip(run / ".step_8.retired-old" / "model.safetensors")


def cut_target(run: Path) -> None:
    path = run / ".step_8.retired-old" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def take_the_name_for_a_link(run: Path) -> None:
    (run / "step_8").rename(run.parent / "elsewhere")
    (run / "step_8").symlink_to(run.parent / "elsewhere")


def hold_the_name_by_a_file(run: Path) -> None:
    shutil.rmtree(run / "step_8")
    (run / "step_8").write_bytes(b"notes")
    os.utime(run / "step_8", (SAVED_AT,) * 2)


def hold_the_name_by_notes(run: Path) -> None:
    shutil.rmtree(run / "step_8")
    (run / "step_8").mkdir()
    (run / "step_8" / "notes.txt").write_bytes(b"notes")
    for each in (run / "step_8" / "notes.txt", run / "step_8"):
        os.utime(each, (SAVED_AT,) * 2)


def nothing(run: Path) -> None:
    pass


REFUSED: list[tuple[Callable[[Path], None], list[str], int, str]] = [
    (damage_target, ["rollback", "RUN"], 1, f"generation {OLD} is damaged: model.safetensors: "),
    (cut_target, ["rollback", "RUN"], 1, f"generation {OLD} cannot be used: model.safetensors: "),
    (nothing, ["rollback", "RUN", "step_9"], 1, "step_9: no retired generation"),
    (nothing, ["rollback", "RUN", "step_7"], 1, "no slot step_7"),
    (nothing, ["rollback", "RUN", "step_8", "--to", "f"], 1, "step_8: no generation f"),
    (nothing, ["rollback", "RUN", "step_8", "--to", "b"], 1, f"step_8: {NEW} is live already"),
    (nothing, ["rollback", "RUN", "--to-step", "7"], 1, "no checkpoint of step 7 or before"),
    (nothing, ["rollback", "RUN", "--to-step", "9"], 1, "no checkpoint is later than step 9"),
    (nothing, ["undo", "RUN"], 1, "nothing to undo"),
    (nothing, ["redo", "RUN"], 1, "nothing to redo"),
    (nothing, ["rollback", "RUN/step_8"], 2, "RUN/step_8: a checkpoint, expected its run"),
    (nothing, ["rollback", "RUN/no"], 2, "RUN/no: no such directory"),
    (nothing, ["undo", "RUN/no"], 2, "RUN/no: no such directory"),
    (nothing, ["recover", "RUN/no"], 2, "RUN/no: no such directory"),
    (nothing, ["log", "RUN/no"], 2, "RUN/no: no such directory"),
    (nothing, ["pin", "RUN", "f"], 2, "RUN: no generation f"),
    (nothing, ["pin", "RUN", "step_9@a"], 2, "RUN: no generation step_9@a"),
    (nothing, ["unpin", "RUN", "f"], 2, "RUN: no generation f"),
]


@pytest.mark.parametrize(("prepare", "arguments", "code", "why"), REFUSED)
def test_what_cannot_be_done_is_one_sentence_and_touches_nothing(
    run: Path, prepare: Callable[[Path], None], arguments: list[str], code: int, why: str
) -> None:
    prepare(run)
    command = [argument.replace("RUN", str(run)) for argument in arguments]
    if command[0] not in ("log", "recover", "pin", "unpin"):
        command.append("--yes")
    before = lying(run)
    result = ckpt(*command)
    assert (result.exit_code, result.stdout) == (code, "")
    [sentence] = [line for line in result.stderr.splitlines() if line.startswith("ckpt: ")]
    assert why.replace("RUN", str(run)) in sentence
    told = document(*command)
    assert told["schema"] == "ckpt.error/1"
    assert told["message"] == sentence.removeprefix("ckpt: ")
    assert lying(run) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["rollback", "RUN", "--to", "a", "--to-step", "8"],
        ["rollback", "RUN", "step_8", "--to-step", "8"],
        ["rollback", "RUN", "--to-step", "-1"],
        ["rollback", "RUN", "--to-step", "newest"],
        ["rollback", "RUN", "--depth", "deep"],
        ["rollback", "RUN", "--to", "", "--yes"],
        ["rollback", "RUN", "", "--yes"],
        ["rollback", "", "--yes"],
        ["pin", "RUN", ""],
        ["unpin", "RUN", ""],
        ["rollback"],
        ["pin", "RUN"],
        ["undo", "RUN", "step_8"],
    ],
)
def test_a_wrong_call_is_a_usage_error_and_touches_nothing(
    run: Path, arguments: list[str]
) -> None:
    before = snapshot(run)
    result = ckpt(*[argument.replace("RUN", str(run)) for argument in arguments])
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert snapshot(run) == before


def on_a_read_only_disk() -> AbstractContextManager[None]:
    """Root writes everywhere whatever the modes say, so the disk's own refusal is needed."""
    writes = {"create", "append", "mkdir", "rename", "exchange", "unlink", "write", "describe"}

    def refuse(call: fs.Call) -> None:
        if call.name in writes:
            raise OSError(errno.EROFS, "Read-only file system", call.path)

    return fs.hooked(refuse)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["rollback", "--yes"], 1, "not changed: read-only file system"),
        (["recover"], 1, "not recovered: read-only file system"),
        (["prune", "--yes", "--keep-last", "0"], 1, "not pruned: read-only file system"),
        (["pin", OLD], 2, "read-only file system"),
    ],
)
def test_a_read_only_run_is_looked_at_and_never_changed(
    run: Path, arguments: list[str], code: int, what: str
) -> None:
    before = snapshot(run)
    with on_a_read_only_disk():
        result = ckpt(arguments[0], run, *arguments[1:])
        assert ckpt("log", run).exit_code == 0
        assert ckpt("rollback", run, "--dry-run").exit_code == 0
        assert ckpt("recover", run, "--dry-run").exit_code == 0
    assert result.exit_code == code
    [sentence] = [line for line in result.stderr.splitlines() if line.startswith("ckpt: ")]
    assert sentence == f"ckpt: {run}/.ckpt: {what}"
    assert snapshot(run) == before


@pytest.mark.parametrize(
    "arguments", [["rollback", "--yes"], ["prune", "--yes", "--keep-last", "0"], ["recover"]]
)
def test_a_busy_run_says_who_is_at_it(run: Path, arguments: list[str]) -> None:
    with swap_lock(run, "another"):
        result = ckpt(arguments[0], run, *arguments[1:], "--json")
    assert result.exit_code == 4
    told = json.loads(result.stdout)
    assert (told["code"], told["path"]) == ("busy", str(run))
    pid, host = os.getpid(), os.uname().nodename
    assert told["message"] == (
        f"{run}: busy: another (pid {pid} on {host}) is changing its checkpoints"
    )
    assert live(run) == {"step_9": LATER, "step_8": NEW}


def test_a_lock_that_a_dead_process_left_stops_nobody(run: Path) -> None:
    code = "import sys, os, pathlib; from ckpt.lock import swap_lock\n"
    code += "with swap_lock(pathlib.Path(sys.argv[1]), 'prune'): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, run], check=False).returncode == 9
    assert (run / ".ckpt" / "lock").read_bytes() != b""
    assert ckpt("rollback", run, "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("take", "why"),
    [
        (take_the_name_for_a_link, "a link stands there"),
        (hold_the_name_by_a_file, "a file stands there"),
        (hold_the_name_by_notes, "what stands there is no checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_never_taken_from_its_name(
    run: Path, take: Callable[[Path], None], why: str
) -> None:
    take(run)
    before = lying(run)
    result = ckpt("rollback", run, "step_8", "--yes")
    assert result.exit_code == 1
    [sentence] = [line for line in result.stderr.splitlines() if line.startswith("ckpt: ")]
    assert sentence == f"ckpt: {run}/step_8: {why}; it is untouched"
    assert ckpt("recover", run).stdout == f"step_8: left alone: {why}\n"
    assert lying(run) == before


def interrupt(name: str, times: int = 1) -> AbstractContextManager[None]:
    """Ctrl-C at the n-th disk call of a kind."""
    left = [times]

    def stop(call: fs.Call) -> None:
        if call.name == name:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    return fs.hooked(stop)


@pytest.mark.parametrize(
    ("at", "times", "message", "is_done"),
    [
        ("exchange", 1, "interrupted: nothing was changed", False),
        ("rename", 1, "interrupted, but the rollback is done", True),
    ],
)
def test_ctrl_c_in_a_swap_says_what_became_of_it(
    run: Path, at: str, times: int, message: str, is_done: bool
) -> None:
    with interrupt(at, times):
        result = ckpt("rollback", run, "--yes", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["message"] == message
    assert live(run)["step_8"] == (OLD if is_done else NEW)
    assert ckpt("recover", run).stdout == "nothing to recover\n"


# ---- documents ------------------------------------------------------------------------------


def test_a_plan_document_has_every_key(run: Path) -> None:
    planned = document("rollback", run, "--dry-run")
    assert list(planned) == PLAN_KEYS
    target = planned.pop("target")
    assert (target["id"], target["state"], target["step"]) == (OLD, "retired", 8)
    assert planned == {
        "schema": "ckpt.plan/1",
        "verb": "rollback",
        "run": str(run),
        "changes": [{"slot": "step_8", "from": NEW, "to": OLD}],
        "given_up": {"steps": 0, "seconds": 0.0},
        "warnings": [f"the bytes of {OLD} were never verified"],
        "frees_bytes": 0,
        "done": False,
        "removed": [],
        "undoes": None,
        "sequence": None,
        "told": [],
        "kept": [],
    }
    done = document("rollback", run, "--yes")
    assert (done["done"], done["sequence"]) == (True, 1)
    undone = document("undo", run, "--yes")
    assert (undone["verb"], undone["done"], undone["undoes"]) == ("undo", True, 1)
    assert undone["changes"] == [{"slot": "step_8", "from": OLD, "to": NEW}]


def test_a_log_document_has_every_key(run: Path) -> None:
    for verb in (("rollback",), ("undo",), ("rollback", "--to-step", "8")):
        assert ckpt(verb[0], run, *verb[1:], "--yes").exit_code == 0
    told = document("log", run)
    assert list(told) == ["schema", "run", "entries", "findings"]
    assert (told["schema"], told["run"], told["findings"]) == ("ckpt.log/1", str(run), [])
    entries = told["entries"]
    assert [list(entry) for entry in entries] == [ENTRY_KEYS] * 3
    assert [entry["by"].partition(" (pid ")[0] for entry in entries] == [
        "rollback", "undo", "withdraw",
    ]  # fmt: skip
    kept = ("sequence", "verb", "slot", "from", "to", "done", "undone_by", "undoes", "outcome")
    assert [tuple(entry[key] for key in kept) for entry in entries] == [
        (1, "rollback", "step_8", NEW, OLD, True, 2, None, "done"),
        (2, "undo", "step_8", OLD, NEW, True, None, 1, "done"),
        (3, "withdraw", "step_9", LATER, None, True, None, None, "done"),
    ]


def test_what_changed_several_slots_is_one_entry_for_each(run: Path) -> None:
    save(run / "step_10", 10, "dddddddddddd")
    ckpt("rollback", run, "--to-step", "8", "--yes")
    assert [(each["sequence"], each["slot"]) for each in document("log", run)["entries"]] == [
        (1, "step_10"), (1, "step_9"),
    ]  # fmt: skip


# ---- the journal ----------------------------------------------------------------------------


def test_the_log_shows_the_newest_first_and_what_was_undone(run: Path) -> None:
    ckpt("rollback", run, "--yes")
    ckpt("undo", run, "--yes")
    lines = [line.split("  ") for line in ckpt("log", run).stdout.splitlines()]
    words = [[part.strip() for part in line if part.strip()] for line in lines]
    assert [line[:7] for line in words] == [
        ["#", "when", "what", "slot", "from", "to", "outcome"],
        ["2", "just now", "undo of #1", "step_8", OLD, NEW, "done"],
        ["1", "just now", "rollback", "step_8", NEW, OLD, "undone by #2"],
    ]


def test_an_interrupted_entry_is_said_and_recovered(run: Path) -> None:
    assert ckpt("log", run).stdout == f"{run}: nothing was done to its checkpoints yet\n"
    reflog.intend(run, "rollback", (Change("step_8", NEW, OLD),))
    (run / "step_8").rename(run / ".step_8.retired-new")
    said = ckpt("log", run).stdout
    assert "✗ interrupted" in said
    assert said.endswith(f" ! interrupted: ckpt recover {run} ends it\n")
    assert document("log", run)["entries"][0]["outcome"] is None

    before = snapshot(run)
    planned = document("recover", run, "--dry-run")
    assert (planned["changes"], planned["done"]) == (
        [{"slot": "step_8", "from": None, "to": OLD}], False,
    )  # fmt: skip
    assert planned["warnings"] == ["rollback 1 was cut off"]
    assert snapshot(run) == before

    done = document("recover", run)
    assert done["told"] == ["rollback 1 of step_8: ended what was cut off"]
    assert done["changes"] == [{"slot": "step_8", "from": NEW, "to": OLD}]
    assert (done["verb"], done["done"]) == ("recover", True)
    assert live(run) == {"step_9": LATER, "step_8": OLD}
    assert ckpt("recover", run).stdout == "nothing to recover\n"


def test_a_journal_with_damage_is_read_around_and_a_torn_tail_mended(run: Path) -> None:
    ckpt("rollback", run, "--yes")
    ckpt("undo", run, "--yes")
    path = run / ".ckpt" / "reflog"
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-1] + bytes([lines[1][-1] ^ 1])
    path.write_bytes(b"\n".join(lines) + b"0123 {")
    result = ckpt("log", run)
    assert result.exit_code == 0
    assert "bad-reflog  reflog: damaged lines passed over: 1" in result.stdout
    assert "torn-reflog  reflog: ends in 6 bytes that are no whole line" in result.stdout
    assert {each["code"] for each in document("log", run)["findings"]} == {
        "bad-reflog", "torn-reflog",
    }  # fmt: skip
    assert ckpt("recover", run).exit_code == 0
    assert {each["code"] for each in document("log", run)["findings"]} == {"bad-reflog"}
    assert live(run) == {"step_9": LATER, "step_8": NEW}


@pytest.mark.parametrize(
    "arguments",
    [("log",), ("undo", "--yes"), ("undo", "--dry-run"), ("rollback", "--yes"), ("recover",)],
)
def test_a_journal_that_cannot_be_read_is_no_empty_one(
    run: Path, arguments: tuple[str, ...]
) -> None:
    ckpt("rollback", run, "--yes")
    path = run / ".ckpt" / "reflog"
    path.unlink()
    path.mkdir()
    before = lying(run)
    result = ckpt(arguments[0], run, *arguments[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    [sentence] = [line for line in result.stderr.splitlines() if line.startswith("ckpt: ")]
    assert sentence.startswith(f"ckpt: {path}: ")
    assert lying(run) == before


def test_a_dead_writers_half_payload_is_swept_and_told(run: Path) -> None:
    half = run / ".step_9.tmp-0123456789ab"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    said = ckpt("recover", run, "--dry-run").stdout
    assert "step_9: .step_9.tmp-0123456789ab: unfinished save" in said
    result = ckpt("recover", run)
    assert result.exit_code == 0
    assert result.stdout.startswith("step_9: removed .step_9.tmp-0123456789ab: unfinished save")
    assert not half.exists()


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("append", errno.ENOSPC, "RUN/.ckpt/reflog: not changed: no space left on device"),
        ("append", errno.EDQUOT, "RUN/.ckpt/reflog: not changed: disk quota exceeded"),
        ("exchange", errno.EIO, "RUN: rollback: not done: everything is as it was: input/output"),
        ("rename", errno.ENOSPC, "RUN: rollback: done, but not known to be durable: no space"),
    ],
)
def test_a_disk_that_refuses_half_way_leaves_a_checkpoint_live_and_says_which(
    run: Path, name: str, number: int, message: str
) -> None:
    refused: list[str] = []

    def refuse(call: fs.Call) -> None:
        if call.name == name and not refused:
            refused.append(call.path)
            raise OSError(number, os.strerror(number), call.path)

    with fs.hooked(refuse):
        result = ckpt("rollback", run, "--yes")
    assert refused
    assert result.exit_code == 1
    assert f"ckpt: {message.replace('RUN', str(run))}" in result.stderr
    assert live(run)["step_8"] == (OLD if "done, but" in message else NEW)
    assert ids(run) == {OLD, NEW, LATER}


def test_a_long_journal_keeps_its_newest_entries_in_sight(run: Path) -> None:
    for number in range(101):
        sequence = reflog.intend(run, "publish", (Change("step_9", None, f"{number:012x}"),))
        reflog.conclude(run, sequence, reflog.Outcome.DONE)
    assert len(ckpt("log", run).stdout.splitlines()) == 102
    _, said = OnTerminal("log", run).answer("")
    assert len(said.splitlines()) == 102
    assert said.splitlines()[-1] == f" … 1 more: ckpt log {run} | less"


def test_names_from_a_disk_never_reach_the_terminal_raw(run: Path) -> None:
    name = "step_9\x1b[31m\u202ered"
    (run / "step_8").rename(run / name)
    (run / ".step_8.retired-old").rename(run / f".{name}.retired-old")
    said = "".join(
        [
            (result := ckpt(*arguments)).stdout + result.stderr
            for arguments in (
                ("rollback", run, "--dry-run"),
                ("rollback", run, "--yes"),
                ("log", run),
                ("undo", run, "--yes"),
                ("pin", run, OLD),
                ("rollback", run, "\x1b[31m", "--yes"),
            )
        ]
    )
    assert "step_9\\x1b[31m\\u202ered" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


# ---- prunes ---------------------------------------------------------------------------------


@pytest.fixture
def long_run(run: Path) -> Path:
    """Two more that were live before the two of step 8, and one of them pinned."""
    save(run / ".step_8.retired-1", 6, "111111111111", 4.0)
    save(run / ".step_8.retired-2", 7, "222222222222", 5.0)
    ckpt("pin", run, "2222")
    return run


def ids(run: Path) -> set[str]:
    return {each.id for slot in scan(run) for each in slot.generations}


def test_a_prune_shows_what_goes_and_why_the_rest_stays(long_run: Path) -> None:
    before = snapshot(long_run)
    result = ckpt("prune", long_run, "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [
        [part.strip() for part in line.split("  ") if part.strip()]
        for line in result.stdout.splitlines()
    ]
    [freed] = {line[1] for line in lines if line[0] == "freed"}
    assert [line[:3] for line in lines] == [
        ["prune step_8"],
        ["is deleted", "step_8", "111111111111"],
        ["freed", freed],
        ["stays", "1", "pinned"],
        ["stays", "1", "among the last 1 of its slot"],
    ]
    assert [line[3] for line in lines[3:]] == ["step_8@222222222222", f"step_8@{OLD}"]
    assert lines[1][3].endswith(freed)
    assert snapshot(long_run) == before


def test_a_prune_deletes_what_was_agreed_to_and_nothing_else(long_run: Path) -> None:
    before = lying(long_run)
    planned = document("prune", long_run, "--dry-run")
    result = ckpt("prune", long_run, "--yes")
    assert result.exit_code == 0
    freed = planned["frees_bytes"]
    assert result.stdout == f"1 generation deleted, {freed} B freed\n"
    assert lying(long_run) == {
        name: data for name, data in before.items() if not name.startswith(".step_8.retired-1")
    }
    assert ckpt("prune", long_run, "--yes").stdout == "nothing to prune\n"


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ([], {"111111111111"}),
        (["--keep-last", "0"], {"111111111111", OLD}),
        (["--keep-last", "2"], {"111111111111"}),
        (["--keep-every", "6"], {OLD}),
        (["--keep-every", "6", "--keep-last", "1"], set()),
        (["--keep-for", "20000d"], set()),
        (["--keep-for", "5 min"], {"111111111111", OLD}),
        (["--max-bytes", "1GB"], set()),
        (["--max-bytes", "0"], {"111111111111", OLD}),
        (["--keep-best", "0"], {"111111111111", OLD}),
    ],
)
def test_policies_are_chosen_by_options(
    long_run: Path, options: list[str], gone: set[str]
) -> None:
    before = ids(long_run)
    done = document("prune", long_run, *options, "--yes")
    assert {each["id"] for each in done["removed"]} == gone
    assert before - ids(long_run) == gone
    assert {each["generation"] for each in done["kept"]} == {
        "111111111111", "222222222222", OLD,
    } - gone  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--keep-last", "-1"],
        ["--keep-last", "all"],
        ["--max-bytes", "20 potatoes"],
        ["--max-bytes", "-1"],
        ["--max-bytes", "9" * 400],
        ["--keep-for", "1 month"],
        ["--keep-for", "\u0663d"],
    ],
)
def test_a_policy_that_makes_no_sense_is_a_usage_error(run: Path, options: list[str]) -> None:
    before = snapshot(run)
    result = ckpt("prune", run, *options, "--yes")
    assert result.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in result.stderr
    assert snapshot(run) == before


def test_a_prune_is_asked_about_and_never_done_unasked(long_run: Path) -> None:
    before = snapshot(long_run)
    assert ckpt("prune", long_run).exit_code == 2
    asked = OnTerminal("prune", long_run)
    asked.until("Do it? [y/N] ")
    assert asked.answer("\n")[0] == 1
    assert snapshot(long_run) == before


def test_a_prune_that_grew_old_while_it_was_asked_about_is_refused(long_run: Path) -> None:
    asked = OnTerminal("prune", long_run)
    asked.until("Do it? [y/N] ")
    ckpt("pin", long_run, "1111")
    before = lying(long_run)
    code, said = asked.answer("y\n")
    assert code == 4
    assert "step_8: generation 111111111111 stays: pinned" in said
    assert lying(long_run) == before


# ---- pins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OLD, "aa", f"step_8@{OLD}", "step_8@a"])
def test_a_generation_is_pinned_by_any_name_that_is_one(run: Path, name: str) -> None:
    result = ckpt("pin", run, name)
    assert result.stdout == f"{OLD} of step_8 is pinned: no prune takes it\n"
    assert read_pins(run) == {OLD}
    assert document("pin", run, name) == {
        "schema": "ckpt.pin/1", "run": str(run), "slots": ["step_8"], "generation": OLD,
        "pinned": True,
    }  # fmt: skip
    result = ckpt("unpin", run, name)
    assert result.stdout == f"{OLD} of step_8 is pinned no more\n"
    assert read_pins(run) == set()


def test_a_beginning_that_means_two_generations_is_no_name(run: Path) -> None:
    save(run / ".step_8.retired-older", 8, "aaaabbbbcccc")
    result = ckpt("pin", run, "aaaa")
    assert result.exit_code == 2
    assert "more than one generation begins with aaaa" in result.stderr
    assert f"step_8@{OLD}" in result.stderr
    assert "step_8@aaaabbbbcccc" in result.stderr
    assert read_pins(run) == set()
    assert ckpt("pin", run, "aaaab").exit_code == 0


def test_what_is_gone_can_still_be_unpinned(run: Path) -> None:
    ckpt("pin", run, OLD)
    remove_target(run)
    result = ckpt("unpin", run, "aaa")
    assert result.stdout == f"{OLD} is pinned no more\n"
    assert read_pins(run) == set()


# ---- a guard --------------------------------------------------------------------------------


def publish_as_a_foreign_trainer_does(run: Path, step: int) -> None:
    """Stage beside the name, rename, and delete what was there before."""
    put_checkpoint(run / ".last.tmp-foreign0", step)
    if (run / "last").exists():
        (run / "last").rename(run / ".last.retired-foreign0")
    (run / ".last.tmp-foreign0").rename(run / "last")
    shutil.rmtree(run / ".last.retired-foreign0", ignore_errors=True)


def test_a_guard_keeps_what_a_trainer_deletes_until_it_is_stopped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    publish_as_a_foreign_trainer_does(run, 8)
    guard = subprocess.Popen(
        [*PROGRAM, "guard", str(run), "--poll", "0.1"], stdout=subprocess.PIPE, text=True
    )
    assert guard.stdout is not None
    assert "guarding" in guard.stdout.readline()
    assert guard.stdout.readline().endswith(", step 8\n")
    publish_as_a_foreign_trainer_does(run, 9)
    assert guard.stdout.readline().endswith(", step 9\n")
    guard.terminate()
    said, _ = guard.communicate(timeout=20)
    assert said.splitlines()[-1] == "stopped: 2 generations kept"
    assert guard.returncode == 0
    before = (run / "last" / "model.safetensors").read_bytes()
    result = ckpt("rollback", run, "--yes")
    assert result.exit_code == 0
    assert (run / "last" / "model.safetensors").read_bytes() != before
    assert document("log", run)["entries"][-1]["verb"] == "rollback"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_guard_told_as_a_document(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    run.mkdir()
    publish_as_a_foreign_trainer_does(run, 8)
    guard = subprocess.Popen(
        [*PROGRAM, "guard", str(run), "--json"], stdout=subprocess.PIPE, text=True
    )
    while not any(run.glob(".last.retired-*")):
        time.sleep(0.02)
        assert guard.poll() is None
    guard.send_signal(number)
    said, _ = guard.communicate(timeout=20)
    told = json.loads(said)
    assert list(told) == ["schema", "run", "kept", "told"]
    assert (told["schema"], told["kept"]) == ("ckpt.guard/1", 1)


def test_a_guard_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    result = ckpt("guard", tmp_path / "no")
    assert result.exit_code == 2
    assert result.stderr == f"ckpt: {tmp_path}/no: no such directory\n"


# ---- a self-test ----------------------------------------------------------------------------

GOOD = Promise("survives-crashes", True, 400, "nothing is lost")
MISSING = Promise("reflinks", None, 1, "not here, and not needed")
BROKEN = Promise("exchange", False, 1, "it reported success\x1b and swapped nothing")


def as_if_found(*promises: Promise) -> Callable[[Path], Operation[SelfTest]]:
    """A suite that ends at once: the real one takes a minute and has tests of its own."""

    def run(directory: Path) -> Operation[SelfTest]:
        yield Note("trying")
        return SelfTest(directory, 401, 2.0, promises)

    return run


def test_a_self_test_in_which_every_promise_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.selftest.run", as_if_found(GOOD, MISSING))
    result = ckpt("selftest", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["promise", "holds", "cases", "detail"],
        ["survives-crashes", "✓", "holds", "400", "nothing", "is", "lost"],
        ["reflinks", "·", "not", "here", "1", "not", "here,", "and", "not", "needed"],
        f"every promise holds in {tmp_path}: 401 cases in 2.0 s".split(),
    ]
    assert document("selftest", tmp_path) == {
        "schema": "ckpt.selftest/1",
        "path": str(tmp_path),
        "cases": 401,
        "seconds": 2.0,
        "promises": [
            {"code": "survives-crashes", "holds": True, "cases": 400, "detail": "nothing is lost"},
            {"code": "reflinks", "holds": None, "cases": 1, "detail": "not here, and not needed"},
        ],
    }


def test_a_broken_promise_is_said_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.selftest.run", as_if_found(GOOD, BROKEN))
    result = ckpt("selftest", tmp_path)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == [
        " ✗ exchange: it reported success\\x1b and swapped nothing",
        f" broken promises: 1 in {tmp_path}: 401 cases in 2.0 s",
    ]


@pytest.mark.parametrize("name", ["no", "file"])
def test_a_self_test_needs_a_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    before = snapshot(tmp_path)
    result = ckpt("selftest", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    [sentence, _hint] = result.stderr.splitlines()
    assert sentence.startswith(f"ckpt: {tmp_path}/{name}: cannot be tested: ")
    assert snapshot(tmp_path) == before
