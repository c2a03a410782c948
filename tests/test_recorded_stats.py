"""What the values of tensors are like is recorded at a save, and told without reading them."""

import hashlib
import json
import math
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from samples import floats

from ckpt.checkpoint import (
    Depth,
    Finding,
    Generation,
    Severity,
    Slot,
    State,
    Tensor,
    Verdict,
    Verified,
)
from ckpt.cli import main
from ckpt.formats import inspect
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import scan
from ckpt.health import judge
from ckpt.manifest import Manifest, Origin, read_manifest
from ckpt.operation import drive
from ckpt.record import Recorder
from ckpt.recorded import stats_of
from ckpt.tensors import stats as read_stats
from ckpt.tensorwriter import Buffer
from ckpt.verify import verify
from ckpt.view import RunProcess, RunView

META = {"epoch": 1, "timestamp": "2026-12-01T07:00:00", "optimizer_step": 9}
ORIGIN = Origin("0123456789ab", None, "step_9")
NUMBERS = {"nan": 0, "inf": 0, "zeros": 0, "min": 1.0, "max": 2.0, "mean": 1.5, "norm": 2.0}


def written(directory: Path, *buffers: Buffer, stats: bool = True) -> Path:
    path = directory / "step_9"
    path.mkdir()
    write_checkpoint(path, META, {}, buffers, origin=ORIGIN, stats=stats)
    return path


