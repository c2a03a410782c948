"""Hugging Face directories: shards and their index, adapters, the Trainer's checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from samples import floats

from ckpt.checkpoint import Checkpoint, Depth, Severity, Verdict
from ckpt.errors import NoCheckpoint
from ckpt.formats import format_of, inspect
from ckpt.operation import drive
from ckpt.tensorwriter import write_tensors
from ckpt.verify import verify

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
STATE = {
    "global_step": 8,
    "max_steps": 20,
    "epoch": 0.5,
    "log_history": [{"step": 5, "loss": 1.25}],
}


def put(directory: Path, **files: Any) -> Path:
    """Write a directory: `__` in a name is a dot, bytes as they are, anything else as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / name.replace("__", ".")).write_bytes(data)
    return directory


def put_shards(directory: Path, weight_map: dict[str, str] | None = None) -> Path:
    """Write two shards of a tensor each, and an index that names them."""
    put(directory, config__json={"model_type": "tiny"})
    write_tensors(directory / FIRST, [floats("a", 1, 2)])
    write_tensors(directory / SECOND, [floats("b", 3)])
    index = {"metadata": {}, "weight_map": weight_map or {"a": FIRST, "b": SECOND}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def faults(checkpoint: Checkpoint) -> list[tuple[str, str, str | None]]:
    return [(f.severity.value, f.code, f.file) for f in checkpoint.findings]


def test_the_real_sharded_model_gives_the_facts_of_its_program(golden: Path) -> None:
    sample = golden / "astrai" / "sharded_hf"
    expected = json.loads((sample / "EXPECTED.json").read_text())
    checkpoint = inspect(sample / "tree" / "base")
    assert checkpoint.format == "huggingface"
    assert checkpoint.findings == ()
    assert checkpoint.step is None
    assert dict(checkpoint.settings) == expected["config.json"]
    assert {
        (tensor.file, tensor.name): (tensor.dtype, list(tensor.shape), tensor.size_bytes)
        for tensor in checkpoint.tensors
    } == {
        (file, name): (tensor["dtype"], tensor["shape"], tensor["nbytes"])
        for file, content in expected["facts"].items()
        for name, tensor in content["tensors"].items()
    }


def test_an_index_file_is_its_directory(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    assert inspect(base / INDEX).tensors == inspect(base).tensors
    assert len(inspect(base / INDEX).tensors) == 2


def test_a_missing_shard_is_named_at_the_depth_of_names(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    (base / SECOND).unlink()
    checkpoint = inspect(base, Depth.NAMES)
    assert faults(checkpoint) == [("error", "missing-file", SECOND)]
    assert checkpoint.complete is False
    assert [tensor.name for tensor in inspect(base).tensors] == ["a"]


@pytest.mark.parametrize("name", [FIRST, "model.safetensors", "adapter_model.safetensors"])
def test_empty_weights_are_told_by_their_size_alone(tmp_path: Path, name: str) -> None:
    base = put_shards(tmp_path / "base")
    put(base, adapter_config__json={"r": 8})
    (base / name).write_bytes(b"")
    found = faults(inspect(base, Depth.NAMES))
    assert ("error", "empty-file", name) in found
    assert [f.code for f in inspect(base).findings].count("empty-file") == 1


def test_a_shard_of_an_earlier_save_is_reported_and_not_read(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    write_tensors(base / "model-00003-of-00003.safetensors", [floats("a", 9)])
    checkpoint = inspect(base)
    assert faults(checkpoint) == [("warning", "unlisted-file", "model-00003-of-00003.safetensors")]
    assert {tensor.file for tensor in checkpoint.tensors} == {FIRST, SECOND}


@pytest.mark.parametrize("shards_are_there", [False, True])
def test_a_single_file_wins_over_an_index_beside_it(
    tmp_path: Path, shards_are_there: bool
) -> None:
    base = put_shards(tmp_path / "base")
    write_tensors(base / "model.safetensors", [floats("new", 1)])
    if not shards_are_there:
        (base / FIRST).unlink()
        (base / SECOND).unlink()
    checkpoint = inspect(base)
    assert faults(checkpoint) == [("note", "stale-index", INDEX)]
    assert [(tensor.name, tensor.file) for tensor in checkpoint.tensors] == [
        ("new", "model.safetensors")
    ]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (
            {"a": FIRST, "b": SECOND, "ghost": FIRST},
            f"{INDEX}: tensor 'ghost' of {FIRST} is listed and not in its shard",
        ),
        (
            {"a": FIRST, "c": SECOND},
            f"{INDEX}: tensor 'b' of {SECOND} is in a shard and not listed",
        ),
        ({"a": SECOND, "b": SECOND}, f"{INDEX}: tensor 'a' of {SECOND} is listed and not in its"),
    ],
)
def test_an_index_that_differs_from_the_headers_says_where(
    tmp_path: Path, weight_map: dict[str, str], message: str
) -> None:
    checkpoint = inspect(put_shards(tmp_path / "base", weight_map))
    assert {f.code for f in checkpoint.findings if f.severity is Severity.ERROR} == {
        "tensor-list-mismatch"
    }
    assert any(finding.message.startswith(message) for finding in checkpoint.findings)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {"a": 3}}, None])
