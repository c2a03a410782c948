"""AstrAI checkpoints of real tensors: what is saved, what AstrAI would read, what is refused."""

import errno
import hashlib
import json
import logging
import os
import shutil
import struct
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trees import snapshot

from ckpt import fs
from ckpt.checkpoint import State, Verdict
from ckpt.errors import (
    CheckpointError,
    DamagedCheckpoint,
    DoesNotFit,
    NoCheckpoint,
    NoSuchRun,
    PublishError,
    TornRead,
    UnreadableCheckpoint,
    Untrusted,
)
from ckpt.generations import scan
from ckpt.operation import drive
from ckpt.retention import Policy
from ckpt.verify import verify

torch = pytest.importorskip("torch")
st = pytest.importorskip("safetensors.torch")
from ckpt.torch import (  # noqa: E402 - needs torch
    build_manifest,
    find,
    load,
    load_any,
    load_into,
    load_json,
    load_model_config,
    load_model_weights,
    load_safetensors,
    load_state_dict,
    load_torch,
    read_manifest,
    save,
    save_model,
    validate_manifest,
)

pytestmark = pytest.mark.torch


def everything() -> dict[str, Any]:
    """A tensor of every dtype that both know, and of every odd shape and layout."""
    torch.manual_seed(3)
    numbers = torch.randn(2, 3)
    kinds = [
        torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
        torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ]  # fmt: skip
    found = {str(kind).removeprefix("torch."): numbers.abs().to(kind) for kind in kinds}
    return {
        **found,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "turned": torch.arange(20.0).reshape(4, 5).t(),
        "sliced": torch.arange(20)[::3],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    }


def raw(tensor: Any) -> bytes:
    dense = tensor.detach().resolve_conj().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    return (one.dtype, one.shape, raw(one)) == (other.dtype, other.shape, raw(other))


def small(path: Path, value: float = 1.0, **parts: Any) -> Path:
    facts = {"epoch": 1, "consumed_samples": 8, "meta": {"optimizer_step": 9}, **parts}
    return save(path, {"w": torch.full((4,), value), "b": torch.ones(2)}, **facts)


# ---- what is saved ----------------------------------------------------------------------------


def test_every_tensor_comes_back_bit_by_bit(tmp_path: Path) -> None:
    tensors = everything()
    path = save(tmp_path / "deep" / "run" / "step_1", tensors, epoch=0, consumed_samples=0)
    loaded = load(path)
    assert loaded.state_dict.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert same(loaded.state_dict[name], tensor), name
    assert loaded.is_verified
    assert drive(verify(path)).verdict is Verdict.INTACT


def test_the_weights_are_the_bytes_that_the_safetensors_library_writes(tmp_path: Path) -> None:
    tensors = {
        name: tensor.detach().resolve_conj().contiguous() for name, tensor in everything().items()
    }
    path = save(tmp_path / "step_1", tensors, epoch=0, consumed_samples=0)
    st.save_file(tensors, tmp_path / "theirs.safetensors")
    ours = (path / "model.safetensors").read_bytes()
    assert ours == (tmp_path / "theirs.safetensors").read_bytes()


