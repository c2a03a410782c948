"""Going back and forth between generations: what a plan says, and what is done of it."""

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from saving import known, lying, save, without_exchange

from ckpt import fs, reflog
from ckpt.checkpoint import Depth, State, Verdict
from ckpt.errors import Busy, PublishError, Refused, StalePlan
from ckpt.generations import (
    Plan,
    carry_out,
    plan_redo,
    plan_rollback,
    plan_undo,
    plan_withdraw,
    scan,
)
from ckpt.lock import swap_lock
from ckpt.operation import Progress, drive
from ckpt.reflog import Change
from ckpt.verify import verify

Mode = Callable[[], AbstractContextManager[None]]
MODES = [pytest.param(nullcontext, id="exchange"), pytest.param(without_exchange, id="fallback")]


def live(run: Path) -> dict[str, str | None]:
    return {slot.name: slot.live.id if slot.live else None for slot in scan(run)}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("mode", MODES)
def test_rolling_back_and_undoing_brings_every_byte_back(run: Path, mode: Mode) -> None:
    old = save(run / "last", 100, 1.0)
    new = save(run / "last", 200, 2.0)
    before = lying(run)
    plan = plan_rollback(known(run))
    assert plan.changes == (Change("last", new, old),)
    assert (plan.steps_given_up, plan.verb) == (100, "rollback")
    with mode():
        done = drive(carry_out(plan))
    assert done.path == run / "last"
    assert live(run) == {"last": old}
    (slot,) = scan(run)
    assert [(each.id, each.state) for each in slot.generations] == [
        (old, State.LIVE),
        (new, State.RETIRED),
    ]
    with mode():
        drive(carry_out(plan_undo(known(run))))
    assert lying(run) == before
    with mode():
        drive(carry_out(plan_redo(known(run))))
    assert live(run) == {"last": old}


@pytest.mark.parametrize("mode", MODES)
def test_sending_a_run_back_withdraws_later_slots_and_one_undo_brings_them_back(
    run: Path, mode: Mode
) -> None:
    ids = {step: save(run / f"step_{step}", step) for step in (100, 200, 300, 400)}
    before = lying(run)
    plan = plan_withdraw(known(run), to_step=250)
    assert plan.changes == (
        Change("step_400", ids[400], None),
        Change("step_300", ids[300], None),
    )
    assert plan.steps_given_up == 200
    assert plan.target is not None
    assert plan.target.id == ids[200]
    with mode():
        drive(carry_out(plan))
    assert {slot.name: slot.state for slot in scan(run)} == {
        "step_400": State.WITHDRAWN,
        "step_300": State.WITHDRAWN,
        "step_200": State.LIVE,
        "step_100": State.LIVE,
    }
    drive(carry_out(plan_undo(known(run))))
    assert lying(run) == before


def test_the_target_is_verified_first_and_a_damaged_one_refused(run: Path) -> None:
    old = save(run / "last", 100, 1.0)
    save(run / "last", 200, 2.0)
    flip(run / f".last.retired-{old}" / "model.safetensors")
    before = lying(run)
    events: list[object] = []
    with pytest.raises(Refused) as caught:
        drive(carry_out(plan_rollback(known(run))), events.append)
    assert caught.value.message.startswith(f"generation {old} is damaged: model.safetensors: ")
    assert any(isinstance(event, Progress) for event in events)
    assert lying(run) == before
    drive(carry_out(plan_rollback(known(run)), depth=None))
    assert live(run) == {"last": old}


def test_an_undamaged_older_one_can_be_named(run: Path) -> None:
    first, second, third = (save(run / "last", step) for step in (1, 2, 3))
    plan = plan_rollback(known(run), slot="last", to=first[:7])
    assert plan.changes == (Change("last", third, first),)
    assert plan_rollback(known(run)).changes == (Change("last", third, second),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: plan_undo(known(run)), "nothing to undo"),
        (lambda run: plan_redo(known(run)), "nothing to redo: nothing was undone"),
        (lambda run: plan_rollback(known(run)), "nothing to roll back to"),
        (lambda run: plan_rollback(known(run), slot="nope"), "no slot nope"),
        (lambda run: plan_rollback(known(run), slot="step_5"), "no retired generation"),
        (lambda run: plan_rollback(known(run), slot="step_5", to="ffff"), "no generation ffff"),
        (lambda run: plan_withdraw(known(run), to_step=5), "no checkpoint is later than step 5"),
        (lambda run: plan_withdraw(known(run), to_step=4), "no checkpoint of step 4 or before"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    run: Path, make: Callable[[Path], Plan], message: str
) -> None:
    from trees import put_checkpoint

    put_checkpoint(run / "step_5", 5)
    before = lying(run)
    with pytest.raises(Refused) as caught:
        make(run)
    assert message in caught.value.message
    assert lying(run) == before


def test_warnings_say_who_wrote_and_what_was_never_read(run: Path) -> None:
    old = save(run / "last", 100)
    save(run / "last", 200)
    plan = plan_rollback(known(run, now=1000.0, written_at=997.0))
    assert plan.warnings == (
        "the trainer wrote 3 s ago and may save again: stop it first",
        f"the bytes of {old} were never verified",
    )


