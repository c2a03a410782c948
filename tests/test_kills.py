"""Real SIGKILLs: strace kills a child at its k-th system call that changes the disk.

Covers what the hook of `ckpt.fs` cannot see, in a process that really dies.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt.selftest import deeds
from ckpt.selftest.oracles import Expected, judge
from ckpt.selftest.scenarios import OVER, ROLL_BACK, Scenario
from ckpt.selftest.tree import put, take

ROOT = Path(__file__).parent.parent
MOMENTS = int(os.environ.get("CKPT_KILLS", "12"))
CALLS = (
    "mkdir,mkdirat,openat,write,pwrite64,pwritev,fallocate,ftruncate,fsync,fdatasync,rename,"
    "renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,flock"
)
CHILD = """
import sys
from pathlib import Path
from ckpt.selftest import deeds
run = Path(sys.argv[2])
deeds.{act}
sys.stdout.write("done")
"""
MARK = "/.ckpt/"

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def child(run: Path, act: str, *strace: str) -> "subprocess.CompletedProcess[str]":
    code = CHILD.format(act=act)
    return subprocess.run(
        ["strace", "-f", "-qq", *strace, sys.executable, "-c", code, "-", str(run)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=60,
    )


def only_in(run: Path) -> list[str]:
    """Count and hit only calls on paths in the run: not what Python does to start."""
    return [f"--trace-path={path}" for path in sorted({str(run), *map(str, run.rglob("*"))})]


def first_call_in(trace: str, run: Path) -> tuple[int, int]:
    """Of all calls counted, the first that concerns the run, and the last."""
    lines = [line for line in trace.splitlines() if "resumed" not in line and "(" in line]
    concerned = [at for at, line in enumerate(lines, start=1) if str(run) in line]
    return concerned[0], len(lines)


def can_inject(tmp_path: Path) -> bool:
    done = subprocess.run(
        ["strace", "-qq", "-e", "trace=mkdir", "-e", "inject=mkdir:signal=KILL:when=1",
         "mkdir", str(tmp_path / "probe")],
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode in (-9, 137)


@pytest.mark.parametrize(
    ("scenario", "act"),
    [
        pytest.param(OVER, 'save(run, "step_1", 3)', id="save"),
        pytest.param(ROLL_BACK, "roll_back(run)", id="roll back"),
    ],
)
def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path, scenario: Scenario, act: str) -> None:
    if not can_inject(tmp_path):
        pytest.skip("this process may not trace others")
    run = tmp_path / "run"
    run.mkdir()
    scenario.prepare(run)
    picture = take(run)
    log = tmp_path / "trace"
    whole = child(run, act, "-e", f"trace={CALLS}", "-o", str(log))
    assert whole.stdout == "done", whole.stderr
    first, last = first_call_in(log.read_text(), run)
    killed = 0
    step = max(1, (last - first + 1) // MOMENTS)
    for moment in range(first, last + 1, step):
        shutil.rmtree(run)
        put(run, picture)
        inject = f"inject={CALLS}:signal=KILL:when={moment}"
        done = child(run, act, "-e", f"trace={CALLS}", "-e", inject, "-o", os.devnull)
        expected = scenario.expected
        if done.stdout == "done":
            expected = expected.only_after()
        else:
            assert done.returncode in (-9, 137), done.stderr
            killed += 1
        assert list(judge(run, expected)) == [], f"killed at call {moment} of {last}"
    print(f"{killed} kills")
    assert killed >= MOMENTS // 2


def test_a_lock_and_a_claim_of_a_killed_process_stop_nobody(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    deeds.save(run, "step_1", 1)
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ckpt import fs\n"
        "from ckpt.selftest import deeds\n"
        "def die(call):\n"
        "    if call.name in ('exchange', 'rename') and call.path.endswith('/step_1'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "with fs.hooked(die):\n"
        "    deeds.save(Path(sys.argv[1]), 'step_1', 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], check=False, cwd=ROOT)
    assert done.returncode == -9
    assert list(run.glob(".step_1.tmp-*"))
    deeds.save(run, "step_1", 3)
    expected = Expected({"step_1": 3}, {"step_1": 3}, frozenset({1, 2}))
    assert list(judge(run, expected)) == []
