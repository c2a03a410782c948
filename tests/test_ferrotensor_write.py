"""ferrotensor's files saved and loaded without torch, byte for byte as its program has them."""

import json
import logging
import math
import struct
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import snapshot

from ckpt import fs
from ckpt.checkpoint import State, Verdict
from ckpt.errors import (
    CheckpointError,
    DamagedCheckpoint,
    DoesNotFit,
    NoCheckpoint,
    PublishError,
    UnreadableCheckpoint,
    UnsupportedVersion,
)
from ckpt.ferrotensor import (
    AdamW,
    GradScaler,
    LoraSettings,
    TrainingCheckpoint,
    TrainingState,
    apply_adapter,
    load_adapter,
    load_checkpoint,
    load_set,
    load_state,
    load_weights,
    save_adapter,
    save_checkpoint,
    save_set,
    save_state,
    validate_resume,
)
from ckpt.formats.ferrotensor_write import decimal_text, float32_text, float_text
from ckpt.generations import scan
from ckpt.operation import drive
from ckpt.tensorfile import read_header
from ckpt.verify import verify

SETTINGS = LoraSettings(2, 4.0, ("q_proj", "v_proj"))
WEIGHTS = {
    "q.lora_a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "q.lora_b": np.float32([1.5, -2.5]),
}


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (42.0, "42.0"), (1e-4, "0.0001"), (1e-5, "0.00001"),
        (1e-6, "1e-6"), (1e-8, "1e-8"), (1.5e-9, "1.5e-9"), (1.2345678, "1.2345678"),
        (1e15, "1000000000000000.0"), (1e16, "1e16"), (1.25e300, "1.25e300"), (5e-324, "5e-324"),
    ],
)  # fmt: skip
def test_a_float_is_written_as_serde_writes_an_f64(value: float, text: str) -> None:
    assert float_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (0.010000001, "0.010000001"), (3.4028235e38, "3.4028235e38"),
        (1.1754944e-38, "1.1754944e-38"), (1e-45, "1e-45"), (1e-6, "0.000001"), (1e-7, "1e-7"),
        (1e12, "1000000000000.0"), (1e13, "1e13"), (-1.5, "-1.5"),
    ],
)  # fmt: skip
def test_a_float_is_written_as_serde_writes_an_f32(value: float, text: str) -> None:
    assert float32_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.0, "16"), (4.0, "4"), (1e-7, "0.0000001"), (0.1, "0.1"), (100.25, "100.25"),
        (0.0, "0"), (-2.0, "-2"), (1e10, "10000000000"),
    ],
)  # fmt: skip
def test_a_float_is_shown_as_rust_shows_it(value: float, text: str) -> None:
    assert decimal_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_comes_back(value: float) -> None:
    assert struct.pack("<d", float(float_text(value))) == struct.pack("<d", value)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_every_f32_comes_back(value: float) -> None:
    expected = struct.pack("<f", value)
    assert struct.pack("<f", float(float32_text(value))) == expected
    assert struct.pack("<f", float(decimal_text(value))) == expected


# ---- state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", ["state_full", "state_new", "state_nan_best_loss"])
def test_a_state_is_the_bytes_that_ferrotensor_wrote(
    golden: Path, tmp_path: Path, sample: str
) -> None:
    source = golden / "ferrotensor" / sample / "tree" / "training_state.json"
    save_state(tmp_path / "training_state.json", load_state(source))
    assert (tmp_path / "training_state.json").read_bytes() == source.read_bytes()


