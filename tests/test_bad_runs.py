"""What is left on a disk by accidents, looked at through the library as `ckpt` and the app do."""

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from samples import astrai

from ckpt import fs
from ckpt.cli import main
from ckpt.control import append_sample
from ckpt.formats import inspect
from ckpt.named import is_whole_run
from ckpt.sources import read_run

STATE = {
    "step": 50, "total_steps": 100, "best_loss": 1.5, "lr": 1e-4, "epoch": 1, "batch_size": 2,
    "grad_accum_steps": 1, "sequence_length": 128, "fp16": True, "train_modules": "all",
    "task": "sft", "model_path": "m", "dataset_path": "d", "seed": 1,
}  # fmt: skip


def a_link(path: Path) -> None:
    target = path.with_name("elsewhere.json")
    target.write_text(json.dumps(STATE))
    path.symlink_to(target.name)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def now() -> float:
    import time

    return time.time()


def test_a_progress_file_that_is_a_link_is_followed(tmp_path: Path) -> None:
    a_link(tmp_path / "training_state.json")
    assert read_run(tmp_path, now()).step == 50


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, a_socket, lambda path: path.symlink_to("/dev/zero")],
    ids=["fifo", "directory", "socket", "device"],
)
@pytest.mark.parametrize("name", ["training_state.json", "metrics.jsonl", "trainer_log.jsonl"])
def test_what_has_the_name_of_a_progress_file_and_is_none_is_told(
    tmp_path: Path, name: str, make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    assert callable(make)
    make(Path(name))
    view = read_run(tmp_path, now())
    assert view.health.reasons == (f"{tmp_path / name}: not a regular file",)


def test_a_torn_state_beside_a_checkpoint_is_named_as_what_is_missing(tmp_path: Path) -> None:
    astrai(tmp_path)
    (tmp_path / "training_state.json").write_text('{"step": 5, "tot')
    view = read_run(tmp_path, now())
    assert view.step is None
    [reason] = view.health.reasons
    assert reason.startswith(f"{tmp_path / 'training_state.json'}: not JSON at line 1 column 13")
    told = CliRunner().invoke(main, ["status", str(tmp_path)]).stdout
    assert " step unknown\n" in told
    assert "no step" not in told


def test_recording_does_not_wait_for_the_reader_of_a_fifo(tmp_path: Path) -> None:
    (tmp_path / ".ckpt").mkdir()
    os.mkfifo(tmp_path / ".ckpt" / "samples.jsonl")
    assert append_sample(tmp_path, {"step": 1}) is False


def test_a_file_that_should_be_small_is_not_read_when_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "training_state.json"
    path.write_text(json.dumps(STATE))
    os.truncate(path, 1 << 40)  # sparse
    read = []
    with fs.hooked(lambda call: read.append(call.size_bytes) if call.name == "read" else None):
        [finding] = inspect(path).findings
    assert sum(read) < 1 << 20
    assert finding.code == "unreadable"
    assert finding.message == (
        "training_state.json: 1,099,511,627,776 bytes, expected at most 67,108,864"
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("kt_full_experts.index.json", "bad-index"),
        ("kt_adapter_manifest.json", "bad-manifest"),
        ("model.safetensors.index.json", "unreadable-file"),
    ],
)
def test_a_listing_of_a_terabyte_is_a_finding(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 40)
    found = {finding.code: finding.message for finding in inspect(tmp_path).findings}
    assert "1,099,511,627,776 bytes, expected at most" in found[code]


def test_a_trainers_state_in_a_run_makes_no_checkpoint_of_it(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 8, "max_steps": 8}')
    astrai(tmp_path)
    assert is_whole_run(tmp_path)
    told = json.loads(CliRunner().invoke(main, ["verify", str(tmp_path), "--json"]).stdout)
    assert [report["path"] for report in told["reports"]] == [str(tmp_path / "epoch_1_step_40")]
    assert told["verdict"] == "intact"


def test_a_run_with_half_a_checkpoint_is_not_said_to_have_none(tmp_path: Path) -> None:
    half = astrai(tmp_path)
    (half / "model.safetensors").unlink()
    ended = CliRunner().invoke(main, ["verify", str(tmp_path), "--json"])
    assert ended.exit_code == 1
    (report,) = json.loads(ended.stdout)["reports"]
    assert (report["path"], report["verdict"]) == (str(half), "damaged")
    assert report["findings"][0]["message"] == (
        "epoch_1_step_40: unfinished: it holds only config.json, manifest.json, meta.json, "
        "no weights"
    )


def test_a_checkpoint_that_may_not_be_looked_at_is_not_said_to_be_missing(tmp_path: Path) -> None:
    sealed = astrai(tmp_path)

    def deny(call: fs.Call) -> None:
        if call.name == "scan" and call.path == str(sealed):
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(deny):
        ended = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert ended.exit_code == 1
    assert "epoch_1_step_40: permission denied" in ended.stdout


def test_another_programs_record_is_not_called_unreadable(tmp_path: Path) -> None:
    (tmp_path / "training_state.json").write_text(json.dumps(STATE))
    (tmp_path / "run.json").write_text('{"id": 7}')
    advice = read_run(tmp_path, now()).advice
    assert advice is not None
    assert advice.message == (
        f"{tmp_path / 'run.json'}: not a record of a run, expected schema ckpt.run/1"
    )
