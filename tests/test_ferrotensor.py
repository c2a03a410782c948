"""ferrotensor: states, training checkpoints, adapters, and the three of them beside each other."""

import json
import math
import shutil
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.checkpoint import Depth, Severity
from ckpt.errors import NoCheckpoint, TornRead
from ckpt.formats.base import check_run, generations_inside
from ckpt.formats.ferrotensor import Ferrotensor, torn_set
from ckpt.formats.ferrotensor_adapter import lora_settings
from ckpt.formats.ferrotensor_checkpoint import (
    WINDOW_BYTES,
    TrainingCheckpoint,
    read_training_checkpoint,
    trailing_members,
)
from ckpt.formats.ferrotensor_scan import CutText, Scanned, scan
from ckpt.formats.ferrotensor_state import FIELDS, TrainingState, parse_state, state_from

FERROTENSOR = Ferrotensor()
STATE = {
    "step": 42,
    "total_steps": 100,
    "best_loss": 1.5,
    "lr": 0.0001,
    "epoch": 1,
    "batch_size": 2,
    "grad_accum_steps": 8,
    "sequence_length": 128,
    "fp16": True,
    "train_modules": "lora",
    "task": "pretrain",
    "model_path": "/models/tiny",
    "dataset_path": "./data/train.bin",
    "seed": 7,
}
SCALER = {
    "scale": 1024.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "consecutive_good_steps": 3,
    "found_overflow": False,
    "enabled": True,
}
ADAMW = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "t": 42.0}


def codes(seen):
    return [finding.code for finding in seen.findings]


def sample(golden, name, file):
    return golden / "ferrotensor" / name / "tree" / file


def expected(golden, name):
    return json.loads((golden / "ferrotensor" / name / "EXPECTED.json").read_bytes())


# ---- states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["state_full", "state_minimal", "state_nan_best_loss", "state_new", "state_unknown_field"],
)
def test_a_state_gives_the_values_its_own_program_reads(golden, name):
    path = sample(golden, name, "training_state.json")
    parsed = parse_state(path.read_bytes(), path.name)
    assert parsed.state is not None
    assert dict(parsed.state.as_mapping()) == expected(golden, name)["values"]
    assert parsed.findings == ()
    seen = FERROTENSOR.read(path)
    assert (seen.step, seen.complete, seen.findings) == (parsed.state.step, True, ())


def test_a_fresh_state_has_the_defaults_of_its_program():
    assert dict(TrainingState().as_mapping()) == {
        "step": 0,
        "total_steps": 0,
        "best_loss": None,
        "lr": 0.0,
        "epoch": 0,
        "batch_size": 1,
        "grad_accum_steps": 1,
        "sequence_length": 128,
        "fp16": False,
        "train_modules": "lora",
        "task": "sft",
        "model_path": "",
        "dataset_path": "",
        "seed": 0,
    }


ACCEPTED = {
    "an integer lr": {"lr": 1},
    "an integer best_loss": {"best_loss": 2},
    "a null best_loss": {"best_loss": None},
    "the largest seed": {"seed": 18446744073709551615},
    "an unknown key": {"note": {"by": "hand"}},
    "our own keys": {"loss": 0.5, "grad_norm": None, "tokens": 8, "updated_at": 1.0},
}


@pytest.mark.parametrize("change", ACCEPTED.values(), ids=ACCEPTED)
def test_what_ferrotensor_accepts_has_no_findings(change):
    parsed = state_from(STATE | change, "s.json")
    assert parsed.state is not None
    assert parsed.findings == ()


def test_an_array_of_the_fourteen_values_is_a_state():
    parsed = parse_state(json.dumps([STATE[name] for name in FIELDS]).encode(), "s.json")
    assert parsed.state == state_from(STATE, "s.json").state
    assert parsed.findings == ()
    assert codes(parse_state(b"[1, 2]", "s.json")) == ["bad-state"]