def test_a_fresh_state_has_ferrotensors_defaults() -> None:
    assert dict(TrainingState().as_mapping()) == {
        "step": 0, "total_steps": 0, "best_loss": None, "lr": 0.0, "epoch": 0, "batch_size": 1,
        "grad_accum_steps": 1, "sequence_length": 128, "fp16": False, "train_modules": "lora",
        "task": "sft", "model_path": "", "dataset_path": "", "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("step", "total", "left"), [(0, 9, 9), (4, 9, 5), (9, 9, 0), (12, 9, 0)])
def test_what_remains_is_never_negative(step: int, total: int, left: int) -> None:
    assert TrainingState(step=step, total_steps=total).remaining_steps == left


@pytest.mark.parametrize(
    "sample",
    [
        "bad_state_bom", "bad_state_empty", "bad_state_float_step", "bad_state_missing_step",
        "bad_state_nan_literal", "bad_state_negative_step", "bad_state_truncated",
    ],
)  # fmt: skip
def test_what_ferrotensor_refuses_is_refused(golden: Path, sample: str) -> None:
    path = golden / "ferrotensor" / sample / "tree" / "training_state.json"
    with pytest.raises(CheckpointError):
        load_state(path)


def test_a_state_that_is_not_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        load_state(tmp_path / "training_state.json")
    with pytest.raises(UnreadableCheckpoint, match="not a regular file"):
        load_state(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step is -1, expected 0 to 2^64 - 1"),
        ({"step": 1.5}, "step is 1.5, expected a non-negative integer"),
        ({"seed": 2**64}, "seed is 18446744073709551616, expected 0 to 2^64 - 1"),
        ({"lr": math.nan}, "lr is nan, expected a finite number"),
        ({"lr": None}, "lr is None, expected a number"),
        ({"best_loss": math.inf}, "best_loss is inf, expected a finite number"),
        ({"fp16": 1}, "fp16 is 1, expected true or false"),
        ({"task": 3}, "task is 3, expected a string"),
        ({"model_path": "\udcff"}, "model_path: '\\udcff' cannot be written as UTF-8"),
    ],
)
def test_a_state_that_ferrotensor_would_not_read_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "training_state.json"
    save_state(path, TrainingState(step=3))
    before = snapshot(tmp_path)
    with pytest.raises(PublishError) as caught:
        save_state(path, replace(TrainingState(), **change))
    assert caught.value.message == f"training_state.json: {message}"
    assert snapshot(tmp_path) == before


def test_keys_that_are_not_ferrotensors_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "training_state.json"
    save_state(path, TrainingState(step=1), extra={"loss": 0.5, "note": {"a": [1]}})
    save_state(path, TrainingState(step=2))
    value = json.loads(path.read_text())
    assert (value["step"], value["loss"], value["note"]) == (2, 0.5, {"a": [1]})
    assert list(value)[-3:] == ["seed", "loss", "note"]
    save_state(path, TrainingState(step=3), extra={})
    assert "loss" not in json.loads(path.read_text())
    with pytest.raises(PublishError, match="step is ferrotensor's own field"):
        save_state(path, TrainingState(), extra={"step": 4})


RECORDED = TrainingState(train_modules="lora", task="sft", sequence_length=128, model_path="/m")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (RECORDED, None),
        (replace(RECORDED, step=7, lr=0.5, seed=3), None),
        (
            replace(RECORDED, train_modules="full", task="x", sequence_length=1),
            "train_modules: the checkpoint says 'lora', the resume 'full'",
        ),
        (
            replace(RECORDED, task="x", model_path="/n"),
            "task: the checkpoint says 'sft', the resume 'x'",
        ),
        (
            replace(RECORDED, sequence_length=64, model_path="/n"),
            "sequence_length: the checkpoint says 128, the resume 64",
        ),
        (replace(RECORDED, model_path=""), "model_path: the checkpoint says '/m', the resume ''"),
    ],
)  # fmt: skip
def test_a_resume_must_have_the_checkpoints_settings(
    wanted: TrainingState, message: str | None
) -> None:
    if message is None:
        validate_resume(RECORDED, wanted)
        return
    with pytest.raises(CheckpointError) as caught:
        validate_resume(RECORDED, wanted)
    assert caught.value.message == message


def test_what_the_checkpoint_does_not_record_fits_everything() -> None:
    unrecorded = TrainingState(train_modules="", task="", sequence_length=0, model_path="")
    validate_resume(unrecorded, RECORDED)


# ---- training checkpoint ----------------------------------------------------------------------


def adamw(**changes: Any) -> AdamW:
    moments = {"q.lora_a": np.float32([0.0, 1e-8, 0.1])}
    return replace(AdamW(1e-4, 0.9, 0.999, 1e-8, 0.01, 42.0, moments, moments), **changes)


@pytest.mark.parametrize("sample", ["checkpoint_adamw_scaler", "checkpoint_none"])
def test_a_checkpoint_of_the_same_values_is_the_bytes_that_ferrotensor_wrote(
    golden: Path, tmp_path: Path, sample: str
) -> None:
    source = golden / "ferrotensor" / sample / "tree" / "training_checkpoint.json"
    values = replace(load_checkpoint(source), read_from=None)
    save_checkpoint(tmp_path / "training_checkpoint.json", values)
    assert (tmp_path / "training_checkpoint.json").read_bytes() == source.read_bytes()


