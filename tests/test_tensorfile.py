"""safetensors headers with every bound checked, and files written as the library writes them."""

import json
import os
import struct
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt import fs
from ckpt.tensorfile import read_header


def raw(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def found(tmp_path: Path, content: bytes) -> list[tuple[str, str | None]]:
    (tmp_path / "w.safetensors").write_bytes(content)
    header = read_header(tmp_path / "w.safetensors", "w.safetensors")
    return [(finding.code, finding.tensor) for finding in header.findings]


F4 = entry("F32", [1], 0, 4)

GOOD = {
    "one tensor": raw({"a": F4}, b"1234"),
    "no tensors": raw({}),
    "spaces before and behind": raw(b'  {"a":' + json.dumps(F4).encode() + b"}   ", b"1234"),
    "empty at the start, in the middle and at the end": raw(
        {
            "s": entry("F32", [0], 0, 0),
            "a": F4,
            "m": entry("F32", [0, 3], 4, 4),
            "b": entry("U8", [2], 4, 6),
            "e": entry("F32", [0], 6, 6),
        },
        b"123456",
    ),
    "scalar": raw({"a": entry("F32", [], 0, 4)}, b"1234"),
    "eight bit floats": raw(
        {"a": entry("F8_E4M3", [4], 0, 4), "b": entry("F8_E8M0", [1], 4, 5)}, b"12345"
    ),
    "four bit floats": raw({"a": entry("F4", [2, 8], 0, 8)}, b"12345678"),
    "six bit floats": raw({"a": entry("F6_E2M3", [4], 0, 3)}, b"123"),
    "metadata of text": raw({"__metadata__": {"format": "pt"}, "a": F4}, b"1234"),
    "metadata that is empty": raw({"__metadata__": {}, "a": F4}, b"1234"),
    "metadata that is null": raw({"__metadata__": None, "a": F4}, b"1234"),
}

BAD = {
    "empty file": (b"", [("empty-file", None)]),
    "seven bytes": (b"\x01\0\0\0\0\0\0", [("truncated", None)]),
    "length bomb of ones": (b"\xff" * 8 + b"{}", [("header-too-large", None)]),
    "length bomb of 2^63": (b"\0\0\0\0\0\0\0\x80{}", [("header-too-large", None)]),
    "zeros": (b"\0" * 64, [("bad-header", None)]),
    "header cut": (raw({"a": F4}, b"1234")[:20], [("truncated", None)]),
    "data cut": (raw({"a": F4, "b": entry("U8", [2], 4, 6)}, b"12345"), [("truncated", "b")]),
    "one byte more": (raw({"a": F4}, b"12345"), [("trailing-bytes", None)]),
    "a gap": (
        raw({"a": F4, "b": entry("F32", [1], 8, 12)}, b"1" * 12),
        [("bad-offsets", "b")],
    ),
    "an overlap": (
        raw({"k_proj": F4, "v_proj": F4}, b"1234"),
        [("bad-offsets", "v_proj")],
    ),
    "backwards": (raw({"a": entry("F32", [1], 4, 0)}, b"1234"), [("bad-offsets", "a")]),
    "negative": (raw({"a": entry("F32", [1], -4, 0)}, b"1234"), [("bad-offsets", "a")]),
    "float offsets": (raw({"a": entry("F32", [1], 0.0, 4.0)}, b"1234"), [("bad-offsets", "a")]),
    "bool shape": (raw({"a": entry("F32", [True], 0, 4)}, b"1234"), [("bad-header", "a")]),
    "text that a huge extent would multiply": (
        raw({"a": entry("F32", [10**15, "a"], 0, 4)}, b"1234"),
        [("bad-header", "a")],
    ),
    "shape larger than its range": (
        raw({"a": entry("F32", [1000, 1000], 0, 4)}, b"1234"),
        [("bad-offsets", "a")],
    ),
    "shape beyond 64 bits that wraps to nothing": (
        raw({"a": entry("F32", [2**32, 2**32], 0, 0)}),
        [("bad-offsets", "a")],
    ),
    "extent beyond 64 bits": (
        raw({"a": entry("F32", [2**63 + 2, 2], 0, 16)}, b"1" * 16),
        [("bad-offsets", "a")],
    ),
    "one element in no bytes": (raw({"a": entry("F32", [1], 0, 0)}), [("bad-offsets", "a")]),
    "half a byte": (raw({"a": entry("F4", [3], 0, 1)}, b"1"), [("bad-offsets", "a")]),
    "unknown dtype": (raw({"a": entry("I4", [2], 0, 1)}, b"1"), [("unknown-dtype", "a")]),
    "key twice": (
        raw(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"12345678",
        ),
        [("duplicate-key", None)],
    ),
    "not UTF-8": (raw(b'{"\xff\xfe":1}'), [("bad-header", None)]),
    "byte order mark": (raw(b"\xef\xbb\xbf{}"), [("bad-header", None)]),
    "NUL padding": (raw(b"{}\0\0"), [("bad-header", None)]),
    "a list": (raw(b"[]"), [("bad-header", None)]),
    "deep nesting": (raw(b'{"a":' + b"[" * 100_000), [("bad-header", None)]),
    "an integer of 5,000 digits": (raw(b'{"a":' + b"1" * 5000 + b"}"), [("bad-header", None)]),
    "metadata with a number": (
        raw({"__metadata__": {"unquoted_int": 0}, "a": F4}, b"1234"),
        [("bad-header", None)],
    ),
    "entry that is no object": (raw({"a": 3}), [("bad-header", "a")]),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        [("not-safetensors", None)],
    ),
    "torch zip": (b"PK\x03\x04" + b"\0" * 60, [("not-safetensors", None)]),
    "pickle": (b"\x80\x02}q\x00." + b"\0" * 60, [("not-safetensors", None)]),
    "AppleDouble": (b"\x00\x05\x16\x07" + b"\0" * 60, [("not-safetensors", None)]),
    "HTML": (b"<!DOCTYPE html><html>", [("not-safetensors", None)]),
    "JSON": (b'{"not": "weights"}', [("not-safetensors", None)]),
}


