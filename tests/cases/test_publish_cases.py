"""Reported faults of saving: what is refused, what is kept, and what is on the disk afterwards.

Crashes, full disks, kills and locks have suites of their own (test_crashes, test_full_disk,
test_publish, test_recover, test_lock); here are the reports that need real values or whole runs.
"""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, say
from safetensors import safe_open
from samples import astrai, floats, golden, huggingface
from saving import lying, save
from trees import put_checkpoint, snapshot

from ckpt import fs
from ckpt.errors import CheckpointError, PublishError
from ckpt.generations import scan
from ckpt.record import Recorder
from ckpt.tensorwriter import write_tensors

ROOT = Path(__file__).parents[2]


def values(path: Path) -> dict[str, list[Any]]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118 - no dict


def test_a017_views_that_share_a_buffer_are_saved_with_the_values_they_show(
    tmp_path: Path,
) -> None:
    buffer = np.arange(8, dtype=np.float32)
    given = {"head": buffer[:5], "tail": buffer[3:], "same": buffer[:5], "all": buffer}
    saved = Recorder(tmp_path).save(5, given)
    found = values(saved / "model.safetensors")
    assert found == {name: given[name].tolist() for name in ("all", "head", "tail")}
    with safe_open(saved / "model.safetensors", "np") as file:
        assert "same" in json.dumps(file.metadata())  # kept once, under the first of its names
    assert ask("verify", saved).verdict == "intact"


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(32000, dtype=np.float32).reshape(1000, 32)),
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.float32)[::2],
        np.arange(12, dtype=np.float32)[::-1],
        np.broadcast_to(np.float32(3), (2, 5)),
        np.arange(12, dtype=">f4").reshape(3, 4),
    ],
    ids=["A018 columns", "A019 transposed", "strided", "reversed", "broadcast", "byte order"],
)
def test_a018_memory_in_any_order_is_saved_as_the_values_that_it_shows(
    tmp_path: Path, array: Any
) -> None:
    saved = Recorder(tmp_path).save(5, {"w": array})
    assert values(saved / "model.safetensors")["w"] == array.tolist()


@pytest.mark.parametrize("times", [1, 3])
def test_a020_what_is_mapped_from_the_file_that_is_saved_over_keeps_its_values(
    tmp_path: Path, times: int
) -> None:
    recorder = Recorder(tmp_path)
    saved = recorder.save(5, {"w": np.arange(4096, dtype=np.float32)})
    for _ in range(times):
        path = saved / "model.safetensors"
        mapped = np.memmap(path, np.float32, "r", offset=path.stat().st_size - 4 * 4096)
        assert recorder.save(5, {"w": mapped}) == saved
    assert values(saved / "model.safetensors")["w"] == list(range(4096))
    assert ask("verify", saved).verdict == "intact"


@pytest.mark.parametrize("dtype", ["complex128", "datetime64[s]", "S4", "object", "longdouble"])
def test_a021_a_type_that_cannot_be_written_is_refused_before_anything_is_retired(
    tmp_path: Path, dtype: str
) -> None:
    recorder = Recorder(tmp_path)
    saved = recorder.save(5, {"w": np.ones(2, np.float32)})
    before = lying(saved)
    with pytest.raises(PublishError, match="tensor 'odd': "):
        recorder.save(5, {"w": np.ones(2, np.float32), "odd": np.zeros(2, dtype)})
    assert lying(saved) == before
    assert [path.name for path in tmp_path.iterdir() if "epoch" in path.name] == [saved.name]


@pytest.mark.parametrize("dtype", ["complex64", "uint16", "float16", "bool", "int8", "uint64"])
def test_a021_a_type_that_can_be_written_comes_back(tmp_path: Path, dtype: str) -> None:
    given = np.arange(4).astype(dtype)
    saved = Recorder(tmp_path).save(5, {"w": given})
    if dtype == "complex64":  # the library's reader for arrays knows no C64
        assert (saved / "model.safetensors").read_bytes()[-given.nbytes :] == given.tobytes()
    else:
        assert values(saved / "model.safetensors")["w"] == given.tolist()


