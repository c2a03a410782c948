"""Statistics and differences of tensors: every dtype, extreme values, damage, cancelling."""

import json
import math
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Severity, Tensor
from ckpt.operation import Event, Found, Progress, drive
from ckpt.tensorfile import DTYPE_BITS
from ckpt.tensors import Difference, Form, Reshaped, TensorStats, diff, stats, stats_findings
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


def large(tmp_path: Path, count: int = 1 << 22) -> Checkpoint:
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
    assert len(done) >= 3
    assert done == sorted(done)
    assert done[-1] == sum(each.size_bytes for each in checkpoint.tensors)
    assert (told["first"].maximum, told["small.8"].norm) == (2**22 - 1, math.sqrt(128))
    assert numbers(told["last"]) == [1.0, 1.0, 1.0, math.sqrt(2**22)]


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


# ---- differences ----------------------------------------------------------------------------


def f32(*values: float) -> tuple[str, list[int], bytes]:
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


def compared(tmp_path: Path, a: Mapping[str, Any], b: Mapping[str, Any]) -> Difference:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
    before = put(tmp_path / "a" / "w.safetensors", a)
    return drive(diff(before, put(tmp_path / "b" / "w.safetensors", b)))


def test_what_moved_the_farthest_comes_first(tmp_path: Path) -> None:
    told = compared(
        tmp_path,
        {"near": f32(3, 4), "far": f32(3, 4), "still": f32(1, 2), "born": f32(0, 0)},
        {"near": f32(3, 4.5), "far": f32(0, 0), "still": f32(1, 2), "born": f32(3, 4)},
    )
    assert [(each.name, each.relative_update, each.max_abs) for each in told.changed] == [
        ("born", math.inf, 4.0),
        ("far", 1.0, 4.0),
        ("near", 0.1, 0.5),
    ]
    assert [(each.norm_before, each.norm_update) for each in told.changed] == [
        (0.0, 5.0),
        (5.0, 5.0),
        (5.0, 0.5),
    ]
    assert (told.same, told.is_same, told.findings) == (("still",), False, ())


def test_identical_checkpoints_are_the_same(tmp_path: Path) -> None:
    tensors = {"w": f32(math.nan, 1), "six": ("F6_E2M3", [4], b"abc"), "none": ("U8", [0], b"")}
    told = compared(tmp_path, tensors, tensors)
    assert told.is_same
    assert set(told.same) == {"w", "six", "none"}
    assert (told.changed, told.uncompared, told.findings) == ((), (), ())


def test_added_removed_reshaped_and_retyped_tensors(tmp_path: Path) -> None:
    told = compared(
        tmp_path,
        {
            "gone": f32(1),
            "turned": ("U8", [2, 3], bytes(6)),
            "cast": f32(3, 4),
            "odd": ("C64", [1], bytes(8)),
        },
        {
            "new": f32(1),
            "turned": ("U8", [3, 2], bytes(6)),
            "cast": ("BF16", [2], struct.pack("<2H", 0x4040, 0x4080)),
            "odd": ("F64", [1], bytes(8)),
        },
    )
    assert (told.added, told.removed) == (("new",), ("gone",))
    assert told.reshaped == (
        Reshaped("turned", "w.safetensors", Form("U8", (2, 3)), Form("U8", (3, 2))),
        Reshaped("odd", "w.safetensors", Form("C64", (1,)), Form("F64", (1,))),
    )
    [cast] = told.changed
    assert (cast.before, cast.after) == (Form("F32", (2,)), Form("BF16", (2,)))
    assert (cast.relative_update, told.same) == (0.0, ())


def test_values_that_become_nan_come_before_all_others_and_are_counted(tmp_path: Path) -> None:
    told = compared(
        tmp_path,
        {"broke": f32(3, 4, 0), "healed": f32(math.inf, 1), "moved": f32(1)},
        {"broke": f32(3, math.nan, 0), "healed": f32(1, 1), "moved": f32(9)},
    )
    assert [(each.name, each.relative_update) for each in told.changed] == [
        ("broke", 0.0), ("moved", 8.0), ("healed", 0.0),
    ]  # fmt: skip
    assert [(each.nonfinite_before, each.nonfinite_after) for each in told.changed] == [
        (0, 1), (0, 0), (1, 0),
    ]  # fmt: skip
    assert sorted((each.code, each.message) for each in told.findings) == [
        ("nonfinite", "w.safetensors: broke: 1 values not finite, 0 before"),
        ("nonfinite", "w.safetensors: healed: 0 values not finite, 1 before"),
    ]


