"""Errors, Ctrl-C and death at every disk call of every action, and again while it recovers.

`CKPT_FULL_SUITES=1` tries every moment; else one of several, others in each scenario.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.errors import CheckpointError, PublishError, Refused, StalePlan
from ckpt.generations import resolve, scan
from ckpt.selftest import deeds
from ckpt.selftest.crashes import CHANGING, FAULTS, At, Interrupted, Killed, hit, mode
from ckpt.selftest.oracles import Expected, judge
from ckpt.selftest.scenarios import SCENARIOS, Scenario
from ckpt.selftest.suites import Case, crashes, faults, stages
from ckpt.selftest.tree import label_of

IS_FULL = os.environ.get("CKPT_FULL_SUITES") == "1"
EVERY_RECOVERY, EVERY_FAULT = (1, 1) if IS_FULL else (6, 21)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(lambda: OSError(errno.EIO, "Input/output error"), id="error"),
        pytest.param(KeyboardInterrupt, id="Ctrl-C"),
    ],
)
def test_an_error_in_the_second_rename_loses_nothing(
    tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    """The old checkpoint was moved away, the new one cannot take its name."""
    deeds.save(tmp_path, "step_1", 1)
    renames: list[str] = []

    def break_the_second(call: fs.Call) -> None:
        if call.name == "rename" and str(tmp_path / "step_1") in (call.path, call.other):
            renames.append(call.path)
            if len(renames) == 2:
                raise error()

    raised = pytest.raises((PublishError, KeyboardInterrupt))
    with mode(is_exchange=False), fs.hooked(break_the_second), raised:
        deeds.save(tmp_path, "step_1", 2)
    assert len(renames) >= 2
    assert label_of(tmp_path / "step_1") == 1
    (slot,) = scan(tmp_path)
    assert resolve(slot).path == tmp_path / "step_1"
    deeds.recover(tmp_path)
    assert label_of(tmp_path / "step_1") == 1


@pytest.mark.parametrize("is_exchange", [True, False], ids=["exchange", "two renames"])
def test_a_second_error_while_the_first_is_made_good_loses_nothing(
    tmp_path: Path, is_exchange: bool
) -> None:
    """The swap fails and so does whatever is done about it, in every pair of places."""
    tried = 0
    for place in range(1, 30):
        run = tmp_path / str(place)
        run.mkdir()
        deeds.save(run, "step_1", 1)

        def refuse(call: fs.Call, seen: list[str] = [], place: int = place) -> None:  # noqa: B006 - counts
            if call.name in ("rename", "exchange", "fsync-directory", "append"):
                seen.append(call.name)
                if place <= len(seen):
                    raise OSError(errno.EIO, "Input/output error", call.path)

        try:
            with mode(is_exchange=is_exchange), fs.hooked(refuse):
                deeds.save(run, "step_1", 2)
            break
        except PublishError:
            tried += 1
        expected = Expected({"step_1": 1}, {"step_1": 2}, frozenset({1}), made=2)
        assert list(judge(run, expected)) == [], place
    assert tried >= 5


# ---- every action, every call -----------------------------------------------------------------


def tell(cases: Iterator[Case]) -> Counter[str]:
    """Count the cases of each suite; the first that went wrong fails the test, in full."""
    counts: Counter[str] = Counter()
    for case in cases:
        counts[case.suite] += 1
        assert case.wrong == (), case
    print(dict(counts))
    return counts


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_a_death_at_any_call_loses_nothing(tmp_path: Path, scenario: Scenario) -> None:
    offset = SCENARIOS.index(scenario)
    for stage in stages(tmp_path, scenario):
        counts = tell(
            crashes(stage, every=EVERY_RECOVERY, offset=offset, at_changes_only=not IS_FULL)
        )
        assert counts["crash"] > 5
        assert counts["recovery-crash"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_an_error_at_any_call_loses_nothing(tmp_path: Path, scenario: Scenario) -> None:
    offset = SCENARIOS.index(scenario)
    for stage in stages(tmp_path, scenario):
        assert tell(faults(stage, every=EVERY_FAULT, offset=offset))["fault"] > 2


# ---- the harness itself -----------------------------------------------------------------------


def test_a_dead_process_does_nothing_more(tmp_path: Path) -> None:
    calls: list[str] = []

    def act(run_dir: Path) -> None:
        try:
            fs.make_directory(run_dir / "a")
            fs.make_directory(run_dir / "b")
        finally:
            calls.append("unwinding")
            fs.make_directory(run_dir / "c")

    ended = hit(act, tmp_path, At(2))
    assert isinstance(ended.error, Killed)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert calls == ["unwinding"]


def test_a_fault_comes_once_or_for_ever(tmp_path: Path) -> None:
    once, for_ever = FAULTS[0], FAULTS[4]
    assert (once.name, for_ever.name) == ("ENOSPC", "ENOSPC for ever")
    outcomes: list[str] = []

    def act(run_dir: Path) -> None:
        for name in ("a", "b", "c"):
            try:
                fs.make_directory(run_dir / name)
                outcomes.append(name)
            except OSError as error:
                outcomes.append(errno.errorcode[error.errno or 0])

    assert hit(act, tmp_path, At(2, once)).is_done
    assert outcomes == ["a", "ENOSPC", "c"]
    outcomes.clear()
    for name in ("a", "c"):
        (tmp_path / name).rmdir()
    assert hit(act, tmp_path, At(2, for_ever)).is_done
    assert outcomes == ["a", "ENOSPC", "ENOSPC"]


def test_an_error_that_ckpt_does_not_promise_is_foreign(tmp_path: Path) -> None:
    def act(_run_dir: Path) -> None:
        raise ValueError("no")

    assert hit(act, tmp_path, At(99)).is_foreign
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert {"rename", "fsync", "write"} < CHANGING


def test_the_oracles_notice_what_is_wrong(tmp_path: Path) -> None:
    deeds.save(tmp_path, "step_1", 1)
    deeds.save(tmp_path, "step_1", 2)
    good = Expected({"step_1": 2}, {"step_1": 2}, frozenset({1, 2}))
    assert list(judge(tmp_path, good)) == []
    lost = Expected({"step_1": 2}, {"step_1": 2}, frozenset({1, 2, 3}))
    assert list(judge(tmp_path, lost)) == ["generation 3 is lost"]
    other = Expected({"step_1": 1}, {"step_1": 1}, frozenset())
    assert "step_1: a reader is given generation 2, not one of {1}" in list(judge(tmp_path, other))
    weights = tmp_path / "step_1" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    told = list(judge(tmp_path, good))
    assert "step_1: a reader is given step_1, which is not whole" in told
    assert "generation 2 is lost" in told


# ---- what cannot be looked at, or is in the way -----------------------------------------------


def test_a_withdrawal_refuses_when_a_later_slot_cannot_be_looked_at(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        deeds.save(tmp_path, f"step_{step}", step)

    def hide(call: fs.Call) -> None:
        if call.name == "scan" and call.path == str(tmp_path / "step_2"):
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(hide), pytest.raises(Refused, match="cannot tell what is live: step_2") as told:
        deeds.send_back(tmp_path, 1)
    assert told.value.hint == "it may be later than step 1: look at it first"
    assert [label_of(tmp_path / f"step_{step}") for step in (1, 2, 3)] == [1, 2, 3]


def test_a_file_that_cannot_be_read_back_is_not_published(tmp_path: Path) -> None:
    """Its identity would be a guess, and the journal would hold the guess."""
    deeds.save(tmp_path, "adapter.safetensors", 1)
    reads: list[str] = []

    def refuse(call: fs.Call) -> None:
        if call.name == "read" and ".tmp-" in call.path:
            reads.append(call.path)
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError, match="not published"):
        deeds.save(tmp_path, "adapter.safetensors", 2)
    assert reads
    assert label_of(tmp_path / "adapter.safetensors") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ckpt", "adapter.safetensors"]


def test_a_slot_that_is_a_link_elsewhere_is_refused_and_untouched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    run = tmp_path / "run"
    run.mkdir()
    deeds.save(elsewhere, "step_1", 1)
    (run / "step_1").symlink_to(elsewhere / "step_1")
    with pytest.raises(PublishError, match="a link stands there"):
        deeds.save(run, "step_1", 2)
    assert (run / "step_1").is_symlink()
    assert label_of(elsewhere / "step_1") == 1


@pytest.mark.parametrize("size", [240, 245, 254, 255])
def test_a_name_too_long_for_the_hidden_forms_survives_a_death_at_any_change(
    tmp_path: Path, size: int
) -> None:
    name = "step_1_" + "x" * (size - 7)
    expected = Expected({name: 2}, {name: 3}, frozenset({1, 2}), made=3)
    for place in range(2, 60, 5):
        run = tmp_path / str(place)
        run.mkdir()
        deeds.save(run, name, 1)
        deeds.save(run, name, 2)
        ended = hit(lambda run_dir: deeds.save(run_dir, name, 3), run, At(place, only=CHANGING))
        assert list(judge(run, expected)) == [], place
        if ended.is_done:
            break
    else:
        pytest.fail("the save never came to its end")


def test_a_generation_that_vanished_since_the_plan_makes_it_stale(tmp_path: Path) -> None:
    deeds.save(tmp_path, "step_1", 1)
    deeds.save(tmp_path, "step_1", 2)
    plan = deeds.plan_back(tmp_path)
    (retired,) = tmp_path.glob(".step_1.retired-*")
    fs.remove_tree(retired)
    with pytest.raises(StalePlan, match=r"is not there any more|is gone"):
        deeds.carry(plan)
    assert label_of(tmp_path / "step_1") == 2


def test_every_error_of_a_broken_run_is_one_of_ckpt(tmp_path: Path) -> None:
    """A run directory that vanished meets every verb."""
    gone = tmp_path / "gone"
    for act in (deeds.recover, deeds.roll_back, deeds.undo, deeds.redo):
        with pytest.raises(CheckpointError):
            act(gone)
    assert not gone.exists()