def manifest_of(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return manifest


def recorded(path: Path) -> Any:
    return manifest_of(path)["ckpt"].get("stats")


def bf16(name: str, *values: float) -> Buffer:
    halves = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
    return name, "BF16", (len(values),), memoryview(struct.pack(f"<{len(values)}H", *halves))


def show(path: Path, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ckpt("show", path, "--json", *options))
    return document


def ckpt(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


# ---- written ----------------------------------------------------------------------------------


def test_a_save_records_the_numbers_of_each_tensor_after_the_chunks(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        floats("w", 3, -4, 0, math.nan, math.inf),
        bf16("half", 2, -2, -math.inf),
        ("ids", "I64", (3,), memoryview(struct.pack("<3q", -(2**63), 0, 2**62))),
        ("none", "F32", (0, 4), memoryview(b"")),
        ("hurt", "F32", (2,), lambda: memoryview(struct.pack("<2f", math.nan, math.nan))),
        ("six", "F6_E2M3", (4,), memoryview(b"abc")),
    )
    extension = manifest_of(path)["ckpt"]
    assert list(extension)[-2:] == ["chunks", "stats"]
    assert extension["stats"] == {
        "half": {
            "nan": 0, "inf": 1, "zeros": 0, "min": -2.0, "max": 2.0, "mean": 0.0,
            "norm": pytest.approx(math.sqrt(8)),
        },
        "hurt": {
            "nan": 2, "inf": 0, "zeros": 0, "min": None, "max": None, "mean": None, "norm": None,
        },
        "ids": {
            "nan": 0, "inf": 0, "zeros": 1, "min": -(2**63), "max": 2**62,
            "mean": pytest.approx(-(2**62) / 3), "norm": pytest.approx(2**62 * math.sqrt(5)),
        },
        "none": {
            "nan": 0, "inf": 0, "zeros": 0, "min": None, "max": None, "mean": None, "norm": None,
        },
        "w": {
            "nan": 1, "inf": 1, "zeros": 1, "min": -4.0, "max": 3.0, "mean": pytest.approx(-1 / 3),
            "norm": 5.0,
        },
    }  # fmt: skip
    assert list(extension["stats"]) == ["half", "hurt", "ids", "none", "w"]


def test_what_is_recorded_is_what_reading_the_file_tells(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    large = random.normal(size=300_000).astype("<f4")  # more than one block
    large[[5, 70_000, 299_999]] = math.nan, 0, -math.inf
    tiny = np.array([5e-324, 1.2e308, -1.2e308], "<f8")  # whose squares overflow or vanish
    path = written(
        tmp_path,
        ("large", "F32", large.shape, memoryview(large).cast("B")),
        ("tiny", "F64", tiny.shape, memoryview(tiny).cast("B")),
        bf16("half", 1, 2, 3),
    )
    checkpoint = inspect(path)
    read = drive(read_stats(checkpoint))
    assert [tensor.name for tensor in checkpoint.tensors] == ["tiny", "large", "half"]
    for tensor, told in checkpoint.stats.items():
        assert told.count == read[tensor].count
        assert (told.nan_count, told.inf_count) == (read[tensor].nan_count, read[tensor].inf_count)
        assert told.zero_count == read[tensor].zero_count
        assert told.minimum == pytest.approx(read[tensor].minimum, rel=1e-8)
        assert told.maximum == pytest.approx(read[tensor].maximum, rel=1e-8)
        assert told.mean == pytest.approx(read[tensor].mean)
        assert told.norm == pytest.approx(read[tensor].norm)
    assert set(checkpoint.stats) == set(read)
    assert (read[checkpoint.tensors[1]].nan_count, read[checkpoint.tensors[1]].count) == (
        1,
        300_000,
    )


def test_a_norm_that_no_float_holds_is_null(tmp_path: Path) -> None:
    huge = struct.pack("<2d", 1.7e308, 1.7e308)
    path = written(tmp_path, ("huge", "F64", (2,), memoryview(huge)))
    assert recorded(path)["huge"]["norm"] is None
    assert recorded(path)["huge"]["max"] == 1.7e308


def test_a_number_has_nine_digits_unless_it_is_an_integer(tmp_path: Path) -> None:
    large = struct.pack("<q", 2**62 + 1)
    path = written(tmp_path, floats("a", 0.1, 1 / 3), ("b", "I64", (1,), memoryview(large)))
    text = (path / "manifest.json").read_text()
    assert '"min": 0.100000001,' in text  # the nearest F32 is 0.100000001490…
    assert '"max": 0.333333343,' in text
    assert recorded(path)["b"]["min"] == 2**62 + 1


def test_without_statistics_the_bytes_are_the_same_as_with_them_but_for_the_record(
    tmp_path: Path,
) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    buffers = (floats("b", 1), floats("a", 2, 3))
    plain = written(tmp_path / "without", *buffers, stats=False)
    told = written(tmp_path / "with", *buffers)
    assert recorded(plain) is None
    for name in ("model.safetensors", "meta.json", "config.json"):
        assert (plain / name).read_bytes() == (told / name).read_bytes()
    manifest = manifest_of(told)
    del manifest["ckpt"]["stats"]
    assert (
        json.dumps(manifest, indent=2, ensure_ascii=False).encode()
        == (plain / "manifest.json").read_bytes()
    )


def test_astrai_finds_every_file_as_its_manifest_says(tmp_path: Path) -> None:
    """Its own rules: the version, the required files, sizes and sha256; other keys are free."""
    path = written(tmp_path, floats("w", math.nan))
    manifest = manifest_of(path)
    assert manifest["format_version"] == 1
    assert set(manifest["files"]) >= {"meta.json", "config.json", "model.safetensors"}
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])


def test_a_save_without_numpy_records_nothing_and_does_not_fail(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["numpy"] = None
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from pathlib import Path
from samples import floats, ORIGIN
from ckpt.formats.astrai_write import write_checkpoint
path, tensors = Path({str(tmp_path)!r}), [floats("w", 1)]
write_checkpoint(path, {META!r}, {{}}, tensors, origin=ORIGIN, stats=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
    assert recorded(tmp_path) is None
    assert drive(verify(tmp_path)).verdict is Verdict.INTACT


@pytest.mark.parametrize(
    ("option", "limit", "is_told"),
    [(None, 8, True), (None, 7, False), (True, 7, True), (False, 8, False)],
)
def test_the_recorder_measures_small_models_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: bool | None, limit: int, is_told: bool
) -> None:
    monkeypatch.setattr("ckpt.record.MEASURED_BYTES", limit)
    path = Recorder(tmp_path).save(1, {"w": np.ones(2, "<f4")}, stats=option)
    assert (recorded(path) is not None) is is_told


# ---- read -------------------------------------------------------------------------------------


def read(stats: Any) -> Manifest:
    value = {
        "format_version": 1, "created_at": "2026-12-01T07:00:00", "optimizer_step": 9,
        "policy_version": None, "tensors": ["a", "b"],
        "files": {
            name: {"size": 3, "sha256": "0" * 64}
            for name in ("config.json", "meta.json", "model.safetensors")
        },
        "ckpt": {"v": 1, "generation": "0123456789ab", "stats": stats},
    }  # fmt: skip
    return read_manifest(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ([], "expected an object, found []"),
        ("x", "expected an object, found 'x'"),
        ({"c": NUMBERS}, "'c': no tensor that the manifest lists"),
        ({"a": None}, "'a': expected an object, found None"),
        ({"a": NUMBERS, "b": {}}, "'b': nan: expected a count, found None"),
        ({"a": NUMBERS | {"nan": True}}, "'a': nan: expected a count, found True"),
        ({"a": NUMBERS | {"inf": -1}}, "'a': inf: expected a count, found -1"),
        ({"a": NUMBERS | {"zeros": 1.0}}, "'a': zeros: expected a count, found 1.0"),
        ({"a": NUMBERS | {"min": "1"}}, "'a': min: expected a finite number, found '1'"),
        ({"a": NUMBERS | {"mean": math.inf}}, "'a': mean: expected a finite number, found inf"),
        ({"a": NUMBERS | {"max": math.nan}}, "'a': max: expected a finite number, found nan"),
        ({"a": NUMBERS | {"mean": False}}, "'a': mean: expected a finite number, found False"),
        (
            {"a": NUMBERS | {"norm": 10**400}},
            f"'a': norm: expected a finite number, found 1{'0' * 59}",
        ),
    ],
)
def test_a_record_that_is_damaged_is_a_warning_and_nothing_else_suffers(
    stats: Any, message: str
) -> None:
    manifest = read(stats)
    assert [(each.code, each.severity, each.message) for each in manifest.findings] == [
        ("bad-manifest", Severity.WARNING, f"manifest.json: ckpt.stats: {message}")
    ]
    assert (manifest.stats, manifest.finite) == ({}, None)
    assert manifest.generation == "0123456789ab"
    assert len(manifest.files) == 3


@pytest.mark.parametrize(
    ("stats", "finite"),
    [
        (None, None),
        ({}, None),
        ({"a": NUMBERS}, True),
        ({"a": NUMBERS, "b": NUMBERS | {"nan": 1}}, False),
        ({"a": NUMBERS | {"inf": 1}}, False),
        ({"a": NUMBERS | {"min": None, "later": 3}}, True),
        ({"a": NUMBERS | {"min": -(2**63), "max": 2**64 - 1}}, True),
        ({"a": NUMBERS | {"min": 1.7e308, "max": 1.7e308}}, True),
    ],
)
def test_a_manifest_says_whether_all_was_finite(stats: Any, finite: bool | None) -> None:
    manifest = read(stats)
    assert manifest.finite is finite
    assert [each.code for each in manifest.findings] == (["nonfinite"] if finite is False else [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", *NUMBERS]) | st.text(max_size=3), inner)
    ),
    max_leaves=12,
)


USUAL = st.fixed_dictionaries({name: st.just(number) | JSON for name, number in NUMBERS.items()})


@given(JSON | st.dictionaries(st.sampled_from("ab"), USUAL))
def test_whatever_is_recorded_is_used_or_said(stats: Any) -> None:
    manifest = read(stats)
    tensors = [Tensor(name, "F32", (4,), 16, "w", 0, 16) for name in "ab"]
    assert len(stats_of(tensors, manifest.stats)) <= 2
    codes = [each.code for each in manifest.findings]
    if codes == ["bad-manifest"]:
        assert (manifest.stats, manifest.finite) == ({}, None)
    else:
        assert manifest.stats == ({} if stats is None else stats)
        assert codes == (["nonfinite"] if manifest.finite is False else [])


def test_more_zeros_than_values_are_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path, floats("a", 1, 2), floats("b", 0))
    manifest = manifest_of(path)
    manifest["ckpt"]["stats"]["a"]["zeros"] = 3
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert [tensor.name for tensor in inspect(path).stats] == ["b"]


