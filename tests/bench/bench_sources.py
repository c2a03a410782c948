"""Reading a run: a sketch of a million records, appends, memory, a busy in-place writer."""

import json
import math
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

from frame import Row, seconds

from ckpt.progress.line_source import LineSource
from ckpt.progress.records import MetricsRecords
from ckpt.run import RunView, apply
from ckpt.series import Series
from ckpt.sources import RunReader

STATE = {
    "step": 0, "total_steps": 0, "best_loss": 1.5, "lr": 0.1, "epoch": 1, "batch_size": 2,
    "grad_accum_steps": 8, "sequence_length": 128, "fp16": True, "train_modules": "lora",
}  # fmt: skip


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        return [
            *_metrics(Path(directory), 100_000 if quick else 1_000_000),
            _memory(),
            *_busy_writer(Path(directory), 3.0 if quick else 30.0),
        ]


def _record(step: int) -> str:
    loss = 2 + math.sin(step / 1000) + random.random() / 10
    values = {"loss": loss, "learning_rate": 2e-4, "grad_norm": loss / 3, "epoch": step / 5e4}
    return json.dumps({"step": step, "time": 1.7e9 + step / 10, **values}) + "\n"


def _metrics(directory: Path, count: int) -> list[Row]:
    path = directory / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(_record(step) for step in range(1, count + 1))

    def parse_all() -> None:
        with path.open("rb") as file:
            for line in file:
                json.loads(line)

    def sketch() -> None:
        source = LineSource(path, "metrics", MetricsRecords)
        view = apply(RunView(run=directory), list(source.read(time.time())))
        assert source.has_more
        assert view.step == count

    sketch()
    baseline = seconds(parse_all) * (1_000_000 / count)
    ours = min(seconds(sketch) for _ in range(5))
    source = LineSource(path, "metrics", MetricsRecords)
    view = apply(RunView(run=directory), list(source.read(time.time())))
    slices = []
    while source.has_more:
        start = time.perf_counter()
        view = apply(view, list(source.read(time.time())))
        slices.append(time.perf_counter() - start)
    total = sum(slices) * (1_000_000 / count)
    assert len(view.series["loss"]) == count
    appended = 2000
    added = "".join(_record(count + step) for step in range(1, appended + 1))
    with path.open("a") as file:
        file.write(added)
    start = time.perf_counter()
    view = apply(view, list(source.read(time.time())))
    each = (time.perf_counter() - start) / appended
    assert view.step == count + appended
    return [
        Row(
            "first sketch", ours, baseline, 1 / 100, "s", "json.loads loop over a million records"
        ),
        Row("exact reading in the background", total, baseline, 5.0, "s"),
        Row("longest slice of it", max(slices), None, 0.5, "s"),
        Row("each of many appended records", each * 1e6, None, 50.0, "µs", "parse and append"),
    ]


def _memory() -> Row:
    series = Series()
    count = 100_000
    for step in range(count):
        series.append(0, step, 1.7e9 + step, 1.0)
    return Row("memory of a point", series.size_bytes / count, None, 20.5, "bytes")


def _write_in_place(path: str, until: float) -> None:
    step = 1_000_000
    while time.time() < until:
        step += 1
        with open(path, "w") as file:
            file.write(json.dumps({**STATE, "step": step}, indent=2))


def _busy_writer(directory: Path, for_s: float) -> list[Row]:
    """A process rewrites the state in place as fast as it can; the view must never be empty."""
    run_dir = directory / "busy"
    run_dir.mkdir()
    path = run_dir / "training_state.json"
    path.write_text(json.dumps({**STATE, "step": 1_000_000}, indent=2))
    reader = RunReader(run_dir)
    view = apply(RunView(run=run_dir), list(reader.read(None, time.time())))
    until = time.time() + for_s
    writer = multiprocessing.get_context("spawn").Process(
        target=_write_in_place, args=(str(path), until)
    )
    writer.start()
    looks = wrong = errors = 0
    steps = set()
    try:
        while (now := time.time()) < until:
            view = apply(view, list(reader.read([path], now)))
            looks += 1
            wrong += view.step is None or view.step < 1_000_000
            errors += any(source.error for source in view.sources)
            steps.add(view.step)
            time.sleep(0.01)
    finally:
        writer.join()
    note = f"{looks} looks, {len(steps)} steps seen"
    return [
        Row(f"wrong views under {for_s:.0f} s of in-place writing", wrong, None, 0, "views", note),
        Row("views that called the state unreadable", errors, None, 0, "views"),
    ]