def test_an_index_without_a_map_is_a_bad_index_and_the_shards_are_still_listed(
    tmp_path: Path, index: object
) -> None:
    base = put_shards(tmp_path / "base")
    (base / INDEX).write_text(json.dumps(index))
    checkpoint = inspect(base)
    assert faults(checkpoint) == [("error", "bad-index", INDEX)]
    assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b"]


def test_a_shard_that_holds_nothing_of_what_is_listed_is_noticed(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    (base / SECOND).unlink()
    write_tensors(base / SECOND, [])
    assert ("error", "tensor-list-mismatch", INDEX) in faults(inspect(base))


@pytest.mark.parametrize(
    ("text", "code"),
    [('{"a": 1, "a": 2}', "duplicate-key"), ('{"a": ', "bad-config"), ("[1]", "bad-config")],
)
def test_a_configuration_that_cannot_be_read_is_a_finding(
    tmp_path: Path, text: str, code: str
) -> None:
    base = put_shards(tmp_path / "base")
    (base / "config.json").write_text(text)
    assert ("error", code, "config.json") in faults(inspect(base))


def test_a_name_given_twice_in_the_index_is_refused(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    (base / INDEX).write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}')
    assert ("error", "duplicate-key", INDEX) in faults(inspect(base))


def test_an_adapter_shows_its_settings_and_needs_them(tmp_path: Path) -> None:
    base = put(tmp_path / "adapter", adapter_config__json={"r": 8, "lora_alpha": 16})
    write_tensors(base / "adapter_model.safetensors", [floats("lora_A", 1)], {"format": "pt"})
    checkpoint = inspect(base)
    assert checkpoint.format == "huggingface"
    assert dict(checkpoint.settings) == {"r": 8, "lora_alpha": 16}
    assert checkpoint.findings == ()
    (base / "adapter_config.json").unlink()
    assert faults(inspect(base)) == [("error", "missing-file", "adapter_config.json")]


def test_an_adapter_beside_a_sharded_model_is_read_too(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    put(base, adapter_config__json={"r": 8})
    write_tensors(base / "adapter_model.safetensors", [floats("lora_A", 1)])
    checkpoint = inspect(base)
    assert checkpoint.findings == ()
    assert [tensor.name for tensor in checkpoint.tensors] == ["lora_A", "a", "b"]


def test_a_trainers_checkpoint_is_whole_once_its_state_is_there(tmp_path: Path) -> None:
    path = put_shards(tmp_path / "checkpoint-8")
    put(path, trainer_state__json=STATE, optimizer__pt=b"PK")
    checkpoint = inspect(path)
    assert (checkpoint.step, checkpoint.epoch, checkpoint.loss) == (8, 0.5, 1.25)
    assert checkpoint.complete is True
    assert faults(checkpoint) == [("warning", "unlisted-pickle", "optimizer.pt")]
    report = drive(verify(path))
    assert report.verdict is Verdict.UNVERIFIABLE


def test_a_trainers_checkpoint_without_its_state_was_cut_off(tmp_path: Path) -> None:
    checkpoint = inspect(put_shards(tmp_path / "checkpoint-8"))
    assert checkpoint.complete is False
    assert checkpoint.step == 8
    assert faults(checkpoint) == [("error", "missing-file", "trainer_state.json")]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({**STATE, "global_step": 9}, "name-mismatch"),
        ({**STATE, "global_step": "8"}, "bad-state"),
        ({**STATE, "global_step": True}, "bad-state"),
        ([], "bad-state"),
        (b'{"global_step": 8', "bad-state"),
        (b"", "bad-state"),
        (b'{"global_step": 8, "global_step": 8}', "duplicate-key"),
    ],
)
def test_a_state_that_does_not_fit_makes_it_incomplete(
    tmp_path: Path, state: object, code: str
) -> None:
    path = put_shards(tmp_path / "checkpoint-8")
    checkpoint = inspect(put(path, trainer_state__json=state))
    assert [f.code for f in checkpoint.findings if f.severity is Severity.ERROR] == [code]
    assert checkpoint.complete is False