@pytest.mark.parametrize("value", [np.float32(1), {"a": object()}, {1, 2}])
def test_a028_a_fact_that_json_has_no_word_for_leaves_what_was_saved_alone(
    tmp_path: Path, value: object
) -> None:
    recorder = Recorder(tmp_path)
    saved = recorder.save(5, {"w": np.ones(2, np.float32)})
    before = snapshot(saved)
    with pytest.raises(CheckpointError, match="odd"):
        recorder.save(5, {"w": np.zeros(2, np.float32)}, meta={"odd": value})
    assert snapshot(saved) == before


def test_a038_only_the_shards_that_the_index_lists_are_read(tmp_path: Path) -> None:
    run = huggingface(tmp_path)
    write_tensors(run / "model-00003-of-00003.safetensors", [floats("b", 9, 9)])
    shown = ask("show", run).told
    assert [each["file"] for each in shown["tensors"]] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    told = ask("verify", run)
    assert (told.exit_code, told.codes) == (3, ["unlisted-file"])
    assert told.messages[0].startswith("model-00003-of-00003.safetensors: a shard that")


def test_a038_old_shards_beside_a_single_file_are_told(tmp_path: Path) -> None:
    run = tmp_path / "model"
    run.mkdir()
    write_tensors(run / "model.safetensors", [floats("w", 1, 2)])
    write_tensors(run / "model-00001-of-00002.safetensors", [floats("w", 3, 4)])
    told = ask("verify", run)
    assert told.codes == ["unlisted-file"]
    assert [each["file"] for each in ask("show", run).told["tensors"]] == ["model.safetensors"]


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.ESTALE]
)
@pytest.mark.parametrize("name", ["write", "fsync", "rename", "mkdir"])
def test_a046_a_disk_that_refuses_once_loses_nothing_and_the_next_save_works(
    tmp_path: Path, code: int, name: str
) -> None:
    target = tmp_path / "step_5"
    put_checkpoint(tmp_path / "step_4", 4)
    save(target, 5, 1.0)
    before = snapshot(target)
    refusals = iter([True])

    def refuse(call: fs.Call) -> None:
        if call.name == name and next(refusals, False):
            raise OSError(code, os.strerror(code), call.path)

    with fs.hooked(refuse), pytest.raises(PublishError) as refused:
        save(target, 5, 2.0)
    assert os.strerror(code).lower() in str(refused.value).lower()
    assert snapshot(target) == before
    save(target, 5, 3.0)
    assert ask("verify", target).verdict == "intact"


def test_a049_of_what_a_kill_left_the_payload_is_found_and_offered(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_4", 4)
    put_checkpoint(tmp_path / ".step_5.retired-abcdefgh", 5)
    [five, four] = ask("list", tmp_path).told["slots"]
    assert (five["name"], five["state"], four["state"]) == ("step_5", "broken", "live")
    [finding] = five["findings"]
    assert finding["code"] == "interrupted-publish"
    before = snapshot(tmp_path / ".step_5.retired-abcdefgh")
    for path in (tmp_path / ".step_5.retired-abcdefgh").iterdir():
        os.utime(path, (1e9, 1e9))
    assert ask("recover", tmp_path).exit_code == 0
    assert snapshot(tmp_path / "step_5") == before


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "A001 half": (lambda run: (run / "step_5" / "model.safetensors").unlink(), "unfinished-save"),
    "A049": (
        lambda run: (run / "step_5").rename(run / ".step_5.retired-aa"),
        "interrupted-publish",
    ),
    "A061": (lambda run: (run / "latest").symlink_to("step_0400"), "dangling-link"),
    "A060": (lambda run: (run / "300").mkdir(), "unfinished-save"),
}


