"""Statistics and differences of tensors: every dtype, extreme values, damage, cancelling."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Severity, Tensor
from ckpt.operation import Event, Found, Progress, drive
from ckpt.tensors import TensorStats, stats, stats_findings
from ckpt.verify import inspect_settled

BITS = {"BOOL": 8, "BF16": 16, "F16": 16, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def put(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> Checkpoint:
    """Write a file of tensors from their own bytes, and read its header."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return inspect_settled(path)


def of(checkpoint: Checkpoint) -> dict[str, TensorStats]:
    return {tensor.name: each for tensor, each in drive(stats(checkpoint)).items()}


def only(tmp_path: Path, dtype: str, content: bytes, count: int) -> TensorStats:
    return of(put(tmp_path / "w.safetensors", {"w": (dtype, [count], content)}))["w"]


def numbers(told: TensorStats) -> list[Any]:
    return [told.minimum, told.maximum, told.mean, told.norm]


# ---- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "content", "zeros", "expected"),
    [
        ("U8", bytes([0, 3, 4, 255]), 1, [0, 255, 65.5, math.sqrt(65_050)]),
        ("I8", struct.pack("<4b", -128, 0, 0, 127), 2, [-128, 127, -0.25, math.sqrt(32_513)]),
        ("U16", struct.pack("<2H", 0, 65_535), 1, [0, 65_535, 32_767.5, 65_535.0]),
        ("I16", struct.pack("<2h", -3, 4), 0, [-3, 4, 0.5, 5.0]),
        ("U32", struct.pack("<2I", 3, 4), 0, [3, 4, 3.5, 5.0]),
        ("I32", struct.pack("<2i", -(2**31), 0), 1, [-(2**31), 0, -(2.0**30), 2.0**31]),
        ("U64", struct.pack("<Q", 2**64 - 1), 0, [2**64 - 1, 2**64 - 1, 2.0**64, 2.0**64]),
        ("I64", struct.pack("<q", -(2**63) + 1), 0, [1 - 2**63, 1 - 2**63, -(2.0**63), 2.0**63]),
        ("BOOL", bytes([1, 0, 0, 1]), 2, [0, 1, 0.5, math.sqrt(2)]),
        ("F16", struct.pack("<3e", -65_504.0, 0.0, 6e-8), 1, None),
        ("BF16", struct.pack("<4H", 0x4040, 0xC080, 0x8000, 0x0000), 2, [-4.0, 3.0, -0.25, 5.0]),
        ("F32", struct.pack("<2f", -3.0, 4.0), 0, [-3.0, 4.0, 0.5, 5.0]),
        ("F64", struct.pack("<2d", -3.0, 4.0), 0, [-3.0, 4.0, 0.5, 5.0]),
        ("C64", struct.pack("<4f", 3.0, -4.0, 0.0, -0.0), 1, [0.0, 5.0, 2.5, 5.0]),
        ("F4", bytes([0x72, 0x90]), 1, [-0.5, 6.0, 1.625, math.sqrt(37.25)]),
    ],
)
def test_statistics_of_values_that_one_can_count(
    tmp_path: Path, dtype: str, content: bytes, zeros: int, expected: list[Any] | None
) -> None:
    count = len(content) * 8 // BITS.get(dtype, int(dtype[1:]) if dtype[1:].isdigit() else 8)
    told = only(tmp_path, dtype, content, count)
    assert (told.count, told.zero_count, told.finite) == (count, zeros, True)
    if expected is not None:
        assert numbers(told) == expected
        assert [type(value) for value in numbers(told)] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("values", "low", "high", "mean", "norm"),
    [
        ([1e300, 1e300], 1e300, 1e300, 1e300, 1.4142135623730951e300),
        ([3e-320, 4e-320], 3e-320, 4e-320, 3.5e-320, 5e-320),
        ([1.7e308, 1.7e308], 1.7e308, 1.7e308, 1.7e308, math.inf),
        ([0.0, 3e-200, 4e-200], 0.0, 4e-200, 7e-200 / 3, 5e-200),
        ([1e-200, 1e200], 1e-200, 1e200, 5e199, 1e200),
        ([-0.0, -0.0], 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_sums_of_extreme_values_neither_overflow_nor_vanish(
    tmp_path: Path, values: list[float], low: float, high: float, mean: float, norm: float
) -> None:
    told = only(tmp_path, "F64", struct.pack(f"<{len(values)}d", *values), len(values))
    assert numbers(told) == pytest.approx([low, high, mean, norm], rel=1e-12, abs=0)
    assert math.copysign(1, told.minimum or 0.0) == 1


def test_extreme_values_far_apart_are_added_up_too(tmp_path: Path) -> None:
    zeros, ones = np.zeros(1 << 21), np.ones(1 << 21)
    tiny = np.concatenate([zeros, ones * 1e-250]).tobytes()
    assert only(tmp_path, "F64", tiny, 1 << 22).norm == pytest.approx(1e-250 * 2**10.5)
    huge = np.concatenate([ones, ones * 1e250]).tobytes()
    assert only(tmp_path, "F64", huge, 1 << 22).norm == pytest.approx(1e250 * 2**10.5)


def test_what_is_not_finite_is_counted_and_left_out(tmp_path: Path) -> None:
    content = struct.pack("<6f", math.nan, 3.0, math.inf, -math.inf, 4.0, 0.0)
    checkpoint = put(tmp_path / "w.safetensors", {"w": ("F32", [6], content)})
    found = drive(stats(checkpoint))
    [told] = found.values()
    assert (told.count, told.nan_count, told.inf_count, told.zero_count) == (6, 1, 2, 1)
    assert told.finite is False
    assert numbers(told) == [0.0, 4.0, pytest.approx(7 / 3), 5.0]
    [finding] = stats_findings(found.items())
    assert (finding.code, finding.severity, finding.tensor) == ("nonfinite", Severity.WARNING, "w")
    assert finding.message == "w.safetensors: w: 1 NaN, 2 Inf of 6 values"


def test_a_tensor_of_nan_alone_has_no_numbers(tmp_path: Path) -> None:
    told = only(tmp_path, "BF16", struct.pack("<2H", 0x7FC0, 0xFFC1), 2)
    assert (told.finite, told.nan_count) == (False, 2)
    assert numbers(told) == [None, None, None, None]


def test_a_complex_value_is_nan_when_a_part_is(tmp_path: Path) -> None:
    content = struct.pack("<8f", math.nan, math.inf, 0.0, math.inf, 3e38, 3e38, 0.0, 1.0)
    told = only(tmp_path, "C64", content, 4)
    assert (told.nan_count, told.inf_count) == (1, 1)
    assert told.maximum == pytest.approx(3e38 * math.sqrt(2))


def test_tensors_without_elements_and_scalars(tmp_path: Path) -> None:
    tensors = {
        "empty": ("F32", [0, 4], b""),
        "scalar": ("F32", [], struct.pack("<f", -2.0)),
        "last": ("I64", [0], b""),
    }
    told = of(put(tmp_path / "w.safetensors", tensors))
    assert (told["empty"].count, told["empty"].finite) == (0, True)
    assert numbers(told["empty"]) == numbers(told["last"]) == [None] * 4
    assert numbers(told["scalar"]) == [-2.0, -2.0, -2.0, 2.0]


def test_what_cannot_be_decoded_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    tensors = {
        "six": ("F6_E2M3", [4], b"abc"),
        "unknown": ("I4", [2], b"a"),
        "known": ("U8", [2], b"\1\2"),
    }
    checkpoint = put(tmp_path / "w.safetensors", tensors)
    found = drive(stats(checkpoint))
    told = {tensor.name: each for tensor, each in found.items()}
    assert told["known"].maximum == 2
    assert told["six"].finite is None
    assert [(each.code, each.message) for each in stats_findings(found.items())] == [
        ("not-computed", "six: not computed: F6_E2M3 is not decoded"),
        ("not-computed", "unknown: not computed: I4 is not decoded"),
    ]


# ---- random data, against numpy and torch ---------------------------------------------------


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", "<i1", "<u2", "<i4", "<u8"])
def test_random_bits_give_what_numpy_says(tmp_path: Path, kind: str) -> None:
    count = 200_003  # several blocks, the last one partly filled
    bits = np.random.default_rng(7).integers(0, 256, count * int(kind[2]), np.uint8)
    dtype = {"f": "F", "i": "I", "u": "U"}[kind[1]] + str(8 * int(kind[2]))
    told = only(tmp_path, dtype, bits.tobytes(), count)
    values = bits.view(kind)
    with np.errstate(all="ignore"):
        wide = values.astype(np.longdouble)
        finite = wide[np.isfinite(wide)]
    assert told.nan_count == np.count_nonzero(np.isnan(wide))
    assert told.inf_count == np.count_nonzero(np.isinf(wide))
    assert told.zero_count == np.count_nonzero(wide == 0)
    assert (told.minimum, told.maximum) == (finite.min(), finite.max())
    largest = float(np.abs(finite).max())
    assert told.mean == pytest.approx(float(finite.mean()), rel=1e-9, abs=1e-12 * largest)
    norm = float(np.sqrt(np.square(finite).sum())) if kind != "<f8" else math.inf
    assert told.norm == pytest.approx(norm, rel=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("BF16", "bfloat16"),
        ("F16", "float16"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
        ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
        ("F8_E8M0", "float8_e8m0fnu"),
    ],
)
def test_every_code_of_a_small_float_means_what_torch_says(
    tmp_path: Path, dtype: str, name: str
) -> None:
    torch = pytest.importorskip("torch")
    wide = "16" in dtype
    codes = np.arange(65_536 if wide else 256, dtype=np.uint16 if wide else np.uint8)
    values = torch.from_numpy(codes.view(np.int16 if wide else np.uint8)).view(
        getattr(torch, name)
    )
    expected = values.to(torch.float64)
    each = {
        f"{at}": (dtype, [1], codes[at : at + 1].tobytes())
        for at in range(0, codes.size, 257 if wide else 1)
    }
    told = of(put(tmp_path / "w.safetensors", each))
    for at in range(0, codes.size, 257 if wide else 1):
        value = expected[at].item()
        found = told[f"{at}"]
        if math.isfinite(value):
            assert (found.minimum, found.zero_count) == (value, int(value == 0))
        else:
            assert (found.nan_count, found.inf_count) == (
                int(math.isnan(value)), int(math.isinf(value)),
            )  # fmt: skip
    whole = only(tmp_path, dtype, codes.tobytes(), codes.size)
    finite = expected[torch.isfinite(expected)]
    assert whole.norm == pytest.approx(finite.norm().item(), rel=1e-12)
    assert whole.nan_count == int(expected.isnan().sum())
    assert whole.inf_count == int(expected.isinf().sum())


# ---- how it reads ---------------------------------------------------------------------------


def large(tmp_path: Path, count: int = 1 << 23) -> Checkpoint:
    """A file of two large tensors and a few small ones."""
    data = np.arange(count, dtype=np.float32)
    tensors = {
        "first": ("F32", [count], data.tobytes()),
        **{f"small.{at}": ("F32", [2], struct.pack("<2f", at, at)) for at in range(9)},
        "last": ("BF16", [count], np.full(count, 0x3F80, np.uint16).tobytes()),
    }
    return put(tmp_path / "w.safetensors", tensors)


def test_large_tensors_are_read_in_blocks_with_progress_to_the_end(tmp_path: Path) -> None:
    checkpoint = large(tmp_path)
    sizes: list[int] = []
    with fs.hooked(lambda call: sizes.append(call.size_bytes) if call.name == "read" else None):
        events: list[Event] = []
        told = {t.name: each for t, each in drive(stats(checkpoint), events.append).items()}
    header_bytes = checkpoint.tensors[0].start
    assert max(sizes) <= 1 << 19
    assert sum(sizes) == sum(each.size_bytes for each in checkpoint.tensors) + header_bytes
    done = [event.done for event in events if isinstance(event, Progress)]
    assert len(done) > 4
    assert done == sorted(done)
    assert done[-1] == sum(each.size_bytes for each in checkpoint.tensors)
    assert (told["first"].maximum, told["small.8"].norm) == (2**23 - 1, math.sqrt(128))
    assert numbers(told["last"]) == [1.0, 1.0, 1.0, math.sqrt(2**23)]


def test_a_reading_that_is_closed_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    import threading

    reading = stats(large(tmp_path))
    assert isinstance(next(reading), Progress)
    reading.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("ckpt-tensors")]
    opened = {path.resolve() for path in Path("/proc/self/fd").iterdir() if path.exists()}
    assert tmp_path / "w.safetensors" not in opened


def test_only_the_tensors_that_were_asked_for_are_read(tmp_path: Path) -> None:
    checkpoint = large(tmp_path, 1 << 10)
    wanted = [tensor for tensor in checkpoint.tensors if tensor.name == "small.3"]
    sizes: list[int] = []
    with fs.hooked(lambda call: sizes.append(call.size_bytes) if call.name == "read" else None):
        found = drive(stats(checkpoint, wanted))
    assert [(tensor.name, each.maximum) for tensor, each in found.items()] == [("small.3", 3.0)]
    assert sum(sizes) == 8 + checkpoint.tensors[0].start - 8 + 8


# ---- damage ---------------------------------------------------------------------------------


def codes_of(found: Mapping[Tensor, TensorStats]) -> dict[str, str | None]:
    return {t.name: each.problem.code if each.problem else None for t, each in found.items()}


def test_a_tensor_that_is_cut_off_does_not_hide_the_others(tmp_path: Path) -> None:
    tensors = {"a": ("U8", [4], b"abcd"), "b": ("U8", [4], b"efgh")}
    put(tmp_path / "w.safetensors", tensors)
    whole = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(whole[:-1])
    found = drive(stats(inspect_settled(tmp_path / "w.safetensors")))
    assert codes_of(found) == {"a": None, "b": "truncated"}


def test_offsets_that_do_not_fit_the_shape_are_no_values(tmp_path: Path) -> None:
    tensors = {"a": ("F32", [2], b"abcdef"), "b": ("F32", [1], b"efgh")}
    found = drive(stats(put(tmp_path / "w.safetensors", tensors)))
    assert codes_of(found) == {"a": "bad-offsets", "b": None}


def test_a_header_that_claims_an_impossible_size_costs_nothing(tmp_path: Path) -> None:
    place = [0, 1 << 62]
    text = json.dumps({"w": {"dtype": "U8", "shape": [1 << 62], "data_offsets": place}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"abcd")
    found = drive(stats(inspect_settled(tmp_path / "w.safetensors")))
    assert codes_of(found) == {"w": "truncated"}


def test_a_file_that_was_replaced_since_its_header_was_read_is_said_so(tmp_path: Path) -> None:
    checkpoint = put(tmp_path / "w.safetensors", {"w": ("U8", [4], b"abcd")})
    put(tmp_path / "w.safetensors", {"w": ("I8", [4], b"abcd")})
    assert codes_of(drive(stats(checkpoint))) == {"w": "changed-while-reading"}


def test_a_file_that_is_written_to_while_it_is_read_is_said_so(tmp_path: Path) -> None:
    checkpoint = large(tmp_path)
    reading = stats(checkpoint)
    next(reading)
    with (tmp_path / "w.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"xx")
    found = {}
    told = []
    while True:
        try:
            told.append(next(reading))
        except StopIteration as stop:
            found = stop.value
            break
    assert set(codes_of(found).values()) == {"changed-while-reading"}
    assert [event.finding.code for event in told if isinstance(event, Found)] == [
        "changed-while-reading"
    ]


def test_a_file_that_is_gone_and_one_that_fails_are_said_so(tmp_path: Path) -> None:
    checkpoint = put(tmp_path / "w.safetensors", {"w": ("U8", [4], b"abcd")})

    def fail(call: fs.Call) -> None:
        if call.name == "read" and call.size_bytes == 4:
            raise OSError(5, "Input/output error")

    with fs.hooked(fail):
        assert codes_of(drive(stats(checkpoint))) == {"w": "unreadable-file"}
    (tmp_path / "w.safetensors").unlink()
    assert codes_of(drive(stats(checkpoint))) == {"w": "missing-file"}
