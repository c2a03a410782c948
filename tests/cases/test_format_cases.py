"""Reported faults of weights, manifests and indices: what lies there, and what is said of it."""

import hashlib
import json
import os
import pickle
import shutil
import struct
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, say
from samples import SAMPLES, astrai, floats, golden, huggingface, lora_set, plain
from trees import put_checkpoint, snapshot

from ckpt import fs
from ckpt.errors import CheckpointError, PublishError
from ckpt.formats import inspect
from ckpt.generations import Staging, publish, scan
from ckpt.operation import drive
from ckpt.tensorwriter import write_tensors

KT, BUNDLE = "kt_full_experts.index.json", "kt_adapter_manifest.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
APPLE_DOUBLE = b"\x00\x05\x16\x07" + bytes(4092)


def raw(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def lone(parent: Path) -> tuple[Path, Path]:
    path = plain(parent)
    return path, path


def model(parent: Path) -> tuple[Path, Path]:
    path = huggingface(parent)
    return path, path / "model-00001-of-00002.safetensors"


def directory(parent: Path) -> tuple[Path, Path]:
    path = astrai(parent)
    return path, path / "model.safetensors"


def experts(parent: Path) -> tuple[Path, Path]:
    path = golden("kt_full", "tiny3", "tree", "ckpt")(parent)
    return path, min(path.glob("*.safetensors"))


def lora(parent: Path) -> tuple[Path, Path]:
    path = lora_set(parent)
    return path, path / "adapter.safetensors"


PLACES = [lone, model, directory, experts, lora]
"""Each makes a checkpoint and names a file of weights in it."""

ONE = entry([1], 0, 4)
WEIGHTS = {
    "A003 ones": (b"\xff" * 8 + b"{}", "header-too-large", "claims a header of 18,446,744,073"),
    "A003 2^63": (b"\0" * 7 + b"\x80{}", "header-too-large", "claims a header of 9,223,372,036"),
    "A003 2^32": (b"\0\0\0\0\1\0\0\0{}", "header-too-large", "claims a header of 4,294,967,296"),
    "A005 not UTF-8": (raw(b'{"\xff\xfe":1}'), "bad-header", "byte 2 (0xff) is no UTF-8"),
    "A005 Latin-1": (raw(b'{"caf\xe9":1}'), "bad-header", "byte 5 (0xe9) is no UTF-8"),
    "A005 mark": (raw(b"\xef\xbb\xbf{}"), "bad-header", "begins with b'\\xef\\xbb\\xbf{}'"),
    "A005 UTF-16": (raw("{}".encode("utf-16")), "bad-header", "begins with b'\\xff\\xfe{"),
    "A005 NUL": (raw(b"{}\0\0"), "bad-header", "Extra data"),
    "A005 half a pair": (raw({"\ud800": entry([0], 0, 0)}), "bad-header", "\\ud800, half of a ch"),
    "A006 tensor": (
        raw(b'{"a":%s,"a":%s}' % ((json.dumps(ONE).encode(),) * 2), b"1234"),
        "duplicate-key",
        "duplicate key 'a'",
    ),
    "A006 spelt otherwise": (
        raw(b'{"a":%s,"\\u0061":%s}' % ((json.dumps(ONE).encode(),) * 2), b"1234"),
        "duplicate-key",
        "duplicate key 'a'",
    ),
    "A006 field": (raw(b'{"a":{"dtype":"F32","dtype":"I8"}}'), "duplicate-key", "key 'dtype'"),
    "A006 metadata": (raw(b'{"__metadata__":{"x":"","x":""}}'), "duplicate-key", "key 'x'"),
    "A007 same": (raw({"k": ONE, "v": ONE}, b"1234"), "bad-offsets", "an overlap"),
    "A007 inside": (
        raw({"k": entry([2], 0, 8), "v": entry([0], 4, 4)}, b"12345678"),
        "bad-offsets",
        "tensor 'v': an overlap: begins at byte 4, the one before ends at 8",
    ),
    "A008 hole": (raw({"k": ONE, "v": entry([1], 8, 12)}, b"1" * 12), "bad-offsets", "a gap"),
    "A008 hole first": (raw({"k": entry([1], 4, 8)}, b"12345678"), "bad-offsets", "a gap"),
    "A008 behind": (raw({"k": ONE}, b"12345"), "trailing-bytes", "1 trailing bytes after the"),
    "A008 behind nothing": (raw({}, b"x"), "trailing-bytes", "1 trailing bytes after the last"),
    "A009": (
        raw({"a": entry([1000, 1000], 0, 4)}, b"1234"),
        "bad-offsets",
        "tensor 'a': F32 [1000, 1000] needs 4,000,000 bytes, the range has 4",
    ),
    "A009 range": (raw({"a": entry([1], 0, 2**70)}, b"1234"), "bad-offsets", "needs 4 bytes"),
    "A010 wraps to 0": (raw({"a": entry([2**32, 2**32], 0, 0)}), "bad-offsets", "is impossible"),
    "A010 wraps": (
        raw({"a": entry([2**63 + 2, 2], 0, 16)}, b"1" * 16),
        "bad-offsets",
        "is impossible: more elements than 64 bits count",
    ),
    "A010 0 at last": (raw({"a": entry([2**33, 2**33, 0], 0, 0)}), "bad-offsets", "impossible"),
    "A011 control": (raw({"a": entry([1], 0, 0)}), "bad-offsets", "F32 [1] needs 4 bytes"),
    "A014": (raw({"x": entry([2], 0, 1, "I4")}, b"1"), "unknown-dtype", "unsupported dtype I4"),
    "A014 quants": (raw({"x": entry([2], 0, 1, "Q4_0")}, b"1"), "unknown-dtype", "dtype Q4_0"),
    "A014 case": (raw({"x": entry([1], 0, 4, "f32")}, b"1234"), "unknown-dtype", "dtype f32"),
    "A015": (
        raw({"__metadata__": {"unquoted_int": 0}}),
        "bad-header",
        "__metadata__ 'unquoted_int': expected text, found 0",
    ),
    "A015 null": (raw({"__metadata__": {"q": None}}), "bad-header", "'q': expected text"),
    "A016 a list": (raw({"__metadata__": []}), "bad-header", "__metadata__ is not an object"),
    "A022 pointer": (POINTER, "not-safetensors", "a Git LFS pointer (fetch the real file"),
    "A022 annex": (b"/annex/objects/SHA256E-s9\n", "not-safetensors", "a git-annex pointer"),
    "A022 zip": (b"PK\x03\x04" + bytes(99), "not-safetensors", "a zip archive, as torch.save"),
    "A022 old torch": (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j", "not-safetensors", "a pickle"),
    "A022 GGUF": (b"GGUF\3\0\0\0" + bytes(99), "not-safetensors", "a GGUF file"),
    "A022 HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "not-safetensors", "an HDF5 file"),
    "A022 gzip": (b"\x1f\x8b\x08\0" + bytes(99), "not-safetensors", "gzip-compressed data"),
    "A022 page": (b"<!DOCTYPE html>", "not-safetensors", "an HTML page (a failed download?)"),
    "A022 error": (b'{"error": "gone"}', "not-safetensors", "text that begins with '{\"error\"'"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("content", "code", "words"), WEIGHTS.values(), ids=WEIGHTS)
def test_what_is_wrong_with_weights_is_said_alike_in_every_format(
    tmp_path: Path,
    place: Callable[[Path], tuple[Path, Path]],
    content: bytes,
    code: str,
    words: str,
) -> None:
    checkpoint, weights = place(tmp_path)
    weights.write_bytes(content)
    told = ask("verify", checkpoint)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert {file for _, file in told.errors} == {weights.name}
    if (place, code) == (experts, "trailing-bytes"):  # the index tells its size
        assert told.codes == ["size-mismatch"]
        return
    [message] = [each["message"] for each in told.told["findings"] if each["code"] == code]
    assert message.startswith(weights.name)
    assert words in message


LEGAL = {
    "A005 spaces": raw(b'  {"a":%s}  ' % json.dumps(ONE).encode(), b"1234"),
    "A005 line ends": raw(b'\r\n{"a":%s}\t\n' % json.dumps(ONE).encode(), b"1234"),
    "A011 empty everywhere": raw(
        {"s": entry([0], 0, 0), "a": ONE, "m": entry([0, 3], 4, 4), "e": entry([0], 4, 4)}, b"1234"
    ),
    "A012 scalar": raw({"a": entry([], 0, 4)}, b"1234"),
    "A013 F8": raw({"a": entry([4], 0, 4, "F8_E4M3"), "b": entry([1], 4, 5, "F8_E8M0")}, b"12345"),
    "A013 F4": raw({"a": entry([2, 8], 0, 8, "F4")}, b"12345678"),
    "A013 F6": raw({"a": entry([4], 0, 3, "F6_E2M3")}, b"123"),
    "A013 BF16": raw({"a": entry([2], 0, 4, "BF16")}, b"1234"),
    "A016 empty": raw({"__metadata__": {}, "a": ONE}, b"1234"),
    "A016 null": raw({"__metadata__": None, "a": ONE}, b"1234"),
    "A016 no format": raw({"__metadata__": {"x": "y"}, "a": ONE}, b"1234"),
}


@pytest.mark.parametrize("content", LEGAL.values(), ids=LEGAL)
def test_legal_weights_are_no_fault_and_listed_with_every_name(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    told = ask("verify", tmp_path / "w.safetensors")
    assert (told.exit_code, told.verdict, told.codes) == (3, "unverifiable", [])
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    names = header.keys() - {"__metadata__"}
    shown = ask("show", tmp_path / "w.safetensors").told
    assert {each["name"]: (each["dtype"], each["shape"]) for each in shown["tensors"]} == {
        name: (header[name]["dtype"], header[name]["shape"]) for name in names
    }


def test_a012_a_scalar_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(LEGAL["A012 scalar"])
    assert "scalar" in say("show", tmp_path / "w.safetensors")


def test_a014_an_unknown_dtype_hides_no_other_tensor_and_no_other_checkpoint(
    tmp_path: Path,
) -> None:
    run = tmp_path
    put_checkpoint(run / "step_5", 5)
    (run / "step_5" / "model.safetensors").write_bytes(
        raw({"x": entry([2], 0, 1, "I4"), "y": entry([1], 1, 5)}, b"12345")
    )
    put_checkpoint(run / "step_4", 4)
    shown = ask("show", run / "step_5").told
    assert [each["name"] for each in shown["tensors"]] == ["x", "y"]
    slots = ask("list", run).told["slots"]
    assert [slot["name"] for slot in slots] == ["step_5", "step_4"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("missing", [1, 7])
def test_a001_a_cut_file_names_both_sizes_before_anything_is_hashed(
    tmp_path: Path, place: Callable[[Path], tuple[Path, Path]], missing: int
) -> None:
    checkpoint, weights = place(tmp_path)
    size = weights.stat().st_size
    os.truncate(weights, size - missing)
    reads = []
    with fs.hooked(lambda call: reads.append(call) if call.name.startswith("read") else None):
        told = ask("verify", checkpoint)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert {file for _, file in told.errors} == {weights.name}
    assert any(f"{size - missing:,} " in text and f"{size:,}" in text for text in told.messages)
    assert not [code for code, _ in told.errors if code == "hash-mismatch"]


def test_a001_the_checkpoint_before_is_offered(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_4", 4)
    newest = put_checkpoint(tmp_path / "step_5", 5)
    os.truncate(newest / "model.safetensors", 60)
    told = ask("status", tmp_path).told
    assert told["advice"]["message"] == "step_5 is damaged; step_4 is usable"


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a002_every_bad_shard_is_named_in_one_report(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "final"
    run.mkdir()
    stem = "model" if kind == "safetensors" else "pytorch_model"
    names = [f"{stem}-{place:05}-of-00008.{kind}" for place in range(1, 9)]
    for name in names:
        if kind == "bin":
            (run / name).write_bytes(pickle.dumps({name: [1.0, 2.0]}))
        else:
            write_tensors(run / name, [floats(name, 1, 2, 3, 4)])
    index = {"metadata": {}, "weight_map": {name: name for name in names}}
    (run / f"{stem}.{kind}.index.json").write_text(json.dumps(index))
    (run / "config.json").write_text("{}")
    for name in (names[0], names[3]):
        os.truncate(run / name, 0)
    (run / f"{names[5]}.tmp").write_bytes(b"x")
    os.truncate(run / names[4], os.stat(run / names[4]).st_size - 1)
    empty = [("empty-file", names[0]), ("empty-file", names[3])]
    assert ask("verify", run).errors == [*empty, ("truncated", names[4])]


def test_a003_a_bomb_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    inspect(tmp_path / "w.safetensors")  # imports apart
    started = time.process_time()
    inspect(tmp_path / "w.safetensors")
    assert time.process_time() - started < 0.05


@pytest.mark.parametrize(
    "shape", [[9999999999] * 100_000, [0] + [9999999999] * 100_000, [10**4000] * 99]
)
def test_a010_a_shape_of_endless_extents_is_refused_soon(tmp_path: Path, shape: list[int]) -> None:
    (tmp_path / "w.safetensors").write_bytes(raw({"a": entry(shape, 0, 4)}, b"1234"))
    started = time.process_time()
    [finding] = inspect(tmp_path / "w.safetensors").findings
    assert finding.code == "bad-offsets"
    assert len(finding.message) < 300
    assert time.process_time() - started < 1


def test_a097_a_layer_of_endless_digits_is_no_name_of_a_shard(tmp_path: Path) -> None:
    run = golden("kt_full", "tiny3", "tree", "ckpt")(tmp_path)
    index = json.loads((run / KT).read_text())
    name = index["layers"]["0"]["file"]
    index["layers"]["0"]["file"] = name.replace("layer-00000", "layer-" + "1" * 5000)
    (run / KT).write_text(json.dumps(index))
    told = ask("verify", run)
    assert (told.exit_code, told.codes[0]) == (1, "missing-file")


@pytest.mark.parametrize(
    "key", ["loss", "epoch", "optimizer_step", "consumed_samples", "timestamp"]
)
@pytest.mark.parametrize("value", [10**400, -1, "x", None, [], {"a": 1}, True])
def test_a040_a_fact_of_any_kind_in_meta_is_told_or_left_out(
    tmp_path: Path, key: str, value: object
) -> None:
    run = astrai(tmp_path)
    meta = {**json.loads((run / "meta.json").read_text()), key: value}
    data = json.dumps(meta).encode()
    (run / "meta.json").write_bytes(data)
    relist(run, "meta.json", data)
    told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (0, "intact")
    for verb in ("list", "status"):
        assert "epoch_1_step_40" in say(verb, tmp_path)


def test_a004_a_header_larger_than_readers_accept_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{}")
        file.truncate(8 + 100_000_001)
    told = ask("verify", path)
    assert told.errors == [("header-too-large", "w.safetensors")]
    assert told.messages[0].endswith(
        "header of 100,000,001 bytes, larger than readers accept (100,000,000)"
    )


@pytest.mark.parametrize("name", ["config.json", "meta.json"])
def test_a022_a_pointer_in_the_place_of_json_is_named_by_its_file(
    tmp_path: Path, name: str
) -> None:
    run = astrai(tmp_path)
    (run / name).write_bytes(POINTER)
    assert name in {file for _, file in ask("verify", run).errors}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_a023_litter_of_a_system_is_never_opened_and_told_apart(
    tmp_path: Path, sample: Any
) -> None:
    path = sample.make(tmp_path)
    before = ask("verify", path)
    directory = path if path.is_dir() else path.parent
    for name in [*os.listdir(directory), "model.safetensors", "meta.json", "trainer_state.json"]:
        (directory / f"._{name}").write_bytes(APPLE_DOUBLE)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", ".nfs000000000001", ".fuse_hidden0001"):
        (directory / name).write_bytes(APPLE_DOUBLE)
    opened: list[str] = []
    with fs.hooked(lambda call: opened.append(call.path) if call.name == "open" else None):
        after = ask("verify", path)
    assert (after.exit_code, after.verdict, after.codes) == (
        before.exit_code, before.verdict, before.codes,
    )  # fmt: skip
    if path.is_dir():
        assert "litter" in after.notes
    assert not [name for name in opened if Path(name).name.startswith(("._", ".DS"))]


def test_a023_litter_alone_is_no_checkpoint_and_sorts_nowhere(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_5", 5)
    for name in ("._step_6", "._adapter.safetensors", "._training_state.json", "._metrics.jsonl"):
        (tmp_path / name).write_bytes(APPLE_DOUBLE)
    (tmp_path / "step_7").mkdir()
    (tmp_path / "step_7" / "._model.safetensors").write_bytes(APPLE_DOUBLE)
    slots = ask("list", tmp_path).told["slots"]
    live = [slot["name"] for slot in slots if slot["state"] == "live"]
    assert live == ["step_5"]
    assert ask("status", tmp_path).told["warnings"] == []


def test_a031_line_ends_that_were_turned_name_exactly_the_turned_files(tmp_path: Path) -> None:
    run = put_checkpoint(tmp_path / "step_5", 5)
    for name in ("meta.json", "config.json"):
        data = b"{\n" + (run / name).read_bytes()[1:]
        (run / name).write_bytes(data)
        relist(run, name, data)
        (run / name).write_bytes(data.replace(b"\n", b"\r\n"))
    told = ask("verify", run)
    assert told.errors == [("size-mismatch", "config.json"), ("size-mismatch", "meta.json")]
    hints = {each["hint"] for each in told.told["findings"]}
    assert hints == {"a checkout that turns LF into CRLF adds a byte a line"}


def test_a031_line_ends_of_what_no_hash_covers_are_no_fault(tmp_path: Path) -> None:
    run = huggingface(tmp_path)
    for name in ("config.json", "model.safetensors.index.json", "trainer_state.json"):
        text = json.dumps(json.loads((run / name).read_text()), indent=1)
        (run / name).write_bytes(text.replace("\n", "\r\n").encode())
    told = ask("verify", run)
    assert (told.exit_code, told.codes) == (3, [])
    shutil.rmtree(run)
    run = put_checkpoint(tmp_path / "step_5", 5)
    manifest = (run / "manifest.json").read_bytes()
    (run / "manifest.json").write_bytes(manifest.replace(b"\n", b"\r\n"))
    assert ask("verify", run).verdict == "intact"


def relist(run: Path, name: str, data: bytes) -> None:
    listed = json.loads((run / "manifest.json").read_text())
    listed["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / "manifest.json").write_text(json.dumps(listed))


def change_manifest(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    listed = json.loads((run / "manifest.json").read_text())
    change(listed)
    (run / "manifest.json").write_text(json.dumps(listed))


@pytest.mark.parametrize(
    ("turned", "verdict"),
    [
        (str.upper, "intact"),
        (str.title, "intact"),
        (lambda digest: f"sha256:{digest}", "damaged"),
        (lambda digest: f" {digest}", "damaged"),
        (lambda digest: digest[:-1], "damaged"),
        (lambda digest: None, "damaged"),
    ],
    ids=["upper", "mixed", "prefix", "space", "short", "null"],
)
def test_a033_a_hash_is_a_number_whatever_its_case(
    tmp_path: Path, turned: Callable[[str], str | None], verdict: str
) -> None:
    run = astrai(tmp_path)

    def turn(listed: dict[str, Any]) -> None:
        for each in listed["files"].values():
            each["sha256"] = turned(each["sha256"])

    change_manifest(run, turn)
    told = ask("verify", run)
    assert told.verdict == verdict
    assert set(told.codes) == ({"bad-manifest"} if verdict == "damaged" else set())


def version_of(run: Path, file: str, key: str, value: object) -> None:
    data = json.loads((run / file).read_text())
    data[key] = value
    (run / file).write_text(json.dumps(data))


VERSIONED: list[tuple[Callable[[Path], Path], str, str]] = [
    (astrai, "manifest.json", "format_version"),
    (lora_set, "manifest.json", "format_version"),
    (golden("kt_full", "tiny3", "tree", "ckpt"), KT, "version"),
    (golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"), BUNDLE, "version"),
]


@pytest.mark.parametrize(("make", "file", "key"), VERSIONED, ids=["astrai", "set", "kt", "bundle"])
@pytest.mark.parametrize("value", [2, "1", True, 1.0, None, 10**30])
def test_a034_a_newer_version_is_called_newer_and_anything_else_malformed(
    tmp_path: Path, make: Callable[[Path], Path], file: str, key: str, value: object
) -> None:
    run = make(tmp_path)
    version_of(run, file, key, value)
    before = snapshot(run)
    told = ask("verify", run)
    if type(value) is int:
        assert (told.exit_code, told.verdict) == (2, "unsupported")
        assert told.errors == [("unsupported-version", file)]
        assert told.messages == [
            f"{file}: made by a newer version ({value}), this program reads 1"
        ]
    else:
        assert (told.exit_code, told.verdict) == (1, "damaged")
        assert "1" in told.messages[0]
    assert snapshot(run) == before


def test_a034_a_newer_version_is_never_called_damaged_nor_pruned_as_such(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_4", 4)
    newer = put_checkpoint(tmp_path / "step_5", 5)
    old = put_checkpoint(tmp_path / ".step_5.retired-abcdefgh", 5, 1.0)
    for run in (newer, old):
        version_of(run, "manifest.json", "format_version", 2)
    status = ask("status", tmp_path).told
    assert status["advice"]["message"] == (
        "step_5 is of a version or kind that this program does not read; step_4 is usable"
    )
    assert "damaged" not in say("list", tmp_path)
    assert "? unsupported" in say("list", tmp_path)
    before = snapshot(tmp_path)
    ask("prune", tmp_path, "--damaged", "--yes")
    after = snapshot(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("make", "gone"),
    [
        (huggingface, "model-00002-of-00002.safetensors"),
        (astrai, "model.safetensors"),
        (astrai, "meta.json"),
        (lora_set, "training_checkpoint.json"),
        (golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"), "adapter_config.json"),
        (golden("kt_full", "tiny3", "tree", "ckpt"), "layer-00001"),
    ],
    ids=["huggingface", "astrai", "astrai meta", "set", "bundle", "kt"],
)
def test_a035_what_is_listed_and_not_there_is_named_at_every_depth(
    tmp_path: Path, make: Callable[[Path], Path], gone: str
) -> None:
    run = make(tmp_path)
    [path] = [each for each in run.iterdir() if gone in each.name]
    path.unlink()
    for depth in ("names", "headers", "bytes"):
        told = ask("verify", run, "--depth", depth)
        assert (told.exit_code, told.errors) == (1, [("missing-file", path.name)])


@pytest.mark.parametrize("place", [directory, lora])
def test_a036_a_quick_look_passes_says_so_and_is_never_listed_as_verified(
    tmp_path: Path, place: Callable[[Path], tuple[Path, Path]]
) -> None:
    checkpoint, weights = place(tmp_path)
    data = bytearray(weights.read_bytes())
    data[-4:] = bytes(4)
    weights.write_bytes(data)
    for path in checkpoint.iterdir():
        os.utime(path, (1e9, 1e9))
    quick = ask("verify", checkpoint, "--depth", "headers")
    assert (quick.exit_code, quick.verdict) == (3, "unverifiable")
    assert "no byte was compared" in say("verify", checkpoint, "--depth", "headers")
    [slot] = scan(tmp_path)
    assert slot.live is not None
    assert slot.live.verified is None or slot.live.verified.verdict.value == "unverifiable"
    assert "verified" not in say("list", tmp_path).replace("unverified", "")
    assert ask("verify", checkpoint).errors == [("hash-mismatch", weights.name)]


@pytest.mark.parametrize("text", [None, "[]", '{"wei', '{"weight_map": {"w": 5}}'])
def test_a037_a_single_file_wins_over_an_index_that_is_stale(
    tmp_path: Path, text: str | None
) -> None:
    run = tmp_path / "model"
    run.mkdir()
    (run / "config.json").write_text("{}")
    write_tensors(run / "model.safetensors", [floats("w", 1, 2)])
    gone = {f"w{place}": f"model-{place:05}-of-00030.safetensors" for place in range(1, 31)}
    index = json.dumps({"metadata": {}, "weight_map": gone}) if text is None else text
    (run / "model.safetensors.index.json").write_text(index)
    told = ask("verify", run)
    assert (told.exit_code, told.codes) == (3, [])
    assert "stale-index" in told.notes
    assert [each["name"] for each in ask("show", run).told["tensors"]] == ["w"]


def test_a037_an_index_of_pickles_beside_a_single_file_is_stale_too(tmp_path: Path) -> None:
    run = tmp_path / "model"
    run.mkdir()
    write_tensors(run / "model.safetensors", [floats("w", 1, 2)])
    index = {"metadata": {}, "weight_map": {"w": "pytorch_model-00001-of-00002.bin"}}
    (run / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    told = ask("verify", run)
    assert (told.exit_code, told.codes, told.notes[0]) == (3, [], "stale-index")


def test_a039_a_name_composed_otherwise_and_one_that_is_no_text_are_reported(
    tmp_path: Path,
) -> None:
    run = astrai(tmp_path)
    composed = unicodedata.normalize("NFC", "González.json")
    decomposed = unicodedata.normalize("NFD", composed)
    listed = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    change_manifest(run, lambda manifest: manifest["files"].update({composed: listed}))
    (run / decomposed).write_text("{}")
    Path(os.fsdecode(os.fsencode(run) + b"/\xff\xfe")).write_bytes(b"")
    told = "listed in manifest.json and not there; the same name in another Unicode composition is"
    assert [(each.code, each.message) for each in inspect(run).findings] == [
        ("missing-file", f"{composed}: {told}"),
        ("unlisted-file", "\udcff\udcfe: not listed in manifest.json"),
    ]
    assert ask("verify", run).errors == [("missing-file", composed)]
    assert "\\xff\\xfe" in say("verify", run)


@pytest.mark.parametrize("name", ["😀.json", "Ünï.json", "日本.json", "a b\u00a0c.json"])
def test_a039_a_listed_name_of_any_letters_is_a_name(tmp_path: Path, name: str) -> None:
    run = astrai(tmp_path)
    listed = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    change_manifest(run, lambda manifest: manifest["files"].update({name: listed}))
    (run / name).write_text("{}")
    assert ask("verify", run).verdict == "intact"


def test_a039_a_checkpoint_of_a_name_that_is_no_text_is_listed_and_verified(
    tmp_path: Path,
) -> None:
    target = tmp_path / os.fsdecode(b"step_\xff5")
    put_checkpoint(target, 5)
    assert ask("verify", target).verdict == "intact"
    [slot] = ask("list", tmp_path).told["slots"]
    assert slot["name"] == "step_\\xff5"


@pytest.mark.parametrize("name", ["\ud800.json", "x" * 300, "CONFIG.JSON"])
def test_a039_a_listed_name_that_no_file_can_have_is_a_missing_file(
    tmp_path: Path, name: str
) -> None:
    run = astrai(tmp_path)
    listed = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    change_manifest(run, lambda manifest: manifest["files"].update({name: listed}))
    told = ask("verify", run)
    assert (told.exit_code, [code for code, _ in told.errors]) == (1, ["missing-file"])


@pytest.mark.parametrize("place", PLACES)
def test_a009_a_range_beyond_all_numbers_is_shown_and_verified(
    tmp_path: Path, place: Callable[[Path], tuple[Path, Path]]
) -> None:
    checkpoint, weights = place(tmp_path)
    weights.write_bytes(raw({"a": entry([1], 0, 10**400)}, b"1234"))
    assert "impossible" in say("show", checkpoint)
    assert ask("show", checkpoint).told["findings"]
    assert ask("verify", checkpoint).verdict == "damaged"


@pytest.mark.torch
@pytest.mark.parametrize(("content", "code", "words"), WEIGHTS.values(), ids=WEIGHTS)
def test_what_is_wrong_with_weights_is_the_packages_own_error_when_they_are_loaded(
    tmp_path: Path, content: bytes, code: str, words: str
) -> None:
    torch_side = pytest.importorskip("ckpt.torch")
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        torch_side.load_safetensors(tmp_path / "w.safetensors")
    assert "w.safetensors" in refused.value.message
    assert words in refused.value.message


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "BF16", "F6_E2M3", "F6_E3M2"])
def test_a013_a_type_that_cannot_be_loaded_is_named(tmp_path: Path, dtype: str) -> None:
    torch_side = pytest.importorskip("ckpt.torch")
    size = {"BF16": 8, "F6_E2M3": 3, "F6_E3M2": 3}.get(dtype, 4)
    path = tmp_path / "w.safetensors"
    path.write_bytes(raw({"a": entry([4], 0, size, dtype)}, bytes(size)))
    if dtype.startswith("F6"):
        with pytest.raises(CheckpointError, match=rf"'a'.*{dtype}"):
            torch_side.load_safetensors(path)
    else:
        assert torch_side.load_safetensors(path)["a"].shape == (4,)


def test_a004_a_header_that_no_reader_accepts_is_refused_before_anything_is_published(
    tmp_path: Path,
) -> None:
    def write(staging: Staging) -> None:
        large = {"note": "x" * 100_000_001}
        write_tensors(staging.path / "model.safetensors", [floats("w", 1)], large)

    with pytest.raises(PublishError, match="larger than readers accept") as refused:
        drive(publish(tmp_path / "step_5", write, run_dir=tmp_path))
    assert refused.value.hint == "save fewer tensors a file"
    assert [path.name for path in tmp_path.iterdir() if "step" in path.name] == []
