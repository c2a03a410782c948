"""manifest.json: what AstrAI accepts and refuses, our extension in it, and what we write."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.checkpoint import Severity, first_error
from ckpt.manifest import Listed, Manifest, build, is_safe_name, read_manifest

SHA = "ab" * 32
META = {"timestamp": "2026-12-01T07:00:13", "optimizer_step": 9, "policy_version": 3, "epoch": 1}


def good(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "format_version": 1,
        "created_at": "2026-12-01T07:00:13",
        "optimizer_step": 9,
        "policy_version": None,
        "tensors": ["a", "b"],
        "files": {
            name: {"size": 3, "sha256": SHA}
            for name in ("config.json", "meta.json", "model.safetensors")
        },
    }
    return value | changes


def without(key: str) -> dict[str, Any]:
    return {name: item for name, item in good().items() if name != key}


def read(value: Any) -> Manifest:
    return read_manifest(json.dumps(value).encode())


def errors(manifest: Manifest) -> list[tuple[str, str]]:
    return [(f.code, f.message) for f in manifest.findings if f.severity is Severity.ERROR]


def warnings(manifest: Manifest) -> list[str]:
    return [f.message for f in manifest.findings if f.severity is Severity.WARNING]


@pytest.mark.parametrize("name", ["good", "with_extras", "run_real"])
def test_a_real_manifest_is_built_again_byte_for_byte(golden: Path, name: str) -> None:
    (path, *_) = sorted((golden / "astrai" / name).glob("tree/**/manifest.json"))
    manifest = read_manifest(path.read_bytes())
    assert manifest.findings == ()
    assert first_error(manifest.findings) is None
    assert manifest.tensors is not None
    meta = {
        "timestamp": manifest.created_at,
        "optimizer_step": manifest.optimizer_step,
        "policy_version": manifest.policy_version,
    }
    assert build(manifest.files, reversed(manifest.tensors), meta=meta) == path.read_bytes()


def test_what_is_built_is_what_astrai_writes_and_the_extension_comes_last() -> None:
    files = {name: Listed(3, SHA) for name in ("model.safetensors", "meta.json", "config.json")}
    extension = {"v": 1, "generation": "0123abcd4567", "parent": None, "slot": "step_9"}
    data = build(files, ["b", "a"], meta=META, extension=extension)
    value = json.loads(data)
    assert list(value) == [
        "format_version",
        "created_at",
        "optimizer_step",
        "policy_version",
        "tensors",
        "files",
        "ckpt",
    ]
    assert value["tensors"] == ["a", "b"]
    assert list(value["files"]) == ["config.json", "meta.json", "model.safetensors"]
    assert value["files"]["meta.json"] == {"size": 3, "sha256": SHA}
    manifest = read_manifest(data)
    assert manifest.findings == ()
    assert (manifest.created_at, manifest.optimizer_step, manifest.policy_version) == (
        "2026-12-01T07:00:13",
        9,
        3,
    )
    assert (manifest.generation, manifest.parent) == ("0123abcd4567", None)


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ([], "bad-manifest", "manifest.json: expected an object, found a list"),
        (None, "bad-manifest", "manifest.json: expected an object, found None"),
        (
            good(format_version=2),
            "unsupported-version",
            "manifest.json: made by a newer version (2), this program reads 1",
        ),
        (
            good(format_version=True),
            "bad-manifest",
            "manifest.json: format_version: expected the integer 1, found True",
        ),
        (
            good(format_version="1"),
            "bad-manifest",
            "manifest.json: format_version: expected the integer 1, found '1'",
        ),
        (
            good(format_version=1.0),
            "bad-manifest",
            "manifest.json: format_version: expected the integer 1, found 1.0",
        ),
        (
            without("format_version"),
            "bad-manifest",
            "manifest.json: format_version: expected the integer 1, found None",
        ),
        (
            without("files"),
            "bad-manifest",
            "manifest.json: files: expected an object, found None",
        ),
        (
            without("tensors"),
            "bad-manifest",
            "manifest.json: tensors: expected a list of text, found None",
        ),
        (
            good(tensors=["a", 3]),
            "bad-manifest",
            "manifest.json: tensors: expected a list of text, found 3 in it",
        ),
        (
            good(files=good()["files"] | {"meta.json": []}),
            "bad-manifest",
            "manifest.json: files.meta.json: expected an object, found []",
        ),
    ],
)
def test_what_is_no_version_one_is_one_error_and_lists_nothing(
    value: Any, code: str, message: str
) -> None:
    manifest = read(value)
    assert errors(manifest) == [(code, message)]
    assert manifest.files == {}
    assert first_error(manifest.findings) is not None


@pytest.mark.parametrize(
    "name", ["../x", "/etc/hostname", "a/b", "..", ".", "", "x\0y", "./meta.json", "a/"]
)
def test_a_name_that_is_no_file_of_the_directory_is_refused_and_not_listed(name: str) -> None:
    assert not is_safe_name(name)
    manifest = read(good(files=good()["files"] | {name: {"size": 3, "sha256": SHA}}))
    assert errors(manifest) == [
        (
            "bad-entry-name",
            f"manifest.json: lists {name!r}, which is no plain file name of this directory",
        )
    ]
    assert sorted(manifest.files) == ["config.json", "meta.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["..data", "a b", "..\\x", "\N{GRINNING FACE}.pt", "-rf", "~"])
def test_an_odd_name_that_stays_in_the_directory_is_a_name(name: str) -> None:
    assert is_safe_name(name)
    assert read(good(files=good()["files"] | {name: {"size": 3, "sha256": SHA}})).findings == ()


def test_every_required_entry_that_is_not_listed_is_named() -> None:
    assert errors(read(good(files={}))) == [
        ("bad-manifest", "manifest.json: does not list meta.json"),
        ("bad-manifest", "manifest.json: does not list config.json"),
        ("bad-manifest", "manifest.json: does not list model.safetensors"),
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"format_version": 1, "format_version": 1}', "format_version"),
        (b'{"files": {"meta.json": {}, "meta.json": {}}}', "meta.json"),
        (b'{"files": {"meta.json": {"size": 1, "size": 2}}}', "size"),
        (b'{"ckpt": {"v": 1, "v": 1}}', "v"),
    ],
)
def test_a_key_given_twice_is_refused_at_every_level(text: bytes, key: str) -> None:
    assert errors(read_manifest(text)) == [
        ("duplicate-key", f"manifest.json: duplicate key {key!r}")
    ]


def test_every_prefix_of_a_manifest_is_a_bad_manifest() -> None:
    data = json.dumps(good()).encode()
    for length in range(0, len(data), 7):
        assert [code for code, _ in errors(read_manifest(data[:length]))] == ["bad-manifest"]


def test_hashes_in_upper_case_are_kept_in_lower_case() -> None:
    files = {name: {"size": 3, "sha256": SHA.upper()} for name in good()["files"]}
    manifest = read(good(files=files))
    assert manifest.findings == ()
    assert manifest.files["meta.json"] == Listed(3, SHA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"created_at": 3.5}, "manifest.json: created_at: expected text, found 3.5"),
        ({"optimizer_step": "9"}, "manifest.json: optimizer_step: expected an integer, found '9'"),
        (
            {"policy_version": True},
            "manifest.json: policy_version: expected an integer, found True",
        ),
    ],
)
def test_a_fact_of_an_odd_kind_is_unknown_and_no_damage(
    changes: dict[str, Any], message: str
) -> None:
    manifest = read(good(**changes))
    assert first_error(manifest.findings) is None
    assert warnings(manifest) == [message]
    assert getattr(manifest, next(iter(changes))) is None
    assert len(manifest.files) == 3


def test_the_extension_is_read_and_its_unknown_keys_are_nobodys_fault() -> None:
    extension = {
        "v": 1,
        "generation": "0123abcd4567",
        "parent": "89abcdef0123",
        "slot": "step_9",
        "chunk_bytes": 67108864,
        "chunks": {"model.safetensors": ["aa", "bb"]},
        "later": [1, 2],
    }
    manifest = read(good(ckpt=extension))
    assert manifest.findings == ()
    assert (manifest.generation, manifest.parent) == ("0123abcd4567", "89abcdef0123")
    assert manifest.chunk_bytes == 67108864
    assert manifest.chunks == {"model.safetensors": ("aa", "bb")}


@pytest.mark.parametrize(
    ("extension", "message"),
    [
        ("x", "ckpt: expected an object, found 'x'"),
        ({"generation": "../x"}, "ckpt.generation: expected letters and digits, found '../x'"),
        ({"parent": 3}, "ckpt.parent: expected letters and digits, found 3"),
        ({"chunk_bytes": 0}, "ckpt.chunk_bytes: expected a number of bytes, found 0"),
        ({"generation": "g", "v": "1"}, "ckpt.v: expected an integer, found '1'"),
        ({"generation": "g", "chunks": []}, "ckpt.chunks: expected an object, found []"),
        (
            {"generation": "g", "chunks": {"f": [1]}},
            "ckpt.chunks.f: expected a list of text, found 1 in it",
        ),
    ],
)
def test_an_extension_that_is_not_ours_is_left_alone(extension: Any, message: str) -> None:
    manifest = read(good(ckpt=extension))
    assert warnings(manifest) == [f"manifest.json: {message}"]
    assert first_error(manifest.findings) is None
    assert (manifest.generation, manifest.parent, manifest.chunk_bytes) == (None, None, None)
    assert manifest.chunks == {}
    assert len(manifest.files) == 3


def test_a_byte_order_mark_is_read_and_said() -> None:
    manifest = read_manifest(b"\xef\xbb\xbf" + json.dumps(good()).encode())
    assert [(f.code, f.severity) for f in manifest.findings] == [
        ("upstream-refuses", Severity.WARNING)
    ]
    assert len(manifest.files) == 3


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
CHANGES = st.dictionaries(
    st.sampled_from([*good(), "ckpt", "files"]),
    ANY | st.fixed_dictionaries({}, optional=dict.fromkeys(("generation", "chunks", "v"), ANY)),
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(CHANGES)
def test_any_change_of_a_manifest_is_read_without_an_exception(changes: dict[str, Any]) -> None:
    manifest = read(good(**changes))
    assert all(is_safe_name(name) for name in manifest.files)
    assert first_error(manifest.findings) is None or manifest.findings
    if first_error(manifest.findings) is None:
        assert {"meta.json", "config.json", "model.safetensors"} <= manifest.files.keys()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_no_manifest_and_no_exception(data: bytes) -> None:
    assert [finding.severity for finding in read_manifest(data).findings] == [Severity.ERROR]