REFUSED = {
    "a negative step": ({"step": -1}, "step is -1", None),
    "a null step": ({"step": None}, "step is null", None),
    "a text step": ({"step": "42"}, "step is the string '42'", None),
    "a true step": ({"step": True}, "step is true", None),
    "a step beyond 64 bits": ({"step": 2**64}, "step is 18446744073709551616", None),
    "a whole float step": ({"step": 42.0}, "step is 42.0", 42),
    "a float step": ({"step": 42.5}, "step is 42.5", None),
    "fp16 as 0": ({"fp16": 0}, "fp16 is 0, expected true or false", 42),
    "a text lr": ({"lr": "fast"}, "lr is the string 'fast'", None),
    "a null task": ({"task": None}, "task is null, expected a string", None),
    "a negative seed": ({"seed": -1}, "seed is -1", None),
    "a float seed": ({"seed": 1.5}, "seed is 1.5", None),
}


@pytest.mark.parametrize(("change", "words", "step"), REFUSED.values(), ids=REFUSED)
def test_what_ferrotensor_refuses_is_an_error_that_names_the_field(change, words, step):
    parsed = state_from(STATE | change, "s.json")
    assert codes(parsed) == ["bad-state"]
    assert parsed.findings[0].severity is Severity.ERROR
    assert words in parsed.findings[0].message
    assert (parsed.state.step if parsed.state else None) == step


READ_ALL_THE_SAME = {
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(STATE).encode(),
    "a NaN best_loss": json.dumps(STATE | {"best_loss": math.nan}).encode(),
    "an infinite lr": json.dumps(STATE | {"lr": math.inf}).encode(),
    "a null lr": json.dumps(STATE | {"lr": None}).encode(),
    "a NaN among our keys": json.dumps(STATE | {"loss": math.nan}).encode(),
}


@pytest.mark.parametrize("data", READ_ALL_THE_SAME.values(), ids=READ_ALL_THE_SAME)
def test_what_only_ferrotensor_refuses_is_read_with_a_warning(data):
    parsed = parse_state(data, "s.json")
    assert parsed.state is not None
    assert parsed.state.step == 42
    assert [(each.code, each.severity) for each in parsed.findings] == [
        ("upstream-refuses", Severity.WARNING)
    ]


def test_a_null_lr_is_unknown_and_never_zero():
    parsed = state_from(STATE | {"lr": None, "best_loss": None}, "s.json")
    assert parsed.state is not None
    assert (parsed.state.lr, parsed.state.best_loss) == (None, None)


def test_our_own_keys_are_read_as_numbers():
    parsed = state_from(STATE | {"loss": 0.5, "tokens": 10**400, "note": "x"}, "s.json")
    assert parsed.number("loss") == 0.5
    assert parsed.number("tokens") == math.inf
    assert parsed.number("note") is None
    assert parsed.number("grad_norm") is None


def test_a_duplicate_key_is_refused():
    text = json.dumps(STATE).replace('"seed": 7', '"seed": 7, "step": 50')
    parsed = parse_state(text.encode(), "s.json")
    assert (codes(parsed), parsed.state) == (["duplicate-key"], None)


def test_a_state_of_another_program_is_foreign_and_names_what_it_lacks():
    parsed = parse_state(b'{"step": 3, "epoch": 0, "optimizer": "adam"}', "training_state.json")
    assert codes(parsed) == ["foreign-state"]
    assert parsed.state is None
    assert "total_steps, lr, batch_size" in parsed.findings[0].message
    assert parsed.extra == {"optimizer": "adam"}


def test_one_missing_field_is_damage_and_not_another_program():
    state = {key: value for key, value in STATE.items() if key != "step"}
    parsed = state_from(state, "s.json")
    assert codes(parsed) == ["bad-state"]
    assert parsed.findings[0].message == "s.json: missing field step"


@pytest.mark.parametrize("data", [b"", b"  \n", b'{"step": 4', b'{"step": 4} x', b"{'a': 1}"])
def test_text_that_does_not_parse_is_a_torn_read(data):
    with pytest.raises(TornRead):
        parse_state(data, "s.json")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("bad_state_bom", "upstream-refuses"),
        ("bad_state_float_step", "bad-state"),
        ("bad_state_missing_step", "bad-state"),
        ("bad_state_nan_literal", "upstream-refuses"),
        ("bad_state_negative_step", "bad-state"),
        ("bad_state_empty", "empty-file"),
        ("bad_state_truncated", "bad-state"),
    ],
)
def test_a_damaged_state_is_seen_at_a_glance(golden, name, code):
    path = sample(golden, name, "training_state.json")
    assert codes(FERROTENSOR.glance(path)) == [code]


