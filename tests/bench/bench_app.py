"""The app on a real pseudo-terminal: first frame, bytes, CPU, wake-ups, memory, time to the wire.

Start-up is measured beside a bare Textual app in interleaved pairs.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_cli import make_run
from frame import Row
from saving import meta, save

from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import Staging, publish
from ckpt.operation import drive

sys.path.append(str(Path(__file__).parents[1] / "monitor"))

import pyte
from ptyharness import LIMIT_S, MONITOR, Pty, displayable

SIZE = (120, 40)
BARE = (
    sys.executable,
    "-c",
    """
import sys
from textual.app import App
from textual.widgets import DataTable, Footer, Static

class Bare(App):
    BINDINGS = [("q", "quit", "quit")]
    def compose(self):
        yield Static(sys.argv[1])
        yield DataTable()
        yield Footer()

Bare().run()
""",
)
STATE = {
    "step": 0, "total_steps": 100_000, "best_loss": 1.5, "lr": 1e-4, "epoch": 0, "batch_size": 1,
    "grad_accum_steps": 1, "sequence_length": 512, "fp16": False, "train_modules": "lora",
    "task": "sft", "model_path": "", "dataset_path": "", "seed": 0,
}  # fmt: skip
POINTS = 5000
VERIFIED_BYTES = 1 << 30


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        small, crowded = root / "exp-small", root / "exp-crowded"
        make_run(small, 3, 4)
        make_run(crowded, 500, 4)
        pairs = 3 if quick else 7
        return [
            *starts(small, "", 300, pairs),
            *starts(crowded, ", 500 checkpoints", 50_000, pairs),
            *at_rest(fresh(root / "rest"), 5 if quick else 20),
            *two_updates_a_second(fresh(root / "busy"), 6 if quick else 30),
            *to_the_wire(fresh(root / "wire"), 20 if quick else 100),
            rewritten_in_place(fresh(root / "rewritten"), 4 if quick else 30),
            *while_verifying(saved(root / "saved"), 3 if quick else 12),
        ]


# ---- start-up -----------------------------------------------------------------------------------


def starts(run_dir: Path, what: str, step: int, pairs: int) -> list[Row]:
    """First bytes, first frame, and the step painted by the app itself, beside a bare app."""
    shown = f"{step:,}".encode()
    bare: list[float] = []
    ours: list[tuple[float, float, float]] = []
    for pair in range(pairs + 1):
        one, other = first_frame(BARE, run_dir)[1], start_of_ours(run_dir, shown)
        if pair:  # the first pair only fills the caches
            bare.append(one)
            ours.append(other)
    base = statistics.median(bare)
    painted, framed, stepped = (statistics.median(each) for each in zip(*ours, strict=True))
    return [
        Row(f"plain first frame{what}", painted, base, 0.5, "s"),
        Row(f"first frame{what}", framed, base, 1.5, "s"),
        Row(f"step on the screen{what}", stepped, base, 2.2, "s"),
    ]


def first_frame(command: tuple[str, ...], run_dir: Path) -> tuple[float, float]:
    with Pty([*command, str(run_dir)], size=SIZE) as pty:
        framed = pty.when(run_dir.name.encode(), b"quit")
        times = pty.chunks[0].at - pty.started_at, framed - pty.started_at
        leave(pty)
        return times


def start_of_ours(run_dir: Path, shown: bytes) -> tuple[float, float, float]:
    with Pty([*MONITOR, "--read-only", str(run_dir)], size=SIZE) as pty:
        framed = pty.when(run_dir.name.encode(), b"quit")
        stepped = pty.when(shown, after=framed)
        times = (pty.chunks[0].at, framed, stepped)
        leave(pty)
        return times[0] - pty.started_at, times[1] - pty.started_at, times[2] - pty.started_at


def leave(pty: Pty) -> None:
    pty.press("q")
    pty.process.wait(20)


# ---- at rest and at work ------------------------------------------------------------------------


def fresh(run_dir: Path) -> Path:
    """A run with a history of `POINTS` points and no checkpoint."""
    run_dir.mkdir()
    lines = [metrics_line(step) for step in range(1, POINTS + 1)]
    (run_dir / "metrics.jsonl").write_text("".join(lines))
    write_state(run_dir, POINTS)
    return run_dir


def metrics_line(step: int) -> str:
    values = {"step": step, "time": time.time(), "loss": 1.5 + 900 / (step + 900) + step % 7 / 90}
    return json.dumps(values) + "\n"


def write_state(run_dir: Path, step: int) -> None:
    new = run_dir / ".training_state.json.new"
    new.write_text(json.dumps(STATE | {"step": step}))
    new.replace(run_dir / "training_state.json")


@contextmanager
def settled(run_dir: Path) -> Iterator[Pty]:
    """The app on a run, watching by events, and everything of its start over."""
    with Pty([*MONITOR, "--read-only", str(run_dir)], size=SIZE) as pty:
        pty.until(lambda text: f"{POINTS:,}" in text and "events" in text)
        time.sleep(3)
        yield pty


def at_rest(run_dir: Path, seconds: float) -> list[Row]:
    with settled(run_dir) as pty:
        time.sleep(2)
        before, since = pty.usage(), time.monotonic()
        time.sleep(seconds)
        after, sent = pty.usage(), pty.bytes_since(since)
        tick = f"a minute tick came: {sent} bytes" if sent else ""
        return [
            Row("bytes at rest", sent if sent < 1 else sent / seconds, None, 0, "bytes/s", tick),
            Row("wake-ups at rest", (after.wake_ups - before.wake_ups) / seconds, None, 15, "/s"),
            Row("CPU at rest", (after.cpu_s - before.cpu_s) / seconds, None, 0.003, "of a core"),
            Row(
                "resident memory", after.rss_bytes / 1e6, None, 60 + 20 * POINTS / 1e6, "MB",
                f"{POINTS} points",
            ),
        ]  # fmt: skip


def two_updates_a_second(run_dir: Path, seconds: float) -> list[Row]:
    with settled(run_dir) as pty:
        before, since = pty.usage(), time.monotonic()
        step = POINTS
        while time.monotonic() < since + seconds:
            step += 1
            with (run_dir / "metrics.jsonl").open("a") as metrics:
                metrics.write(metrics_line(step))
            write_state(run_dir, step)
            time.sleep(max(0.0, since + (step - POINTS) * 0.5 - time.monotonic()))
        after, sent = pty.usage(), pty.bytes_since(since)
        pty.until(lambda text: f"{step:,}" in text)
        return [
            Row("two updates a second", sent / seconds, None, 1500, "bytes/s"),
            Row("their CPU", (after.cpu_s - before.cpu_s) / seconds, None, 0.02, "of a core"),
        ]


def to_the_wire(run_dir: Path, count: int) -> list[Row]:
    """From the replacement of the state file to the first bytes that tell of it."""
    with settled(run_dir) as pty:
        found: list[float] = []
        missed = 0
        for number in range(1, count + 1):
            time.sleep(0.45 + number % 7 * 0.013)
            at = time.monotonic()
            write_state(run_dir, POINTS + number)
            answer = first_chunk_after(pty, at, 3.0)
            missed += answer is None
            found.append(3.0 if answer is None else answer - at)
        pty.until(lambda text: f"{POINTS + count:,}" in text)
        p95 = statistics.quantiles(found, n=20)[-1]
        return [
            Row(f"state file to the wire, p95 of {count}", p95, None, 0.03, "s"),
            Row("of these missed", missed, None, 0, "changes"),
        ]


def first_chunk_after(pty: Pty, at: float, limit_s: float) -> float | None:
    while time.monotonic() < at + limit_s:
        for chunk in pty.chunks[-8:]:
            if chunk.at > at:
                return chunk.at
        time.sleep(0.002)
    return None


def rewritten_in_place(run_dir: Path, seconds: float) -> Row:
    """A writer that rewrites the state in place as fast as it can: what must never be shown."""
    stop = threading.Event()

    def write() -> None:
        step = POINTS
        while not stop.is_set():
            step += 1
            with (run_dir / "training_state.json").open("w") as state:
                json.dump(STATE | {"step": step}, state)

    with settled(run_dir) as pty:
        writer = threading.Thread(target=write)
        start = len(pty.chunks)
        screen = pyte.Screen(*SIZE)
        stream = pyte.ByteStream(screen)
        feed(stream, pty, 0, start)
        writer.start()
        wrong, looks, until = 0, 0, time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.02)
            end = len(pty.chunks)
            feed(stream, pty, start, end)
            looks += end > start
            start = end
            wrong += not is_right("\n".join(screen.display))
        stop.set()
        writer.join()
        wrong += pty.process.poll() is not None
        return Row("wrong screens while rewritten in place", wrong, None, 0, "", f"{looks} frames")


# ---- while it verifies --------------------------------------------------------------------------


def saved(run_dir: Path) -> Path:
    """A run whose newest checkpoint has 1 GiB in one file, with chunk hashes, and a small one."""
    fresh(run_dir)
    save(run_dir / "step_1", 1)
    data = memoryview(os.urandom(1 << 24) * (VERIFIED_BYTES >> 24))

    def fill(staging: Staging) -> None:
        tensors = [("w", "U8", (len(data),), data)]
        write_checkpoint(staging.path, meta(2), {}, tensors, origin=staging.origin)

    drive(publish(run_dir / "step_2", fill, run_dir=run_dir))
    return run_dir


def while_verifying(run_dir: Path, rounds: int) -> list[Row]:
    """How soon the cursor moves while all cores hash, and what is sent when no key is pressed."""
    with Pty([*MONITOR, "--read-only", str(run_dir)], size=SIZE) as pty:
        pty.until(lambda text: "step_2" in text and "never read" in text)
        time.sleep(3)
        found: list[float] = []
        sent: list[float] = []
        is_down = False
        for number in range(rounds):
            began = verify_once(pty)
            while is_verifying(pty, began) and number % 3:
                time.sleep(0.05)
                at = time.monotonic()
                pty.press("k" if is_down else "j")
                is_down = not is_down
                answer = when_moved(pty, at, 3.0)
                found.append(3.0 if answer is None else answer - at)
            while is_verifying(pty, began):
                time.sleep(0.01)
            if not number % 3:
                took = time.monotonic() - began
                sent.append(pty.bytes_since(began) / max(took, 1.0))
            if is_down:
                pty.press("k")
                is_down = False
                time.sleep(0.2)
        leave(pty)
        p95 = statistics.quantiles(found, n=20)[-1]
        note = f"{len(found)} keys, the slowest {max(found):.3f} s"
        return [
            Row("a key while 1 GiB is verified, p95", p95, None, 0.1, "s", note),
            Row("sent while 1 GiB is verified", statistics.median(sent), None, 3000, "bytes/s"),
        ]


def verify_once(pty: Pty) -> float:
    began = time.monotonic()
    pty.press("v")
    pty.when(b"%", after=began)
    return began


def is_verifying(pty: Pty, began: float) -> bool:
    came = b"".join(chunk.data for chunk in list(pty.chunks) if chunk.at > began)
    if time.monotonic() > began + LIMIT_S:
        raise AssertionError(f"the verification did not end; the screen:\n{pty.text()}")
    return b"intact" not in came


def when_moved(pty: Pty, at: float, limit_s: float) -> float | None:
    """When the cursor's sign came: it is sent only where it moves to."""
    while time.monotonic() < at + limit_s:
        for chunk in pty.chunks[-8:]:
            if chunk.at > at and "▸".encode() in chunk.data:
                return chunk.at
        time.sleep(0.001)
    return None


def feed(stream: "pyte.ByteStream", pty: Pty, start: int, end: int) -> None:
    for chunk in pty.chunks[start:end]:
        stream.feed(displayable(chunk.data))


def is_right(text: str) -> bool:
    is_step_there = any(f" step {lead}" in text for lead in "123456789")
    return is_step_there and not any(word in text for word in ("Traceback", "no run", "no such"))
