"""Recovery: what died is ended, what lives is left alone, and a second recovery finds nothing."""

import os
import shutil
import time
from pathlib import Path

import pytest
from samples import floats
from saving import fill, known, lying, save
from trees import put_checkpoint

from ckpt import fs, reflog
from ckpt.checkpoint import State, Verdict
from ckpt.errors import Busy
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import (
    Staging,
    carry_out,
    plan_recover,
    plan_undo,
    plan_withdraw,
    publish,
    recover,
    resolve,
    scan,
)
from ckpt.lock import swap_lock, writing
from ckpt.manifest import Origin
from ckpt.operation import drive
from ckpt.reflog import Change, intend
from ckpt.verify import verify


def copied(golden: Path, sample: str, tmp_path: Path) -> Path:
    return shutil.copytree(golden / "astrai" / sample / "tree", tmp_path / "run")


def age(path: Path, seconds: float) -> None:
    """Let a payload look as if nothing in it had changed for a while."""
    at = time.time() - seconds
    for each in (*path.rglob("*"), path):
        os.utime(each, (at, at))


def states(run: Path) -> list[tuple[str, State, list[tuple[str, State]]]]:
    return [(s.name, s.state, [(g.id, g.state) for g in s.generations]) for s in scan(run)]


def staged(run: Path, slot: str, token: str, step: int = 7) -> Path:
    path = run / f".{slot}.tmp-{token}"
    path.mkdir(parents=True)
    origin = Origin(token, None, slot)
    meta = {"epoch": 0, "optimizer_step": step}
    write_checkpoint(path, meta, {}, [floats("w", float(step))], origin=origin)
    return path


def test_astrai_killed_between_its_renames_gets_its_new_payload(
    golden: Path, tmp_path: Path
) -> None:
    run = copied(golden, "crash_between_renames", tmp_path)
    (slot,) = scan(run)
    assert slot.state is State.BROKEN
    resolved = resolve(slot)
    assert resolved.path == run / ".epoch_0_step_1.tmp-0ll_d68o"
    plan = plan_recover(known(run))
    assert plan.changes == (Change("epoch_0_step_1", None, "cb0641b6c090"),)
    (told,) = drive(recover(run))
    assert told.endswith("is the new payload, every hash of it fits; it is live now")
    assert states(run) == [
        (
            "epoch_0_step_1",
            State.LIVE,
            [("cb0641b6c090", State.LIVE), ("3118428afca4", State.RETIRED)],
        )
    ]
    assert drive(verify(run / "epoch_0_step_1")).verdict is Verdict.INTACT
    assert drive(recover(run)) == ()


def test_a_new_payload_that_a_crash_hurt_gives_way_to_the_old_one(
    golden: Path, tmp_path: Path
) -> None:
    run = copied(golden, "crash_between_renames", tmp_path)
    weights = run / ".epoch_0_step_1.tmp-0ll_d68o" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    drive(recover(run))
    (slot,) = scan(run)
    assert slot.live is not None
    assert slot.live.id == "3118428afca4"


def test_astrai_killed_after_its_renames_needs_nothing(golden: Path, tmp_path: Path) -> None:
    run = copied(golden, "crash_after_publish", tmp_path)
    before = lying(run)
    assert drive(recover(run)) == ()
    assert lying(run) == before


def test_astrais_half_staging_goes_once_nobody_can_be_writing_it(
    golden: Path, tmp_path: Path
) -> None:
    run = copied(golden, "crash_mid_staging", tmp_path)
    staging = run / ".epoch_0_step_1.tmp-ujumndum"
    age(staging, 30)
    before = lying(run)
    (told,) = drive(recover(run))
    assert told == (
        "epoch_0_step_1: .epoch_0_step_1.tmp-ujumndum left alone: it may be being written"
    )
    assert lying(run) == before
    age(staging, 3600)
    (told,) = drive(recover(run))
    assert told.startswith("epoch_0_step_1: removed .epoch_0_step_1.tmp-ujumndum: unfinished save")
    assert [path.name for path in run.iterdir() if path.name != ".ckpt"] == ["epoch_0_step_1"]
    assert drive(recover(run)) == ()