def test_a_state_is_progress_and_no_slot(golden):
    path = sample(golden, "state_full", "training_state.json")
    assert FERROTENSOR.owns(path)
    assert not FERROTENSOR.is_slot(path)


# ---- training checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["checkpoint_adamw_scaler", "checkpoint_none", "checkpoint_missing_options"]
)
@pytest.mark.parametrize("depth", [Depth.HEADERS, Depth.BYTES])
def test_a_training_checkpoint_gives_its_state_and_settings(golden, name, depth):
    path = sample(golden, name, "training_checkpoint.json")
    values = expected(golden, name)["values"]
    seen = FERROTENSOR.read(path, depth)
    assert seen.findings == ()
    assert (seen.step, seen.complete) == (42, True)
    assert dict(seen.metadata) == values["training_state"]
    assert seen.settings.get("grad_scaler") == values["grad_scaler_state"]
    if values["optimizer_state"]:
        assert dict(seen.settings["optimizer"]) == {"type": "AdamW"} | ADAMW


def test_a_null_moment_is_unusable_for_resume(golden, tmp_path):
    path = tmp_path / "training_checkpoint.json"
    text = sample(golden, "checkpoint_adamw_scaler", path.name).read_text()
    path.write_text(text.replace("-0.25", "null"))
    found = FERROTENSOR.read(path, Depth.BYTES).findings
    assert [(each.code, each.severity) for each in found] == [("nonfinite", Severity.ERROR)]
    assert found[0].tensor == "model.layers.0.self_attn.q_proj.lora_a"
    assert "m_states" in found[0].message


def test_an_optimizer_other_than_adamw_is_refused_by_name(golden):
    path = sample(golden, "bad_checkpoint_unknown_optimizer", "training_checkpoint.json")
    seen = FERROTENSOR.read(path)
    assert codes(seen) == ["bad-state"]
    assert "'SGD'" in seen.findings[0].message
    assert seen.step == 42


def checkpoint_text(first=None, moments=8_000, **changes):
    """A training checkpoint whose moments do not fit into the two ends that are read."""
    numbers = [0.5, -1e-8, 3.0] * moments
    optimizer = {"AdamW": ADAMW | {"m_states": {"a": numbers}, "v_states": {"a": numbers}}}
    members = {"training_state": STATE, "optimizer_state": optimizer, "grad_scaler_state": SCALER}
    members |= changes
    order = first or list(members)
    return json.dumps({key: members[key] for key in order}, indent=2)


ORDERS = [
    ["training_state", "optimizer_state", "grad_scaler_state"],
    ["optimizer_state", "training_state", "grad_scaler_state"],
    ["optimizer_state", "grad_scaler_state", "training_state"],
    ["grad_scaler_state", "training_state", "optimizer_state"],
    ["grad_scaler_state", "optimizer_state", "training_state"],
]


@pytest.mark.parametrize("order", ORDERS)
def test_both_ways_of_reading_give_the_same_answer(tmp_path, order):
    path = tmp_path / "training_checkpoint.json"
    path.write_text(checkpoint_text(order))
    assert path.stat().st_size > 4 * WINDOW_BYTES
    quick = read_training_checkpoint(path)
    whole = read_training_checkpoint(path, whole=True)
    assert quick.findings == whole.findings == ()
    assert quick.parsed == whole.parsed == state_from(STATE, f"{path.name}: training_state")
    assert quick.scaler == whole.scaler == SCALER
    assert whole.steps_taken == 42.0
    assert whole.parameters == ("a",)


def test_the_state_between_two_large_values_is_found_by_the_whole_way(tmp_path):
    path = tmp_path / "training_checkpoint.json"
    order = ["more", "training_state", "optimizer_state", "grad_scaler_state"]
    path.write_text(checkpoint_text(order, more=[1.0] * 20_000))
    found = read_training_checkpoint(path)
    assert (found.step, found.is_whole) == (42, True)


def test_the_quick_way_reads_no_more_than_the_two_ends(tmp_path):
    path = tmp_path / "training_checkpoint.json"
    path.write_text(checkpoint_text())
    sizes = []
    with fs.hooked(lambda call: sizes.append(call.size_bytes)):
        assert read_training_checkpoint(path).step == 42
    assert sum(sizes) <= 2 * WINDOW_BYTES


