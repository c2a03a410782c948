"""What AstrAI, HF Trainer, LLaMA-Factory and ferrotensor leave in a run, and a run as a whole."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from following import Follower, state_text

from ckpt import control, fs
from ckpt.checkpoint import Verdict
from ckpt.generations import verify_in_run
from ckpt.health import judge
from ckpt.operation import drive
from ckpt.progress import trainer_state
from ckpt.run import RunView
from ckpt.sources import read_run


def keys(view: RunView, name: str = "loss") -> list[tuple[int, int]]:
    return [(point.segment, point.step) for point in view.series[name]]


def values(view: RunView, name: str = "loss") -> list[float]:
    return [point.value for point in view.series[name]]


# ---- real runs ----------------------------------------------------------------------------------


def test_a_real_astrai_run(golden: Path) -> None:
    run = golden / "astrai" / "run_real" / "tree" / "exp1"
    view = read_run(run, 2e9)
    assert (view.step, view.total_steps, view.epoch) == (9, None, 0.0)
    assert keys(view) == [(0, step) for step in range(1, 10)]
    assert values(view)[:3] == [3.4576711654663086, 3.464057207107544, 3.464608669281006]
    assert values(view)[-1] == view.loss == 3.464282274246216
    assert keys(view, "eval_loss") == [(0, 1), (0, 5), (0, 9)]
    assert view.eval_loss == 3.4663243293762207
    assert (view.best_loss, view.best_step) == (3.4576711654663086, 1)
    assert view.learning_rate == 0.00034549150281252633
    assert len(view.series["grad_norm"]) == 8
    newest = str(run / "epoch_0_step_9" / "metric.jsonl")
    assert [(source.path, source.kind) for source in view.sources] == [(newest, "astrai-metric")]
    assert view.values_from["loss"] == newest
    assert [slot.name for slot in view.slots] == [
        "epoch_0_step_9", "epoch_0_step_6", "epoch_0_step_3",
    ]  # fmt: skip
    assert view.at_risk.steps == 0
    assert view.warnings == ()


def test_a_real_astrai_run_that_was_resumed(golden: Path) -> None:
    view = read_run(golden / "astrai" / "run_resumed" / "tree" / "exp1", 2e9)
    assert keys(view) == [(0, s) for s in range(1, 7)] + [(1, s) for s in range(7, 10)]
    assert [(s.first_step, s.last_step, Path(s.source).parent.name) for s in view.segments] == [
        (1, 6, "epoch_0_step_6"),
        (7, 9, "epoch_0_step_9"),
    ]
    assert values(view)[6:] == [3.477649211883545, 3.4739418029785156, 3.463825225830078]
    assert (view.step, view.loss) == (9, 3.463825225830078)
    assert (view.best_loss, view.best_step) == (3.4576711654663086, 1)


def test_the_orphaned_tail_of_a_resumed_run_stays_in_its_segment(
    golden: Path, tmp_path: Path
) -> None:
    astrai = golden / "astrai"
    run = tmp_path / "exp1"
    shutil.copytree(astrai / "run_resumed" / "tree" / "exp1", run)
    retired = run / ".epoch_0_step_9.retired-abcd1234"
    shutil.copytree(astrai / "run_real" / "tree" / "exp1" / "epoch_0_step_9", retired)
    view = read_run(run, 2e9)
    assert keys(view) == [(0, s) for s in range(1, 10)] + [(1, s) for s in range(7, 10)]
    assert view.loss == 3.463825225830078


def test_an_hf_run_with_a_trainer_log(golden: Path) -> None:
    run = golden / "kt_full" / "hf_run" / "tree" / "exp1"
    view = read_run(run, 2e9)
    assert (view.step, view.total_steps, view.epoch) == (6, 6, 1.0)
    assert values(view) == [2.0, 1.0, 0.6667, 0.5, 0.4, 0.3333]
    assert values(view, "grad_norm") == [0.5, 0.5, 0.5, 0.5]
    assert [source.kind for source in view.sources] == ["trainer-log", "trainer-state"]
    assert view.values_from["loss"] == str(run / "trainer_log.jsonl")
    assert view.values_from["grad_norm"] == str(run / "checkpoint-4" / "trainer_state.json")
    assert view.health.reasons == ("step 6 of 6 is done",)


def test_a_ferrotensor_run(golden: Path) -> None:
    run = golden / "ferrotensor" / "run" / "tree" / "exp1"
    view = read_run(run, 2e9)
    assert (view.step, view.total_steps, view.best_loss, view.loss) == (42, 100, 1.2345678, None)
    assert view.task["seed"] == 18446744073709551615
    assert not (run / ".ckpt").exists()


def test_a_ferrotensor_run_whose_files_are_of_two_steps(golden: Path) -> None:
    view = read_run(golden / "ferrotensor" / "run_mismatch" / "tree" / "exp1", 2e9)
    assert view.step == 50
    assert "torn-set" in [warned.code for warned in view.warnings]


# ---- AstrAI, live -------------------------------------------------------------------------------


def metric(step: int, loss: float, second: int = 0) -> str:
    value = {
        "type": "step",
        "timestamp": f"2026-12-01T07:{second // 60:02}:{second % 60:02}",
        "epoch": 0,
        "step": step,
        "loss": loss,
    }
    return json.dumps(value) + "\n"


@pytest.fixture
def astrai(golden: Path) -> Path:
    """The one directory of the good AstrAI sample."""
    [found] = [path for path in (golden / "astrai" / "good" / "tree").iterdir() if path.is_dir()]
    return found


@pytest.fixture
def save(tmp_path: Path, astrai: Path) -> Any:
    run = tmp_path / "exp1"
    run.mkdir()

    def make(step: int, rows: str, mtime: float) -> Path:
        target = run / f"epoch_0_step_{step}"
        if not target.exists():
            shutil.copytree(astrai, target)
        (target / "metric.jsonl").write_text(rows)
        os.utime(target / "metric.jsonl", (mtime, mtime))
        return target

    make.run = run  # type: ignore[attr-defined] - a fixture's convenience
    return make


def test_each_save_adds_only_its_new_rows(save: Any) -> None:
    rows = [metric(step, 3.0 - step / 10, step) for step in range(1, 10)]
    save(3, "".join(rows[:3]), 1000.0)
    follower = Follower(save.run)
    assert keys(follower.look()) == [(0, 1), (0, 2), (0, 3)]
    first = follower.view.series["loss"]
    save(6, "".join(rows[:6]), 1100.0)
    save(9, "".join(rows[:9]), 1200.0)
    view = follower.look([save.run])
    assert keys(view) == [(0, step) for step in range(1, 10)]
    assert view.series["loss"].series is first.series
    [source] = view.sources
    assert source.path.endswith("epoch_0_step_9/metric.jsonl")
    assert source.writes_only_at_saves


def test_a_checkpoint_published_before_its_metrics_is_read_when_they_come(save: Any) -> None:
    target = save(3, "", 1000.0)
    (target / "metric.jsonl").unlink()
    follower = Follower(save.run)
    assert follower.look().step is None
    (target / "metric.jsonl").write_text(metric(3, 2.5))
    assert follower.look([target]).step == 3


def test_a_second_process_is_a_segment_of_its_own(save: Any) -> None:
    save(3, metric(1, 3.0, 1) + metric(2, 2.9, 2) + metric(3, 2.8, 3), 1000.0)
    follower = Follower(save.run)
    follower.look()
    save(4, metric(2, 2.7, 60) + metric(3, 2.6, 61) + metric(4, 2.5, 62), 1100.0)
    view = follower.look([save.run])
    assert keys(view) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4)]
    assert (view.step, view.loss) == (4, 2.5)


def test_a_pruned_checkpoint_takes_no_history_with_it(save: Any) -> None:
    save(1, metric(1, 3.0, 1), 1000.0)
    follower = Follower(save.run)
    follower.look()
    newer = save(2, metric(1, 3.0, 1) + metric(2, 2.9, 2), 1001.0)
    shutil.rmtree(newer.with_name("epoch_0_step_1"))
    assert keys(follower.look([save.run])) == [(0, 1), (0, 2)]


# ---- HF Trainer ---------------------------------------------------------------------------------


def trainer_state_text(rows: list[dict[str, Any]], step: int, **more: object) -> str:
    value = {
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": step / 100,
        "global_step": step,
        "log_history": rows,
        "logging_steps": 1,
        "max_steps": 1000,
        "stateful_callbacks": {"x": {"log_history": []}},
        **more,
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def save_hf(run: Path, step: int, *, mtime: float = 1000.0, **more: Any) -> Path:
    rows = more.pop("rows", [{"step": s, "loss": 3.0 - s / 100} for s in range(1, step + 1)])
    path = run / f"checkpoint-{step}" / "trainer_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trainer_state_text(rows, more.pop("global_step", step), **more))
    os.utime(path, (mtime, mtime))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "exp1"
    path.mkdir()
    return path


def test_the_furthest_checkpoint_tells_all_whatever_its_time(run: Path) -> None:
    save_hf(run, 9, mtime=5000.0)
    save_hf(run, 10, mtime=1000.0)
    view = Follower(run).look()
    assert (view.step, view.loss, view.total_steps, view.epoch) == (10, 2.9, 1000, 0.1)
    assert keys(view) == [(0, step) for step in range(1, 11)]
    assert all(math.isnan(point.time) for point in view.series["loss"])


def test_a_new_training_in_an_old_directory_is_the_one_shown(run: Path) -> None:
    save_hf(run, 700, mtime=1000.0)
    save_hf(run, 100, mtime=5000.0, rows=[{"step": 1, "loss": 9.0}, {"step": 100, "loss": 8.0}])
    view = Follower(run).look()
    assert (view.step, view.loss) == (100, 8.0)


def test_evaluations_bare_nan_and_the_final_row(run: Path) -> None:
    rows = [
        {"step": 1, "loss": 2.0, "grad_norm": float("nan"), "learning_rate": 0.1},
        {"step": 2, "loss": float("nan")},
        {"step": 2, "eval_loss": 1.5, "eval_runtime": 3.0},
        {"step": 2, "train_runtime": 9.0, "train_loss": 1.9},
    ]
    save_hf(run, 2, rows=rows)
    view = judge(Follower(run).look(), 2e9)
    assert (view.loss_nonfinite, view.eval_loss, view.best_loss) == (1, 1.5, 2.0)
    assert math.isnan(view.loss or 0.0)
    assert math.isnan(view.grad_norm or 0.0)
    assert view.health.reasons == ("trainer_state.json records the end of training",)


def test_a_recorded_best_of_another_machine_is_said_to_be_not_here(run: Path) -> None:
    path = save_hf(run, 2, best_model_checkpoint="/other/host/out/checkpoint-1")
    view = judge(Follower(run).look(), 2e9)
    assert view.warnings[0].code == "best-not-here"
    assert view.warnings[0].message == (
        f"{path}: the recorded best checkpoint /other/host/out/checkpoint-1 is not here"
    )
    save_hf(run, 2, best_model_checkpoint="/other/host/out/checkpoint-2", mtime=1001.0)
    assert judge(Follower(run).look(), 2e9).warnings == ()


def test_a_name_and_a_global_step_that_clash_are_reported(run: Path) -> None:
    save_hf(run, 45, global_step=26)
    view = judge(Follower(run).look(), 2e9)
    assert "name-mismatch" in [warned.code for warned in view.warnings]
    assert view.step == 26


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', "null"])
def test_a_trainer_state_that_is_none_is_said_in_words(run: Path, text: str) -> None:
    save_hf(run, 5).write_text(text)
    follower = Follower(run)
    follower.look()
    for _ in range(5):
        follower.look((), after_s=0.25)
    [source] = follower.view.sources
    assert source.error is not None
    assert source.error.startswith(source.path)
    assert follower.view.step is None


def test_a_half_written_state_keeps_the_values_of_the_one_before(run: Path) -> None:
    save_hf(run, 5)
    follower = Follower(run)
    follower.look()
    path = save_hf(run, 6)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert follower.look([run]).step == 5
    path.write_text(whole)
    assert follower.look((), after_s=0.25).step == 6


def test_a_huge_history_is_read_in_slices_and_says_its_step_at_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_state, "WHOLE_BYTES", 20_000)
    monkeypatch.setattr(trainer_state, "SLICE_BYTES", 10_000)
    path = save_hf(run, 3000, rows=[{"step": s, "loss": 1 / s} for s in range(1, 3001)])
    follower = Follower(run)
    view = follower.look()
    assert (view.step, view.loss) == (3000, 1 / 3000)
    assert follower.reader.has_more
    assert follower.finish().segments[0].last_step == 3000
    assert values(follower.view) == [1 / s for s in range(1, 3001)]
    assert not follower.view.is_sketch
    again = path.read_text().replace('"loss": 1.0,', '"loss": 7.0,')
    path.write_text(again)
    assert len(follower.look([run]).series["loss"]) == 3000
    assert values(follower.finish())[0] == 7.0


def test_a_huge_history_that_ends_early_is_torn(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_state, "WHOLE_BYTES", 20_000)
    monkeypatch.setattr(trainer_state, "SLICE_BYTES", 10_000)
    path = save_hf(run, 3000)
    path.write_text(path.read_text()[:60_000])
    follower = Follower(run)
    follower.look()
    follower.finish()
    for _ in range(5):
        follower.look((), after_s=0.25)
        follower.finish()
    assert "log_history" in (follower.view.sources[0].error or "")


# ---- the run as a whole -------------------------------------------------------------------------


def test_progress_files_two_levels_below_are_found_and_nothing_hidden_or_linked(
    run: Path, tmp_path: Path
) -> None:
    text = '{"step": %d, "time": 1, "loss": 1}\n'
    elsewhere = tmp_path / "elsewhere"
    for place, directory in enumerate(
        [run / "logs" / "v1", run / "a" / "b" / "c", run / ".hidden", elsewhere], start=1
    ):
        directory.mkdir(parents=True)
        (directory / "metrics.jsonl").write_text(text % place)
    (run / "linked").symlink_to(elsewhere)
    (run / "loop").symlink_to(run)
    view = Follower(run).look()
    assert [source.path for source in view.sources] == [str(run / "logs" / "v1" / "metrics.jsonl")]


def test_a_metrics_file_inside_a_checkpoint_is_none_of_the_runs(save: Any) -> None:
    target = save(3, metric(3, 2.0), 1000.0)
    (target / "metrics.jsonl").write_text('{"step": 99, "loss": 1}\n')
    assert Follower(save.run).look().step == 3


def test_a_file_that_appears_later_is_followed(run: Path) -> None:
    follower = Follower(run)
    assert judge(follower.look(), 2e9).health.reasons[0].startswith("nothing here yet")
    (run / "training_state.json").write_text(state_text())
    assert follower.look([run]).step == 42


def test_a_run_that_drops_out_for_a_while_keeps_its_history(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 5, "time": 1, "loss": 2}\n')
    follower = Follower(run)
    follower.look()
    away = run.with_name("away")
    run.rename(away)
    view = follower.look(())
    assert (view.is_reachable, view.step, keys(view)) == (False, 5, [(0, 5)])
    run.mkdir()  # the empty directory below a mount
    assert follower.look([run]).is_reachable is False
    run.rmdir()
    away.rename(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "time": 2, "loss": 1}\n')
    view = follower.look(())
    assert (view.is_reachable, view.step, keys(view)) == (True, 6, [(0, 5), (0, 6)])


def test_a_run_deleted_and_made_again_is_a_new_one(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 500, "time": 1, "loss": 2}\n')
    (run / "training_state.json").write_text(state_text(step=500))
    follower = Follower(run)
    follower.look()
    old = run.with_name("old")
    run.rename(old)
    follower.look(())
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "time": 9, "loss": 3}\n')
    view = follower.look(())
    assert (view.is_reachable, view.step, view.total_steps) == (True, 1, None)
    assert keys(view) == [(0, 1)]


def test_a_directory_that_may_not_be_read_is_said_and_the_rest_works(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 5, "time": 1, "loss": 2}\n')
    (run / "closed").mkdir()

    def refuse(call: fs.Call) -> None:
        if call.name == "scan" and call.path == str(run / "closed"):
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        view = judge(Follower(run).look(), 2e9)
    assert view.step == 5
    said = [finding.code for slot in view.slots for finding in slot.findings]
    assert "permission-denied" in said + [warned.code for warned in view.warnings]


def test_what_can_change_is_watched(save: Any) -> None:
    target = save(3, metric(3, 2.0), 1000.0)
    (save.run / "logs").mkdir()
    follower = Follower(save.run)
    follower.look()
    targets = follower.reader.targets
    assert save.run / "training_state.json" in targets.state_files
    assert target / "metric.jsonl" in targets.state_files
    assert targets.run_directories == (save.run, save.run / "logs")
    assert targets.checkpoint_directories == (target,)


def test_nothing_new_is_no_event_at_all(save: Any) -> None:
    save(3, metric(3, 2.0), 1000.0)
    (save.run / "metrics.jsonl").write_text('{"step": 5, "time": 1, "loss": 2}\n')
    follower = Follower(save.run)
    follower.look()
    follower.look(())
    assert list(follower.reader.read((), follower.now + 1)) == []
    assert list(follower.reader.read([save.run], follower.now + 2)) == []


def test_a_save_in_progress_is_seen(save: Any) -> None:
    save(3, metric(3, 2.0), 1000.0)
    staging = save.run / ".epoch_0_step_6.tmp-abcd1234"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes(b"half")
    follower = Follower(save.run, now=staging.stat().st_mtime)
    view = judge(follower.look(), follower.now)
    assert view.health.reasons == ("a checkpoint is being written",)
    assert judge(follower.look((), after_s=120.0), follower.now).saving_at is None


def test_a_verdict_given_elsewhere_reaches_a_run_that_is_being_watched(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SETTLED_S", 0.0)
    run = tmp_path / "exp1"
    shutil.copytree(golden / "astrai/run_real/tree/exp1", run)
    (run / ".ckpt").mkdir()
    follower = Follower(run)
    follower.look()
    assert [slot.live.verified for slot in follower.view.slots] == [None, None, None]
    assert run / ".ckpt" / "verified" in follower.reader.targets.state_files
    drive(verify_in_run(run / "epoch_0_step_9", run_dir=run))
    follower.look_at(".ckpt/verified")
    told = [slot.live.verified and slot.live.verified.verdict for slot in follower.view.slots]
    assert told == [Verdict.INTACT, None, None]
