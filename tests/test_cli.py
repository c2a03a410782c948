"""The `ckpt` command end to end: exit codes, errors in words, streams, names."""

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ckpt import fs
from ckpt.cli import main

PROGRAM = [sys.executable, "-c", "from ckpt.cli import main; main()"]
UTF8 = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}


def ckpt(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def document(*arguments: str | Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(ckpt(*arguments, "--json").stdout)
    return parsed


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options = {"env": UTF8, "stdout": subprocess.PIPE, **options}
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **options)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the golden samples: a verification leaves its verdict in the run."""
    home = tmp_path_factory.mktemp("samples") / "golden"
    copytree(Path(__file__).parent / "data" / "golden", home)
    return home


# ---- every sample ---------------------------------------------------------------------------

# sample, what is named in it, format or error, codes of `show`, verdict, codes that bytes add
# (a code ends in `?` for a warning and in `.` for a note)
INTACT, DAMAGED, UNSUPPORTED, UNVERIFIABLE, NOTHING = 0, 1, 2, 3, 2
ASTRAI, FERRO, KT = "astrai", "ferrotensor", "kt_full"
GOOD, STEP = "epoch_1_step_9", "epoch_0_step_5"
ADAPTER, STATE, TRAINING = (
    "adapter.safetensors", "training_state.json", "training_checkpoint.json",
)  # fmt: skip
TABLE = [
    ("astrai/good", GOOD, ASTRAI, "", "intact", ""),
    ("astrai/bad_flipped_weight_byte", GOOD, ASTRAI, "", "damaged", "hash-mismatch"),
    ("astrai/bad_manifest_truncated", GOOD, ASTRAI, "bad-manifest", "damaged", ""),
    ("astrai/bad_manifest_version2", GOOD, ASTRAI, "unsupported-version", "unsupported", ""),
    ("astrai/bad_meta_same_size", GOOD, ASTRAI, "", "damaged", "hash-mismatch"),
    ("astrai/bad_missing_config", GOOD, ASTRAI, "missing-file", "damaged", ""),
    ("astrai/bad_truncated_weights", GOOD, ASTRAI, "size-mismatch truncated", "damaged", ""),
    ("astrai/crash_after_publish", "epoch_0_step_1", ASTRAI, "", "intact", ""),
    (
        "astrai/crash_after_publish", ".epoch_0_step_1.retired-8ry9ehbn",
        ASTRAI, "", "intact", "",
    ),
    (
        "astrai/crash_between_renames", ".epoch_0_step_1.retired-n7l8kf_w",
        ASTRAI, "", "intact", "",
    ),
    ("astrai/crash_between_renames", ".epoch_0_step_1.tmp-0ll_d68o", ASTRAI, "", "intact", ""),
    ("astrai/crash_between_renames", "epoch_0_step_1", "no-checkpoint", "", None, ""),
    ("astrai/crash_mid_staging", "epoch_0_step_1", ASTRAI, "", "intact", ""),
    (
        "astrai/crash_mid_staging", ".epoch_0_step_1.tmp-ujumndum",
        ASTRAI, "no-manifest? truncated", "damaged", "",
    ),
    (
        "astrai/legacy_no_manifest", "epoch_2_step_4",
        ASTRAI, "no-manifest? unlisted-pickle?", "unverifiable", "",
    ),
    ("astrai/odd_metric_only_dir", "epoch_0_step_7", "no-checkpoint", "", None, ""),
    ("astrai/odd_unlisted_pt", GOOD, ASTRAI, "unlisted-pickle", "damaged", ""),
    ("astrai/republished", "epoch_0_step_1", ASTRAI, "", "intact", ""),
    ("astrai/run_real", "exp1/epoch_0_step_3", ASTRAI, "", "intact", ""),
    ("astrai/run_real", "exp1/epoch_0_step_6", ASTRAI, "", "intact", ""),
    ("astrai/run_real", "exp1/epoch_0_step_9", ASTRAI, "", "intact", ""),
    ("astrai/run_resumed", "exp1/epoch_0_step_9", ASTRAI, "", "intact", ""),
    ("astrai/sharded_hf", "base", "huggingface", "", "unverifiable", "no-hashes."),
    (
        "astrai/sharded_hf", "base/model.safetensors.index.json",
        "huggingface", "", "unverifiable", "no-hashes.",
    ),
    (
        "astrai/sharded_hf", "base/model-00001-of-00002.safetensors",
        "safetensors", "", "unverifiable", "no-hashes.",
    ),
    ("astrai/with_extras", STEP, ASTRAI, "", "intact", ""),
    ("astrai/with_rng_extra", STEP, ASTRAI, "unsafe-pickle.", "intact", ""),
    ("ferrotensor/adapter_bf16", ADAPTER, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/adapter_empty", ADAPTER, FERRO, "no-tensors?", "unverifiable", "no-hashes."),
    ("ferrotensor/adapter_f16", ADAPTER, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/adapter_f32", ADAPTER, FERRO, "", "unverifiable", "no-hashes."),
    (
        "ferrotensor/adapter_foreign_metadata", ADAPTER,
        FERRO, "lora-settings.", "unverifiable", "no-hashes.",
    ),
    (
        "ferrotensor/adapter_no_metadata", ADAPTER,
        FERRO, "lora-settings.", "unverifiable", "no-hashes.",
    ),
    ("ferrotensor/adapter_no_targets", ADAPTER, FERRO, "", "unverifiable", "no-hashes."),
    (
        "ferrotensor/adapter_partial_metadata", ADAPTER,
        FERRO, "lora-settings?", "unverifiable", "no-hashes.",
    ),
    ("ferrotensor/bad_adapter_f64", ADAPTER, FERRO, "unsupported-dtype", "unsupported", ""),
    (
        "ferrotensor/bad_adapter_not_safetensors", ADAPTER,
        FERRO, "not-safetensors", "damaged", "",
    ),
    ("ferrotensor/bad_adapter_short_data", ADAPTER, FERRO, "truncated", "damaged", ""),
    ("ferrotensor/bad_adapter_truncated", ADAPTER, FERRO, "truncated", "damaged", ""),
    ("ferrotensor/bad_checkpoint_unknown_optimizer", TRAINING, FERRO, "bad-state", "damaged", ""),
    ("ferrotensor/bad_state_bom", STATE, FERRO, "upstream-refuses?", "unverifiable", "no-hashes."),
    ("ferrotensor/bad_state_empty", STATE, FERRO, "empty-file", "damaged", ""),
    ("ferrotensor/bad_state_float_step", STATE, FERRO, "bad-state", "damaged", ""),
    ("ferrotensor/bad_state_missing_step", STATE, FERRO, "bad-state", "damaged", ""),
    (
        "ferrotensor/bad_state_nan_literal", STATE,
        FERRO, "upstream-refuses?", "unverifiable", "no-hashes.",
    ),
    ("ferrotensor/bad_state_negative_step", STATE, FERRO, "bad-state", "damaged", ""),
    ("ferrotensor/bad_state_truncated", STATE, FERRO, "bad-state", "damaged", ""),
    ("ferrotensor/checkpoint_adamw_scaler", TRAINING, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/checkpoint_missing_options", TRAINING, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/checkpoint_none", TRAINING, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/run", f"exp1/{ADAPTER}", FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/run", f"exp1/{ADAPTER}.tmp", "no-checkpoint", "", None, ""),
    ("ferrotensor/run", f"exp1/{TRAINING}", FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/run_mismatch", f"exp1/{STATE}", FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/state_full", STATE, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/state_minimal", STATE, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/state_nan_best_loss", STATE, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/state_new", STATE, FERRO, "", "unverifiable", "no-hashes."),
    ("ferrotensor/state_unknown_field", STATE, FERRO, "", "unverifiable", "no-hashes."),
    ("kt_full/adapter_bundle", "checkpoint-2", "kt_adapter", "", "intact", ""),
    ("kt_full/bad_index_is_list", "ckpt", KT, "bad-index", "damaged", ""),
    ("kt_full/bad_index_truncated", "ckpt", KT, "bad-index", "damaged", ""),
    ("kt_full/bad_missing_layer", "ckpt", KT, "missing-layer", "damaged", ""),
    ("kt_full/bad_missing_shard", "ckpt", KT, "missing-file", "damaged", ""),
    (
        "kt_full/bad_other_generation", "ckpt",
        KT, "generation-mismatch generation-mismatch?", "damaged", "",
    ),
    ("kt_full/bad_path_in_file", "ckpt", KT, "bad-entry-name", "damaged", ""),
    ("kt_full/bad_truncated_shard", "ckpt", KT, "size-mismatch", "damaged", ""),
    (
        "kt_full/hf_run", "exp1/checkpoint-2",
        KT, "unlisted-pickle? unsafe-pickle.", "unverifiable", "no-hashes.",
    ),
    (
        "kt_full/hf_run", "exp1/checkpoint-6",
        KT, "missing-file unlisted-pickle? unsafe-pickle.", "damaged", "",
    ),
    ("kt_full/hf_run", "exp1/trainer_log.jsonl", "no-checkpoint", "", None, ""),
    (
        "kt_full/killed_mid_save", "ckpt",
        KT, "partial-generation?", "unverifiable", "no-hashes.",
    ),
    ("kt_full/odd_flipped_shard_byte", "ckpt", KT, "", "unverifiable", "no-hashes."),
    ("kt_full/second_save", "ckpt", KT, "", "unverifiable", "no-hashes."),
    ("kt_full/sparse_layers", "ckpt", KT, "", "unverifiable", "no-hashes."),
    ("kt_full/tiny3", "ckpt", KT, "", "unverifiable", "no-hashes."),
    ("kt_full/tiny3", "ckpt/kt_full_experts.index.json", KT, "", "unverifiable", "no-hashes."),
]  # fmt: skip
CODES = {"intact": 0, "damaged": 1, "unsupported": 2, "unverifiable": 3}


def codes_of(said: dict[str, Any]) -> set[str]:
    signs = {"error": "", "warning": "?", "note": "."}
    return {finding["code"] + signs[finding["severity"]] for finding in said["findings"]}


@pytest.mark.parametrize(("sample", "name", "kind", "shown", "verdict", "more"), TABLE)
def test_every_sample_is_shown_and_verified(
    samples: Path, sample: str, name: str, kind: str, shown: str, verdict: str | None, more: str
) -> None:
    path = samples / sample / "tree" / name
    show, verify = ckpt("show", path, "--json"), ckpt("verify", path, "--json")
    seen, report = json.loads(show.stdout), json.loads(verify.stdout)
    if verdict is None:
        assert (show.exit_code, seen["schema"], seen["code"]) == (2, "ckpt.error/1", kind)
        assert (verify.exit_code, report["schema"], report["code"]) == (2, "ckpt.error/1", kind)
        return
    assert (show.exit_code, seen["schema"], seen["format"]) == (0, "ckpt.show/1", kind)
    assert codes_of(seen) == set(shown.split())
    assert (report["schema"], report["format"]) == ("ckpt.verify/1", kind)
    assert report["verdict"] == verdict
    assert verify.exit_code == CODES[verdict]
    assert codes_of(report) == set(shown.split()) | set(more.split())
    assert ckpt("show", path).exit_code == 0
    assert ckpt("verify", path).exit_code == CODES[verdict]


def test_the_table_names_every_sample(samples: Path) -> None:
    there = {str(path.relative_to(samples)) for path in samples.glob("*/*") if path.is_dir()}
    assert {row[0] for row in TABLE} == there


def test_a_lesser_depth_never_pretends(samples: Path) -> None:
    flipped = samples / "astrai/bad_flipped_weight_byte/tree" / GOOD
    for depth in ("names", "headers"):
        result = ckpt("verify", flipped, "--depth", depth, "--json")
        report = json.loads(result.stdout)
        assert (result.exit_code, report["verdict"]) == (3, "unverifiable")
        assert (report["depth"], report["bytes_read"]) == (depth, 0)


# ---- runs -----------------------------------------------------------------------------------

RUNS = {
    "astrai/run_real/tree/exp1": (
        0, {"epoch_0_step_3": ["live"], "epoch_0_step_6": ["live"], "epoch_0_step_9": ["live"]},
    ),
    "kt_full/hf_run/tree/exp1": (
        0, {"checkpoint-2": ["live"], "checkpoint-4": ["live"], "checkpoint-6": ["live"]},
    ),
    "ferrotensor/run/tree/exp1": (0, {ADAPTER: ["live"], TRAINING: ["live"]}),
    "ferrotensor/run_mismatch/tree/exp1": (0, {ADAPTER: ["live"], TRAINING: ["live"]}),
    "astrai/crash_after_publish/tree": (0, {"epoch_0_step_1": ["live", "retired"]}),
    "astrai/crash_between_renames/tree": (0, {"epoch_0_step_1": ["sealed", "retired"]}),
    "astrai/crash_mid_staging/tree": (0, {"epoch_0_step_1": ["live"]}),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_listed_and_its_status_told(samples: Path, run: str) -> None:
    code, slots = RUNS[run]
    listed = document("list", samples / run)
    assert listed["schema"] == "ckpt.list/1"
    assert {
        slot["name"]: [generation["state"] for generation in slot["generations"]]
        for slot in listed["slots"]
    } == slots
    status = ckpt("status", samples / run, "--json")
    told = json.loads(status.stdout)
    assert told["schema"] == "ckpt.status/1"
    assert told["slots"] == listed["slots"]
    assert (status.exit_code == 1) is (code == 1 or told["health"]["state"] in ("stalled", "dead"))
    for text in (ckpt("status", samples / run), ckpt("list", samples / run)):
        assert all(name in text.stdout for name in slots)


def test_a_status_holds_what_the_trainer_wrote(samples: Path) -> None:
    told = document("status", samples / "astrai/run_real/tree/exp1", "--series")
    assert (told["step"], told["points"]) == (9, 9)
    assert [point[:2] for point in told["series"]["loss"]] == [[0, step] for step in range(1, 10)]
    assert told["series"]["loss"][0][2] == 3.4576711654663086
    assert "series" not in document("status", samples / "astrai/run_real/tree/exp1")


def test_a_best_loss_is_never_told_as_the_loss(samples: Path) -> None:
    run = samples / "ferrotensor/run/tree/exp1"
    told = document("status", run)
    assert (told["step"], told["total_steps"], told["loss"]) == (42, 100, None)
    assert told["best_loss"] == 1.2345678
    assert " best 1.2346 " in ckpt("status", run).stdout


def test_a_status_in_one_line(samples: Path) -> None:
    result = ckpt("status", samples / "ferrotensor/run/tree/exp1", "--line")
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith("exp1  ")
    assert "  step 42/100" in result.stdout


def test_a_status_stays_one_screen_and_keeps_what_is_damaged(
    samples: Path, tmp_path: Path
) -> None:
    for step in range(1, 31):
        kind = "bad_truncated_weights" if step == 3 else "good"
        copytree(samples / "astrai" / kind / "tree" / GOOD, tmp_path / f"epoch_0_step_{step:02d}")
    lines = ckpt("status", tmp_path).stdout.splitlines()
    rows = [line.split()[0] for line in lines if line.startswith(" epoch_0_step_")]
    assert len(rows) == 13
    assert rows[-1] == "epoch_0_step_03"
    assert f" … 17 more: ckpt list {tmp_path}" in lines
    assert len(ckpt("list", tmp_path).stdout.splitlines()) == 31


def test_a_run_is_verified_whole(samples: Path) -> None:
    run = samples / "astrai/crash_after_publish/tree"
    result = ckpt("verify", run, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["verdict"]) == (0, "intact")
    assert [report["path"] for report in told["reports"]] == [
        str(run / "epoch_0_step_1"), str(run / ".epoch_0_step_1.retired-8ry9ehbn"),
    ]  # fmt: skip
    text = ckpt("verify", run)
    assert text.stdout.endswith("2 checkpoints: 2 intact; 404 B read\n")


def test_the_worst_of_several_decides(samples: Path) -> None:
    good = samples / "astrai/good/tree" / GOOD
    newer = samples / "astrai/bad_manifest_version2/tree" / GOOD
    flipped = samples / "astrai/bad_flipped_weight_byte/tree" / GOOD
    nothing = samples / "astrai/odd_metric_only_dir/tree/epoch_0_step_7"
    kt = samples / "kt_full/tiny3/tree/ckpt"
    for paths, code in (
        ([good, good], 0), ([good, kt], 3), ([kt, newer], 2), ([newer, flipped], 1),
        ([good, nothing], 2),
    ):  # fmt: skip
        result = ckpt("verify", *paths, "--json")
        told = json.loads(result.stdout)
        assert result.exit_code == code
        assert len(told["reports"]) == 2
        assert ckpt("verify", *paths).exit_code == code


def test_a_verdict_is_remembered_by_the_run(samples: Path, tmp_path: Path) -> None:
    run = tmp_path / "exp1"
    copytree(samples / "astrai/run_real/tree/exp1", run)
    past = time.time() - 100
    for path in run.rglob("*"):
        os.utime(path, (past, past))
    at = time.time() + 2.1
    while time.time() < at:  # ctime cannot be set: nothing younger than 2 s is remembered
        time.sleep(0.05)
    assert ckpt("verify", run).exit_code == 0
    told = document("status", run)
    assert told["newest_verified"].startswith("epoch_0_step_9@")
    verdicts = [slot["generations"][0]["verified"]["verdict"] for slot in told["slots"]]
    assert verdicts == ["intact"] * 3
    assert ckpt("list", run).stdout.count("✓ verified just now") == 3


def test_a_generation_is_named_by_run_slot_and_id(samples: Path) -> None:
    run = samples / "astrai/crash_after_publish/tree"
    [slot] = document("list", run)["slots"]
    live, retired = (generation["id"] for generation in slot["generations"])
    for generation, path in (
        (live, run / "epoch_0_step_1"),
        (retired, run / ".epoch_0_step_1.retired-8ry9ehbn"),
        (retired[:6], run / ".epoch_0_step_1.retired-8ry9ehbn"),
    ):
        name = f"{run}:epoch_0_step_1@{generation}"
        assert document("show", name)["path"] == str(path)
        assert document("verify", name)["path"] == str(path)
    result = ckpt("show", f"{run}:epoch_0_step_1@nothing", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["message"] == f"{run}: no generation epoch_0_step_1@nothing"


def test_a_generation_inside_a_kt_directory_is_shown_and_verified(
    samples: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "run" / "ckpt"
    copytree(samples / "kt_full/second_save/tree/ckpt", directory)
    for shard in (samples / "kt_full/tiny3/tree/ckpt").glob("*.safetensors"):
        (directory / shard.name).write_bytes(shard.read_bytes())
    [slot] = document("list", tmp_path / "run")["slots"]
    assert [generation["state"] for generation in slot["generations"]] == ["live", "retired"]
    name = f"{tmp_path / 'run'}:ckpt@{slot['generations'][1]['id']}"
    seen = document("show", name)
    assert (seen["path"], seen["format"], len(seen["tensors"])) == (name, "kt_full", 9)
    assert {entry["name"] for entry in seen["files"]} == {
        path.name for path in (samples / "kt_full/tiny3/tree/ckpt").glob("*.safetensors")
    }
    result = ckpt("verify", tmp_path / "run", "--json")
    assert result.exit_code == 3
    assert [report["path"] for report in json.loads(result.stdout)["reports"]] == [
        str(directory), name,
    ]  # fmt: skip


# ---- errors in words ------------------------------------------------------------------------


def loop(home: Path) -> Path:
    (home / "a").symlink_to(home / "b")
    (home / "b").symlink_to(home / "a")
    return home / "a"


def plain_file(home: Path) -> Path:
    (home / "notes.txt").write_text("hello")
    return home / "notes.txt"


def foreign_directory(home: Path) -> Path:
    (home / "photos").mkdir()
    (home / "photos" / "cat.png").write_bytes(b"png")
    return home / "photos"


@pytest.mark.parametrize("verb", ["status", "list", "show", "verify"])
@pytest.mark.parametrize(
    "make", [lambda home: home / "absent", loop, plain_file, foreign_directory]
)
def test_a_wrong_path_is_one_sentence(
    tmp_path: Path, verb: str, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    result = ckpt(verb, path)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"ckpt: {path}")
    assert len(lines) <= 2
    as_json = ckpt(verb, path, "--json")
    assert as_json.exit_code == 2
    told = json.loads(as_json.stdout)
    assert list(told) == ["schema", "code", "message", "path", "hint"]
    assert told["schema"] == "ckpt.error/1"
    assert as_json.stderr == ""


@pytest.mark.parametrize("verb", ["status", "list", "show", "verify"])
def test_a_forbidden_directory_says_permission_denied(tmp_path: Path, verb: str) -> None:
    def refuse(call: fs.Call) -> None:  # root may read everything, so its mode would not do
        if call.name in ("scan", "open") and Path(call.path).is_relative_to(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), call.path)

    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / STATE).write_text("{}")
    with fs.hooked(refuse):
        result = ckpt(verb, closed)
        told = document(verb, closed)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"ckpt: {closed}")
    assert "permission denied" in result.stderr
    assert told["schema"] == "ckpt.error/1"


def test_an_empty_run_waits_and_says_for_what(tmp_path: Path) -> None:
    told = document("status", tmp_path)
    assert told["health"]["state"] == "waiting"
    assert told["health"]["reasons"]
    assert ckpt("status", tmp_path).exit_code == 1
    assert ckpt("list", tmp_path).stdout == f"{tmp_path}: no checkpoint yet\n"
    assert document("list", tmp_path)["slots"] == []
    assert ckpt("verify", tmp_path).exit_code == 2
    assert document("verify", tmp_path)["code"] == "no-checkpoint"


def test_a_run_shown_as_a_checkpoint_gets_a_hint(samples: Path) -> None:
    run = samples / "astrai/run_real/tree/exp1"
    assert f"`ckpt list {run}`" in ckpt("show", run).stderr


@pytest.mark.parametrize(
    "arguments",
    [["roll-back", "x"], ["status"], ["show", ""], ["verify"], ["verify", "x", "--depth", "all"]],
)
def test_a_wrong_call_is_a_usage_error(arguments: list[str]) -> None:
    result = ckpt(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: ckpt")


def test_help_and_version() -> None:
    assert ckpt("--help").exit_code == 0
    for verb in ("list", "show", "status", "verify"):
        assert ckpt(verb, "-h").exit_code == 0
    version = ckpt("--version")
    assert version.exit_code == 0
    assert version.stdout.startswith("ckpt 0.")


def test_a_fault_of_ours_is_a_sentence_too(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: Path) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("ckpt.named.find", fail)
    result = ckpt("show", samples / "astrai/good/tree" / GOOD, "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert told["code"] == "internal-error"
    assert told["message"] == "a fault in ckpt itself: ZeroDivisionError: division by zero"


# ---- streams --------------------------------------------------------------------------------


def test_names_of_any_bytes_stay_one_row_each(samples: Path, tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"a\nb", b"\x1b[31mred", "e\u0301\u202e".encode(), b"n" * 255]
    for name in names:
        target = os.path.join(os.fsencode(tmp_path), name)
        copytree(os.fsencode(samples / "astrai/good/tree" / GOOD), target)
    result = ckpt("list", tmp_path)
    assert len(result.stdout.splitlines()) == 1 + len(names)
    assert "\x1b" not in result.stdout
    listed = {slot["name"] for slot in document("list", tmp_path)["slots"]}
    assert listed == {"\\xff\\xfe", "a\nb", "\x1b[31mred", "e\u0301\u202e", "n" * 255}
    for locale in ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}):
        done = process("list", tmp_path, env={**os.environ, **locale})
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(done.stdout.splitlines()) == 1 + len(names)
        assert done.stdout.isascii() is (locale["LC_ALL"] == "C")


def test_a_c_locale_gets_ascii_signs(samples: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    run = samples / "astrai/crash_after_publish/tree"
    done = process("list", run, env=environment)
    assert b"| " in done.stdout
    assert b"o retired" in done.stdout
    broken = process("status", samples / "astrai/crash_between_renames/tree", env=environment)
    assert broken.stdout.isascii()
    assert b"x broken" in broken.stdout


def test_a_reader_that_goes_away_ends_it_quietly(samples: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = process("show", samples / "astrai/good/tree" / GOOD, stdout=write_end)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_error_that_nobody_reads_ends_quietly_too(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = process("show", tmp_path / "absent", "--json", stdout=write_end)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_closed_stdout_is_no_error(samples: Path) -> None:
    command = f"{sys.executable} -m ckpt list"
    run = samples / "astrai/run_real/tree/exp1"
    done = subprocess.run(
        ["sh", "-c", f"{command} '{run}' >&-"], capture_output=True, check=False, env=UTF8
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_stdout_is_a_sentence(samples: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = process("list", samples / "astrai/run_real/tree/exp1", stdout=full)
    assert done.returncode == 2
    assert done.stderr == b"ckpt: stdout cannot be written: No space left on device\n"


def on_a_terminal(*arguments: str | Path, **environment: str) -> list[str]:
    """What a terminal of 60 columns gets."""
    controller, terminal = os.openpty()
    done = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdout=terminal,
        stderr=terminal,
        env={**UTF8, "COLUMNS": "60", **environment},
    )
    os.close(terminal)
    said = b""
    try:
        while part := os.read(controller, 65536):
            said += part
    except OSError:  # the last process that had the terminal is gone
        pass
    finally:
        os.close(controller)
    assert done.wait() in (0, 1, 3)
    return said.decode().replace("\r\n", "\n").split("\n")


def test_a_terminal_gets_colours_and_rows_that_fit(samples: Path) -> None:
    run = samples / "astrai/crash_between_renames/tree"
    assert any("\x1b[1;31m✗ broken" in line for line in on_a_terminal("list", run))
    plain = on_a_terminal("list", run, NO_COLOR="1")
    assert not any("\x1b" in line for line in plain)
    assert all(len(line) <= 60 for line in plain)
    assert not any("\x1b" in line for line in on_a_terminal("list", run, TERM="dumb"))


def test_a_verification_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    checkpoint = sparse_checkpoint(tmp_path / "run" / "step_1", 64 << 20)
    said = "\n".join(on_a_terminal("verify", checkpoint, NO_COLOR="1"))
    assert "\r" in said
    assert " %  " in said
    assert "✗ damaged" in said


def sparse_checkpoint(directory: Path, size: int) -> Path:
    """An AstrAI checkpoint whose weights are a hole of `size` bytes: reading it takes a while."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    head = len(header).to_bytes(8, "little") + header.encode()
    directory.mkdir(parents=True)
    files = {"meta.json": b'{"epoch": 0}', "config.json": b"{}"}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    sizes = {name: len(data) for name, data in files.items()}
    sizes["model.safetensors"] = len(head) + size
    manifest = {
        "format_version": 1, "created_at": None, "optimizer_step": 1, "policy_version": None,
        "tensors": ["w"],
        "files": {name: {"size": count, "sha256": "0" * 64} for name, count in sizes.items()},
    }  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def read_bytes_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/PID/io")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_a_verification_without_a_claim(tmp_path: Path, as_json: bool) -> None:
    run = tmp_path / "run"
    checkpoint = sparse_checkpoint(run / "step_1", 1 << 40)
    arguments = ["verify", str(checkpoint), *(["--json"] if as_json else [])]
    running = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=UTF8
    )
    while running.poll() is None and read_bytes_of(running.pid) < 50_000_000:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)
    assert running.returncode == 130
    if as_json:
        assert json.loads(stdout)["code"] == "interrupted"
        assert stderr == b""
    else:
        assert stderr == b"ckpt: interrupted\n"
        assert b"intact" not in stdout
    assert not list(run.rglob("verified"))


# ---- the library's front door ---------------------------------------------------------------


@pytest.mark.parametrize("package", ["ckpt", "ckpt.present"])
def test_every_public_name_resolves(package: str) -> None:
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018 - looking it up is the test


def test_help_waits_for_nothing_but_click() -> None:
    code = (
        "import sys\n"
        "from ckpt.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('ckpt', 'pydantic'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert [name for name in loaded if not name.startswith("ckpt.cli.")] == [
        "ckpt", "ckpt.cli", "ckpt.errors",
    ]  # fmt: skip