def test_an_empty_checkpoint_directory_is_one_that_was_cut_off(tmp_path: Path) -> None:
    checkpoint = inspect(put(tmp_path / "checkpoint-12"))
    assert (checkpoint.format, checkpoint.step, checkpoint.complete) == ("huggingface", 12, False)
    assert [f.code for f in checkpoint.findings] == ["missing-file", "missing-file"]


@pytest.mark.parametrize("directory", ["global_step8", "pytorch_model_fsdp_0"])
def test_weights_in_another_layout_are_said_to_be_opaque(tmp_path: Path, directory: str) -> None:
    path = put(tmp_path / "checkpoint-8", trainer_state__json=STATE)
    (path / directory).mkdir()
    checkpoint = inspect(path)
    assert {f.code: f.severity for f in checkpoint.findings} == {
        "opaque-weights": Severity.NOTE,
        "no-optimizer": Severity.NOTE,
    }
    assert checkpoint.complete is True


def test_pickled_weights_are_listed_and_their_shards_counted(tmp_path: Path) -> None:
    first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    path = put(
        tmp_path / "checkpoint-8",
        trainer_state__json=STATE,
        pytorch_model__bin__index__json={"weight_map": {"a": first, "b": second}},
    )
    (path / first).write_bytes(b"PK\x03\x04")
    (path / second).write_bytes(b"PK\x03\x04")
    checkpoint = inspect(path)
    assert faults(checkpoint) == [("note", "no-optimizer", None)]
    assert checkpoint.tensors == ()
    assert {entry.name for entry in checkpoint.files if entry.listed} == {first, second}
    (path / second).unlink()
    assert ("error", "missing-file", second) in faults(inspect(path))


def test_a_model_without_a_step_is_a_slot_and_a_trainers_own_directory_is_none(
    tmp_path: Path,
) -> None:
    base = put_shards(tmp_path / "base")
    run = put(tmp_path / "run", trainer_state__json=STATE)
    for path, expected in ((base, True), (run, False)):
        claimed_by = format_of(path)
        assert claimed_by is not None
        assert claimed_by.name == "huggingface"
        assert claimed_by.is_slot(path) is expected


def test_a_directory_with_only_a_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    path = put(tmp_path / "base", config__json={"model_type": "tiny"})
    assert format_of(path) is None
    with pytest.raises(NoCheckpoint, match="is none of"):
        inspect(path)


def test_a_hub_snapshot_of_links_is_read_with_a_note_each(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for name, source in ((FIRST, "a"), (SECOND, "b")):
        write_tensors(blobs / (source * 64), [floats(source, 1)])
        (snapshot / name).symlink_to(f"../../blobs/{source * 64}")
    (blobs / ("c" * 40)).write_text(json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}))
    (snapshot / INDEX).symlink_to(f"../../blobs/{'c' * 40}")
    checkpoint = inspect(snapshot)
    assert set(faults(checkpoint)) == {
        ("note", "symlink", name) for name in (FIRST, SECOND, INDEX)
    }
    assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b"]


def test_a_shard_that_is_a_link_elsewhere_is_an_error(tmp_path: Path) -> None:
    base = put_shards(tmp_path / "base")
    (base / FIRST).rename(tmp_path / "elsewhere.safetensors")
    (base / FIRST).symlink_to("../elsewhere.safetensors")
    assert ("error", "symlink", FIRST) in faults(inspect(base))