def test_tied_tensors_are_kept_once_and_tied_again(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    path = save(
        tmp_path / "step_1",
        {"lm_head.weight": weight, "embed.weight": weight.detach(), "other": weight.t()},
        epoch=0,
        consumed_samples=0,
    )
    held = st.load_file(path / "model.safetensors")
    assert sorted(held) == ["embed.weight", "other"]
    loaded = load(path).state_dict
    assert loaded["lm_head.weight"] is loaded["embed.weight"]
    assert torch.equal(loaded["other"], weight.t())
    model = {"lm_head.weight": torch.zeros(2, 3), "embed.weight": torch.zeros(2, 3),
             "other": torch.zeros(3, 2)}  # fmt: skip
    load_into(model, path)
    assert torch.equal(model["lm_head.weight"], weight)


def test_the_files_are_those_of_astrai_in_its_order(tmp_path: Path) -> None:
    path = save(
        tmp_path / "epoch_3_step_9",
        {"w": torch.ones(2)},
        epoch=3,
        consumed_samples=72,
        meta={"optimizer_step": 9, "policy_version": 2, "note": "é"},
        config={"hidden": 2},
        extras={"optimizer": {"lr": 0.5}},
    )
    assert sorted(child.name for child in path.iterdir()) == [
        "config.json", "manifest.json", "meta.json", "model.safetensors", "optimizer.pt",
    ]  # fmt: skip
    meta = json.loads((path / "meta.json").read_text())
    assert list(meta) == [
        "epoch", "consumed_samples", "timestamp", "optimizer_step", "policy_version", "note",
    ]  # fmt: skip
    assert (meta["epoch"], meta["consumed_samples"], meta["note"]) == (3, 72, "é")
    assert len(meta["timestamp"]) == len("2026-12-01T07:00:09")
    manifest = json.loads((path / "manifest.json").read_text())
    assert list(manifest)[:6] == [
        "format_version", "created_at", "optimizer_step", "policy_version", "tensors", "files",
    ]  # fmt: skip
    assert manifest["created_at"] == meta["timestamp"]
    assert (manifest["optimizer_step"], manifest["policy_version"]) == (9, 2)


def test_the_callers_epoch_wins_over_the_loaded_one_and_unknown_keys_stay(tmp_path: Path) -> None:
    meta = {"optimizer_step": 4, "strategy": "seq", "timestamp": "2020-01-01T00:00:00"}
    first = small(tmp_path / "step_4", meta=meta)
    loaded = load(first)
    second = save(
        tmp_path / "step_8",
        loaded.state_dict,
        epoch=2,
        consumed_samples=16,
        meta={**loaded.meta, "optimizer_step": 8},
        config=loaded.config,
    )
    again = load(second)
    assert (again.epoch, again.consumed_samples) == (2, 16)
    assert again.meta["strategy"] == "seq"
    assert again.meta["optimizer_step"] == 8
    assert again.meta["timestamp"] > "2026"
    for name, tensor in loaded.state_dict.items():
        assert same(again.state_dict[name], tensor)


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to drop them
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)


UNSAVABLE: list[tuple[str, Callable[[], Any], str]] = [
    ("sparse", lambda: torch.eye(3).to_sparse(), "a sparse tensor"),
    ("complex128", lambda: torch.ones(2, dtype=torch.complex128), "dtype torch.complex128"),
    ("meta", lambda: torch.empty(2, device="meta"), "a tensor without memory (device meta)"),
    ("array", lambda: [1, 2], "expected a tensor, found list"),
    ("quantized", quantized, "a quantized tensor (torch.quint8)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "words"), UNSAVABLE, ids=[row[0] for row in UNSAVABLE])
def test_what_cannot_be_saved_is_refused_by_name_before_anything_is_touched(
    tmp_path: Path, name: str, make: Callable[[], Any], words: str
) -> None:
    path = small(tmp_path / "step_1")
    before = snapshot(tmp_path)
    tensors = {"fine": torch.ones(2), f"layer.{name}": make()}
    with pytest.raises(PublishError) as caught:
        save(path, tensors, epoch=0, consumed_samples=0)
    assert caught.value.message.startswith(f"tensor 'layer.{name}': ")
    assert words in caught.value.message
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "../x", "/etc/x", "a\0b", ".hidden", 3])
def test_an_extra_that_cannot_name_a_file_is_refused(tmp_path: Path, key: Any) -> None:
    with pytest.raises(PublishError, match="cannot name a file"):
        small(tmp_path / "step_1", extras={key: {}})
    assert list(tmp_path.iterdir()) == []


def test_an_extra_that_cannot_be_pickled_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="extras: 'hook' cannot be saved"):
        small(tmp_path / "step_1", extras={"hook": lambda: None})
    assert [each.name for each in tmp_path.iterdir()] == [".ckpt"]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"meta": {"tags": {1, 2}}}, "meta.json: 'tags' cannot be written"),
        ({"config": {"kind": object()}}, "config.json: 'kind' cannot be written"),
        ({"epoch": -1}, "epoch: expected a whole number"),
        ({"epoch": True}, "epoch: expected a whole number"),
        ({"consumed_samples": 1.0}, "consumed_samples: expected a whole number"),
    ],
)
def test_facts_that_json_cannot_hold_are_refused(
    tmp_path: Path, parts: dict[str, Any], words: str
) -> None:
    with pytest.raises(PublishError, match=words):
        small(tmp_path / "step_1", **parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "directory of mine", "dangling link"])
