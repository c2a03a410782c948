"""A disk that has no room, or refuses: walked down page by page, at a limit, or read-only."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = 4096

FULL = """
import errno, os, sys
from pathlib import Path
from ckpt.errors import CheckpointError
from ckpt.selftest import deeds
from ckpt.selftest.oracles import Expected, judge

root = Path(sys.argv[1])
run, ballast = root / "run", root / "ballast"
run.mkdir()
deeds.save(run, "step_1", 1)
deeds.save(run, "step_1", 2)
live, kept, refused, done = 2, {1, 2}, 0, 0
for pages in range(0, 40):
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    size = free - pages * 4096
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    made = 3 + pages
    try:
        deeds.save(run, "step_1", made)
        expected = Expected({"step_1": made}, {"step_1": made}, frozenset(kept), made)
        done += 1
    except CheckpointError as error:
        assert "No space left" in str(error) or "not known" in str(error), error
        expected = Expected({"step_1": live}, {"step_1": made}, frozenset(kept), made)
        refused += 1
    for attempt in ("full", "room"):
        if attempt == "room":
            ballast.unlink()
        else:
            from ckpt.generations import resolve, scan
            from ckpt.selftest.tree import label_of
            (slot,) = scan(run)
            assert label_of(resolve(slot).path) in (live, made), (pages, "while full")
            continue
        wrong = list(judge(run, expected))
        assert not wrong, (pages, wrong)
    (slot,) = scan(run)
    label = label_of(slot.live.path)
    if label == made:
        live = made
        kept.add(made)
    if done >= 3:
        break
print(refused, done)
"""

READ_ONLY = """
import sys
from pathlib import Path
from ckpt.errors import CheckpointError
from ckpt.generations import resolve, scan
from ckpt.selftest import deeds
from ckpt.selftest.tree import label_of, take

run = Path(sys.argv[1]) / "run"
before = take(run)
told = 0
for act in (
    lambda: deeds.save(run, "step_1", 3),
    lambda: deeds.save(run, "step_2", 3),
    lambda: deeds.roll_back(run),
    lambda: deeds.undo(run),
    lambda: deeds.recover(run),
    lambda: deeds.prune(run, keep_last=0),
):
    try:
        act()
    except CheckpointError as error:
        assert "read-only file system" in str(error).lower(), error
        told += 1
(slot,) = scan(run)
assert label_of(resolve(slot).path) == 2
assert take(run) == before
print(told)
"""

ELSEWHERE = """
import os, sys
from pathlib import Path
from ckpt.errors import CheckpointError
from ckpt.selftest import deeds
from ckpt.selftest.oracles import Expected, judge

root = Path(sys.argv[1])
run = root.parent / "run"
run.mkdir()
os.symlink(root, run / "there")
deeds.save(run, "there/step_1", 1)
deeds.save(run, "there/step_1", 2)
try:
    deeds.save(run, "there", 3)
    raise SystemExit("a link was published over")
except CheckpointError as error:
    print(error)
assert os.path.islink(run / "there")
"""


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    return done.returncode == 0


in_own_mounts = pytest.mark.skipif(not may_mount(), reason="mounts of one's own are not permitted")


def mounted(point: Path, options: str, *scripts: str, between: str = "true") -> list[str]:
    """Run scripts one after another on a tmpfs of their own; return what each printed."""
    point.mkdir()
    files = []
    for number, script in enumerate(scripts):
        files.append(point.parent / f"script_{number}.py")
        files[-1].write_text(script)
    run = [f"{sys.executable} {file} {point}" for file in files]
    command = f"mount -t tmpfs -o {options} none {point} && " + f" && {between} && ".join(run)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")


@in_own_mounts
def test_a_disk_that_fills_up_page_by_page_loses_nothing(tmp_path: Path) -> None:
    told, *_ = mounted(tmp_path / "small", "size=2m", FULL)
    refused, done = map(int, told.split())
    print(f"{refused} refused, {done} saved")
    assert refused >= 5
    assert done >= 3


@in_own_mounts
def test_a_read_only_mount_is_told_in_words_and_read_from(tmp_path: Path) -> None:
    prepare = (
        "import sys\nfrom pathlib import Path\nfrom ckpt.selftest import deeds\n"
        "run = Path(sys.argv[1]) / 'run'\nrun.mkdir()\n"
        "deeds.save(run, 'step_1', 1)\ndeeds.save(run, 'step_1', 2)\n"
    )
    point = tmp_path / "disk"
    told = mounted(
        point, "size=8m", prepare, READ_ONLY, between=f"mount -o remount,ro none {point}"
    )
    assert told[0] == "6"


@in_own_mounts
def test_a_slot_that_is_a_link_to_another_file_system_is_untouched(tmp_path: Path) -> None:
    told = mounted(tmp_path / "other", "size=8m", ELSEWHERE)
    assert "a link stands there; it is untouched" in told[0]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from ckpt.errors import CheckpointError
from ckpt.selftest import deeds

run = Path(sys.argv[1])
if sys.argv[3] == "ignored":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
else:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    deeds.save(run, "step_1", 3)
except CheckpointError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(error)
"""


@pytest.mark.parametrize("signal_is", ["ignored", "deadly"])
@pytest.mark.parametrize("limit", [0, 16, 64, 150, 400])
def test_a_limit_of_file_size_loses_nothing(tmp_path: Path, limit: int, signal_is: str) -> None:
    from ckpt.selftest import deeds
    from ckpt.selftest.oracles import Expected, judge

    deeds.save(tmp_path, "step_1", 1)
    deeds.save(tmp_path, "step_1", 2)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(limit), signal_is],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if signal_is == "ignored":
        assert "File too large" in done.stdout, done.stderr
    else:
        assert done.returncode == -25, done.stderr
    expected = Expected({"step_1": 2}, {"step_1": 3}, frozenset({1, 2}), made=3)
    assert list(judge(tmp_path, expected)) == []
    deeds.save(tmp_path, "step_1", 4)
    after = Expected({"step_1": 4}, {"step_1": 4}, frozenset({1, 2}))
    assert list(judge(tmp_path, after)) == []
