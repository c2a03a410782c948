"""The portable suite: what it promises, what it notices, and that it leaves nothing behind."""

import errno
import os
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.errors import PublishError
from ckpt.operation import Note, drive
from ckpt.selftest import SelfTest, running
from ckpt.selftest.broken import try_broken
from ckpt.selftest.probes import Promise, probe_all
from ckpt.selftest.scenarios import ROLL_BACK

CODES = [
    "survives-crashes",
    "survives-crashes-in-recovery",
    "survives-errors",
    "survives-power-cuts",
    "notices-dropped-fsync",
    "notices-deleting-clean-up",
    "exchange",
    "no-replace",
    "directory-fsync",
    "flock",
    "hard-links",
    "reflinks",
    "case-sensitive",
    "name-length",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scenario instead of all of them: the others have tests of their own."""
    monkeypatch.setattr(running, "SCENARIOS", (ROLL_BACK,))


def by_code(done: SelfTest) -> dict[str, Promise]:
    return {promise.code: promise for promise in done.promises}


def test_every_promise_is_told_and_nothing_is_left(tmp_path: Path, small: None) -> None:
    events: list[object] = []
    done = drive(running.run(tmp_path), events.append)
    assert [promise.code for promise in done.promises] == CODES
    assert [promise for promise in done.promises if promise.holds is False] == []
    assert done.holds
    assert done.cases == sum(promise.cases for promise in done.promises) > 150
    assert os.listdir(tmp_path) == []
    assert Note("trying protocols that are broken on purpose") in events


def test_a_disk_without_exchange_or_locks_breaks_no_promise(tmp_path: Path, small: None) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name in ("exchange", "flock", "link", "clone"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", call.path)

    with fs.hooked(refuse):
        done = drive(running.run(tmp_path))
    told = by_code(done)
    assert [told[code].holds for code in ("exchange", "flock", "hard-links", "reflinks")] == [
        None, None, None, None,
    ]  # fmt: skip
    assert told["exchange"].detail == "not here: two renames with an fsync between are used"
    assert done.holds, [each for each in done.promises if each.holds is False]


def test_a_disk_that_cannot_make_names_durable_breaks_the_promise(
    tmp_path: Path, small: None
) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "fsync-directory":
            raise OSError(errno.EINVAL, "Invalid argument", call.path)

    with fs.hooked(refuse):
        done = drive(running.run(tmp_path))
    assert by_code(done)["directory-fsync"].holds is False
    assert not done.holds
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", [2, 5])
def test_stopping_leaves_nothing(tmp_path: Path, small: None, moment: int) -> None:
    operation = running.run(tmp_path)
    next(operation)
    next(operation)
    assert len(os.listdir(tmp_path)) == 1
    operation.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", [40, 4000, 20000])
def test_a_users_ctrl_c_at_any_moment_leaves_nothing(
    tmp_path: Path, small: None, moment: int
) -> None:
    count = 0

    def interrupt(call: fs.Call) -> None:
        nonlocal count
        count += 1
        if count == moment:
            raise KeyboardInterrupt

    with fs.hooked(interrupt), pytest.raises(KeyboardInterrupt):
        drive(running.run(tmp_path))
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot be tested: no such file or directory"):
        drive(running.run(tmp_path / "nothing"))


def test_broken_protocols_are_noticed(tmp_path: Path) -> None:
    promises = list(try_broken(tmp_path / "broken"))
    assert [(each.code, each.holds) for each in promises] == [
        ("notices-dropped-fsync", True),
        ("notices-deleting-clean-up", True),
    ]


def test_the_file_system_here_keeps_its_promises(tmp_path: Path) -> None:
    told = {promise.code: promise.holds for promise in probe_all(tmp_path)}
    kept = ("no-replace", "directory-fsync")
    assert {code: told[code] for code in kept} == dict.fromkeys(kept, True)