@pytest.mark.parametrize("content", GOOD.values(), ids=GOOD)
def test_a_legal_file_has_no_finding(tmp_path: Path, content: bytes) -> None:
    assert found(tmp_path, content) == []


@pytest.mark.parametrize(("content", "codes"), BAD.values(), ids=BAD)
def test_a_fault_is_named_with_the_tensor_it_is_in(
    tmp_path: Path, content: bytes, codes: list[tuple[str, str | None]]
) -> None:
    assert found(tmp_path, content) == codes


def test_what_can_be_listed_of_a_damaged_file_is_listed(tmp_path: Path) -> None:
    content = raw({"a": F4, "b": entry("I4", [2], 4, 5), "c": entry("U8", [1], 5, 6)}, b"123456")
    (tmp_path / "w").write_bytes(content)
    header = read_header(tmp_path / "w", "w")
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in header.tensors] == [
        ("a", "F32", (1,)),
        ("b", "I4", (2,)),
        ("c", "U8", (1,)),
    ]
    start = len(content) - 6
    assert [(tensor.start, tensor.end) for tensor in header.tensors] == [
        (start, start + 4),
        (start + 4, start + 5),
        (start + 5, start + 6),
    ]


def test_a_length_that_spells_another_kind_of_file_is_a_length_where_it_fits(
    tmp_path: Path,
) -> None:
    length = int.from_bytes(b"PK\x03\x04", "little")
    with (tmp_path / "w").open("wb") as file:
        file.write(struct.pack("<Q", length) + b"{}")
        file.truncate(8 + length)  # the rest is NUL, which no header holds
    (finding,) = read_header(tmp_path / "w", "w").findings
    assert finding.code == "bad-header"


def test_the_messages_name_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(raw({"a": entry("F32", [1000, 1000], 0, 4)}, b"1234"))
    (message,) = [finding.message for finding in read_header(tmp_path / "w", "w").findings]
    assert message == ("w: tensor 'a': F32 [1000, 1000] needs 4,000,000 bytes, the range has 4")


@pytest.mark.parametrize("bomb", [b"\xff" * 8, b"\0\0\0\0\0\0\0\x80", b"\0\xe1\xf5\x05\0\0\0\0"])
def test_a_length_bomb_costs_neither_time_nor_memory(tmp_path: Path, bomb: bytes) -> None:
    (tmp_path / "w").write_bytes(bomb + b"{}")
    tracemalloc.start()
    started = time.process_time()
    header = read_header(tmp_path / "w", "w")
    spent, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(header.findings) == 1
    assert peak < 100_000
    assert spent < 1


@pytest.mark.parametrize(
    ("length", "codes"), [(100_000_000, []), (100_000_001, ["header-too-large"])]
)
def test_a_header_may_be_as_large_as_readers_accept_and_no_larger(
    tmp_path: Path, length: int, codes: list[str]
) -> None:
    with (tmp_path / "w").open("wb") as file:
        file.write(struct.pack("<Q", length) + b"{}")
        for _ in range(100):
            file.write(b" " * 1_000_000)
        file.truncate(8 + length)
    if not codes:
        with (tmp_path / "w").open("r+b") as file:
            file.seek(8 + length - 2)
            file.write(b"  ")
    header = read_header(tmp_path / "w", "w")
    assert [finding.code for finding in header.findings] == codes


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    assert [f.code for f in read_header(tmp_path / "no", "no").findings] == ["missing-file"]
    (tmp_path / "w").write_bytes(GOOD["one tensor"])

    def refuse(call: fs.Call) -> None:
        raise PermissionError(13, "Permission denied")

    with fs.hooked(refuse):
        assert [f.code for f in read_header(tmp_path / "w", "w").findings] == ["permission-denied"]
    os.mkfifo(tmp_path / "fifo")
    assert [f.code for f in read_header(tmp_path / "fifo", "f").findings] == ["unreadable-file"]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_no_header_text_gets_past_the_reader_as_an_exception(text: bytes, claimed: int) -> None:
    path = Path(tempfile.gettempdir()) / f"ckpt-test-{os.getpid()}"
    try:
        path.write_bytes(struct.pack("<Q", claimed) + text)
        read_header(path, "w")
        path.write_bytes(raw(text))
        read_header(path, "w")
    finally:
        path.unlink()


SCALAR = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4)
JSON = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(st.text(max_size=6), SCALAR)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "I4", "F4", 3]),
        "shape": JSON,
        "data_offsets": JSON,
    },
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), ENTRY | JSON, max_size=4))
def test_no_header_object_gets_past_the_reader_as_an_exception(header: dict[str, Any]) -> None:
    path = Path(tempfile.gettempdir()) / f"ckpt-test-{os.getpid()}"
    try:
        path.write_bytes(raw(header, b"1234"))
        result = read_header(path, "w")
    finally:
        path.unlink()
    assert all(finding.severity.value == "error" for finding in result.findings)
