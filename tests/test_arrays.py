"""Arrays as buffers: nothing is copied that need not be, nothing is saved as other values."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt.arrays import buffer_of, pack
from ckpt.errors import PublishError
from ckpt.tensorwriter import Buffer, write_tensors


def data_of(buffer: Buffer) -> bytes:
    data = buffer[3]
    return bytes(data if isinstance(data, memoryview) else data())


def test_memory_in_the_order_of_a_file_is_not_copied() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    name, dtype, shape, data = buffer_of("w", array)
    assert (name, dtype, shape) == ("w", "F32", (3, 4))
    assert isinstance(data, memoryview)
    array[2, 3] = 7
    assert bytes(data[-4:]) == b"\0\0\xe0\x40"


ROWS = np.arange(6, dtype=np.int16).reshape(2, 3)
IN_ROWS = b"\0\0\1\0\2\0\3\0\4\0\5\0"


@pytest.mark.parametrize(
    "array",
    [ROWS, np.asfortranarray(ROWS), ROWS.astype(">i2"), np.repeat(ROWS, 2, 1)[:, ::2],
     np.asfortranarray(ROWS.astype(">i2"))],
    ids=["plain", "column-major", "big-endian", "strided", "both"],
)  # fmt: skip
def test_any_order_of_memory_is_saved_as_the_same_values(array: Any) -> None:
    buffer = buffer_of("w", array)
    assert buffer[:3] == ("w", "I16", (2, 3))
    assert data_of(buffer) == IN_ROWS


@pytest.mark.parametrize(
    ("array", "shape", "data"),
    [
        (np.array(1.0, np.float32), (), b"\0\0\x80\x3f"),
        (np.float32(1.0), (), b"\0\0\x80\x3f"),
        (np.complex64(1.0), (), b"\0\0\x80\x3f\0\0\0\0"),
        (np.array([True, False]), (2,), b"\1\0"),
        (np.zeros((0, 3), np.float64), (0, 3), b""),
        (np.zeros((2, 0), np.float64, order="F"), (2, 0), b""),
        (np.broadcast_to(np.uint8(7), (3,)), (3,), b"\7\7\7"),
    ],
)
def test_scalars_and_nothing_are_arrays_too(
    array: Any, shape: tuple[int, ...], data: bytes, tmp_path: Path
) -> None:
    buffer = buffer_of("w", array)
    assert buffer[2] == shape
    assert data_of(buffer) == data
    write_tensors(tmp_path / "w", [buffer])


@dataclass
class Spelt:
    """A dtype of another framework."""

    name: str


@dataclass
class Foreign:
    """An array of another framework, which has no buffer that Python knows."""

    dtype: Spelt
    shape: tuple[int, ...]
    data: bytes

    def tobytes(self) -> bytes:
        return self.data


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("bfloat16", "BF16"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e8m0fnu", "F8_E8M0"),
    ],
)
def test_an_array_of_another_framework_is_saved_by_its_own_account(name: str, spelt: str) -> None:
    buffer = buffer_of("w", Foreign(Spelt(name), (2,), b"1234"))
    assert buffer[:3] == ("w", spelt, (2,))
    assert data_of(buffer) == b"1234"


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([object()]), "tensor 'w': dtype object cannot be saved"),
        (np.array([1j]), "tensor 'w': dtype complex128 cannot be saved"),
        (np.array(["text"]), "tensor 'w': dtype <U4 cannot be saved"),
        (np.array(["2026-12-01"], "M8[D]"), "tensor 'w': dtype datetime64[D] cannot be saved"),
        (np.zeros(1, [("a", "f4")]), "tensor 'w': dtype [('a', '<f4')] cannot be saved"),
        ([1.0, 2.0], "tensor 'w': expected an array, found list"),
        (None, "tensor 'w': expected an array, found NoneType"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(array: Any, says: str) -> None:
    with pytest.raises(PublishError) as refused:
        buffer_of("w", array)
    assert refused.value.message == says


def test_tied_arrays_are_kept_once_under_the_first_name() -> None:
    weight = np.ones((2, 3), np.float32)
    packed = pack({
        "head": weight, "embed": weight, "view": weight[:], "other shape": weight.reshape(6),
        "transposed": weight.T, "half": weight[:1], "equal": weight.copy(),
    })  # fmt: skip
    assert packed.tied == {"head": "embed", "view": "embed"}
    assert [buffer[0] for buffer in packed.buffers] == [
        "embed", "other shape", "transposed", "half", "equal",
    ]  # fmt: skip


def test_empty_arrays_are_not_tied_by_the_place_where_nothing_lies() -> None:
    empty = np.zeros((0,), np.float32)
    assert pack({"a": empty[:0], "b": empty[:0]}).tied == {}


def test_scalars_are_not_tied_by_memory_that_they_had_in_turn() -> None:
    assert pack({"a": np.float32(1), "b": np.float32(2), "c": np.float32(3)}).tied == {}


def test_a_name_that_is_no_text_is_refused() -> None:
    arrays: Any = {"a": np.float32(1), 7: np.float32(2)}
    with pytest.raises(PublishError, match="tensor 7: expected a name of text"):
        pack(arrays)


def test_no_array_library_is_needed() -> None:
    import subprocess

    code = "import ckpt.arrays, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