@pytest.mark.parametrize(
    ("dtype", "before", "after", "max_abs", "relative"),
    [
        ("F64", struct.pack("<d", 1.5e308), struct.pack("<d", -1.5e308), math.inf, 2.0),
        ("F64", struct.pack("<d", 4e-320), struct.pack("<d", 5e-320), 1e-320, 0.25),
        ("F32", struct.pack("<f", 0.0), struct.pack("<f", -0.0), 0.0, 0.0),
        ("I64", struct.pack("<q", 2**62), struct.pack("<q", 2**62 + 1), 1.0, 2.0**-62),
        ("U64", struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 0), 2.0**64, 1.0),
        ("BOOL", b"\0\1", b"\1\1", 1.0, 1.0),
        ("C64", struct.pack("<2f", 3, 4), struct.pack("<2f", 3, 1), 3.0, 0.6),
        ("F4", b"\x21", b"\x22", 0.5, 0.5 / math.sqrt(1.25)),
        ("F8_E5M2", b"\x3c", b"\x40", 1.0, 1.0),
        ("F6_E3M2", b"abc", b"abd", None, None),
    ],
)
def test_how_far_values_moved_in_every_kind(
    tmp_path: Path,
    dtype: str,
    before: bytes,
    after: bytes,
    max_abs: float | None,
    relative: float | None,
) -> None:
    count = len(before) * 8 // BITS.get(dtype, int(dtype[1:]) if dtype[1:].isdigit() else 8)
    [told] = compared(
        tmp_path, {"w": (dtype, [count], before)}, {"w": (dtype, [count], after)}
    ).changed
    if relative is None:
        assert (told.max_abs, told.relative_update) == (None, None)
    else:
        expected = pytest.approx([max_abs, relative], rel=1e-3 if max_abs == 1e-320 else 1e-12)
        assert [told.max_abs, told.relative_update] == expected


def test_a_large_tensor_that_moved_in_one_place_is_measured_whole(tmp_path: Path) -> None:
    count = 1 << 23  # more than one job: the rest is the same, and its norm is read at last
    before = np.random.default_rng(3).standard_normal(count).astype(np.float32)
    after = before.copy()
    after[5] += 3
    before[-1] = after[-1] = np.nan
    told = compared(
        tmp_path,
        {"w": ("F32", [count], before.tobytes()), "still": f32(1)},
        {"w": ("F32", [count], after.tobytes()), "still": f32(1)},
    )
    [moved] = told.changed
    norm = float(np.linalg.norm(before[:-1].astype(np.float64)))
    assert moved.norm_before == pytest.approx(norm, rel=1e-12)
    assert moved.relative_update == pytest.approx(3 / norm, rel=1e-6)
    assert (moved.nonfinite_before, moved.nonfinite_after, told.same) == (1, 1, ("still",))