def test_a_target_that_is_no_checkpoint_is_refused_and_untouched(
    tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "step_1"
    if kind == "file":
        target.write_text("mine")
    elif kind == "directory of mine":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    else:
        target.symlink_to("nowhere")
    before = snapshot(tmp_path)
    with pytest.raises(PublishError):
        small(target)
    assert snapshot(tmp_path) == before


def values(run: Path) -> list[tuple[State, float]]:
    """The generations of the run's only slot, and what is in each."""
    (slot,) = scan(run)
    return [(each.state, load(each.path).state_dict["w"][0].item()) for each in slot.generations]


def test_saving_over_a_checkpoint_retires_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for value in (1.0, 2.0):
        path = small(run / "step_1", value)
    assert values(run) == [(State.LIVE, 2.0), (State.RETIRED, 1.0)]
    shutil.rmtree(path)
    loaded = load(path)
    assert loaded.state_dict["w"].tolist() == [1.0] * 4
    assert loaded.reason is not None


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ({}, [3.0, 2.0]),
        ({"keep": None}, [3.0, 2.0, 1.0]),
        ({"keep": Policy(keep_last=2)}, [3.0, 2.0, 1.0]),
    ],
)
def test_what_the_policy_does_not_keep_goes_after_the_save(
    tmp_path: Path, keep: dict[str, Any], kept: list[float]
) -> None:
    for value in (1.0, 2.0, 3.0):
        small(tmp_path / "run" / "step_1", value, **keep)
    assert [value for _, value in values(tmp_path / "run")] == kept


def test_a_path_outside_of_its_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="does not lie in the run"):
        small(tmp_path / "step_1", run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# ---- what AstrAI would read -------------------------------------------------------------------


def read_as_astrai(path: Path, *, verify_checksums: bool) -> dict[str, Any]:
    """Its reader's rules: every .pt is unpickled, the manifest's files and sizes are required."""
    if not (path / "meta.json").exists():
        raise ValueError("no meta.json")
    if (path / "manifest.json").exists():
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format_version"] != 1:
            raise ValueError("Unsupported checkpoint format version")
        for required in ("meta.json", "config.json", "model.safetensors"):
            if required not in manifest["files"]:
                raise ValueError(f"Checkpoint file is missing: {required}")
        for name, entry in manifest["files"].items():
            if Path(name).name != name:
                raise ValueError("not a basename")
            if (path / name).stat().st_size != entry["size"]:
                raise ValueError(f"Checkpoint file size mismatch: {name}")
            digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
            if verify_checksums and digest != entry["sha256"]:
                raise ValueError(f"Checkpoint file checksum mismatch: {name}")
    return {
        "meta": json.loads((path / "meta.json").read_text()),
        "config": json.loads((path / "config.json").read_text()),
        "state_dict": st.load_file(path / "model.safetensors"),
        "extras": {each.stem: torch.load(each, weights_only=False) for each in path.glob("*.pt")},
    }


@pytest.mark.parametrize("verify_checksums", [True, False])
@pytest.mark.parametrize("is_old", [True, False], ids=["older", "newer"])
def test_what_is_saved_loads_in_astrai(
    tmp_path: Path, verify_checksums: bool, is_old: bool
) -> None:
    tensors = {"w": torch.randn(3, 2), "h": torch.randn(4).bfloat16()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(tensors["w"])])
    path = save(
        tmp_path / "step_1", tensors, epoch=2, consumed_samples=6, config={"in": 4},
        extras={"optimizer": optimizer.state_dict()},
    )  # fmt: skip
    if is_old:
        (path / "manifest.json").unlink()
    read = read_as_astrai(path, verify_checksums=verify_checksums)
    assert (read["meta"]["epoch"], read["meta"]["consumed_samples"]) == (2, 6)
    assert read["config"] == {"in": 4}
    assert all(same(read["state_dict"][name], tensor) for name, tensor in tensors.items())
    assert read["extras"]["optimizer"] == optimizer.state_dict()


# ---- what is loaded ---------------------------------------------------------------------------