@pytest.mark.parametrize("what", ["saved", "gone", "rolled back"])
def test_a_plan_that_the_disk_left_behind_is_refused(run: Path, what: str) -> None:
    old = save(run / "last", 100)
    save(run / "last", 200)
    plan = plan_rollback(known(run))
    if what == "saved":
        save(run / "last", 300)
    elif what == "gone":
        (run / f".last.retired-{old}").rename(run.parent / "elsewhere")
    else:
        drive(carry_out(plan))
    before = lying(run)
    with pytest.raises(StalePlan, match="the plan is out of date"):
        drive(carry_out(plan))
    assert lying(run) == before


def test_an_undo_is_stale_once_anything_was_done(run: Path) -> None:
    save(run / "last", 100)
    plan = plan_undo(known(run))
    save(run / "other", 200)
    with pytest.raises(StalePlan, match="something else was done"):
        drive(carry_out(plan))


def test_a_busy_run_is_refused_and_named(run: Path) -> None:
    save(run / "last", 100)
    save(run / "last", 200)
    plan = plan_rollback(known(run))
    with swap_lock(run, "prune"), pytest.raises(Busy, match=r"busy: prune \(pid "):
        drive(carry_out(plan))


def test_an_undo_of_a_first_save_withdraws_it(run: Path) -> None:
    only = save(run / "step_5", 5)
    drive(carry_out(plan_undo(known(run))))
    (slot,) = scan(run)
    assert (slot.state, [(g.id, g.state) for g in slot.generations]) == (
        State.WITHDRAWN,
        [(only, State.WITHDRAWN)],
    )


def test_an_entry_can_be_undone_though_a_trainer_saved_since(run: Path) -> None:
    for step in (10, 20, 30):
        save(run / f"step_{step}", step)
    before = live(run)
    swapped = drive(carry_out(plan_withdraw(known(run), to_step=10)))
    newest = save(run / "step_15", 15)
    assert plan_undo(known(run)).changes == (Change("step_15", newest, None),)
    drive(carry_out(plan_undo(known(run), sequence=swapped.sequence)))
    assert live(run) == {**before, "step_15": newest}
    with pytest.raises(Refused, match=f"nothing to undo: not #{swapped.sequence}"):
        plan_undo(known(run), sequence=swapped.sequence)


def test_an_entry_whose_slot_changed_since_cannot_be_undone(run: Path) -> None:
    save(run / "last", 100)
    save(run / "last", 200)
    swapped = drive(carry_out(plan_rollback(known(run))))
    save(run / "last", 300)
    with pytest.raises(Refused, match="last: changed since"):
        plan_undo(known(run), sequence=swapped.sequence)
    with pytest.raises(Refused, match="nothing to undo: not #99, or not any more"):
        plan_undo(known(run), sequence=99)


def test_an_undo_whose_payload_was_pruned_is_refused(run: Path) -> None:
    old = save(run / "last", 100)
    save(run / "last", 200)
    (run / f".last.retired-{old}").rename(run.parent / "elsewhere")
    with pytest.raises(Refused, match=f"no generation {old}"):
        plan_undo(known(run))


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("is_lasting", [False, True])
def test_an_error_in_the_middle_of_a_withdrawal_takes_it_all_back_or_leaves_it_to_recovery(
    run: Path, at: int, is_lasting: bool
) -> None:
    for step in (100, 200, 300, 400):
        save(run / f"step_{step}", step)
    before = lying(run)
    plan = plan_withdraw(known(run), to_step=100)
    count = 0

    def refuse(call: fs.Call) -> None:
        nonlocal count
        if call.name == "rename":
            count += 1
            if count == at or (is_lasting and count > at):
                raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError) as caught:
        drive(carry_out(plan, depth=None))
    if "everything is as it was" in caught.value.message:
        assert lying(run) == before
        assert reflog.read(run).pending == ()
    else:
        assert "nothing is lost" in caught.value.message
        assert len(reflog.read(run).pending) == 1
    assert ("everything is as it was" in caught.value.message) is (not is_lasting or at == 1)


def test_a_generation_without_hashes_can_be_gone_back_to_with_a_warning(run: Path) -> None:
    old = save(run / "last", 100)
    save(run / "last", 200)
    (run / f".last.retired-{old}" / "manifest.json").unlink()
    (slot,) = scan(run)
    legacy = slot.generations[1].id
    drive(verify(run / f".last.retired-{old}", Depth.BYTES))
    drive(carry_out(plan_rollback(known(run))))
    assert live(run) == {"last": legacy}
    assert drive(verify(run / "last")).verdict is Verdict.UNVERIFIABLE


def test_a_plan_is_a_value(run: Path) -> None:
    save(run / "last", 100)
    save(run / "last", 200)
    assert plan_rollback(known(run)) == plan_rollback(known(run))
    assert replace(plan_rollback(known(run)), sequence=0) != plan_rollback(known(run))