def test_keys_inside_strings_and_inner_objects_are_not_taken_for_the_state(tmp_path):
    path = tmp_path / "training_checkpoint.json"
    fake = '"training_state": {"step": 1}'
    inner = {"training_state": {"step": 2}, "text": fake}
    order = ["optimizer_state", "training_state", "grad_scaler_state", "later"]
    path.write_text(checkpoint_text(order, later=inner, training_state=STATE | {"note": fake}))
    assert read_training_checkpoint(path).step == 42


@pytest.mark.parametrize(
    ("tail", "members"),
    [
        (
            b'1.0]}}, "training_state": {"step": 1}, "x": 2}\n',
            {"training_state": {"step": 1}, "x": 2},
        ),
        (b'1.0], "training_state": {"step": 1}}}', None),
        (b'1.0]}}, "training_state": {"step": 1}', None),
        (b'\\"training_state\\": 1}', None),
        (b'1.0]}}, "training_state": 1, "training_state": 2}', None),
        (b"1.0]}}}", None),
    ],
)
def test_only_members_that_close_the_outermost_object_are_taken_from_a_tail(tail, members):
    assert trailing_members(tail) == members


@pytest.mark.parametrize("cut", [1, 2, 20, 200, 70_000, 300_000])
def test_a_cut_training_checkpoint_is_torn_at_every_depth(tmp_path, cut):
    path = tmp_path / "training_checkpoint.json"
    path.write_bytes(checkpoint_text().encode()[:-cut])
    for whole in (False, True):
        with pytest.raises(TornRead):
            read_training_checkpoint(path, whole=whole)
    assert codes(FERROTENSOR.glance(path)) == ["bad-state"]


def test_a_torn_middle_is_found_when_every_byte_is_looked_at(tmp_path):
    path = tmp_path / "training_checkpoint.json"
    text = checkpoint_text()
    middle = len(text) // 2
    path.write_text(text[:middle] + "\0\0\0" + text[middle + 3 :])
    assert read_training_checkpoint(path).step == 42
    with pytest.raises(TornRead):
        read_training_checkpoint(path, whole=True)


def test_a_key_given_twice_is_found_by_both_ways_where_an_end_shows_it(tmp_path):
    path = tmp_path / "training_checkpoint.json"
    text = checkpoint_text()
    path.write_text(text.rstrip()[:-1] + ', "training_state": ' + json.dumps(STATE) + "}")
    for whole in (False, True):
        assert codes(read_training_checkpoint(path, whole=whole)) == ["duplicate-key"]