def test_moments_come_back_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    matrix = random.reshape(10, 100)
    optimizer = adamw(m_states={"a": random, "b": matrix}, v_states={"a": random, "b": [[0.1]]})
    path = save_checkpoint(
        tmp_path / "ckpt.json", TrainingCheckpoint(TrainingState(), optimizer, SCALER)
    )
    found = load_checkpoint(path)
    assert found.scaler == SCALER
    assert found.optimizer is not None
    assert np.array_equal(np.float32(found.optimizer.m_states["a"]), random)
    assert np.array_equal(np.float32(found.optimizer.m_states["b"]), matrix)
    assert found.optimizer.v_states["b"] == [[0.1]]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (adamw(t=math.nan), "ckpt.json: t of AdamW is nan, expected a finite number"),
        (adamw(lr="x"), "ckpt.json: lr of AdamW is 'x', expected a number"),
        (
            adamw(v_states={"q.lora_b": np.float32([1, np.inf])}),
            "ckpt.json: v_states of 'q.lora_b' is inf, expected a finite number",
        ),
        (
            adamw(m_states={"q.lora_b": [[1.0, None]]}),
            "ckpt.json: m_states of 'q.lora_b' is None, expected a number",
        ),
    ],
)
def test_a_value_that_could_not_be_resumed_from_is_refused_by_name(
    tmp_path: Path, optimizer: AdamW, message: str
) -> None:
    path = tmp_path / "ckpt.json"
    save_checkpoint(path, TrainingCheckpoint(TrainingState(step=1)))
    before = path.read_bytes()
    with pytest.raises(PublishError) as caught:
        save_checkpoint(path, TrainingCheckpoint(TrainingState(step=2), optimizer))
    assert caught.value.message == message
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == [".ckpt", "ckpt.json"]


def test_what_was_read_from_a_file_is_not_written_anew(golden: Path, tmp_path: Path) -> None:
    source = golden / "ferrotensor" / "checkpoint_none" / "tree" / "training_checkpoint.json"
    loaded = replace(load_checkpoint(source), state=TrainingState(step=99))
    with pytest.raises(
        PublishError, match=r"its values were read from .*training_checkpoint\.json"
    ):
        save_checkpoint(tmp_path / "training_checkpoint.json", loaded)
    assert list(tmp_path.iterdir()) == []


SCALER = GradScaler(1024.0, 2.0, 0.5, 2000, 3, found_overflow=False, enabled=True)


@pytest.mark.parametrize(
    ("scaler", "message"),
    [
        (replace(SCALER, scale=math.nan), "scale is nan, expected a finite number"),
        (replace(SCALER, scale="big"), "scale is 'big', expected a number"),
        (replace(SCALER, growth_interval=1.5), "growth_interval is 1.5, expected a non-negative"),
        (replace(SCALER, enabled=1), "enabled is 1, expected true or false"),
    ],
)
def test_a_scaler_that_ferrotensor_would_not_read_is_refused_by_name(
    tmp_path: Path, scaler: GradScaler, message: str
) -> None:
    checkpoint = TrainingCheckpoint(TrainingState(), scaler=scaler)
    with pytest.raises(PublishError) as caught:
        save_checkpoint(tmp_path / "ckpt.json", checkpoint)
    assert caught.value.message.startswith(f"ckpt.json: grad_scaler_state: {message}")


@pytest.mark.parametrize("name", ["\udcff", 3])
def test_a_parameter_that_cannot_be_named_in_json_is_refused(tmp_path: Path, name: Any) -> None:
    checkpoint = TrainingCheckpoint(TrainingState(), adamw(m_states={name: [1.0]}))
    with pytest.raises(PublishError, match="m_states: a parameter's name: "):
        save_checkpoint(tmp_path / "ckpt.json", checkpoint)
    with pytest.raises(PublishError, match="a key: "):
        save_state(tmp_path / "training_state.json", TrainingState(), extra={name: 1})


@pytest.mark.parametrize("sample", ["bad_checkpoint_unknown_optimizer"])
def test_a_checkpoint_that_ferrotensor_cannot_load_is_refused(golden: Path, sample: str) -> None:
    path = golden / "ferrotensor" / sample / "tree" / "training_checkpoint.json"
    with pytest.raises(UnreadableCheckpoint, match="ferrotensor reads only 'AdamW'"):
        load_checkpoint(path)