def test_kt_killed_in_a_save_keeps_everything(golden: Path, tmp_path: Path) -> None:
    source = golden / "kt_full" / "killed_mid_save" / "tree"
    run = shutil.copytree(source, tmp_path / "run")
    before = lying(run)
    drive(recover(run))
    assert lying(run) == before


def test_a_dead_writers_whole_payload_becomes_something_to_go_back_to(tmp_path: Path) -> None:
    live = save(tmp_path / "step_7", 7)
    staged(tmp_path, "step_7", "aabbccddeeff")
    assert drive(recover(tmp_path)) == (
        "step_7: .step_7.tmp-aabbccddeeff is whole: kept as retired aabbccddeeff",
    )
    assert states(tmp_path) == [
        ("step_7", State.LIVE, [(live, State.LIVE), ("aabbccddeeff", State.RETIRED)])
    ]


def test_a_dead_writers_half_payload_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    save(tmp_path / "step_7", 7)
    for token in ("aabbccddeeff", "001122334455"):
        (tmp_path / f".step_7.tmp-{token}").mkdir()
        (tmp_path / f".step_7.tmp-{token}" / "model.safetensors").write_bytes(b"half")
    with writing(tmp_path, "001122334455", "step_7"):
        told = drive(recover(tmp_path))
    assert [sentence.split(":")[1].strip() for sentence in told] == [
        ".step_7.tmp-001122334455 left alone",
        "removed .step_7.tmp-aabbccddeeff",
    ]
    assert sorted(path.name for path in tmp_path.glob(".step*")) == [".step_7.tmp-001122334455"]


def test_a_first_save_that_died_sealed_is_published(tmp_path: Path) -> None:
    staged(tmp_path, "step_7", "aabbccddeeff")
    drive(recover(tmp_path))
    assert states(tmp_path) == [("step_7", State.LIVE, [("aabbccddeeff", State.LIVE)])]


def test_a_foreign_first_save_that_just_ended_is_left_to_its_trainer(tmp_path: Path) -> None:
    staging = staged(tmp_path, "step_7", "aabbccdd")
    before = lying(tmp_path)
    drive(recover(tmp_path))
    assert lying(tmp_path) == before
    age(staging, 60)
    drive(recover(tmp_path))
    assert (tmp_path / "step_7").is_dir()


class Crash(BaseException):
    pass


def crash_at(run: Path, name: str, path: str) -> None:
    """Save over `last` and die at a disk call; nothing is done afterwards by the dead process."""
    is_dead = False

    def see(call: fs.Call) -> None:
        nonlocal is_dead
        is_dead = is_dead or (call.name == name and path in call.path)
        if is_dead:
            raise Crash

    with fs.hooked(see), pytest.raises(Crash):
        save(run / "last", 2)
    assert is_dead


def test_what_lies_under_a_staging_name_after_an_exchange_is_the_old_one(tmp_path: Path) -> None:
    old = save(tmp_path / "last", 1)
    crash_at(tmp_path, "rename", ".last.retired-")
    (slot,) = scan(tmp_path)
    new = slot.generations[0].id
    assert [(each.id, each.state) for each in slot.generations] == [
        (new, State.LIVE),
        (old, State.RETIRED),
    ]
    assert resolve(slot).path == tmp_path / "last"
    assert drive(recover(tmp_path)) == ("publish 2 of last: ended what was cut off",)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".ckpt",
        f".last.retired-{old}",
        "last",
    ]
    drive(carry_out(plan_undo(known(tmp_path))))
    (slot,) = scan(tmp_path)
    assert slot.live is not None
    assert slot.live.id == old


def test_a_save_that_died_before_its_swap_is_kept_beside_the_old_one(tmp_path: Path) -> None:
    old = save(tmp_path / "last", 1)
    crash_at(tmp_path, "exchange", "last")
    told = drive(recover(tmp_path))
    assert told[0] == "publish 2 of last: it had not begun, nothing to take back"
    (slot,) = scan(tmp_path)
    assert [each.state for each in slot.generations] == [State.LIVE, State.RETIRED]
    assert slot.generations[0].id == old
    assert drive(recover(tmp_path)) == ()


