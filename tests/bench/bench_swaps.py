"""Going back, undoing and withdrawing beside one rename; resolve beside stats; a scan of 1,000."""

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frame import Row, seconds, side_by_side

from ckpt import reflog
from ckpt.generations import (
    Known,
    Plan,
    carry_out,
    plan_redo,
    plan_rollback,
    plan_undo,
    plan_withdraw,
    publish,
    resolve_path,
    scan,
)
from ckpt.operation import drive

SIZES = {"1 MB": 1 << 20, "1 GiB": 1 << 30}


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as directory:
        root = Path(directory)
        rows = []
        for label, size in SIZES.items():
            rows += _swaps(root / label.replace(" ", "_"), label, size)
        rows.append(_resolve(root / "1_MB"))
        rows.append(_scan(root / "many", 100 if quick else 1000))
    return rows


def _swaps(run_dir: Path, label: str, size: int) -> list[Row]:
    run_dir.mkdir()
    for value in (1, 2):
        _save(run_dir / "last", value, size)
    _save(run_dir / "step_9", 9, 1 << 10)
    _save(run_dir / "step_10", 10, 1 << 10)
    rename = _renaming(run_dir / "bare")

    def back() -> Plan:
        return plan_rollback(_known(run_dir), slot="last")

    def undo() -> Plan:
        return plan_undo(_known(run_dir))

    def redo() -> Plan:
        return plan_redo(_known(run_dir))

    def withdraw() -> Plan:
        return plan_withdraw(_known(run_dir), to_step=9)

    return [
        _row(f"roll back, {label}", [back], rename),
        _row(f"undo and redo, {label}", [undo, redo], rename),
        _row(f"withdraw and bring back, {label}", [withdraw, undo], rename),
    ]


def _row(name: str, plans: Sequence[Callable[[], Plan]], bare: Callable[[], object]) -> Row:
    turns = itertools.cycle(plans)

    ours: list[float] = []
    beside: list[float] = []
    for _ in range(22):
        plan = next(turns)()
        ours.append(seconds(lambda plan=plan: drive(carry_out(plan, depth=None))))
        beside.append(seconds(bare))
    ours_s, bare_s = statistics.median(ours[1:]), statistics.median(beside[1:])
    return Row(f"{name} / rename + directory fsync", ours_s, bare_s, 10.0, "s", "from a plan")


def _known(run_dir: Path) -> Known:
    return Known(run_dir, scan(run_dir), reflog.read(run_dir), time.time())


def _renaming(directory: Path) -> Callable[[], object]:
    """One rename of a directory and one fsync of the directory around it."""
    directory.mkdir()
    names = itertools.cycle([directory / "a", directory / "b"])
    state = {"at": next(names)}
    state["at"].mkdir()
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def once() -> None:
        to = next(names)
        state["at"].rename(to)
        os.fsync(descriptor)
        state["at"] = to

    return once


def _resolve(run_dir: Path) -> Row:
    target = run_dir / "last"
    manifest = target / "manifest.json"

    def bare() -> object:
        for _ in range(20):
            os.stat(manifest)
        return json.loads(manifest.read_bytes())

    ours_s, bare_s = side_by_side(
        lambda: [resolve_path(target) for _ in range(20)],
        lambda: [bare() for _ in range(20)],
        pairs=21,
    )
    return Row("resolve / 20 stats + one manifest", ours_s / 20, bare_s / 20, 1.0, "s")


def _scan(run_dir: Path, count: int) -> Row:
    run_dir.mkdir()
    for step in range(count):
        _write(run_dir / f"step_{step}", step, 1 << 10)
    files = [
        path
        for step in range(count)
        for path in (
            run_dir / f"step_{step}" / "meta.json",
            run_dir / f"step_{step}/manifest.json",
        )
    ]

    def bare() -> object:
        found = []
        for path in files:
            with open(path, "rb") as file:
                found.append(json.loads(file.read()))
        return found

    ours_s, bare_s = side_by_side(lambda: scan(run_dir), bare, pairs=5)
    return Row(f"scan of {count} checkpoints / their JSON read bare", ours_s, bare_s, 3.0, "s")


def _save(target: Path, step: int, size: int) -> None:
    drive(publish(target, lambda staging: _fill(staging.path, step, size), run_dir=target.parent))


def _write(directory: Path, step: int, size: int) -> None:
    directory.mkdir()
    _fill(directory, step, size)


def _fill(directory: Path, step: int, size: int) -> None:
    """An AstrAI directory of 400 tensors, whose weights have that size and no content."""
    data = max(400 * 4, size - (1 << 16)) // 400 * 400
    each = data // 400 // 4 * 4
    header = {
        f"model.layers.{n}.weight": {
            "dtype": "F32", "shape": [each // 4], "data_offsets": [n * each, (n + 1) * each],
        }
        for n in range(400)
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 400 * each)
    files = {
        "config.json": b"{}",
        "meta.json": json.dumps({"epoch": 0, "optimizer_step": step}).encode(),
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    listed = {
        path.name: {"size": path.stat().st_size, "sha256": "0" * 64}
        for path in sorted(directory.iterdir())
    }
    ours = {"v": 1, "generation": os.urandom(6).hex(), "parent": None, "slot": directory.name}
    manifest = {
        "format_version": 1, "created_at": "2026-12-01T07:00:00", "optimizer_step": step,
        "policy_version": None, "tensors": sorted(header),
        "files": listed, "ckpt": ours,
    }  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2))
