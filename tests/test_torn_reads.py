"""Readers while the name is swapped all the time, and many writers at one name."""

import os
import subprocess
import sys
import time
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import State, Verdict
from ckpt.generations import scan
from ckpt.operation import drive
from ckpt.selftest import deeds
from ckpt.selftest.oracles import Expected, judge
from ckpt.selftest.tree import label_of
from ckpt.verify import verify

ROOT = Path(__file__).parent.parent
SECONDS = float(os.environ.get("CKPT_SWAPPING_S", "3"))

SWAPPER = """
import sys, time
from pathlib import Path
from ckpt.selftest import deeds
run, until = Path(sys.argv[1]), time.time() + float(sys.argv[2])
swaps = 0
while time.time() < until:
    deeds.roll_back(run)
    swaps += 1
print(swaps)
"""

WRITER = """
import sys
from pathlib import Path
from ckpt.errors import Busy
from ckpt.selftest import deeds
run, first = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for label in range(first, first + int(sys.argv[3])):
    deeds.save(run, "step_1", label)
print("done")
"""


def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def read_through(path: Path) -> int | None:
    """Read all of a checkpoint through one descriptor of its directory."""
    with fs.Directory(path) as directory:
        return label_of(Path(directory.inside(".")))


def test_readers_meet_no_torn_checkpoint_while_it_is_swapped(tmp_path: Path) -> None:
    deeds.save(tmp_path, "step_1", 1)
    deeds.save(tmp_path, "step_1", 2)
    path = tmp_path / "step_1"
    torn: list[str] = []
    seen: list[int | None] = []
    verified = 0
    with start(SWAPPER, tmp_path, SECONDS) as swapper:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            label = read_through(path)
            seen.append(label)
            if label is None:
                torn.append("through a descriptor")
            report = drive(verify(path))
            verified += 1
            if report.verdict is not Verdict.INTACT:
                torn.append(f"by verify: {report.findings}")
        told, _ = swapper.communicate()
    swaps = int(told)
    print(f"{swaps} swaps, {len(seen)} reads through a descriptor, {verified} verifications")
    assert torn == []
    assert swaps > 10
    assert {1, 2} <= set(seen)
    (slot,) = scan(tmp_path)
    assert slot.state is State.LIVE


def many_writers(run: Path, count: int, saves: int) -> None:
    writers = [start(WRITER, run, 1 + number * saves, saves) for number in range(count)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outcomes = [writer.communicate()[0] for writer in writers]
    assert outcomes == ["done\n"] * count
    (slot,) = scan(run)
    assert slot.live is not None
    last = label_of(slot.live.path)
    labels = frozenset(range(1, 1 + count * saves))
    expected = Expected({"step_1": last}, {"step_1": last}, labels)
    assert last in labels
    assert list(judge(run, expected)) == []


def test_two_writers_at_one_name_lose_nothing_of_each_other(tmp_path: Path) -> None:
    many_writers(tmp_path, 2, 6)


def test_sixteen_writers_at_one_name_lose_nothing_of_each_other(tmp_path: Path) -> None:
    many_writers(tmp_path, 16, 1)


def test_files_that_nfs_holds_are_left_for_later_and_are_no_generation(tmp_path: Path) -> None:
    for label in (1, 2, 3):
        deeds.save(tmp_path, "step_1", label)

    def hold(call: fs.Call) -> None:
        if call.name == "rmdir" and ".trash-" in call.path:
            raise OSError(39, "Directory not empty", call.path)

    with fs.hooked(hold):
        deeds.prune(tmp_path, keep_last=1)
    (trash,) = tmp_path.glob(".step_1.trash-*")
    (trash / ".nfs0001").write_bytes(b"held")
    deeds.recover(tmp_path)
    assert trash.exists()
    (slot,) = scan(tmp_path)
    assert sorted(label_of(each.path) or 0 for each in slot.generations) == [2, 3]
    (trash / ".nfs0001").unlink()
    deeds.recover(tmp_path)
    assert not trash.exists()
    expected = Expected({"step_1": 3}, {"step_1": 3}, frozenset({2, 3}))
    assert list(judge(tmp_path, expected)) == []