def test_a_difference_has_progress_in_the_bytes_of_both_sides(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a, b = large(tmp_path / "a"), large(tmp_path / "b")
    with (tmp_path / "b" / "w.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"1234")
    events: list[Event] = []
    told = drive(diff(a, inspect_settled(tmp_path / "b" / "w.safetensors")), events.append)
    done = [event.done for event in events if isinstance(event, Progress)]
    assert done == sorted(done)
    assert done[-1] == 2 * sum(each.size_bytes for each in b.tensors)
    assert [each.name for each in told.changed] == ["last"]


def test_optimizer_moments_and_other_files_are_compared_too(tmp_path: Path) -> None:
    for name, value, step in (("a", 1.0, 1), ("b", 2.0, 2)):
        directory = tmp_path / f"{name}/checkpoint-8"
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({"deep": {"er": step}, "lr": [0.1]}))
        put(directory / "model.safetensors", {"w": f32(1)})
        put(directory / "optimizer.safetensors", {"w": f32(value)})
        (directory / "scheduler.pt").write_bytes(b"same bytes")
        (directory / "rng_state.pth").write_bytes(b"step %d" % step)
        (directory / f"only_{name}.txt").write_bytes(b"x")
        state = {"global_step": 8, "max_steps": 9, "epoch": 1.0, "log_history": []}
        (directory / "trainer_state.json").write_text(json.dumps(state))
    a, b = (inspect_settled(tmp_path / f"{name}/checkpoint-8") for name in ("a", "b"))
    told = drive(diff(a, b))
    assert [(each.name, each.file) for each in told.changed] == [
        ("optimizer:w", "optimizer.safetensors")
    ]
    assert told.changed[0].is_moment
    assert told.same == ("w",)
    assert dict(told.metadata) == {"settings.deep.er": (1, 2)}
    assert dict(told.files) == {
        "config.json": (32, 32), "only_a.txt": (1, None), "rng_state.pth": (6, 6),
        "only_b.txt": (None, 1),
    }  # fmt: skip


def test_layers_of_kt_are_matched_across_generations(golden: Path) -> None:
    first = inspect_settled(golden / "kt_full/tiny3/tree/ckpt")
    second = inspect_settled(golden / "kt_full/second_save/tree/ckpt")
    told = drive(diff(first, second))
    names = {*told.same, *(each.name for each in told.changed)}
    assert names == {
        f"layer-{layer:05}:{name}_proj" for layer in range(3) for name in ("up", "gate", "down")
    }
    assert (told.added, told.removed, told.uncompared) == ((), (), ())
    assert "generation" in told.metadata


def test_what_cannot_be_read_is_not_called_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    tensors = {"a": f32(1), "b": f32(2)}
    whole = put(tmp_path / "w.safetensors", tensors)
    put(tmp_path / "a" / "w.safetensors", tensors)
    data = (tmp_path / "a" / "w.safetensors").read_bytes()
    (tmp_path / "a" / "w.safetensors").write_bytes(data[:-1])
    told = drive(diff(whole, inspect_settled(tmp_path / "a" / "w.safetensors")))
    assert (told.same, told.uncompared) == (("a",), ("b",))
    assert {each.code for each in told.findings} == {"truncated"}


def test_a_difference_says_when_a_side_fails_or_changes_meanwhile(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a, b = large(tmp_path / "a"), large(tmp_path / "b")

    def fail(call: fs.Call) -> None:
        if (
            call.name == "read"
            and call.size_bytes == 1 << 17
            and "/b/" in str(Path(call.path).resolve())
        ):
            raise OSError(5, "Input/output error")

    with fs.hooked(fail):
        told = drive(diff(a, b))
    assert (told.uncompared, told.is_same) == (("last",), True)
    assert [each.code for each in told.findings] == ["unreadable-file"]

    comparison = diff(a, b)
    next(comparison)
    put(tmp_path / "b" / "other.safetensors", {"w": f32(1)}).path.rename(b.path)
    assert isinstance(next(comparison), Progress)
    comparison.close()
    gone = drive(diff(a, b))
    assert {each.code for each in gone.findings} == {"changed-while-reading"}
    assert len(gone.uncompared) == len(a.tensors)


# ---- whatever stands there ------------------------------------------------------------------


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A small file of tensors of any kind, with a few bytes changed or cut off."""
    header, data = {}, b""
    for at in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        count = draw(st.sampled_from([0, 4, 8]))
        content = draw(st.binary(min_size=64, max_size=64))[: count * DTYPE_BITS[dtype] // 8]
        place = [len(data), len(data) + len(content)]
        header[f"t{at}"] = {"dtype": dtype, "shape": [count], "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    whole = bytearray(struct.pack("<Q", len(text)) + text + data)
    for at, byte in draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2)
    ):
        whole[at % len(whole)] = byte
    return bytes(whole[: len(whole) - draw(st.sampled_from([0, 0, 0, 1, 9]))])


@settings(max_examples=80, deadline=None)
@given(files(), files())
def test_no_bytes_make_statistics_or_a_difference_fail(one: bytes, other: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, second = Path(directory, "w.safetensors"), Path(directory, "v.safetensors")
        path.write_bytes(one)
        second.write_bytes(other)
        checkpoint = inspect_settled(path)
        found = drive(stats(checkpoint))
        assert set(found) == set(checkpoint.tensors)
        for told in found.values():
            assert (told.finite is None) == (told.problem is not None)
        itself = drive(diff(checkpoint, checkpoint))
        assert itself.is_same
        assert {*itself.same, *itself.uncompared} >= {each.name for each in checkpoint.tensors}
        after = inspect_settled(second)
        changed = drive(diff(checkpoint, after))
        names = [*changed.same, *changed.uncompared, *changed.added, *changed.removed]
        names += [each.name for each in (*changed.changed, *changed.reshaped)]
        known = {each.name for each in (*checkpoint.tensors, *after.tensors)}
        assert known <= set(names)