def golden_path(golden: Path, name: str) -> tuple[Path, dict[str, Any]]:
    expected = json.loads((golden / "astrai" / name / "EXPECTED.json").read_text())
    return golden / "astrai" / name / "tree" / expected["checkpoint"], expected


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("good", []),
        ("with_extras", ["optimizer", "scheduler"]),
        ("republished", []),
        ("crash_mid_staging", []),
        ("crash_after_publish", []),
        ("legacy_no_manifest", ["optimizer"]),
    ],
)
def test_what_astrai_wrote_loads_tensor_by_tensor(
    golden: Path, name: str, extras: list[str]
) -> None:
    path, expected = golden_path(golden, name)
    facts = expected["facts"].get(path.name, expected["facts"])
    loaded = load(path)
    found = {
        key: {"shape": list(tensor.shape), "sha256": hashlib.sha256(raw(tensor)).hexdigest()}
        for key, tensor in loaded.state_dict.items()
    }
    assert found == {
        key: {"shape": told["shape"], "sha256": told["sha256"]}
        for key, told in facts["model.safetensors"]["tensors"].items()
    }
    assert loaded.meta == facts["meta.json"]
    assert loaded.epoch == facts["meta.json"]["epoch"]
    assert sorted(loaded.extras) == extras
    assert loaded.is_verified == (name != "legacy_no_manifest")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad_flipped_weight_byte", "sha256 is 479549af34d4…, recorded is add2b0a92f7c…"),
        ("bad_manifest_truncated", "manifest.json: not JSON"),
        ("bad_manifest_version2", "made by a newer version (2)"),
        ("bad_meta_same_size", "meta.json: sha256 is bc102da5f6d5…"),
        ("bad_missing_config", "config.json: listed in manifest.json and not there"),
        ("bad_truncated_weights", "size 754 bytes, manifest.json says 762"),
        ("odd_metric_only_dir", "looked for meta.json (a checkpoint), model.safetensors or"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_in_words(golden: Path, name: str, words: str) -> None:
    path, _ = golden_path(golden, name)
    with pytest.raises(CheckpointError) as caught:
        load_any(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("name", ["bad_flipped_weight_byte", "bad_meta_same_size"])
def test_without_verification_bytes_are_taken_as_they_are(golden: Path, name: str) -> None:
    path, _ = golden_path(golden, name)
    loaded = load(path, verify=False)
    assert not loaded.is_verified


def test_a_missing_name_is_replaced_by_the_generation_that_should_be_used(
    golden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, expected = golden_path(golden, "crash_between_renames")
    with caplog.at_level(logging.WARNING):
        loaded = load(path)
    assert loaded.path.name == expected["hidden"]["staging"]
    assert loaded.config == {"gen": "new"}
    assert loaded.reason is not None
    assert loaded.reason in caplog.text


def test_find_returns_none_only_where_there_is_nothing(golden: Path, tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert find(tmp_path / "nowhere") is None
    assert find(golden_path(golden, "odd_metric_only_dir")[0]) is None
    with pytest.raises(DamagedCheckpoint):
        find(golden_path(golden, "bad_truncated_weights")[0])
    with pytest.raises(NoCheckpoint, match="nothing is there: looked for meta"):
        load(tmp_path / "nowhere")


def test_a_name_whose_payload_is_not_whole_is_replaced_by_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (1.0, 2.0):
        path = small(tmp_path / "step_1", value)
    (path / "model.safetensors").unlink()
    for loaded in (load(path), load_into({"w": torch.zeros(4), "b": torch.zeros(2)}, path)):
        assert loaded.state_dict["w"].tolist() == [1.0] * 4
        assert loaded.reason is not None
        assert "is the newest retired payload" in loaded.reason
        assert loaded.path.name.startswith(".step_1.retired-")
    assert f"{path}: using .step_1.retired-" in caplog.text


def test_damaged_bytes_are_never_replaced_in_silence(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        path = small(tmp_path / "step_1", value)
    flip(path / "model.safetensors", (path / "model.safetensors").stat().st_size - 1)
    with pytest.raises(DamagedCheckpoint) as caught:
        load(path)
    assert caught.value.hint == "another generation may be whole: ckpt rollback"


def test_a_checkpoint_that_was_withdrawn_is_not_loaded_by_its_name(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1")
    generation = json.loads((path / "manifest.json").read_text())["ckpt"]["generation"]
    path.rename(tmp_path / f".step_1.withdrawn-{generation}")
    with pytest.raises(
        NoCheckpoint, match=r"nothing is there.*\(step_1 was withdrawn on purpose\)"
    ):
        load(path)
    assert find(path) is None


def test_weights_without_a_checkpoint_load_with_or_without_a_config(
    golden: Path, tmp_path: Path
) -> None:
    path, expected = golden_path(golden, "sharded_hf")
    loaded = load_any(path)
    assert (loaded.epoch, loaded.consumed_samples, loaded.is_checkpoint) == (0, 0, False)
    assert sorted(loaded.state_dict) == expected["upstream"]["load_any"]["value"]["tensors"]
    assert loaded.config == expected["config.json"]
    with pytest.raises(NoCheckpoint, match=r"weights without a checkpoint: meta\.json"):
        load(path)
    st.save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    st.save_file({"lora": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert load_any(tmp_path).config == {}
    assert list(load_any(tmp_path).state_dict) == ["w"]


def test_a_meta_beside_sharded_weights_is_a_checkpoint(golden: Path, tmp_path: Path) -> None:
    path = shutil.copytree(golden_path(golden, "sharded_hf")[0], tmp_path / "step_5")
    (path / "meta.json").write_text('{"epoch": 3, "consumed_samples": 12}')
    loaded = load(path)
    assert (loaded.epoch, len(loaded.state_dict)) == (3, 4)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "../model-00001-of-00002.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DamagedCheckpoint, match="no plain file name"):
        load(path)


def test_a_model_without_a_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    path = save_model(tmp_path / "base", {"a": weight, "b": weight}, config={"hidden": 3})
    assert sorted(each.name for each in path.iterdir()) == ["config.json", "model.safetensors"]
    assert load_model_config(path) == {"hidden": 3}
    for read in (load_model_weights(path), load_state_dict(path),
                 load_safetensors(path / "model.safetensors")):  # fmt: skip
        assert sorted(read) == ["a", "b"]
        assert torch.equal(read["b"], weight)
    with pytest.raises(PublishError, match=r"config\.json: 'bad' cannot be written"):
        save_model(tmp_path / "other", {}, config={"bad": {1, 2}})


def test_a_saved_model_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        path = save_model(tmp_path / "base", {"a": torch.full((2,), value)})
    assert load_model_weights(path)["a"].tolist() == [2.0, 2.0]
    (slot,) = scan(tmp_path)
    assert [each.state for each in slot.generations] == [State.LIVE, State.RETIRED]


def test_single_files_are_read_or_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": [1]}')
    (tmp_path / "half.json").write_text('{"x": ')
    torch.save({"x": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"x": Trap("nowhere")}, tmp_path / "trap.pt")
    (tmp_path / "a.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    assert load_json(tmp_path / "a.json") == {"x": [1]}
    assert load_torch(tmp_path / "a.pt")["x"].tolist() == [1, 1]
    with pytest.raises(TornRead, match=r"half\.json: not JSON"):
        load_json(tmp_path / "half.json")
    with pytest.raises(Untrusted, match=r"trap\.pt: it holds a posix\.mkdir"):
        load_torch(tmp_path / "trap.pt")
    with pytest.raises(DamagedCheckpoint, match=r"a\.safetensors: the header begins with"):
        load_state_dict(tmp_path / "a.safetensors")
    for read in (load_json, load_torch, load_safetensors):
        with pytest.raises(NoCheckpoint, match="none: cannot be read: No such file"):
            read(tmp_path / "none")


def test_a_shard_that_is_not_what_the_index_says_is_refused(golden: Path, tmp_path: Path) -> None:
    path = shutil.copytree(golden_path(golden, "sharded_hf")[0], tmp_path / "base")
    index = json.loads((path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["lm_head.weight"]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DamagedCheckpoint, match=r"'lm_head\.weight'"):
        load_any(path)


def test_a_swap_in_the_middle_of_a_load_keeps_the_old_generation_whole(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1", 1.0)
    other = small(tmp_path / "other", 2.0)
    swapped = []

    def swap(call: fs.Call) -> None:
        if call.name == "open" and call.path.endswith("model.safetensors") and not swapped:
            swapped.append(call)
            fs.exchange(path, other)

    with fs.hooked(swap):
        loaded = load(path)
    assert swapped
    assert loaded.state_dict["w"].tolist() == [1.0] * 4
    assert load(path).state_dict["w"].tolist() == [2.0] * 4


def test_a_generation_that_is_removed_in_the_middle_is_left_for_the_new_one(
    tmp_path: Path,
) -> None:
    path = small(tmp_path / "step_1", 1.0)
    other = small(tmp_path / "other", 2.0)
    swapped = []

    def swap(call: fs.Call) -> None:
        if call.name == "open" and call.path.endswith("model.safetensors") and not swapped:
            swapped.append(call)
            fs.exchange(path, other)
            shutil.rmtree(other)

    with fs.hooked(swap):
        assert load(path).state_dict["w"].tolist() == [2.0] * 4


# ---- the manifest -----------------------------------------------------------------------------


def test_the_manifest_of_files_is_the_one_that_astrai_wrote(golden: Path) -> None:
    for name in ("good", "with_extras", "with_rng_extra"):
        path, _ = golden_path(golden, name)
        built = json.loads(build_manifest(path))
        assert built == json.loads((path / "manifest.json").read_text())
        assert list(built["files"]) == sorted(built["files"])


def test_a_checkpoint_without_a_manifest_can_be_given_one(golden: Path, tmp_path: Path) -> None:
    path = shutil.copytree(golden_path(golden, "legacy_no_manifest")[0], tmp_path / "step_4")
    with pytest.raises(NoCheckpoint, match=r"manifest\.json: not there"):
        read_manifest(path)
    (path / "manifest.json").write_bytes(build_manifest(path))
    assert load(path).is_verified
    assert sorted(validate_manifest(path, verify=True).files) == [
        "config.json", "meta.json", "model.safetensors", "optimizer.pt",
    ]  # fmt: skip


def test_a_manifest_is_validated_by_names_and_sizes_or_by_every_byte(
    golden: Path, tmp_path: Path
) -> None:
    path = golden_path(golden, "bad_flipped_weight_byte")[0]
    assert validate_manifest(path).optimizer_step == 9
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors: sha256 is 479549af34d4"):
        validate_manifest(path, verify=True)
    with pytest.raises(DamagedCheckpoint, match="size 754 bytes"):
        validate_manifest(golden_path(golden, "bad_truncated_weights")[0])
    with pytest.raises(DamagedCheckpoint, match="made by a newer version"):
        validate_manifest(golden_path(golden, "bad_manifest_version2")[0])
    with pytest.raises(DamagedCheckpoint, match=r"config\.json: listed in manifest\.json and not"):
        build_manifest(golden_path(golden, "bad_missing_config")[0])


# ---- extras -----------------------------------------------------------------------------------


def test_an_extra_that_needs_full_unpickling_is_named_and_loads_on_trust(golden: Path) -> None:
    path, expected = golden_path(golden, "with_rng_extra")
    with pytest.raises(Untrusted) as caught:
        load(path)
    assert "rng_state.pt: it holds a numpy" in caught.value.message
    assert "trust=('rng_state',)" in (caught.value.hint or "")
    for trust in (True, ("rng_state",), "rng_state"):
        assert sorted(load(path, trust=trust).extras) == expected["extras"]
    assert sorted(load(path, extras=("optimizer",)).extras) == ["optimizer"]
    with pytest.raises(UnreadableCheckpoint, match=r"value_model\.pt: not there"):
        find(path, extras=("value_model",))


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (self.where,)

    def __init__(self, where: str) -> None:
        self.where = where


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_pickle_that_would_run_code_never_does(
    tmp_path: Path, is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trap = {"trap": Trap(str(tmp_path / "sprung"))}
    path = small(tmp_path / "step_1", extras=trap if is_listed else {})
    if is_listed:
        with pytest.raises(Untrusted, match=r"trap\.pt"):
            load(path)
    else:
        torch.save(trap, path / "trap.pt")
        assert load(path, trust=True).extras == {}
        assert "trap.pt: not loaded: the manifest does not list it" in caplog.text
    assert not (tmp_path / "sprung").exists()
    load(path, trust=("trap",))
    assert (tmp_path / "sprung").exists()


def test_a_damaged_extra_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1", extras={"optimizer": {"state": torch.ones(100)}})
    flip(path / "optimizer.pt", 500)
    with pytest.raises(DamagedCheckpoint, match=r"optimizer\.pt: chunk 0: blake3 is"):
        load(path, trust=True)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["ckpt"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedCheckpoint, match=r"optimizer\.pt: sha256 is"):
        load(path, trust=True)
    (path / "manifest.json").unlink()
    os.truncate(path / "optimizer.pt", 300)
    with pytest.raises(DamagedCheckpoint, match=r"optimizer\.pt: cannot be loaded"):
        load(path)


# ---- into a model -----------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(OrderedDict(a=torch.nn.Linear(4, 3), b=torch.nn.BatchNorm1d(3)))


def test_a_model_is_filled_in_place(tmp_path: Path) -> None:
    source, model = model_of(1), model_of(2)
    path = save(tmp_path / "step_1", source.state_dict(), epoch=1, consumed_samples=2,
                extras={"scheduler": {"last": 3}})  # fmt: skip
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    loaded = load_into(model, path)
    assert (loaded.epoch, loaded.extras, loaded.is_verified) == (
        1,
        {"scheduler": {"last": 3}},
        True,
    )
    for name, tensor in model.state_dict().items():
        assert same(tensor, source.state_dict()[name])
        assert tensor.data_ptr() == before[name]
    assert model.a.weight.requires_grad


def test_a_tensor_that_is_not_laid_out_like_the_file_is_filled_too(tmp_path: Path) -> None:
    path = save(
        tmp_path / "step_1", {"w": torch.arange(6.0).reshape(2, 3)}, epoch=0, consumed_samples=0
    )
    target = torch.zeros(3, 2).t()
    load_into({"w": target}, path)
    assert target.tolist() == [[0, 1, 2], [3, 4, 5]]


MISFITS = [
    ({"w": (4,)}, "not in the model: b"),
    ({"w": (4,), "b": (2,), "more": (1,)}, "not in the checkpoint: more"),
    ({"w": (4,), "b": (3,)}, "b: expected F32 [3], found F32 [2]"),
]


@pytest.mark.parametrize(("shapes", "words"), MISFITS, ids=["extra", "missing", "shape"])
def test_a_model_that_does_not_fit_is_not_touched(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    path = small(tmp_path / "step_1", 7.0)
    model = {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(DoesNotFit) as caught:
        load_into(model, path)
    assert words in caught.value.message
    assert all(not tensor.any() for tensor in model.values())


def test_another_dtype_does_not_fit(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1")
    model = {"w": torch.zeros(4, dtype=torch.float64), "b": torch.zeros(2)}
    with pytest.raises(DoesNotFit, match=r"w: expected F64 \[4\], found F32 \[4\]"):
        load_into(model, path)


def test_damaged_bytes_in_a_model_are_said_with_the_tensors_names(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1")
    flip(path / "model.safetensors", (path / "model.safetensors").stat().st_size - 1)
    with pytest.raises(DamagedCheckpoint) as caught:
        load_into({"w": torch.zeros(4), "b": torch.zeros(2)}, path)
    assert "among b, w" in caught.value.message
    assert "must not be used as it is" in caught.value.message


def test_a_damaged_meta_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1", 5.0)
    text = (path / "meta.json").read_text().replace('"epoch": 1', '"epoch": 2')
    (path / "meta.json").write_text(text)
    model = {"w": torch.zeros(4), "b": torch.zeros(2)}
    with pytest.raises(DamagedCheckpoint, match=r"meta\.json: sha256"):
        load_into(model, path)
    assert not model["w"].any()


def test_a_disk_that_fails_in_the_middle_is_said_and_so_is_the_models_state(
    tmp_path: Path,
) -> None:
    path = small(tmp_path / "step_1")

    size = (path / "model.safetensors").stat().st_size

    def refuse(call: fs.Call) -> None:
        if call.name == "read" and call.size_bytes == size:
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(DamagedCheckpoint) as caught:
        load_into({"w": torch.zeros(4), "b": torch.zeros(2)}, path)
    state = "the model holds bytes of it now and must not be used as it is"
    assert caught.value.message == f"{path}: Input/output error; {state}"


def test_a_file_of_thousands_of_small_tensors_is_read_whole(tmp_path: Path) -> None:
    tensors = {f"layer.{at}": torch.full((at % 7,), float(at)) for at in range(3000)}
    path = save(tmp_path / "step_1", tensors, epoch=0, consumed_samples=0)
    model = {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}
    load_into(model, path)
    assert all(torch.equal(model[name], tensor) for name, tensor in tensors.items())


def test_a_header_that_lies_about_the_file_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path / "step_1")
    (path / "manifest.json").unlink()
    data = bytearray((path / "model.safetensors").read_bytes())
    data[:8] = struct.pack("<Q", 1 << 40)
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors"):
        load(path)