def test_a_checkpoint_without_its_options_has_none(golden: Path) -> None:
    path = (
        golden / "ferrotensor" / "checkpoint_missing_options" / "tree" / "training_checkpoint.json"
    )
    found = load_checkpoint(path)
    assert (found.state.step, found.optimizer, found.scaler) == (42, None, None)
    assert found.read_from == path


# ---- adapter ----------------------------------------------------------------------------------


def test_an_adapter_is_what_the_real_program_wrote(golden: Path, tmp_path: Path) -> None:
    source = golden / "ferrotensor" / "adapter_f32" / "tree" / "adapter.safetensors"
    found = load_adapter(source)
    assert found.settings == SETTINGS
    path = save_adapter(tmp_path / "adapter.safetensors", found.tensors, found.settings)
    theirs, ours = read_header(source, "x"), read_header(path, "x")
    assert (ours.tensors, ours.metadata) == (theirs.tensors, theirs.metadata)
    start = 8 + ours.header_bytes
    assert path.read_bytes()[start:] == source.read_bytes()[start:]


@pytest.mark.parametrize("sample", ["adapter_f32", "adapter_f16", "adapter_bf16"])
def test_every_readable_dtype_comes_as_f32(golden: Path, sample: str) -> None:
    expected = json.loads((golden / "ferrotensor" / sample / "EXPECTED.json").read_text())
    found = load_adapter(golden / "ferrotensor" / sample / "tree" / "adapter.safetensors")
    assert found.tensors.keys() == expected["as_f32"].keys()
    for name, tensor in found.tensors.items():
        assert tensor.dtype == np.float32
        assert list(tensor.shape) == expected["facts"]["tensors"][name]["shape"]
        told = expected["as_f32"][name]
        assert sha256(tensor.tobytes()).hexdigest() == told["f32_sha256"]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("adapter_no_metadata", "the file has no __metadata__"),
        ("adapter_partial_metadata", "the metadata has no "),
    ],
)
def test_an_adapter_without_settings_says_why(golden: Path, sample: str, reason: str) -> None:
    found = load_adapter(golden / "ferrotensor" / sample / "tree" / "adapter.safetensors")
    assert found.settings is None
    assert found.reason is not None
    assert found.reason.startswith(reason)


def test_an_adapter_of_another_dtype_is_refused_by_the_tensors_name(golden: Path) -> None:
    path = golden / "ferrotensor" / "bad_adapter_f64" / "tree" / "adapter.safetensors"
    with pytest.raises(UnsupportedVersion, match=r"tensor \S+ is F64, expected F32, F16 or BF16"):
        load_adapter(path)
    for sample in ("not_safetensors", "short_data", "truncated"):
        damaged = golden / "ferrotensor" / f"bad_adapter_{sample}" / "tree" / "adapter.safetensors"
        with pytest.raises(DamagedCheckpoint):
            load_adapter(damaged)
    with pytest.raises(NoCheckpoint):
        load_adapter(path.with_name("other.safetensors"))


def test_an_adapter_without_settings_has_no_metadata(tmp_path: Path) -> None:
    path = save_adapter(tmp_path / "adapter.safetensors", WEIGHTS, None)
    assert read_header(path, "x").metadata is None
    assert load_adapter(path).reason == "the file has no __metadata__"


@pytest.mark.parametrize(
    "tensor",
    [
        np.float16([1.5, -2.0]),
        np.float32([1.5, 0, -2.0, 0])[::2],
        np.asfortranarray(np.float32([1.5, -2.0])),
        np.array([1.5, -2.0], dtype=">f4"),
    ],
    ids=["float16", "strided", "column-major", "big-endian"],
)
def test_what_is_saved_is_its_values_in_f32(tmp_path: Path, tensor: Any) -> None:
    path = save_adapter(tmp_path / "adapter.safetensors", {"a": tensor}, None)
    assert read_header(path, "x").tensors[0].dtype == "F32"
    assert load_adapter(path).tensors["a"].tolist() == [1.5, -2.0]


