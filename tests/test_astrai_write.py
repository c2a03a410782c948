"""What is written for AstrAI is whole, says where it comes from, and was checked beforehand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import floats

from ckpt import fs
from ckpt.arrays import pack
from ckpt.checkpoint import Verdict
from ckpt.errors import PublishError
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.manifest import Origin, read_manifest
from ckpt.onepass import Sink
from ckpt.operation import drive
from ckpt.tensorfile import read_header
from ckpt.verify import verify

ORIGIN = Origin("0123456789ab", "ba9876543210", "step_9")
META = {
    "epoch": 1,
    "consumed_samples": 8,
    "timestamp": "2026-12-01T07:00:00",
    "optimizer_step": 9,
}


def put(text: bytes) -> Any:
    def write(sink: Sink) -> None:
        sink.write(text)

    return write


def test_all_of_it_is_listed_and_the_manifest_says_where_it_comes_from(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        META,
        {},
        [floats("b", 1), floats("a", 2)],
        origin=ORIGIN,
        extras={"optimizer": put(b"PK"), "scheduler": put(b"")},
    )
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert list(manifest) == [
        "format_version", "created_at", "optimizer_step", "policy_version", "tensors", "files",
        "ckpt",
    ]  # fmt: skip
    assert manifest["tensors"] == ["a", "b"]
    names = ["config.json", "meta.json", "model.safetensors", "optimizer.pt", "scheduler.pt"]
    assert list(manifest["files"]) == names
    assert manifest["files"]["optimizer.pt"] == {
        "size": 2,
        "sha256": "fcab7fcc2b4cffd9bb45003bfc2e468a04ef6f77ca8200a7341f027631584d25",
    }
    extension = manifest["ckpt"]
    assert list(extension) == ["v", "generation", "parent", "slot", "chunk_bytes", "chunks"]
    assert {key: extension[key] for key in list(extension)[:5]} == {
        "v": 1,
        "generation": "0123456789ab",
        "parent": "ba9876543210",
        "slot": "step_9",
        "chunk_bytes": 67_108_864,
    }
    assert {name: len(hashes) for name, hashes in extension["chunks"].items()} == {
        "config.json": 1,
        "meta.json": 1,
        "model.safetensors": 1,
        "optimizer.pt": 1,
        "scheduler.pt": 0,
    }
    read = read_manifest((tmp_path / "manifest.json").read_bytes())
    assert (read.generation, read.parent, read.findings) == ("0123456789ab", "ba9876543210", ())
    assert drive(verify(tmp_path)).verdict is Verdict.INTACT


def test_the_chunks_are_of_the_bytes_of_the_file(tmp_path: Path) -> None:
    import blake3

    write_checkpoint(tmp_path, META, {"hidden": 2}, [floats("a", 2)], origin=ORIGIN)
    chunks = json.loads((tmp_path / "manifest.json").read_bytes())["ckpt"]["chunks"]
    for name, hashes in chunks.items():
        assert hashes == [blake3.blake3((tmp_path / name).read_bytes()).hexdigest()]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "extras: '' cannot name a file"),
        ("..", "extras: '..' cannot name a file"),
        ("../optimizer", "extras: '../optimizer' cannot name a file"),
        ("a/b", "extras: 'a/b' cannot name a file"),
        (".hidden", "extras: '.hidden' cannot name a file"),
        ("a\0b", "extras: 'a\\x00b' cannot name a file"),
        ("\udcff", "extras: '\\udcff' cannot name a file: it is no UTF-8"),
        (7, "extras: 7 cannot name a file"),
        ("é" * 127, f"extras: {'é' * 127!r:.80} is too long to name a file"),
    ],
)
def test_a_key_that_cannot_name_a_file_is_refused_before_anything_is_written(
    tmp_path: Path, key: Any, says: str
) -> None:
    with pytest.raises(PublishError) as refused:
        write_checkpoint(
            tmp_path, META, {}, [floats("a", 2)], origin=ORIGIN, extras={key: put(b"")}
        )
    assert refused.value.message == says
    assert list(tmp_path.iterdir()) == []


def test_keys_that_differ_by_case_alone_are_refused(tmp_path: Path) -> None:
    extras = {"rng": put(b""), "RNG": put(b"")}
    with pytest.raises(PublishError, match="extras: 'rng' and 'RNG' differ by case alone"):
        write_checkpoint(tmp_path, META, {}, [], origin=ORIGIN, extras=extras)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("meta", "config", "says"),
    [
        ({**META, "note": {1}}, {}, "meta.json: 'note' cannot be written"),
        (META, {"path": Path("x")}, "config.json: 'path' cannot be written"),
        (META, {"name": "\udcff"}, "config.json: 'name' cannot be written"),
        ({**META, (1, 2): 3}, {}, "meta.json: (1, 2) cannot be written"),
    ],
)
def test_what_json_has_no_word_for_is_refused_before_anything_is_written(
    tmp_path: Path, meta: Any, config: Any, says: str
) -> None:
    with pytest.raises(PublishError) as refused:
        write_checkpoint(tmp_path, meta, config, [floats("a", 2)], origin=ORIGIN)
    assert refused.value.message.startswith(says)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    """A run that diverged can be saved, and what AstrAI left as NaN can be saved again."""
    nan, infinity = float("nan"), float("inf")
    meta = {**META, "loss": nan, "policy_version": infinity, "past": [1.5, (nan, 2)]}
    write_checkpoint(tmp_path, meta, {"scale": {"init": -infinity}}, [], origin=ORIGIN)
    assert json.loads((tmp_path / "meta.json").read_bytes()) == {
        **META,
        "loss": None,
        "policy_version": None,
        "past": [1.5, [None, 2]],
    }
    assert json.loads((tmp_path / "config.json").read_bytes()) == {"scale": {"init": None}}
    assert drive(verify(tmp_path)).verdict is Verdict.INTACT


def test_the_names_of_tied_tensors_stand_in_the_file(tmp_path: Path) -> None:
    weight = np.ones((2, 2), np.float32)
    packed = pack({"head.weight": weight, "embed.weight": weight})
    write_checkpoint(tmp_path, META, {}, packed.buffers, origin=ORIGIN, tied=packed.tied)
    header = read_header(tmp_path / "model.safetensors", "model.safetensors")
    assert [tensor.name for tensor in header.tensors] == ["embed.weight"]
    assert header.metadata == {"head.weight": "embed.weight"}
    assert drive(verify(tmp_path)).verdict is Verdict.INTACT


@pytest.mark.torch
def test_a_tied_model_is_loaded_by_safetensors_own_loader(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_model

    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not always there
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(3, 2)
            self.head = torch.nn.Linear(2, 3, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    packed = pack(state)
    assert packed.tied == {"head.weight": "embed.weight"}
    write_checkpoint(tmp_path, META, {}, packed.buffers, origin=ORIGIN, tied=packed.tied)
    other = Tied()
    assert load_model(other, tmp_path / "model.safetensors") == (set(), [])
    assert torch.equal(other.head.weight, model.head.weight)
    assert other.head.weight is other.embed.weight


def test_every_file_is_durable_before_the_manifest_that_lists_it(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    def see(call: fs.Call) -> None:
        if call.name in ("fsync", "fsync-directory", "rename"):
            calls.append((call.name, Path(call.path).name.split(".new-")[0]))

    with fs.hooked(see):
        write_checkpoint(
            tmp_path, META, {}, [floats("a", 2)], origin=ORIGIN, extras={"rng": put(b"1")}
        )
    assert calls == [
        ("fsync", "model.safetensors"),
        ("fsync", "rng.pt"),
        ("fsync", "meta.json"),
        ("fsync", "config.json"),
        ("fsync", ".manifest.json"),
        ("rename", "manifest.json"),
        ("fsync-directory", tmp_path.name),
    ]