@pytest.mark.parametrize(("damage", "code"), BROKEN.values(), ids=BROKEN)
def test_a_run_is_not_called_intact_while_a_checkpoint_is_missing_at_its_name(
    tmp_path: Path, damage: Callable[[Path], object], code: str
) -> None:
    for step in (4, 5):
        put_checkpoint(tmp_path / f"step_{step}", step)
    damage(tmp_path)
    told = ask("verify", tmp_path)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    [broken] = [each for each in told.told["reports"] if each["verdict"] == "damaged"]
    assert broken["findings"][0]["code"] == code
    assert broken["findings"][0]["message"] in say("verify", tmp_path)


def test_a_save_that_is_going_on_is_no_damage(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_4", 4)
    staging = put_checkpoint(tmp_path / ".step_5.tmp-abcdefgh", 5)
    (staging / "manifest.json").unlink()
    assert ask("verify", tmp_path).verdict == "intact"


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a048_what_another_put_at_the_name_is_said_and_never_touched(
    tmp_path: Path, kind: str
) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    for value in range(2):
        save(run / "step_5", 5, float(value))
    shutil.rmtree(run / "step_5")
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    if kind == "file":
        (run / "step_5").write_text("mine")
    elif kind == "directory":
        shutil.copytree(mine, run / "step_5")
    else:
        (run / "step_5").symlink_to(mine)
    before = lying(run)
    told = ask("status", run).told["advice"]["message"]
    assert told.startswith("step_5: what stands there is no checkpoint; step_5@")
    assert told.endswith(" is usable")
    assert ask("rollback", run, "--yes").exit_code == 1
    assert ask("recover", run).exit_code == 0
    assert lying(run) == before


SAVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from saving import save
from ckpt.errors import CheckpointError
deadline = time.monotonic() + 20
try:
    print(save(Path(sys.argv[1]), 50, float(sys.argv[2])))
except CheckpointError as error:
    print(error)
"""


def test_a050_four_processes_at_one_name_leave_four_whole_generations(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    script = SAVER.format(tests=str(ROOT / "tests"))
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(run / "step_50"), str(value)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        )
        for value in range(4)
    ]  # fmt: skip
    said = [saver.communicate(timeout=60)[0].strip() for saver in savers]
    [slot] = scan(run)
    assert sorted(each.id for each in slot.generations) == sorted(said)
    for generation in slot.generations:
        assert ask("verify", generation.path).verdict == "intact"


def test_a051_a_run_that_is_a_link_to_another_file_system_is_published_into(
    tmp_path: Path,
) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    real = elsewhere / f"ckpt-cases-{os.getpid()}"
    real.mkdir()
    try:
        (tmp_path / "run").symlink_to(real)
        save(tmp_path / "run" / "step_5", 5, 1.0)
        save(tmp_path / "run" / "step_5", 5, 2.0)
        assert (tmp_path / "run").is_symlink()
        assert ask("verify", real / "step_5").verdict == "intact"
        assert len(scan(real)[0].generations) == 2
    finally:
        shutil.rmtree(real)


@pytest.mark.parametrize("length", [200, 230, 245, 255])
def test_a052_a_name_as_long_as_the_disk_takes_is_saved_over_and_gone_back_to(
    tmp_path: Path, length: int
) -> None:
    target = tmp_path / ("step_5" + "x" * (length - 6))
    save(target, 5, 1.0)
    first = snapshot(target)
    save(target, 5, 2.0)
    assert ask("rollback", tmp_path, "--yes").exit_code == 0
    assert snapshot(target) == first


@pytest.mark.parametrize("reverse", [False, True])
def test_a054_order_is_by_number_not_by_text_or_time(tmp_path: Path, reverse: bool) -> None:
    steps = [*range(9000, 10000, 100), 10000]
    for step in steps:
        shutil.move(huggingface(tmp_path), tmp_path / f"checkpoint-{step}")
        state = {"global_step": step, "max_steps": 20000, "epoch": 0.5, "log_history": []}
        path = tmp_path / f"checkpoint-{step}" / "trainer_state.json"
        path.write_text(json.dumps(state))
        at = 1e9 - step if reverse else 1e9
        for each in (path, path.parent):
            os.utime(each, (at, at))
    slots = ask("list", tmp_path).told["slots"]
    assert [slot["name"] for slot in slots] == [f"checkpoint-{step}" for step in steps[::-1]]
    assert ask("status", tmp_path).told["step"] == 10000


@pytest.mark.parametrize("kept", ["0", "3"])
def test_a055_a_new_run_in_an_old_directory_keeps_what_it_just_wrote(
    tmp_path: Path, kept: str
) -> None:
    put_checkpoint(tmp_path / "step_700", 700)
    save(tmp_path / "step_100", 100)
    ended = ask("prune", tmp_path, "--keep-last", kept, "--yes")
    assert ended.exit_code == 0
    assert {slot.name for slot in scan(tmp_path) if slot.live} == {"step_700", "step_100"}


def test_a055_a_limit_below_nothing_is_refused_in_words(tmp_path: Path) -> None:
    save(tmp_path / "step_100", 100)
    before = snapshot(tmp_path)
    assert "-1" in say("prune", tmp_path, "--keep-last", "-1", "--yes")
    assert snapshot(tmp_path) == before


def test_a056_three_saves_in_one_moment_are_three_in_their_order(tmp_path: Path) -> None:
    ids = [save(tmp_path / "step_5", 5, float(value)) for value in range(3)]
    [slot] = ask("list", tmp_path).told["slots"]
    assert [each["id"] for each in slot["generations"]] == ids[::-1]


def hold(run: str, ready: Any) -> None:
    from ckpt.lock import swap_lock

    with swap_lock(Path(run), what="rollback"):
        ready.set()
        time.sleep(60)


def test_a058_a_lock_of_the_living_is_named_and_one_of_the_dead_stops_nobody(
    tmp_path: Path,
) -> None:
    for value in range(2):
        save(tmp_path / "step_5", 5, float(value))
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path), ready), daemon=True)
    holder.start()
    assert ready.wait(30)
    busy = ask("rollback", tmp_path, "--yes")
    assert (busy.exit_code, busy.told["code"]) == (4, "busy")
    assert str(holder.pid) in busy.told["message"]
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert ask("rollback", tmp_path, "--yes").exit_code == 0


def test_a060_a_temporary_name_and_an_empty_number_are_unfinished(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_5", 5)
    for name in ("checkpoint_300tmp", "step_301.tmp", "tmp-step_302", "step_303.partial"):
        shutil.copytree(tmp_path / "step_5", tmp_path / name)
    (tmp_path / "300").mkdir()
    slots = ask("list", tmp_path).told["slots"]
    assert [slot["name"] for slot in slots if slot["state"] == "live"] == ["step_5"]
    codes = {each["code"] for slot in slots for each in slot["findings"]}
    assert codes == {"unfinished-save"}


@pytest.mark.parametrize("target", ["step_0400", "/nonexistent/step_9", "../step_5"])
def test_a061_a_link_to_nothing_names_itself_its_target_and_what_is_whole(
    tmp_path: Path, target: str
) -> None:
    put_checkpoint(tmp_path / "step_5", 5)
    (tmp_path / "step_latest").symlink_to(target)
    told = ask("status", tmp_path).told["advice"]["message"]
    assert told == f"step_latest is a link to {target}, which is not there; step_5 is usable"


@pytest.mark.parametrize("make", [astrai, golden("kt_full", "tiny3", "tree", "ckpt")])
def test_a062_a_copy_that_was_cut_off_is_told_whatever_of_it_came_first(
    tmp_path: Path, make: Any
) -> None:
    source = make(tmp_path)
    names = sorted(path.name for path in source.iterdir())
    for order in (names, names[::-1]):
        for count in range(1, len(names)):
            copy = tmp_path / "step_9"
            copy.mkdir()
            for name in order[:count]:
                shutil.copy(source / name, copy / name)
            ended = ask("verify", copy)
            told = ended.told.get("verdict") or ended.told["code"]
            is_plain = order[:count] == ["model.safetensors"]  # which is a model by itself
            assert told not in ("intact", "unverifiable") or is_plain, order[:count]
            shutil.rmtree(copy)
