"""`ckpt show --stats` and `ckpt diff`: exit codes, documents, tables, names of generations."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from click.testing import CliRunner, Result
from trees import put_checkpoint

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Tensor
from ckpt.cli import main
from ckpt.present.contents import (
    CHANGE_COLUMNS,
    STATS_COLUMNS,
    change_rows,
    difference_line,
    number,
    said_rows,
    stats_rows,
)
from ckpt.present.contents_json import diff_json, show_stats_json
from ckpt.present.words import Tone
from ckpt.tensors import Difference, Form, Reshaped, TensorStats, Update
from ckpt.tensorwriter import write_tensors

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
STATS_KEYS = [
    "finite", "count", "nan_count", "inf_count", "zero_count", "min", "max", "mean", "norm",
]  # fmt: skip
DIFF_KEYS = [
    "schema", "a", "b", "added", "removed", "changed", "same_count", "metadata", "same", "files",
    "uncompared", "findings",
]  # fmt: skip
CHANGED_KEYS = [
    "name", "file", "kind", "dtype", "shape", "before", "relative_update", "max_abs",
    "norm_before", "norm_update", "nonfinite", "is_moment",
]  # fmt: skip


def ckpt(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def document(*arguments: str | Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = ckpt(*arguments, "--json").stdout
    parsed: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return parsed


def weights(path: Path, **tensors: list[float]) -> Path:
    buffers = [
        (name, "F32", (len(values),), memoryview(struct.pack(f"<{len(values)}f", *values)))
        for name, values in tensors.items()
    ]
    write_tensors(path, buffers)
    return path


# ---- show -----------------------------------------------------------------------------------


def test_statistics_are_in_the_document_only_when_asked_for(tmp_path: Path) -> None:
    path = weights(tmp_path / "w.safetensors", w=[3, -4, 0, math.nan], none=[])
    assert all("stats" not in tensor for tensor in document("show", path)["tensors"])
    seen = document("show", path, "--stats")
    stats = {tensor["name"]: tensor["stats"] for tensor in seen["tensors"]}
    assert list(stats["w"]) == STATS_KEYS
    assert stats == {
        "w": {
            "finite": False, "count": 4, "nan_count": 1, "inf_count": 0, "zero_count": 1,
            "min": -4.0, "max": 3.0, "mean": -1 / 3, "norm": 5.0,
        },
        "none": {
            "finite": True, "count": 0, "nan_count": 0, "inf_count": 0, "zero_count": 0,
            "min": None, "max": None, "mean": None, "norm": None,
        },
    }  # fmt: skip
    assert [(each["code"], each["severity"], each["tensor"]) for each in seen["findings"]] == [
        ("nonfinite", "warning", "w")
    ]
    assert ckpt("show", path, "--stats").exit_code == 0


def test_statistics_are_a_table_that_says_what_is_not_finite(tmp_path: Path) -> None:
    path = weights(tmp_path / "w.safetensors", good=[1, 2], bad=[1, math.inf])
    lines = ckpt("show", path, "--stats").stdout.splitlines()
    table = [line.split() for line in lines if line.split()[:1] in (["good"], ["bad"], ["tensor"])]
    assert table == [
        ["tensor", "dtype", "shape", "values", "min", "max", "mean", "norm", "zeros"],
        ["bad", "F32", "2", "✗", "1", "Inf", "1", "1", "1", "1", "0"],
        ["good", "F32", "2", "✓", "finite", "1", "2", "1.5", "2.236", "0"],
    ]
    assert "w.safetensors: bad: 1 Inf of 2 values" in "\n".join(lines)


def test_what_is_not_computed_is_null_and_said(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_tensors(path, [("six", "F6_E2M3", (4,), memoryview(b"abc"))])
    seen = document("show", path, "--stats")
    assert seen["tensors"][0]["stats"] is None
    assert [(each["code"], each["severity"]) for each in seen["findings"]] == [
        ("not-computed", "note")
    ]


# ---- diff -----------------------------------------------------------------------------------


def test_a_difference_as_a_document(tmp_path: Path) -> None:
    a = weights(tmp_path / "a.safetensors", far=[3, 4], near=[3, 4], still=[1], gone=[1])
    b = weights(tmp_path / "b.safetensors", far=[0, 0], near=[3, 4.5], still=[1], new=[1])
    told = document("diff", a, b)
    assert list(told) == DIFF_KEYS
    assert [list(each) for each in told["changed"]] == [CHANGED_KEYS] * 2
    assert told == {
        "schema": "ckpt.diff/1",
        "a": str(a),
        "b": str(b),
        "added": ["new"],
        "removed": ["gone"],
        "changed": [
            {
                "name": name,
                "file": "b.safetensors",
                "kind": "updated",
                "dtype": "F32",
                "shape": [2],
                "before": {"dtype": "F32", "shape": [2]},
                "relative_update": relative,
                "max_abs": max_abs,
                "norm_before": 5.0,
                "norm_update": norm,
                "nonfinite": [0, 0],
                "is_moment": False,
            }
            for name, relative, max_abs, norm in (("far", 1.0, 4.0, 5.0), ("near", 0.1, 0.5, 0.5))
        ],
        "same_count": 1,
        "metadata": {},
        "same": None,
        "files": {},
        "uncompared": [],
        "findings": [],
    }
    assert document("diff", a, b, "--all")["same"] == ["still"]


def test_exit_codes_say_same_different_and_cannot_tell(tmp_path: Path) -> None:
    a = weights(tmp_path / "a.safetensors", v=[1], w=[1])
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(a.read_bytes())
    assert (ckpt("diff", a, a).exit_code, ckpt("diff", a, copy).exit_code) == (0, 0)
    other = weights(tmp_path / "other.safetensors", v=[1], w=[2])
    assert ckpt("diff", a, other).exit_code == 1
    assert ckpt("diff", a, tmp_path / "none").exit_code == 2
    copy.write_bytes(a.read_bytes()[:-1])
    result = ckpt("diff", a, copy, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["uncompared"] == ["w"]


def test_a_difference_of_generations_by_their_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    put_checkpoint(run / "step_1", 1, 3.0, 4.0, ckpt={"v": 1, "generation": "aaaaaaaaaaaa"})
    put_checkpoint(run / "step_2", 2, 3.0, 4.5, ckpt={"v": 1, "generation": "bbbbbbbbbbbb"})
    told = document("diff", f"{run}:step_1@aaaa", f"{run}:step_2@bbbbbbbbbbbb")
    assert (told["a"], told["b"]) == (str(run / "step_1"), str(run / "step_2"))
    assert [(each["name"], each["relative_update"]) for each in told["changed"]] == [("w", 0.1)]
    assert told["metadata"] == {"optimizer_step": [1, 2]}
    assert ckpt("diff", run, f"{run}:step_2@bbbb").exit_code == 2
    assert "this is a run" in ckpt("diff", run, run).stderr


def test_generations_inside_a_kt_directory_are_compared_and_counted(
    golden: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run" / "ckpt"
    copytree(golden / "kt_full/second_save/tree/ckpt", directory)
    for shard in (golden / "kt_full/tiny3/tree/ckpt").glob("*.safetensors"):
        (directory / shard.name).write_bytes(shard.read_bytes())
    [slot] = document("list", tmp_path / "run")["slots"]
    live, retired = (f"{tmp_path / 'run'}:ckpt@{each['id']}" for each in slot["generations"])
    told = document("diff", retired, live)
    assert (told["a"], len(told["changed"]), told["added"]) == (retired, 9, [])
    stats = [each["stats"] for each in document("show", retired, "--stats")["tensors"]]
    assert [each["finite"] for each in stats] == [True] * 9


def test_the_shown_rows_can_be_limited_and_identical_tensors_named(tmp_path: Path) -> None:
    names = [f"t{at}" for at in range(9)]
    a = weights(tmp_path / "a.safetensors", **{name: [1.0] for name in names}, still=[1])
    b = weights(tmp_path / "b.safetensors", **{name: [2.0] for name in names}, still=[1])
    result = ckpt("diff", a, b, "--limit", "2")
    assert [name for name in names if f" {name} " in result.stdout] == ["t0", "t1"]
    assert "… 7 more: --all shows them" in result.stdout
    assert "still" not in result.stdout
    everything = ckpt("diff", a, b, "--all").stdout
    assert all(f" {name} " in everything for name in names)
    assert everything.splitlines()[-1] == " still"


def test_a_directory_that_is_replaced_meanwhile_is_read_as_it_was(tmp_path: Path) -> None:
    live = put_checkpoint(tmp_path / "step_1", 1, 1.0, 1.0)
    put_checkpoint(tmp_path / "new", 1, 7.0, 7.0)
    is_done = False

    def swap(call: fs.Call) -> None:
        """When the payload is opened, another one has got its name."""
        nonlocal is_done
        if call.name == "open" and call.path.startswith("/proc/self/fd") and not is_done:
            is_done = True
            live.rename(tmp_path / "old")
            (tmp_path / "new").rename(live)

    with fs.hooked(swap):
        seen = document("show", live, "--stats")
    assert is_done
    assert seen["tensors"][0]["stats"]["max"] == 1.0


# ---- rows -----------------------------------------------------------------------------------

BROKEN = Update("a", "f", Form("F32", (2,)), Form("F32", (2,)), 0.0, 1.0, 0.0, 0.0, 0, 2)
NEW = Update("b", "f", Form("F32", (2,)), Form("F32", (2,)), math.inf, 0.0, 5.0, 4.0)
FAR = Update("c\x1b", "f", Form("F32", (2, 3)), Form("BF16", (2, 3)), 0.5, 1.0, 0.5, 0.25)
NEAR = Update("d", "f", Form("F32", ()), Form("F32", ()), 1e-6, 1.0, 1e-6, 1e-6)
EQUAL = Update("e", "f", Form("F32", (1,)), Form("BF16", (1,)), 0.0, 1.0, 0.0, 0.0)
ODD = Update("o", "f", Form("F6_E2M3", (4,)), Form("F6_E2M3", (4,)))
TURNED = Reshaped("g", "f", Form("F32", (2, 3)), Form("F32", (3, 2)))


def difference(**parts: Any) -> Difference:
    return Difference(Path("a"), Path("b"), **parts)


def test_rows_have_a_bar_beside_the_widest_that_is_known() -> None:
    rows = change_rows(
        difference(
            changed=(BROKEN, NEW, FAR, NEAR, EQUAL, ODD),
            reshaped=(TURNED,),
            added=("h",),
            removed=("i",),
        )
    )
    assert len(CHANGE_COLUMNS) == 6
    assert [[cell.text for cell in row.cells] for row in rows] == [
        ["a", "✗ 2 not finite", "0", "0", "F32", "2"],
        ["b", "▓" * 16, "inf", "4", "F32", "2"],
        ["c\\x1b", "▓" * 16, "0.5", "0.25", "F32 → BF16", f"2{TIMES}3"],
        ["d", "▓", "1e-06", "1e-06", "F32", "scalar"],
        ["e", "", "0", "0", "F32 → BF16", "1"],
        ["o", "· not decoded", DASH, DASH, "F6_E2M3", "4"],
        ["g", "reshaped", DASH, DASH, "F32", f"2{TIMES}3 → 3{TIMES}2"],
        ["h", "added", DASH, DASH, DASH, DASH],
        ["i", "removed", DASH, DASH, DASH, DASH],
    ]
    assert rows[0].cells[1].tone is Tone.BAD
    assert [row.key for row in rows] == ["a", "b", "c\x1b", "d", "e", "o", "g", "h", "i"]
    moment = replace(FAR, name="m", relative_update=9.0, is_moment=True)
    beside = change_rows(difference(changed=(moment, FAR, NEAR)))
    assert [row.cells[1].text for row in beside] == ["▓" * 16, "▓" * 16, "▓"]
    plain = change_rows(difference(changed=(FAR,)), ascii_only=True)
    assert plain[0].cells[1].text == "#" * 16
    assert plain[0].cells[4].text == "F32 > BF16"


def test_values_and_files_that_differ_have_rows() -> None:
    told = difference(
        metadata={"step": (1, 2), "note\x07": ("x", None), "list": ([1], {"a": math.nan})},
        files={"o.pt": (10, 10), "new": (None, 2_000)},
    )
    assert [[cell.text for cell in row.cells] for row in said_rows(told)] == [
        ["step", "1", "2"],
        ["note\\x07", "x", DASH],
        ["list", "[1]", '{"a": null}'],
        ["o.pt", "10 B", "10 B, other bytes"],
        ["new", "not there", "2.0 KB"],
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, "✓ the same: no tensors"),
        ({"same": ("a", "b")}, "✓ the same: 2 tensors"),
        ({"same": ("a",), "uncompared": ("b",)}, "tensors: 1 identical, 1 not compared"),
        ({"metadata": {"a": (1, 2)}, "same": ("a",)}, "tensors: 1 identical"),
        (
            {"changed": (FAR,), "reshaped": (TURNED,), "added": ("x",), "removed": ("y", "z")},
            "tensors: 1 changed, 1 reshaped, 1 added, 2 removed",
        ),
        ({"files": {"a": (1, 2)}}, "tensors: none"),
    ],
)
def test_one_line_says_what_a_difference_comes_to(parts: dict[str, Any], expected: str) -> None:
    line = difference_line(difference(**parts))
    assert "".join(cell.text for cell in line) == expected


def test_infinite_and_unknown_numbers_are_null_in_a_document() -> None:
    told = diff_json(difference(changed=(NEW, ODD), reshaped=(TURNED,), same=("x\udcff",)))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    new, odd, turned = told["changed"]
    assert (new["relative_update"], new["norm_before"], new["norm_update"]) == (None, 0.0, 5.0)
    assert (odd["kind"], odd["max_abs"], odd["nonfinite"]) == ("updated", None, [0, 0])
    assert (turned["kind"], turned["nonfinite"]) == ("reshaped", None)
    assert list(turned) == CHANGED_KEYS
    assert diff_json(difference(same=("x\udcff",)), with_same=True)["same"] == ["x\\xff"]


def test_rows_of_statistics_that_are_not_there_are_unknown() -> None:
    tensors = (Tensor("w", "F32", (2,), 8, "f", 0, 8), Tensor("v", "I64", (1,), 8, "f", 8, 16))
    rows = stats_rows(tensors, {tensors[1]: TensorStats(1, 0, 0, 0, 2**62, 2**62, 2.0, 1e300)})
    assert len(STATS_COLUMNS) == 9
    assert [[cell.text for cell in row.cells] for row in rows] == [
        ["w", "F32", "2", DASH, DASH, DASH, DASH, DASH, DASH],
        ["v", "I64", "1", "✓ finite", "4.612e+18", "4.612e+18", "2", "1e+300", "0"],
    ]
    shown = Checkpoint(Path("f"), "safetensors", "", tensors=tensors)
    document = show_stats_json(shown, {tensors[1]: TensorStats(1, 0, 0, 0, 2**62, 2**62, 2.0)})
    assert [each["stats"] and each["stats"]["min"] for each in document["tensors"]] == [
        None,
        2**62,
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, DASH), (0, "0"), (-12, "-12"), (123_456_789, "123456789"), (10**18, "1e+18"),
        (1.5, "1.5"), (-0.000123456, "-0.0001235"), (math.nan, "NaN"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, expected: str) -> None:
    assert number(value) == expected
