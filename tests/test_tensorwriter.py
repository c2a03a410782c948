"""safetensors files are written as the library writes them, and a buffer that lies is refused."""

import hashlib
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt import fs
from ckpt.arrays import pack
from ckpt.errors import PublishError
from ckpt.tensorfile import read_header
from ckpt.tensorwriter import Buffer, write_tensors

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32",
    "complex64", "float64", "int64", "uint64",
]  # fmt: skip


def test_a_written_file_is_the_librarys_byte_for_byte(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {}
    for place, dtype in enumerate(DTYPES):
        arrays[f"t{place}"] = np.arange(3 * (place % 4)).reshape(3, -1).astype(dtype)
        arrays[f"b{20 - place}"] = np.ones((), dtype)
    save_file(arrays, tmp_path / "theirs", metadata={"note": "é"})
    written = write_tensors(tmp_path / "ours", pack(arrays).buffers, {"note": "é"})
    ours = (tmp_path / "ours").read_bytes()
    assert ours == (tmp_path / "theirs").read_bytes()
    assert written.size_bytes == len(ours)
    assert written.sha256 == hashlib.sha256(ours).hexdigest()
    assert read_header(tmp_path / "ours", "ours").findings == ()


def test_a_large_file_is_the_librarys_too(tmp_path: Path) -> None:
    """Its blocks are written by several threads."""
    from safetensors.numpy import save_file

    numbers = np.random.default_rng(3)
    arrays = {
        f"layer.{at}": numbers.integers(0, 255, (at + 1, 1_000_003), np.uint8) for at in range(5)
    }
    arrays["column.major"] = np.asfortranarray(numbers.random((700, 900)))
    arrays["every.other"] = numbers.random(600_001)[::2]
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, tmp_path / "theirs")
    write_tensors(tmp_path / "ours", pack(arrays).buffers)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.torch
def test_the_dtypes_of_torch_are_written_as_the_library_writes_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kinds = {
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e4m3fnuz": "F8_E4M3FNUZ",
        "float8_e5m2fnuz": "F8_E5M2FNUZ",
        "float8_e8m0fnu": "F8_E8M0",
    }
    tensors, buffers = {}, []
    for place, (name, spelt) in enumerate(kinds.items()):
        for shape in ((), (0, 3), (2, 3)):
            key = f"{9 - place}.{len(shape)}.{math.prod(shape)}"
            tensor = torch.arange(math.prod(shape)).reshape(shape).to(torch.float32)
            tensors[key] = tensor.to(getattr(torch, name))
            raw = tensors[key].reshape(-1).view(torch.uint8).numpy().tobytes()
            buffers.append((key, spelt, shape, memoryview(raw)))
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    write_tensors(tmp_path / "ours", buffers, {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("value", [1, None, 1.5])
def test_metadata_that_is_no_text_is_refused_by_its_key(tmp_path: Path, value: Any) -> None:
    with pytest.raises(PublishError, match=f"metadata 'step': expected text, found {value}"):
        write_tensors(tmp_path / "w", [], {"step": value})
    assert list(tmp_path.iterdir()) == []


def test_metadata_under_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    metadata: Any = {7: "x"}
    with pytest.raises(PublishError, match="metadata: expected keys of text, found 7"):
        write_tensors(tmp_path / "w", [], metadata)
    assert list(tmp_path.iterdir()) == []


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    buffer = ("w", "U8", (1,), memoryview(b"1"))
    with pytest.raises(PublishError, match="tensor 'w' is given twice"):
        write_tensors(tmp_path / "w", [buffer, buffer])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(2, 1), (1, 2, 1), (0,), ()])
def test_what_is_written_is_read_again(tmp_path: Path, shape: tuple[int, ...]) -> None:
    size = 2 * math.prod(shape)
    write_tensors(tmp_path / "w", [("t", "BF16", shape, memoryview(bytes(size)))], {"b": "1"})
    header = read_header(tmp_path / "w", "w")
    assert header.findings == ()
    assert header.metadata == {"b": "1"}
    assert [(t.name, t.dtype, t.shape, t.size_bytes) for t in header.tensors] == [
        ("t", "BF16", shape, size)
    ]


@pytest.mark.parametrize(
    ("buffer", "says"),
    [
        (("w", "F32", (2,), memoryview(b"1234")), "needs 8 bytes, the range has 4"),
        (("w", "I4", (2,), memoryview(b"1")), "tensor 'w': unsupported dtype I4"),
        (("w", "F4", (3,), lambda: memoryview(b"1")), "F4 [3] does not fill whole bytes"),
        (("w", "U8", (2,), memoryview(b"1234")[::2]), "tensor 'w': its buffer is not contiguous"),
        (("__metadata__", "U8", (1,), memoryview(b"1")), "cannot be named __metadata__"),
        (("\udcff", "U8", (1,), memoryview(b"1")), "tensor '\\udcff': cannot be written as UTF-8"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, buffer: Buffer, says: str
) -> None:
    with pytest.raises(PublishError) as refused:
        write_tensors(tmp_path / "w", [buffer])
    assert says in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_data_made_when_its_turn_comes_must_be_of_the_size_that_the_header_says(
    tmp_path: Path,
) -> None:
    with pytest.raises(PublishError, match="tensor 'w': has 3 bytes, expected 4"):
        write_tensors(tmp_path / "w", [("w", "U8", (4,), lambda: memoryview(b"123"))])


def test_of_data_made_when_its_turn_comes_one_is_alive_at_a_time(tmp_path: Path) -> None:
    size = 6 << 20

    def making(value: int) -> Callable[[], memoryview]:
        return lambda: memoryview(bytes([value]) * size)

    tracemalloc.start()
    try:
        write_tensors(tmp_path / "w", [(f"{at}", "U8", (size,), making(at)) for at in range(5)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * size
    assert (tmp_path / "w").read_bytes()[-1] == 4


def test_space_is_reserved_before_the_first_byte_and_the_last_thing_is_the_fsync(
    tmp_path: Path,
) -> None:
    calls: list[fs.Call] = []
    data = memoryview(bytes(20 << 20))
    with fs.hooked(calls.append):
        written = write_tensors(tmp_path / "w", [("w", "U8", (20 << 20,), data)])
    assert written.size_bytes == (tmp_path / "w").stat().st_size
    names = [call.name for call in calls]
    assert names[:3] == ["create", "reserve", "direct"]
    assert set(names[3:-1]) == {"write"}
    assert names[-1] == "fsync"
    assert sum(call.size_bytes for call in calls[3:-1]) == written.size_bytes