def test_of_a_checkpoint_that_is_not_whole_nothing_recorded_is_shown(tmp_path: Path) -> None:
    path = written(tmp_path, floats("a", 1, 2))
    assert len(inspect(path).stats) == 1
    assert inspect(path, Depth.NAMES).stats == {}
    (path / "config.json").write_text("{ }")
    assert inspect(path).stats == {}


# ---- told -------------------------------------------------------------------------------------


def hurt(directory: Path) -> Path:
    return written(
        directory,
        floats("a", 1, math.nan),
        floats("b", math.nan, math.nan),
        floats("c", 1, 2),
        floats("d", math.inf, math.nan),
        floats("e", math.nan),
    )


HOLDS = "holds NaN and Inf in 4 tensors, as recorded when it was saved: a, b, d and 1 more"


def test_what_is_not_finite_is_a_warning_that_names_the_tensors(tmp_path: Path) -> None:
    path = hurt(tmp_path)
    expected = Finding("nonfinite", Severity.WARNING, HOLDS, "manifest.json")
    assert inspect(path).findings == (expected,)
    report = drive(verify(path))
    assert report.findings == (expected,)
    assert report.verdict is Verdict.INTACT  # its bytes are what was saved
    (slot,) = scan(tmp_path)
    assert slot.live is not None
    assert (slot.live.finite, slot.live.findings) == (False, (expected,))