MALFORMED = [
    "",
    "[]]",
    '{"training_state": {"step": 01}}',
    '{"training_state": {}, }',
    '{"training_state" 1}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a": [1, 2,]}}}}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a": [1 2]}}}}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a": [1, .5]}}}}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a": [nul]}}}}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a\nb": []}}}}',
    '{"optimizer_state": {"AdamW": {"m_states": {"a": ' + "[" * 5000 + "]" * 5000 + "}}}}",
    '{"training_state": 1} x',
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_json_is_a_torn_read_and_never_another_error(tmp_path, text):
    path = tmp_path / "training_checkpoint.json"
    path.write_text(text)
    with pytest.raises(TornRead):
        read_training_checkpoint(path, whole=True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_where_a_block_ends_does_not_matter(golden, size):
    text = sample(golden, "checkpoint_adamw_scaler", "training_checkpoint.json").read_bytes()
    found = Scanned()
    scan((text[at : at + size] for at in range(0, len(text), size)), found)
    values = expected(golden, "checkpoint_adamw_scaler")["values"]
    assert found.training_state == values["training_state"]
    assert found.scaler == values["grad_scaler_state"]
    assert found.optimizer == ADAMW
    assert [moment.numbers for moment in found.moments["v_states"].values()] == [4, 4]


def test_every_beginning_of_a_text_is_cut(golden):
    text = sample(golden, "checkpoint_adamw_scaler", "training_checkpoint.json").read_bytes()
    for end in range(len(text.rstrip())):
        found = Scanned()
        with pytest.raises(CutText):
            scan(iter((text[:end],)), found)
        assert found.optimizer.items() <= ADAMW.items()


ODD = {
    "no state": ({"optimizer_state": None}, "missing field training_state"),
    "an array": ([1, 2], "an object is expected"),
    "two optimizers": (
        {"training_state": STATE, "optimizer_state": {"AdamW": {}, "SGD": {}}},
        "names 'AdamW' and 'SGD'",
    ),
    "an optimizer without t": (
        {
            "training_state": STATE,
            "optimizer_state": {"AdamW": ADAMW | {"t": None, "m_states": {}, "v_states": {}}},
        },
        "t of AdamW is null",
    ),
    "no moments": (
        {"training_state": STATE, "optimizer_state": {"AdamW": ADAMW}},
        "missing field m_states",
    ),
    "a scaler without its scale": (
        {"training_state": STATE, "grad_scaler_state": {"enabled": 1}},
        "missing field scale",
    ),
}


@pytest.mark.parametrize(("value", "words"), ODD.values(), ids=ODD)
def test_odd_shapes_are_findings(tmp_path, value, words):
    path = tmp_path / "training_checkpoint.json"
    path.write_text(json.dumps(value))
    found = read_training_checkpoint(path, whole=True)
    assert any(words in finding.message for finding in found.findings)


def test_any_json_name_of_that_shape_is_a_slot_and_other_json_is_not(tmp_path):
    (tmp_path / "save_000042.json").write_text(checkpoint_text(moments=1))
    (tmp_path / "results.json").write_text('{"accuracy": 1}')
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "ckpt.json.tmp").write_text("{")
    assert FERROTENSOR.is_slot(tmp_path / "save_000042.json")
    assert FERROTENSOR.read(tmp_path / "save_000042.json").step == 42
    assert not FERROTENSOR.is_slot(tmp_path / "results.json")
    with pytest.raises(NoCheckpoint, match="no training_state"):
        FERROTENSOR.read(tmp_path / "results.json")
    for name in ("config.json", "ckpt.json.tmp", "model.safetensors", ".hidden.json"):
        assert not FERROTENSOR.owns(tmp_path / name)


# ---- adapters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("adapter_f32", []),
        ("adapter_f16", []),
        ("adapter_bf16", []),
        ("adapter_no_targets", []),
        ("adapter_empty", ["no-tensors"]),
        ("adapter_no_metadata", ["lora-settings"]),
        ("adapter_partial_metadata", ["lora-settings"]),
        ("adapter_foreign_metadata", ["lora-settings"]),
        ("bad_adapter_f64", ["unsupported-dtype"]),
    ],
)
def test_an_adapter_gives_its_tensors_and_settings(golden, name, finding):
    facts = expected(golden, name)
    seen = FERROTENSOR.read(sample(golden, name, "adapter.safetensors"))
    assert codes(seen) == finding
    assert {
        tensor.name: (tensor.dtype, list(tensor.shape), tensor.size_bytes)
        for tensor in seen.tensors
    } == {
        key: (each["dtype"], each["shape"], each["nbytes"])
        for key, each in facts["facts"]["tensors"].items()
    }
    assert dict(seen.metadata) == (facts["facts"]["metadata"] or {})
    settings = {**seen.settings}
    if settings:
        settings["target_modules"] = list(settings["target_modules"])
    assert settings == (facts["lora_metadata"] or {})


def test_an_f64_tensor_is_named(golden):
    seen = FERROTENSOR.read(sample(golden, "bad_adapter_f64", "adapter.safetensors"))
    assert seen.findings[0].tensor == "model.layers.0.self_attn.q_proj.lora_a"


@pytest.mark.parametrize(
    "name", ["bad_adapter_not_safetensors", "bad_adapter_short_data", "bad_adapter_truncated"]
)
def test_a_damaged_adapter_has_an_error_and_is_not_complete(golden, name):
    glance = FERROTENSOR.glance(sample(golden, name, "adapter.safetensors"))
    assert any(finding.severity is Severity.ERROR for finding in glance.findings)
    assert glance.complete is False


GOOD = {"rank": "8", "alpha": "16", "target_modules": "q_proj,v_proj"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": "-8"}, "rank is '-8', expected an unsigned integer"),
        ({"rank": "8.0"}, "rank is '8.0', expected an unsigned integer"),
        ({"rank": " 8"}, "rank is ' 8', expected an unsigned integer"),
        ({"rank": "18446744073709551616"}, "rank is '18446744073709551616'"),
        ({"alpha": "1_6"}, "alpha is '1_6', expected a number"),
        ({"alpha": ""}, "alpha is '', expected a number"),
    ],
)
def test_settings_that_do_not_parse_are_none_with_the_reason(change, reason):
    settings, why = lora_settings(GOOD | change)
    assert dict(settings) == {}
    assert why is not None
    assert reason in why


