"""How soon a change is told, and what watching 500 checkpoints and 10,000 files costs."""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from frame import Row

from ckpt.watch import Targets, Watcher


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rows = []
        for poll_s, bar in ((None, 0.03), (1.0, 1.3)):
            count = 100 if poll_s is None else (5 if quick else 20)
            what = "events" if poll_s is None else "polling"
            times = latencies(fresh(root, f"state-{what}", 0), poll_s, count, replace_state)
            rows.append(Row(f"state file, {what}, p95 of {count}", p95(times), None, bar, "s"))
        for poll_s, bar in ((None, 0.5), (1.0, 2.5)):
            count = 5 if quick else 20
            what = "events" if poll_s is None else "polling"
            times = latencies(fresh(root, f"new-{what}", 0), poll_s, count, make_checkpoint)
            rows.append(Row(f"new checkpoint, {what}, p95 of {count}", p95(times), None, bar, "s"))
        rows.append(missed_at_the_watch_limit(root))
        seconds = 5 if quick else 20
        crowded = fresh(root, "crowd", 500, files_each=20)
        ours, wakes = cost_of(crowded, seconds)
        theirs = cost_of_polling_observer(crowded, seconds)
        rows.append(Row("500 checkpoints, 10,000 files", ours, None, 0.003, "of a core"))
        rows.append(Row("the same, watchdog's PollingObserver", ours, theirs, 0.1, "of a core"))
        rows.append(Row("wake-ups at rest", wakes, None, 15, "a second"))
        return rows


def fresh(root: Path, name: str, checkpoints: int, files_each: int = 0) -> Path:
    run_dir = root / name
    run_dir.mkdir()
    (run_dir / "training_state.json").write_text("0")
    for number in range(checkpoints):
        directory = run_dir / f"step_{number}"
        directory.mkdir()
        for place in range(files_each):
            (directory / f"file_{place}").write_text("x")
    return run_dir


def targets(run_dir: Path) -> Targets:
    slots = tuple(sorted(run_dir.glob("step_*")))
    return Targets((run_dir / "training_state.json",), (run_dir,), slots)


def settled(run_dir: Path, poll_s: float | None) -> Watcher:
    watcher = Watcher(run_dir, poll_s=poll_s)
    watcher.watch(targets(run_dir))
    while poll_s is None and watcher.watching.mode != "events":
        watcher.wait(0.1)
    while watcher.wait(0.2):
        pass
    return watcher


def replace_state(run_dir: Path, number: int) -> None:
    new = run_dir / ".training_state.json.new"
    new.write_text("x" * number)
    new.replace(run_dir / "training_state.json")


def make_checkpoint(run_dir: Path, number: int) -> None:
    (run_dir / f"step_{number}").mkdir()


def latencies(
    run_dir: Path, poll_s: float | None, count: int, change: Callable[[Path, int], None]
) -> list[float]:
    """Seconds from each change to `wait` naming it; a missed one counts as ten seconds."""
    watcher = settled(run_dir, poll_s)
    expected = run_dir / "training_state.json" if change is replace_state else run_dir
    found: list[float] = []
    for number in range(1, count + 1):
        made: list[float] = []

        def act(made: list[float] = made, number: int = number) -> None:
            made.append(time.monotonic())
            change(run_dir, number)

        timer = threading.Timer(0.05 + (number % 7) * 0.013, act)
        timer.start()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            told = watcher.wait(10)
            if made and expected in told:
                found.append(time.monotonic() - made[0])
                break
        else:
            found.append(10.0)
        timer.join()
    watcher.stop()
    return found


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


LIMITED = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from ckpt.watch import Targets, Watcher
run, count = Path(sys.argv[1]), int(sys.argv[2])
state = run / "training_state.json"
watcher = Watcher(run)
watcher.watch(Targets((state,), (run,)))
seen = set()
def write():
    for step in range(count):
        (run / f"step_{step}").mkdir()
        time.sleep(0.005)
thread = threading.Thread(target=write); thread.start()
deadline = time.monotonic() + count * 0.005 + 8
while time.monotonic() < deadline and len(seen) < count:
    if run in watcher.wait(1):
        seen = {path.name for path in run.glob("step_*")}
thread.join()
print(count - len(seen), watcher.watching.reason)
watcher.stop()
"""


def missed_at_the_watch_limit(root: Path) -> Row:
    run_dir = fresh(root, "limited", 0)
    script = 'echo 0 > /proc/sys/user/max_inotify_watches; exec "$0" -c "$1" "$2" 500 "$3"'
    here = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["unshare", "-r", "sh", "-c", script, sys.executable, LIMITED, str(run_dir), here],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    missed, _, reason = done.stdout.strip().partition(" ")
    count = float(missed) if missed.isdigit() else 500.0
    return Row("missed of 500 changes at the watch limit", count, None, 0, "changes", reason)


def switches() -> int:
    total = 0
    for task in os.listdir("/proc/self/task"):
        for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def cost_of(run_dir: Path, seconds: float) -> tuple[float, float]:
    """Share of a core, and wake-ups a second of all threads, while nothing changes."""
    watcher = settled(run_dir, None)
    before, cpu, started = switches(), time.process_time(), time.monotonic()
    while time.monotonic() < started + seconds:
        watcher.wait(5)
    spent, woken = time.process_time() - cpu, switches() - before
    watcher.stop()
    return spent / seconds, woken / seconds


def cost_of_polling_observer(run_dir: Path, seconds: float) -> float:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers.polling import PollingObserver

    observer = PollingObserver(timeout=1)
    observer.schedule(FileSystemEventHandler(), str(run_dir), recursive=True)
    observer.start()
    time.sleep(1)
    cpu = time.process_time()
    time.sleep(seconds)
    spent = time.process_time() - cpu
    observer.stop()
    observer.join()
    return spent / seconds