def test_shapes_without_extent_or_values_come_back(tmp_path: Path) -> None:
    tensors = {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2.5)}
    found = load_adapter(save_adapter(tmp_path / "adapter.safetensors", tensors, None)).tensors
    assert [found["empty"].shape, found["scalar"].shape] == [(0, 3), ()]
    assert float(found["scalar"]) == 2.5


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        ({"a": np.zeros(1)}, None, "tensor 'a': float64 cannot be written as F32"),
        ({"a": np.zeros(1, np.int32)}, None, "tensor 'a': int32 cannot be written as F32"),
        ({"a": [1.0]}, None, "tensor 'a': None cannot be written as F32"),
        ({}, LoraSettings(-1, 1.0, ()), "rank is -1, expected an integer that is not negative"),
        ({}, LoraSettings(1, math.inf, ()), "alpha is inf, expected a finite number"),
        ({}, LoraSettings(1, math.nan, ()), "alpha is nan, expected a finite number"),
        ({}, LoraSettings(1, 1.0, ("a,b",)), "target_modules: 'a,b' is no name without a comma"),
    ],
)
def test_what_cannot_be_an_adapter_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, Any], settings: LoraSettings | None, message: str
) -> None:
    with pytest.raises(PublishError) as caught:
        save_adapter(tmp_path / "adapter.safetensors", tensors, settings)
    assert caught.value.message == message
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_is_applied_in_place_and_counted(tmp_path: Path) -> None:
    adapter = load_adapter(save_adapter(tmp_path / "adapter.safetensors", WEIGHTS, SETTINGS))
    target = np.zeros((2, 3), np.float32)
    assert apply_adapter({"q.lora_a": target}, adapter) == 1
    assert target.tolist() == [[0, 1, 2], [3, 4, 5]]
    raw = memoryview(bytearray(8)).cast("f", [2])
    assert apply_adapter({"q.lora_b": raw}, adapter) == 1
    assert raw.tolist() == [1.5, -2.5]
    assert apply_adapter({}, adapter) == 0


@pytest.mark.parametrize(
    ("name", "spoilt", "message"),
    [
        ("a.missing", np.zeros(1, np.float32), "the adapter has no tensor 'a.missing'"),
        ("q.lora_b", np.zeros(3, np.float32), "q.lora_b: expected shape [3], the adapter has [2]"),
        (
            "q.lora_b",
            np.zeros(2, np.int32),
            "q.lora_b: is int32, expected floats that can be written",
        ),
    ],
)  # fmt: skip
def test_an_adapter_is_applied_wholly_or_not_at_all(
    tmp_path: Path, name: str, spoilt: Any, message: str
) -> None:
    adapter = load_adapter(save_adapter(tmp_path / "adapter.safetensors", WEIGHTS, SETTINGS))
    target = np.zeros((2, 3), np.float32)
    with pytest.raises(DoesNotFit) as caught:
        apply_adapter({"q.lora_a": target, name: spoilt}, adapter)
    assert caught.value.message == message
    assert not target.any()


def test_the_first_problem_by_name_is_the_error(tmp_path: Path) -> None:
    adapter = load_adapter(save_adapter(tmp_path / "adapter.safetensors", WEIGHTS, SETTINGS))
    wrong = np.zeros(7, np.float32)
    with pytest.raises(DoesNotFit, match=r"^q\.lora_a: expected shape \[7\], the adapter has"):
        apply_adapter({"z.missing": wrong, "q.lora_b": wrong, "q.lora_a": wrong}, adapter)


def test_lenient_loading_tells_each_name_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_adapter(tmp_path / "adapter.safetensors", WEIGHTS, None)
    targets = {
        "q.lora_b": np.zeros(2, np.float32),
        "z": np.ones(1, np.float32),
        "a": np.ones(1, np.float32),
    }
    with caplog.at_level(logging.WARNING):
        assert load_weights(targets, path) == ("a", "z")
    assert targets["q.lora_b"].tolist() == [1.5, -2.5]
    assert (targets["a"].tolist(), targets["z"].tolist()) == ([1], [1])
    assert [record.getMessage() for record in caplog.records] == [
        "adapter.safetensors: no tensor 'a': the model keeps its own",
        "adapter.safetensors: no tensor 'z': the model keeps its own",
    ]


def test_an_adapter_saved_again_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    save_adapter(path, WEIGHTS, SETTINGS)
    save_adapter(path, {"q.lora_b": np.float32([7])}, SETTINGS)
    assert load_adapter(path).tensors["q.lora_b"].tolist() == [7]
    (slot,) = scan(tmp_path)
    assert [each.state for each in slot.generations] == [State.LIVE, State.RETIRED]
    assert load_adapter(slot.generations[1].path).tensors.keys() == WEIGHTS.keys()