def test_a_save_after_an_unrecovered_crash_does_not_confuse_recovery(tmp_path: Path) -> None:
    ids = [save(tmp_path / "last", 1)]
    crash_at(tmp_path, "rename", ".last.retired-")
    ids.append(scan(tmp_path)[0].generations[0].id)
    ids.append(save(tmp_path / "last", 3))
    drive(recover(tmp_path))
    (slot,) = scan(tmp_path)
    assert [each.id for each in slot.generations] == ids[::-1]
    assert [each.state for each in slot.generations] == [
        State.LIVE,
        State.RETIRED,
        State.RETIRED,
    ]
    assert {path.name.split("-")[0] for path in tmp_path.glob(".last*")} == {".last.retired"}
    assert drive(recover(tmp_path)) == ()


def test_a_withdrawal_that_died_half_way_is_ended(tmp_path: Path) -> None:
    ids = {step: save(tmp_path / f"step_{step}", step) for step in (1, 2, 3)}
    intend(
        tmp_path,
        "withdraw",
        [Change("step_3", ids[3], None), Change("step_2", ids[2], None)],
    )
    (tmp_path / "step_3").rename(tmp_path / f".step_3.withdrawn-{ids[3]}")
    assert drive(recover(tmp_path)) == ("withdraw 4 of step_3, step_2: ended what was cut off",)
    assert [(s.name, s.state) for s in scan(tmp_path)] == [
        ("step_3", State.WITHDRAWN),
        ("step_2", State.WITHDRAWN),
        ("step_1", State.LIVE),
    ]


def test_a_broken_slot_that_is_quiet_gets_its_newest_retired_generation(tmp_path: Path) -> None:
    old = save(tmp_path / "step_5", 5)
    save(tmp_path / "step_5", 5, 6.0)
    for name in ("model.safetensors", "manifest.json"):
        (tmp_path / "step_5" / name).unlink()
    age(tmp_path / "step_5", 60)
    drive(recover(tmp_path))
    (slot,) = scan(tmp_path)
    assert slot.live is not None
    assert slot.live.id == old
    left = [path.name for path in tmp_path.iterdir() if (path / "config.json").exists()]
    assert len(left) == 2


def test_a_withdrawn_slot_is_not_broken(tmp_path: Path) -> None:
    save(tmp_path / "step_5", 5)
    save(tmp_path / "step_5", 5, 6.0)
    save(tmp_path / "step_4", 4)

    drive(carry_out(plan_withdraw(known(tmp_path), to_step=4)))
    assert [(slot.name, slot.state) for slot in scan(tmp_path)] == [
        ("step_5", State.WITHDRAWN),
        ("step_4", State.LIVE),
    ]
    assert resolve(scan(tmp_path)[0]).reason == "step_5 was withdrawn on purpose"
    assert drive(recover(tmp_path)) == ()


def test_trash_is_swept_and_what_nfs_holds_is_told(tmp_path: Path) -> None:
    save(tmp_path / "step_5", 5)
    trash = put_checkpoint(tmp_path / ".step_5.trash-aabbccddeeff", 5)
    (trash / ".nfs0001").write_bytes(b"held")
    (told,) = drive(recover(tmp_path))
    assert told.endswith("some files are still held open by a reader")
    assert [path.name for path in trash.iterdir()] == [".nfs0001"]
    (trash / ".nfs0001").unlink()
    drive(recover(tmp_path))
    assert not trash.exists()


def test_a_torn_journal_is_mended(tmp_path: Path) -> None:
    save(tmp_path / "step_5", 5)
    path = reflog.reflog_path(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"0badc0de {half")
    assert drive(recover(tmp_path)) == ("the journal: cut a torn tail of 14 bytes",)
    assert path.read_bytes() == whole


def test_a_busy_run_is_not_recovered(tmp_path: Path) -> None:
    save(tmp_path / "step_5", 5)
    with swap_lock(tmp_path, "rollback"), pytest.raises(Busy):
        drive(recover(tmp_path))


def test_a_save_that_goes_on_is_never_swept(tmp_path: Path) -> None:
    def write(staging: Staging) -> None:
        (staging.path / "half").write_bytes(b"x")
        told = drive(recover(tmp_path))
        assert told == () or "left alone" in told[0]
        assert (staging.path / "half").exists()
        (staging.path / "half").unlink()
        fill(staging, 5)

    drive(publish(tmp_path / "step_5", write))
    assert drive(verify(tmp_path / "step_5")).verdict is Verdict.INTACT
