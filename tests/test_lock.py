"""Locks end with their holder, name them, and are never broken while they live."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.errors import Busy
from ckpt.lock import forget_dead_writers, own, swap_lock, writer_of, writing

HOLD = """
import sys, time
from pathlib import Path
from ckpt.lock import swap_lock, writing
with {context}:
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(run: Path, context: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds something until it is killed."""
    code = HOLD.format(context=context.format(run=f"Path({str(run)!r})"))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


def test_the_holder_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path, "swap_lock({run}, 'rollback')") as child:
        with pytest.raises(Busy) as caught, swap_lock(tmp_path, "prune", wait_s=0):
            pass
        who = f"rollback (pid {child.pid} on {os.uname().nodename})"
        assert caught.value.message == f"{tmp_path}: busy: {who} is changing its checkpoints"
    with swap_lock(tmp_path, "prune", wait_s=0):
        pass


def test_a_saver_waits_for_a_swap(tmp_path: Path) -> None:
    with holder(tmp_path, "swap_lock({run}, 'rollback')") as child:
        tried = threading.Event()
        killer = threading.Thread(target=lambda: (tried.wait(), child.kill()))
        killer.start()

        def see(call: fs.Call) -> None:
            if call.name == "flock":
                tried.set()

        with fs.hooked(see), swap_lock(tmp_path, "publish"):
            assert child.wait() == -9
        killer.join()


def test_a_claim_lasts_as_long_as_its_writer(tmp_path: Path) -> None:
    with holder(tmp_path, "writing({run}, 'aabbccddeeff', 'step_5')") as child:
        words = f"the save of step_5 (pid {child.pid} on {os.uname().nodename})"
        assert writer_of(tmp_path, "aabbccddeeff") == words
        forget_dead_writers(tmp_path)
        assert writer_of(tmp_path, "aabbccddeeff") == words
    assert writer_of(tmp_path, "aabbccddeeff") is None
    assert writer_of(tmp_path, "000000000000") is None
    forget_dead_writers(tmp_path)
    assert list((tmp_path / ".ckpt" / "writers").iterdir()) == []


def test_a_finished_save_leaves_no_claim(tmp_path: Path) -> None:
    with writing(tmp_path, "aabbccddeeff", "step_5"):
        assert writer_of(tmp_path, "aabbccddeeff") is not None
    assert writer_of(tmp_path, "aabbccddeeff") is None


def without_flock(call: fs.Call) -> None:
    if call.name == "flock":
        raise OSError(95, "Operation not supported", call.path)


def test_without_kernel_locks_a_file_names_the_holder(tmp_path: Path) -> None:
    with fs.hooked(without_flock):
        with swap_lock(tmp_path, "rollback", wait_s=0):
            with pytest.raises(Busy, match="busy: rollback"), swap_lock(tmp_path, "x", wait_s=0):
                pass
            assert (tmp_path / ".ckpt" / "lock.held").exists()
        with swap_lock(tmp_path, "undo", wait_s=0):
            pass
    assert not (tmp_path / ".ckpt" / "lock.held").exists()


@pytest.mark.parametrize(
    ("changes", "is_free"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"started": 1}, True),
        ({"boot": "another boot"}, True),
        ({"host": "other"}, False),
        ({"host": "other", "at": 1e9}, True),
    ],
)
def test_a_lock_left_behind_is_taken_over_only_from_the_dead(
    tmp_path: Path, changes: dict[str, object], is_free: bool
) -> None:
    held = tmp_path / ".ckpt" / "lock.held"
    held.parent.mkdir()
    held.write_text(json.dumps(asdict(replace(own("rollback"), **changes))))
    with fs.hooked(without_flock):
        if is_free:
            with swap_lock(tmp_path, "prune", wait_s=0):
                pass
        else:
            with pytest.raises(Busy), swap_lock(tmp_path, "prune", wait_s=0):
                pass
            assert held.exists()


@pytest.mark.parametrize(("age_s", "is_free"), [(0, False), (60, True)])
def test_a_lock_that_names_nobody_is_believed_for_a_moment(
    tmp_path: Path, age_s: float, is_free: bool
) -> None:
    held = tmp_path / ".ckpt" / "lock.held"
    held.parent.mkdir()
    held.write_bytes(b"")
    os.utime(held, (time.time() - age_s, time.time() - age_s))
    with fs.hooked(without_flock):
        if is_free:
            with swap_lock(tmp_path, "prune", wait_s=0):
                pass
        else:
            with pytest.raises(Busy, match="another process"), swap_lock(tmp_path, "x", wait_s=0):
                pass


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".ckpt").mkdir()
    victim = tmp_path / "thesis.tex"
    victim.write_text("mine")
    (tmp_path / ".ckpt" / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"), swap_lock(tmp_path, "x", wait_s=0):
        pass
    assert victim.read_text() == "mine"