def test_of_many_saves_the_last_two_stay_or_all(tmp_path: Path) -> None:
    for step in range(4):
        save_set(tmp_path / "lora", {"a": np.float32([step])}, None, one_set(step))
        save_adapter(tmp_path / "adapter.safetensors", {"a": np.float32([step])}, None)
        save_checkpoint(tmp_path / "ckpt.json", one_set(step), keep=None)
    kept = {slot.name: [each.state for each in slot.generations] for slot in scan(tmp_path)}
    assert kept == {
        "lora": [State.LIVE, State.RETIRED],
        "adapter.safetensors": [State.LIVE, State.RETIRED],
        "ckpt.json": [State.LIVE, State.RETIRED, State.RETIRED, State.RETIRED],
    }


# ---- one set ----------------------------------------------------------------------------------


def one_set(step: int) -> TrainingCheckpoint:
    return TrainingCheckpoint(TrainingState(step=step, total_steps=9), adamw(t=float(step)))


def test_a_set_is_one_generation_whose_parts_ferrotensor_reads(tmp_path: Path) -> None:
    tensors = {"q.lora_a": np.float32([1, 2, 3])}
    path = save_set(tmp_path / "lora", tensors, SETTINGS, one_set(5))
    save_set(path, {"q.lora_a": np.float32([4, 5, 6])}, SETTINGS, one_set(6))
    assert sorted(each.name for each in path.iterdir()) == [
        "adapter.safetensors",
        "manifest.json",
        "training_checkpoint.json",
        "training_state.json",
    ]
    assert load_state(path / "training_state.json").step == 6
    assert load_adapter(path / "adapter.safetensors").settings == SETTINGS
    found = load_set(path)
    assert found.adapter.tensors["q.lora_a"].tolist() == [4, 5, 6]
    assert found.checkpoint.state.step == 6
    assert found.checkpoint.read_from == path / "training_checkpoint.json"
    (slot,) = scan(tmp_path)
    assert [(each.state, each.step) for each in slot.generations] == [
        (State.LIVE, 6),
        (State.RETIRED, 5),
    ]
    assert load_set(slot.generations[1].path).checkpoint.state.step == 5
    assert drive(verify(path)).verdict is Verdict.INTACT


def test_a_set_whose_parts_are_of_two_saves_is_told(tmp_path: Path) -> None:
    path = save_set(tmp_path / "lora", {"other": np.float32([1])}, None, one_set(5))
    report = drive(verify(path))
    assert [each.message for each in report.findings if each.code == "torn-set"] == [
        "the adapter has no tensor 'q.lora_a' of the optimizer's"
    ]


@pytest.mark.parametrize("name", ["adapter.safetensors", "training_checkpoint.json"])
def test_a_set_with_a_flipped_byte_is_not_loaded(tmp_path: Path, name: str) -> None:
    path = save_set(tmp_path / "lora", WEIGHTS, SETTINGS, one_set(5))
    data = bytearray((path / name).read_bytes())
    data[-3] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=f"{name}: its bytes are not what manifest.json"):
        load_set(path)
    assert drive(verify(path)).verdict is Verdict.DAMAGED


def test_a_set_that_is_none_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match=r"no set of adapter\.safetensors"):
        load_set(tmp_path / "lora")
    (tmp_path / "lora").mkdir()
    with pytest.raises(NoCheckpoint):
        load_set(tmp_path / "lora")


def test_a_set_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    path = save_set(tmp_path / "lora", WEIGHTS, SETTINGS, one_set(5))
    before = snapshot(path)
    bad = replace(one_set(6), optimizer=adamw(eps=math.nan))
    with pytest.raises(PublishError, match="eps of AdamW is nan"):
        save_set(path, WEIGHTS, SETTINGS, bad)

    def refuse(call: fs.Call) -> None:
        if call.name == "write" and call.path.endswith("training_checkpoint.json"):
            raise OSError(28, "No space left on device", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError, match="No space left on device"):
        save_set(path, WEIGHTS, SETTINGS, one_set(6))
    assert snapshot(path) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == [".ckpt", "lora"]


def test_a_set_is_loaded_whole_while_it_is_replaced(tmp_path: Path) -> None:
    path = save_set(tmp_path / "lora", {"a": np.float32([5])}, None, one_set(5))
    is_done = False

    def swap(call: fs.Call) -> None:
        nonlocal is_done
        if call.path.endswith("/adapter.safetensors") and call.name == "open" and not is_done:
            is_done = True
            save_set(path, {"a": np.float32([6])}, None, one_set(6))

    with fs.hooked(swap):
        found = load_set(path)
    assert is_done
    assert (found.adapter.tensors["a"].tolist(), found.checkpoint.state.step) == ([5], 5)