def test_show_tells_what_is_recorded_and_reads_no_value(tmp_path: Path) -> None:
    path = hurt(tmp_path)
    header = inspect(path).tensors[0].start
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[header:] = bytes(len(data) - header)  # zeros now: whoever reads them says so
    weights.write_bytes(data)
    for options in ((), ("--stats",)):
        shown = {each["name"]: each["stats"] for each in show(path, *options)["tensors"]}
        assert shown["c"] == {
            "finite": True, "count": 2, "nan_count": 0, "inf_count": 0, "zero_count": 0,
            "min": 1.0, "max": 2.0, "mean": 1.5, "norm": pytest.approx(math.sqrt(5)),
        }  # fmt: skip
        assert (shown["b"]["finite"], shown["b"]["nan_count"], shown["b"]["min"]) == (
            False,
            2,
            None,
        )
    words = ckpt("show", path)
    assert HOLDS in " ".join(words.split())
    assert "values as recorded at the save" in words


def test_statistics_of_what_is_not_recorded_are_computed(tmp_path: Path) -> None:
    path = written(tmp_path, floats("a", 1, 2), floats("b", 3, math.nan))
    manifest = manifest_of(path)
    del manifest["ckpt"]["stats"]["b"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    plain = {each["name"]: each["stats"] for each in show(path)["tensors"]}
    assert (plain["a"]["mean"], plain["b"]) == (1.5, None)
    computed = show(path, "--stats")
    told = {each["name"]: each["stats"] for each in computed["tensors"]}
    assert (told["a"]["mean"], told["b"]["nan_count"], told["b"]["max"]) == (1.5, 1, 3.0)
    assert [(each["code"], each["tensor"]) for each in computed["findings"]] == [
        ("nonfinite", "b")
    ]


def test_the_list_says_of_each_generation_whether_it_is_finite(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step, value in ((1, 0.5), (2, math.nan)):
        recorder.save(step, {"w": np.array([value], "<f4")})
    recorder.save(3, {"w": np.ones(1, "<f4")}, stats=False)
    slots = json.loads(ckpt("list", tmp_path, "--json"))["slots"]
    found = {slot["name"]: slot["generations"][0]["finite"] for slot in slots}
    assert found == {"epoch_0_step_1": True, "epoch_0_step_2": False, "epoch_0_step_3": None}


# ---- what to go on from -----------------------------------------------------------------------

NOW = 1_764_576_000.0
INTACT = Verified(Verdict.INTACT, Depth.BYTES, NOW)


def saved(step: int, *, finite: bool | None, what: str = "NaN", **more: Any) -> Slot:
    text = f"holds {what} in 3 tensors, as recorded when it was saved: a, b, c"
    told = (Finding("nonfinite", Severity.WARNING, text, "manifest.json"),)
    generation = Generation(
        "g1", State.LIVE, "astrai", Path(f"run/step_{step}"), step,
        created_at=NOW - 1000 + step, size_bytes=100, complete=True, finite=finite,
        findings=told if finite is False else (), **more,
    )  # fmt: skip
    return Slot(f"step_{step}", "astrai", generation.path, State.LIVE, (generation,))


def view(*slots: Slot) -> RunView:
    return judge(RunView(Path("run"), slots=slots), NOW)


@pytest.mark.parametrize(
    ("slots", "advice", "newest_verified"),
    [
        (
            [saved(900, finite=False, verified=INTACT), saved(800, finite=True, verified=INTACT)],
            "step_900 holds NaN in 3 tensors; step_800 is verified and finite",
            "step_800@g1",
        ),
        (
            [saved(900, finite=False), saved(800, finite=None, verified=INTACT)],
            "step_900 holds NaN in 3 tensors; step_800 is verified",
            "step_800@g1",
        ),
        (
            [saved(900, finite=False, verified=INTACT)],
            "step_900 holds NaN in 3 tensors; no checkpoint here is known to be finite",
            None,
        ),
        ([saved(900, finite=False, what="Inf", verified=INTACT)], None, None),  # a mask's
        (
            [saved(900, finite=True, verified=INTACT), saved(800, finite=False)],
            None,
            "step_900@g1",
        ),
    ],
)
def test_what_is_not_finite_is_nothing_to_go_on_from(
    slots: list[Slot], advice: str | None, newest_verified: str | None
) -> None:
    seen = view(*slots)
    assert (seen.advice.message if seen.advice else None) == advice
    assert seen.newest_verified == newest_verified


def test_a_trainer_that_is_gone_is_not_sent_on_with_values_that_are_not_finite() -> None:
    gone = replace(view(), process=RunProcess(8123, "here", NOW - 5000, is_alive=False))
    spare = [saved(900, finite=False), saved(800, finite=True, verified=INTACT)]
    for slots, told in (
        (spare, "step_800 is the newest usable checkpoint, verified and finite"),
        (spare[:1], "step_900 is the newest usable checkpoint, but holds NaN in 3 tensors"),
    ):
        seen = judge(replace(gone, slots=tuple(slots)), NOW)
        assert seen.advice is not None
        assert seen.advice.message == f"the trainer is gone; {told}"


def test_a_retired_generation_that_is_finite_is_better_than_a_live_one_that_is_not() -> None:
    slot = saved(900, finite=False)
    spare = saved(850, finite=True).generations[0]
    retired = replace(spare, id="old", state=State.RETIRED)
    seen = view(replace(slot, generations=(*slot.generations, retired)))
    assert seen.advice is not None
    assert seen.advice.message == (
        "step_900 holds NaN in 3 tensors; step_900@old is usable and finite"
    )
    assert seen.advice.key == "r"


# ---- torch ------------------------------------------------------------------------------------


@pytest.mark.torch
def test_torch_saves_record_statistics_when_asked(tmp_path: Path) -> None:
    import torch

    from ckpt.torch import AsyncSaver, load, save

    weights = {"w": torch.tensor([1, -3, math.nan], dtype=torch.bfloat16), "t": torch.ones(2, 3).T}
    facts = {"epoch": 0, "consumed_samples": 1}
    assert recorded(save(tmp_path / "step_1", weights, **facts)) is None
    path = save(tmp_path / "step_2", weights, **facts, stats=True)
    assert recorded(path) == {
        "t": {
            "nan": 0, "inf": 0, "zeros": 0, "min": 1.0, "max": 1.0, "mean": 1.0,
            "norm": pytest.approx(math.sqrt(6)),
        },
        "w": {
            "nan": 1, "inf": 0, "zeros": 0, "min": -3.0, "max": 1.0, "mean": -1.0,
            "norm": pytest.approx(math.sqrt(10)),
        },
    }  # fmt: skip
    with AsyncSaver(stats=True) as saver:
        saver.save(tmp_path / "step_3", weights, **facts)
    assert recorded(tmp_path / "step_3") == recorded(path)
    assert torch.equal(load(path).state_dict["t"], weights["t"])
