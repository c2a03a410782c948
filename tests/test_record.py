"""What a training script leaves behind through `ckpt.record`."""

import errno
import json
import math
import os
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ckpt import fs, record
from ckpt.checkpoint import Depth, Verdict
from ckpt.errors import CheckpointError, PublishError
from ckpt.operation import drive
from ckpt.record import Recorder
from ckpt.retention import Policy
from ckpt.tensorfile import read_header
from ckpt.verify import verify


def state(run: Path) -> dict[str, object]:
    return json.loads((run / "training_state.json").read_text())


def lines(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_state_file_has_ferrotensors_fields_in_its_order_then_ours(tmp_path: Path) -> None:
    with Recorder(tmp_path, total_steps=50, config={"batch_size": 4, "seed": 3}) as recorder:
        recorder.log(7, loss=1.5, learning_rate=1e-3, grad_norm=0.5, epoch=2.5, tokens=900)
    assert list(state(tmp_path)) == [
        "step", "total_steps", "best_loss", "lr", "epoch", "batch_size", "grad_accum_steps",
        "sequence_length", "fp16", "train_modules", "task", "model_path", "dataset_path", "seed",
        "loss", "grad_norm", "tokens", "updated_at", "finished",
    ]  # fmt: skip
    assert {k: v for k, v in state(tmp_path).items() if k != "updated_at"} == {
        "step": 7, "total_steps": 50, "best_loss": 1.5, "lr": 1e-3, "epoch": 2, "batch_size": 4,
        "grad_accum_steps": 1, "sequence_length": 128, "fp16": False, "train_modules": "full",
        "task": "sft", "model_path": "", "dataset_path": "", "seed": 3, "loss": 1.5,
        "grad_norm": 0.5, "tokens": 900, "finished": True,
    }  # fmt: skip


def test_a_loss_that_is_no_number_is_recorded_as_one_and_is_never_the_best(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.log(1, loss=0.5)
        recorder.log(2, loss=math.nan, grad_norm=math.inf, learning_rate=None)
    first, second = lines(tmp_path)
    assert first == {"step": 1, "time": first["time"], "loss": 0.5}
    assert second == {
        "step": 2,
        "time": second["time"],
        "loss": None,
        "grad_norm": None,
        "nonfinite": ["loss", "grad_norm"],
    }
    assert state(tmp_path)["best_loss"] == 0.5
    assert state(tmp_path)["loss"] is None


def test_a_run_that_ends_by_an_exception_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path) as recorder:
        recorder.log(1, loss=0.5)
        raise ZeroDivisionError
    assert state(tmp_path)["step"] == 1
    assert "finished" not in state(tmp_path)


def test_run_json_says_how_it_was_started_and_keeps_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("HF_TOKEN", "hush")
    monkeypatch.setenv("HF_API_key", "hush")
    monkeypatch.setenv("SLURM_JOB_PASSWORD", "hush")
    monkeypatch.setenv("AWS_SECRET", "hush")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Recorder(tmp_path, config={"learning_rate": 0.1})
    text = (tmp_path / "run.json").read_text()
    found = json.loads(text)
    assert "hush" not in text
    assert found["schema"] == "ckpt.run/1"
    assert found["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["argv"][0] == sys.executable
    assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
    assert found["process_start_ticks"] == fs.process_start_ticks(os.getpid())
    assert found["world_size"] == 2
    assert found["config"] == {"learning_rate": 0.1}


def test_a_value_that_json_cannot_hold_leaves_the_old_record_alone(tmp_path: Path) -> None:
    Recorder(tmp_path, config={"a": 1})
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        Recorder(tmp_path, config={"a": np.float32(1)})
    assert json.loads((tmp_path / "run.json").read_text())["config"] == {"a": 1}
    with pytest.raises(CheckpointError, match="loss: expected a number, found 'x'"):
        Recorder(tmp_path).log(1, loss="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"batch_size": "many"}, "config: batch_size: input should be a valid integer"),
        ({"batch_size": -1}, "config: batch_size: input should be greater than or equal to 0"),
        ({"learning_rate": math.nan}, "config: learning_rate: input should be a finite number"),
        ({"seed": 2**64}, "config: seed: input should be less than 18446744073709551616"),
        ({"model_path": 3}, "config: model_path: input should be a valid string"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_named(
    tmp_path: Path, config: dict[str, object], says: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        Recorder(tmp_path, config=config)
    assert caught.value.message.startswith(says)
    assert not (tmp_path / "run.json").exists()


def test_a_half_written_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.log(1, loss=1.0)

    def full_disk(call: fs.Call) -> None:
        if call.name == "append":
            with (tmp_path / "metrics.jsonl").open("ab") as file:
                file.write(b'{"step": 2, "ti')
            raise OSError(28, "No space left on device")

    with fs.hooked(full_disk), pytest.raises(CheckpointError, match="No space left on device"):
        recorder.log(2, loss=0.9)
    recorder.log(3, loss=0.8)
    kept = (tmp_path / "metrics.jsonl").read_bytes().split(b"\n")
    assert [json.loads(kept[0])["step"], kept[1], json.loads(kept[2])["step"]] == [
        1,
        b'{"step": 2, "ti',
        3,
    ]


def test_a_reader_never_meets_half_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "STATE_INTERVAL_S", 0.0)
    recorder = Recorder(tmp_path, total_steps=9)
    recorder.log(1, loss=1.0)
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(json.loads((tmp_path / "training_state.json").read_bytes())["step"])

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(2, 400):
        recorder.log(step, loss=1.0 / step)
    stop.set()
    reader.join()
    assert seen == sorted(seen)
    assert seen[0] >= 1


TENSORS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "column_major": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    "strided": np.arange(12, dtype=np.int32)[::2],
    "reversed": np.arange(4, dtype=np.int16)[::-1],
    "broadcast": np.broadcast_to(np.float32(2.5), (2, 2)),
    "big_endian": np.arange(3, dtype=">i8"),
    "scalar": np.float32(1.25),
    "empty": np.zeros((0, 4), dtype=np.float16),
    "mask": np.array([True, False]),
    "complex": np.array([1 + 2j], dtype=np.complex64),
}


def values(path: Path, name: str) -> list[object]:
    """The elements of one tensor, read back by hand from the file's bytes."""
    header = read_header(path, path.name)
    (tensor,) = [tensor for tensor in header.tensors if tensor.name == name]
    kinds = {"F32": "<f4", "F64": "<f8", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2",
             "BOOL": "?", "C64": "<c8"}  # fmt: skip
    raw = path.read_bytes()[tensor.start : tensor.end]
    return list(np.frombuffer(raw, kinds[tensor.dtype]).reshape(tensor.shape).ravel())


def test_arrays_of_any_stride_are_saved_with_the_values_that_they_show(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.log(5, loss=0.25)
    saved = recorder.save(5, TENSORS, meta={"step_note": "x", "optimizer_step": 99})
    weights = saved / "model.safetensors"
    assert saved == tmp_path / "epoch_0_step_5"
    assert values(weights, "f32") == [0, 1, 2, 3, 4, 5]
    assert values(weights, "column_major") == [0, 1, 2, 3, 4, 5]
    assert values(weights, "strided") == [0, 2, 4, 6, 8, 10]
    assert values(weights, "reversed") == [3, 2, 1, 0]
    assert values(weights, "broadcast") == [2.5, 2.5, 2.5, 2.5]
    assert values(weights, "big_endian") == [0, 1, 2]
    assert values(weights, "scalar") == [1.25]
    assert values(weights, "empty") == []
    assert values(weights, "mask") == [True, False]
    assert values(weights, "complex") == [1 + 2j]
    meta = json.loads((saved / "meta.json").read_text())
    assert (meta["step_note"], meta["optimizer_step"], meta["loss"]) == ("x", 5, 0.25)
    assert drive(verify(saved, Depth.BYTES)).verdict is Verdict.INTACT


def test_a_step_saved_again_retires_what_was_saved_before(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    saved = recorder.save(5, {"w": np.zeros(2, np.float32)})
    before = (saved / "model.safetensors").read_bytes()
    recorder.save(5, {"w": np.ones(2, np.float32)})
    assert (saved / "model.safetensors").read_bytes() != before
    (retired,) = tmp_path.glob(".epoch_0_step_5.retired-*")
    assert (retired / "model.safetensors").read_bytes() == before


def retired_values(run: Path) -> list[float]:
    found = [path / "model.safetensors" for path in run.glob(".latest.retired-*")]
    return sorted(np.frombuffer(path.read_bytes()[-8:], np.float32)[0].item() for path in found)


def test_of_what_was_saved_before_the_last_one_stays_unless_more_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for value in range(4):
        recorder.save(5, {"w": np.full(2, value, np.float32)}, name="latest")
    assert retired_values(tmp_path) == [2.0]
    for value in range(4, 7):
        tensors = {"w": np.full(2, value, np.float32)}
        recorder.save(5, tensors, name="latest", keep=Policy(keep_last=3))
    assert retired_values(tmp_path) == [3.0, 4.0, 5.0]


def test_a_failed_clean_up_is_a_warning_and_the_save_is_done(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for value in range(2):
        recorder.save(5, {"w": np.full(2, value, np.float32)}, name="latest")

    def refuse(call: fs.Call) -> None:
        if call.name == "rename" and ".trash-" in call.path:
            raise OSError(errno.EBUSY, "Device or resource busy", call.path)

    with fs.hooked(refuse), pytest.warns(RuntimeWarning, match="the save is done"):
        saved = recorder.save(5, {"w": np.full(2, 9, np.float32)}, name="latest")
    assert drive(verify(saved, Depth.BYTES)).verdict is Verdict.INTACT
    assert retired_values(tmp_path) == [0.0, 1.0]


def test_a_taken_name_is_refused_and_what_stands_there_stays(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    (tmp_path / "epoch_0_step_5").mkdir()
    (tmp_path / "epoch_0_step_5" / "thesis.tex").write_text("mine")
    with pytest.raises(PublishError, match=r"epoch_0_step_5: what stands there is no checkpoint"):
        recorder.save(5, {"w": np.ones(2, np.float32)})
    assert [path.name for path in (tmp_path / "epoch_0_step_5").iterdir()] == ["thesis.tex"]


def test_a_dtype_that_safetensors_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with pytest.raises(PublishError, match="tensor 'z': dtype complex128 cannot be saved"):
        recorder.save(5, {"z": np.zeros(2, np.complex128)})
    assert not (tmp_path / "epoch_0_step_5").exists()


@pytest.mark.torch
def test_what_the_recorder_saves_loads_in_torch(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    saved = Recorder(tmp_path).save(5, TENSORS)
    loaded = load_file(saved / "model.safetensors")
    assert loaded["column_major"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["reversed"].tolist() == [3, 2, 1, 0]
    assert loaded["empty"].shape == (0, 4)
    assert loaded["scalar"].item() == 1.25


@pytest.mark.torch
def test_bfloat16_written_by_torch_is_read_with_its_dtype_and_shape(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    header = read_header(tmp_path / "model.safetensors", "model.safetensors")
    assert [(t.name, t.dtype, t.shape, t.size_bytes) for t in header.tensors] == [
        ("w", "BF16", (2, 3), 12)
    ]
    assert header.findings == ()