@pytest.mark.parametrize(
    ("text", "value"), [("16", 16.0), ("0.0000001", 1e-7), ("+4.", 4.0), (".5", 0.5), ("1e3", 1e3)]
)
def test_alpha_is_read_as_rust_reads_a_float(text, value):
    settings, reason = lora_settings(GOOD | {"alpha": text})
    assert (settings["alpha"], reason) == (value, None)


def test_a_peft_adapter_is_left_to_its_own_format(tmp_path):
    assert not FERROTENSOR.owns(tmp_path / "adapter_model.safetensors")
    assert not FERROTENSOR.owns(tmp_path / "adapter.safetensors.tmp")
    assert FERROTENSOR.owns(tmp_path / "adapter_step_50.safetensors")


# ---- a run of them ------------------------------------------------------------------------------


def test_a_run_that_fits_together_has_no_torn_set(golden):
    run = golden / "ferrotensor" / "run" / "tree" / "exp1"
    assert list(check_run(FERROTENSOR, run)) == []


def test_a_state_of_another_step_than_the_checkpoint_is_a_torn_set(golden):
    run = golden / "ferrotensor" / "run_mismatch" / "tree" / "exp1"
    (finding,) = check_run(FERROTENSOR, run)
    assert finding.code == "torn-set"
    assert "training_state.json says step 50, training_checkpoint.json step 42" in finding.message


def test_an_optimizer_of_other_parameters_is_a_torn_set(golden, tmp_path):
    run = tmp_path / "exp1"
    shutil.copytree(golden / "ferrotensor" / "run" / "tree" / "exp1", run)
    checkpoint = run / "training_checkpoint.json"
    checkpoint.chmod(0o644)
    checkpoint.write_text(checkpoint.read_text().replace("self_attn.q_proj", "mlp.up_proj"))
    (finding,) = check_run(FERROTENSOR, run)
    assert "no tensor 'model.layers.0.mlp.up_proj.lora_a' and 1 more" in finding.message


def with_steps(step, taken, scaler=None):
    parsed = state_from(STATE | {"step": step}, "s.json")
    return TrainingCheckpoint(parsed, {"t": taken}, scaler)


@pytest.mark.parametrize(
    ("checkpoint", "is_torn"),
    [
        (with_steps(42, 42.0), False),
        (with_steps(42, 50.0), True),
        (with_steps(42, 2.0), True),
        (with_steps(42, 40.0, {"enabled": True}), False),
        (with_steps(42, 50.0, {"enabled": True}), True),
        (TrainingCheckpoint(state_from(STATE, "s.json")), False),
    ],
)
def test_the_optimizers_own_count_may_lag_only_while_a_scaler_skips_steps(checkpoint, is_torn):
    assert (torn_set(None, checkpoint, None) is not None) is is_torn


def test_nothing_is_said_of_a_directory_without_a_training_checkpoint(tmp_path):
    (tmp_path / "training_state.json").write_text(json.dumps(STATE))
    assert list(check_run(FERROTENSOR, tmp_path)) == []
    assert list(check_run(FERROTENSOR, tmp_path / "gone")) == []


def test_a_temporary_file_of_a_dead_save_is_a_leftover(golden):
    run = golden / "ferrotensor" / "run" / "tree" / "exp1"
    (leftover,) = generations_inside(FERROTENSOR, run / "adapter.safetensors").leftovers
    assert leftover.path.name == "adapter.safetensors.tmp"
    assert leftover.kind == "temporary-file"
    assert generations_inside(FERROTENSOR, run / "training_checkpoint.json").leftovers == ()


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(NoCheckpoint, match="nothing is there"):
        FERROTENSOR.read(tmp_path / "adapter.safetensors")
    assert codes(FERROTENSOR.glance(Path(tmp_path / "training_checkpoint.json"))) == [
        "missing-file"
    ]


@pytest.mark.parametrize("name", ["adapter.safetensors", "training_state.json"])
def test_a_file_that_may_not_be_read_says_so(golden, name):
    def refuse(call):
        if call.name == "open":
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        seen = FERROTENSOR.read(golden / "ferrotensor" / "run" / "tree" / "exp1" / name)
    assert codes(seen) == ["permission-denied"]
