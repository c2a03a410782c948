"""Append-only files: offsets, torn tails, files begun anew, large ones sampled and then exact."""

import json
import math
import os
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.history import Row
from ckpt.progress.line_file import LineFile, sample, tail
from ckpt.progress.line_source import SKETCH_BYTES, LineSource
from ckpt.progress.records import AstraiRecords, MetricsRecords, TrainerLogRecords
from ckpt.run import RowsRead, RunView, apply

NAN = math.nan


def line(step: int, loss: float | None = 1.5, **more: object) -> str:
    return json.dumps({"step": step, "time": 1000.0 + step, "loss": loss, **more}) + "\n"


class Watched:
    """One metrics.jsonl and the view that comes of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 2e9
        self.source = LineSource(path, "metrics", MetricsRecords)
        self.view = RunView(run=path.parent)

    def look(self, after_s: float = 1.0) -> list[tuple[int, int]]:
        self.now += after_s
        self.view = apply(self.view, list(self.source.read(self.now)))
        return self.keys()

    def keys(self) -> list[tuple[int, int]]:
        series = self.view.series.get("loss", ())
        return [(point.segment, point.step) for point in series]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "metrics.jsonl")


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_file_that_is_not_there_yet_is_no_news(watched: Watched) -> None:
    assert watched.look() == []
    assert watched.view.sources == ()


def test_only_what_was_appended_is_read(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    assert watched.look() == [(0, 1), (0, 2)]
    append(watched.path, line(3))
    read = []
    with fs.hooked(lambda call: read.append(call) if call.name == "read" else None):
        assert watched.look() == [(0, 1), (0, 2), (0, 3)]
    assert [row.step for event in [watched.view.series["loss"]] for row in event] == [1, 2, 3]
    assert len(read) <= 3


def test_an_unchanged_file_is_not_opened(watched: Watched) -> None:
    watched.path.write_text(line(1))
    watched.look()
    calls: list[str] = []
    with fs.hooked(lambda call: calls.append(call.name)):
        watched.look()
    assert calls == ["stat"]


def test_a_torn_tail_waits_for_its_rest(watched: Watched) -> None:
    whole = line(2)
    watched.path.write_text(line(1) + whole[:10])
    assert watched.look() == [(0, 1)]
    append(watched.path, whole[10:])
    assert watched.look() == [(0, 1), (0, 2)]
    assert watched.view.sources[0].warnings == ()


def test_a_line_that_does_not_parse_is_counted_and_passed_over(watched: Watched) -> None:
    watched.path.write_text(line(1) + '{"step": 2, "lo\n' + "[]\n" + '{"loss": 1}\n' + line(3))
    assert watched.look() == [(0, 1), (0, 3)]
    [warned] = watched.view.sources[0].warnings
    assert warned.code == "bad-lines"
    assert warned.message.endswith("3 lines were passed over: no JSON object with a step")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_either_line_end_are_read(watched: Watched, end: str) -> None:
    lines = (line(1) + line(2)).replace("\n", end)
    watched.path.write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert watched.look() == [(0, 1), (0, 2)]


def test_a_file_cut_and_written_anew_is_read_from_its_start(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2) + line(3))
    watched.look()
    watched.path.write_text(line(7))
    assert watched.look() == [(0, 7)]


def test_a_file_replaced_by_another_is_read_from_its_start(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    watched.look()
    other = watched.path.with_name("other")
    other.write_text(line(5) + line(6) + line(7))
    os.replace(other, watched.path)
    assert watched.look() == [(0, 5), (0, 6), (0, 7)]


def test_a_file_rewritten_beyond_where_we_were_is_read_from_its_start(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    watched.look()
    watched.path.write_text(line(1) + line(20) + line(30))
    assert watched.look() == [(0, 1), (0, 20), (0, 30)]


def test_a_size_that_lags_behind_is_not_believed_at_once(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    watched.look()
    os.truncate(watched.path, len(line(1)))
    assert watched.look() == [(0, 1), (0, 2)]
    assert watched.source.retry_at is not None
    watched.path.write_text(line(1) + line(2) + line(3))
    assert watched.look(0.25) == [(0, 1), (0, 2), (0, 3)]
    assert watched.source.retry_at is None


def test_a_file_that_stays_shorter_is_believed(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    watched.look()
    os.truncate(watched.path, len(line(1)))
    for _ in range(4):
        watched.look(0.3)
    assert watched.keys() == [(0, 1)]


def test_an_emptied_file_keeps_the_curve_until_it_holds_something(watched: Watched) -> None:
    watched.path.write_text(line(1) + line(2))
    watched.look()
    watched.path.write_text("")
    assert watched.look() == [(0, 1), (0, 2)]
    append(watched.path, line(1))
    assert watched.look() == [(0, 1)]


def test_a_removed_file_keeps_its_values_and_says_so(watched: Watched) -> None:
    watched.path.write_text(line(9))
    watched.look()
    watched.path.unlink()
    watched.look()
    [source] = watched.view.sources
    assert source.error == f"{watched.path}: the file is gone"
    assert watched.view.step == 9
    watched.path.write_text(line(9) + line(10))
    watched.look()
    assert (watched.view.sources[0].error, watched.view.step) == (None, 10)


# ---- large files --------------------------------------------------------------------------------


@pytest.fixture
def large(watched: Watched) -> Watched:
    count = 3 * SKETCH_BYTES // len(line(10_000))
    watched.path.write_text("".join(line(step, math.sin(step)) for step in range(1, count + 1)))
    return watched


def test_a_large_file_is_sampled_first_and_exact_in_the_end(large: Watched) -> None:
    sketch = large.look()
    count = large.view.step
    assert count is not None
    assert large.source.has_more
    assert large.view.is_sketch
    assert sketch == sorted(set(sketch))
    assert sketch[0] == (0, 1)
    assert sketch[-1] == (0, count)
    assert 500 <= len(sketch) < count // 2
    while large.source.has_more:
        large.look(0.0)
    assert not large.view.is_sketch
    assert large.keys() == [(0, step) for step in range(1, count + 1)]


def test_lines_appended_while_a_large_file_is_read_are_shown_at_once(large: Watched) -> None:
    last = large.look()[-1][1]
    append(large.path, line(last + 1, 0.5))
    seen = large.look(0.0)
    while large.source.has_more:
        large.look(0.0)
    assert (0, last + 1) in seen
    assert large.view.loss == 0.5
    assert large.keys() == [(0, step) for step in range(1, last + 2)]


def test_a_large_file_replaced_while_it_is_read_begins_anew(large: Watched) -> None:
    large.look()
    os.replace(large.path, large.path.with_name("old"))
    large.path.write_text(line(1) + line(2))
    assert large.look() == [(0, 1), (0, 2)]
    assert not large.source.has_more


def test_a_sample_holds_whole_lines_from_all_over_and_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"%06d" % number + b"x" * (number % 400) for number in range(6000)]
    path.write_bytes(b"\n".join(lines) + b"\n" + b"torn")
    with fs.File(path) as file:
        found, end = sample(file, path.stat().st_size)
        last = tail(file, path.stat().st_size, 3000)
    assert end == path.stat().st_size - len(b"torn")
    assert found[0] == lines[0]
    assert found == [line for line in lines if line in set(found)]
    assert found[-1] == lines[-1]
    assert last == lines[-len(last) :]


def test_a_line_beyond_all_measure_does_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 5000 + b"\n" + b"short\n")
    follower = LineFile(path)
    with fs.File(path) as file:
        lines = [line for _ in range(4) for line in follower.take(file, 2000)]
    assert lines[-1] == b"short"
    assert follower.offset == path.stat().st_size


# ---- records ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('{"step": 5, "time": 9.5, "loss": 2}', Row(5, 9.5, {"loss": 2.0})),
        ('{"step": 42.0, "loss": 1}', Row(42, NAN, {"loss": 1.0})),
        ('{"step": "42", "loss": 1}', Row(42, NAN, {"loss": 1.0})),
        ('{"step": 1, "loss": NaN}', Row(1, NAN, {"loss": NAN})),
        ('{"step": 1, "loss": -Infinity}', Row(1, NAN, {"loss": -math.inf})),
        ('{"step": 1, "loss": null}', Row(1, NAN, {})),
        ('{"step": 1, "loss": null, "nonfinite": ["loss"]}', Row(1, NAN, {"loss": NAN})),
        ('{"step": 1, "loss": true, "grad_norm": "x"}', Row(1, NAN, {})),
        ('{"step": 1, "lr": 0.1, "accuracy": 0.5}', Row(1, NAN, {"learning_rate": 0.1})),
        ('{"step": -1, "loss": 1}', None),
        ('{"step": 1.5, "loss": 1}', None),
        ('{"step": 1e300, "loss": 1}', None),
        ('{"step": true, "loss": 1}', None),
        ("7", None),
        ("[" * 100_000, None),
    ],
)
def test_metrics_records(text: str, row: Row | None) -> None:
    records = MetricsRecords()
    rows = records.rows([text.encode()])
    assert repr(rows) == repr([] if row is None else [row])  # repr: NaN equals no NaN
    assert records.skipped == (row is None)


def test_a_process_started_since_begins_a_segment() -> None:
    records = MetricsRecords(lambda: 1002.5)
    rows = records.rows([line(step).encode() for step in (1, 2, 3, 4)])
    assert [row.begins_segment for row in rows] == [False, False, True, False]


def log(step: int, elapsed: str, **more: object) -> bytes:
    value = {"current_steps": step, "total_steps": 9, "elapsed_time": elapsed, **more}
    return json.dumps(value).encode()


def test_a_trainer_log_across_a_resume_is_two_segments_and_only_the_newest_has_times() -> None:
    lines = [
        log(1, "0:00:10", loss=2.0, lr=0.1, epoch=0.5, remaining_time="9:99:99"),
        log(2, "1 day, 0:00:20", loss=1.0),
        log(2, "0:00:05", loss=1.1),
        log(3, "0:00:09", eval_loss=1.2, epoch=1.0),
        log(3, "0:00:10"),
    ]
    records = TrainerLogRecords()
    rows = records.rows(lines, 5000.0)
    assert [(row.step, row.begins_segment) for row in rows] == [
        (1, False), (2, False), (2, True), (3, False), (3, False),
    ]  # fmt: skip
    assert [row.time for row in rows[2:]] == [4995.0, 4999.0, 5000.0]
    assert all(math.isnan(row.time) for row in rows[:2])
    assert records.facts == {
        "loss": 1.1, "learning_rate": 0.1, "epoch": 1.0, "total_steps": 9, "eval_loss": 1.2,
        "step": 3,
    }  # fmt: skip
    assert [row.time for row in records.rows([log(4, "0:00:14", loss=1.0)], 5003.0)] == [5004.0]


def test_astrai_records_take_steps_and_validations() -> None:
    lines = [
        b'{"type": "validation", "timestamp": "2026-12-01T07:00:41", "step": 1, "val_loss": 3.5}',
        b'{"type": "step", "timestamp": "nonsense", "step": 1, "lr": 0.1, "loss": 3.4}',
        b'{"type": "epoch", "timestamp": "2026-12-01T07:00:41", "epoch": 3, "loss": 9.9}',
    ]
    records = AstraiRecords()
    rows = records.rows(lines)
    assert [dict(row.values) for row in rows] == [
        {"eval_loss": 3.5},
        {"loss": 3.4, "learning_rate": 0.1},
    ]
    assert math.isfinite(rows[0].time)
    assert math.isnan(rows[1].time)
    assert records.facts["epoch"] == 3.0
    assert records.skipped == 0


def test_no_rows_are_told_twice(watched: Watched) -> None:
    watched.path.write_text(line(1))
    [event] = [e for e in watched.source.read(2e9) if isinstance(e, RowsRead)]
    assert [row.step for row in event.rows] == [1]
    assert list(watched.source.read(2e9 + 1)) == []
