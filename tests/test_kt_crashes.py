"""A KT slot under faults and crashes, and through the verbs that go back and forth.

At every moment the index names shards that are all there and whole, and nothing published is lost.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kt_runs import live_value, save, writer
from saving import known
from trees import snapshot

from ckpt import fs, reflog
from ckpt.checkpoint import State
from ckpt.errors import CheckpointError, PublishError, Refused
from ckpt.formats.kt_index import INDEX_NAME
from ckpt.formats.kt_write import shard_file
from ckpt.generations import (
    carry_out,
    plan_redo,
    plan_rollback,
    plan_undo,
    plan_withdraw,
    recover,
    scan,
)
from ckpt.generations.kt import make_live, publish_kt
from ckpt.generations.kt_retired import list_retired, prune_kt, set_aside_kt
from ckpt.generations.kt_slot import kt_slot, live_generation
from ckpt.operation import drive
from ckpt.selftest.powercut import PowerCuts
from ckpt.selftest.tree import mark, put, take

# ---- a fault and a crash at every call --------------------------------------------------------


class Crashed(BaseException):
    """The process is gone: no call after it is made."""


class Stop:
    """Raises at the given call, and at every later one when `is_crash`."""

    def __init__(self, at: int, make: Callable[[], BaseException], *, is_crash: bool) -> None:
        self.at, self.make, self.is_crash, self.count = at, make, is_crash, 0

    def __call__(self, call: fs.Call) -> None:
        self.count += 1
        if self.count == self.at or (self.is_crash and self.count > self.at):
            raise self.make()


STOPS = [
    pytest.param(lambda: OSError(errno.ENOSPC, "No space left"), False, id="ENOSPC"),
    pytest.param(lambda: OSError(errno.EIO, "Input/output error"), False, id="EIO once"),
    pytest.param(KeyboardInterrupt, False, id="KeyboardInterrupt"),
    pytest.param(Crashed, True, id="crash"),
]


class Runs:
    """Copies of one run in which the given values were saved, one after the other."""

    def __init__(self, tmp_path: Path, *values: int) -> None:
        self._parent, self._count = tmp_path, 0
        self._first = tmp_path / "first"
        (self._first / "checkpoint-6").mkdir(parents=True)
        (self._first / "checkpoint-6" / "optimizer.pt").write_bytes(b"foreign")
        self._saved = {save(self._first, value): value for value in values}
        self._checked: set[int] = set()

    def fresh(self) -> tuple[Path, dict[str, int]]:
        """The next copy, and the values by the generations they were saved as, oldest first."""
        self._count += 1
        run = self._parent / f"run_{self._count}"
        shutil.copytree(self._first, run)
        return run, dict(self._saved)

    def check_nothing_lost(self, run: Path, published: dict[str, int], where: str) -> None:
        """What is live reads whole; every published generation is live, or can be made live."""
        directory = run / "checkpoint-6"
        live = live_generation(kt_slot(directory, run))
        value = live_value(directory)
        assert live not in published or published[live] == value, where
        assert (directory / "optimizer.pt").read_bytes() == b"foreign", where
        files = {**snapshot(directory), **snapshot(run / ".ckpt" / "kt")}
        state = hash((tuple(sorted(files.items())), tuple(published)))
        if state in self._checked:
            return  # another call was interrupted and left just the same
        self._checked.add(state)
        retired = {each.generation: each for each in list_retired(directory, run_dir=run)}
        for generation, expected in published.items():
            if generation != live:
                assert retired[generation].missing == (), where
                make_live(directory, generation, run_dir=run)
                assert live_value(directory) == expected, where


def calls_in(action: Callable[[], object]) -> int:
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        action()
    return len(calls)


@pytest.mark.parametrize(("make", "is_crash"), STOPS)
def test_a_save_stopped_at_any_call_loses_nothing(
    tmp_path: Path, make: Callable[[], BaseException], is_crash: bool
) -> None:
    runs = Runs(tmp_path, 1, 2)
    run, _ = runs.fresh()
    total = calls_in(lambda: save(run, 3))
    assert total > 40
    for at in range(1, total + 1):
        run, published = runs.fresh()
        raised = None
        try:
            with fs.hooked(Stop(at, make, is_crash=is_crash)):
                published[save(run, 3)] = 3
        except (PublishError, KeyboardInterrupt, Crashed) as error:
            raised = error
        where = f"call {at} of {total}: {raised}"
        directory = run / "checkpoint-6"
        live = live_generation(kt_slot(directory, run))
        if live not in published:
            assert raised is not None, where
            assert live_value(directory) == 3, where
        elif raised is not None and not is_crash:
            left = {path.name for path in directory.iterdir()} - {"optimizer.pt", INDEX_NAME}
            assert left == {shard_file(each, n) for each in published for n in (0, 1)}, where
        runs.check_nothing_lost(run, published, where)


@pytest.mark.parametrize(("make", "is_crash"), STOPS)
def test_a_roll_back_stopped_at_any_call_loses_nothing(
    tmp_path: Path, make: Callable[[], BaseException], is_crash: bool
) -> None:
    runs = Runs(tmp_path, 1, 2)
    run, published = runs.fresh()
    first, second = published
    total = calls_in(lambda: make_live(run / "checkpoint-6", first, run_dir=run))
    assert total > 20
    for at in range(1, total + 1):
        run, published = runs.fresh()
        first, second = published
        raised = None
        try:
            with fs.hooked(Stop(at, make, is_crash=is_crash)):
                make_live(run / "checkpoint-6", first, run_dir=run)
        except (OSError, KeyboardInterrupt, Crashed) as error:
            raised = error
        where = f"call {at} of {total}: {raised}"
        live = live_generation(kt_slot(run / "checkpoint-6", run))
        assert live == first or (raised is not None and live == second), where
        runs.check_nothing_lost(run, published, where)


@pytest.mark.parametrize(("make", "is_crash"), STOPS)
def test_a_prune_stopped_at_any_call_loses_nothing_else(
    tmp_path: Path, make: Callable[[], BaseException], is_crash: bool
) -> None:
    runs = Runs(tmp_path, 1, 2, 3)
    run, published = runs.fresh()
    first = next(iter(published))
    total = calls_in(lambda: prune_kt(run / "checkpoint-6", {first}, run_dir=run))
    for at in range(1, total + 1):
        run, published = runs.fresh()
        first = next(iter(published))
        del published[first]
        try:
            with fs.hooked(Stop(at, make, is_crash=is_crash)):
                prune_kt(run / "checkpoint-6", {first}, run_dir=run)
        except (OSError, Refused, KeyboardInterrupt, Crashed):
            pass
        where = f"call {at} of {total}"
        assert live_value(run / "checkpoint-6") == 3, where
        prune_kt(run / "checkpoint-6", {first}, run_dir=run)  # again: it is no error to go on
        assert not [path for path in (run / "checkpoint-6").iterdir() if first in path.name]
        runs.check_nothing_lost(run, published, where)


def test_shards_set_aside_by_a_prune_that_died_are_told_and_removed(run: Path) -> None:
    directory = run / "checkpoint-6"
    first, second = save(run, 1), save(run, 2)
    set_aside_kt(directory, [first], run_dir=run)
    os.utime(directory, ns=(1_000_000_000, 1_000_000_000))
    (slot,) = scan(run)
    assert [each.id for each in slot.generations] == [second]
    assert [(each.kind, each.reason) for each in slot.leftovers] == [
        ("trash", "being deleted"),
        ("trash", "being deleted"),
    ]
    assert drive(recover(run)) == ("checkpoint-6: removed shards that were set aside: 960 bytes",)
    assert directory.stat().st_mtime_ns == 1_000_000_000
    assert not [path for path in directory.iterdir() if first in path.name]
    assert live_value(directory) == 2


def test_of_several_writers_each_becomes_live_in_turn_and_none_is_lost(run: Path) -> None:
    barrier = threading.Barrier(4)
    saved: dict[str, int] = {}

    def write(value: int) -> None:
        barrier.wait()
        saved[save(run, value)] = value

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    directory = run / "checkpoint-6"
    live = live_at(run)
    assert len(saved) == 4
    assert saved[live or ""] == live_value(directory)
    retired = list_retired(directory, run_dir=run)
    assert {each.generation for each in retired} == saved.keys() - {live}
    assert all(each.missing == () for each in retired)
    changes = [entry.changes[0] for entry in reflog.read(run).entries]
    assert [each.before for each in changes] == [None, *(each.after for each in changes[:-1])]


# ---- the verbs --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    (directory / "checkpoint-6").mkdir(parents=True)
    (directory / "checkpoint-6" / "optimizer.pt").write_bytes(b"foreign")
    (directory / "checkpoint-6" / "trainer_state.json").write_text('{"global_step": 6}')
    return directory


def live_at(run: Path) -> str | None:
    return live_generation(kt_slot(run / "checkpoint-6", run))


def test_a_slot_goes_back_and_forth_and_its_directory_keeps_its_time(run: Path) -> None:
    directory = run / "checkpoint-6"
    first, second, third = save(run, 1), save(run, 2), save(run, 3)
    os.utime(directory, ns=(1_000_000_000, 1_000_000_000))
    before = snapshot(directory)
    drive(carry_out(plan_rollback(known(run))))
    assert (live_at(run), live_value(directory)) == (second, 2)
    drive(carry_out(plan_rollback(known(run), slot="checkpoint-6", to=first[:8])))
    assert (live_at(run), live_value(directory)) == (first, 1)
    drive(carry_out(plan_undo(known(run))))
    assert live_at(run) == second
    drive(carry_out(plan_undo(known(run))))
    assert live_at(run) == third
    assert snapshot(directory) == before
    drive(carry_out(plan_redo(known(run))))
    assert live_at(run) == second
    assert directory.stat().st_mtime_ns == 1_000_000_000
    assert sorted(path.name for path in run.iterdir()) == [".ckpt", "checkpoint-6"]
    (slot,) = scan(run)
    assert [(each.state, each.id) for each in slot.generations] == [
        (State.LIVE, second),
        (State.RETIRED, third),
        (State.RETIRED, first),
    ]


def test_a_final_save_in_the_runs_own_directory_goes_back_too(run: Path) -> None:
    save(run, 1)
    (run / "trainer_log.jsonl").write_text("")
    first, second = (drive(publish_kt(run, writer(value))).changes[0].after for value in (5, 6))
    slot = INDEX_NAME
    assert {each.name for each in scan(run)} == {"checkpoint-6", slot}
    drive(carry_out(plan_rollback(known(run), slot=slot)))
    assert (live_generation(kt_slot(run)), live_value(run)) == (first, 5)
    drive(carry_out(plan_undo(known(run))))
    assert (live_generation(kt_slot(run)), live_value(run)) == (second, 6)
    drive(carry_out(plan_undo(known(run))))
    assert (live_generation(kt_slot(run)), live_value(run)) == (first, 5)
    assert live_value(run / "checkpoint-6") == 1


def test_a_slot_of_other_layers_can_be_gone_back_to(run: Path) -> None:
    """Its own index was kept: the layers of the live one say nothing of those it had."""
    first = save(run, 1, (0, 1))
    save(run, 2, (0, 1, 2))
    (slot,) = scan(run)
    (retired,) = [each for each in slot.generations if each.state is State.RETIRED]
    assert (retired.id, retired.complete) == (first, True)
    assert (slot.leftovers, slot.generations[0].findings) == ((), ())
    drive(carry_out(plan_rollback(known(run))))
    assert (live_at(run), live_value(run / "checkpoint-6")) == (first, 1)


def test_a_retired_generation_that_lost_a_shard_is_told_so_and_refused(run: Path) -> None:
    """It has all layers of the live one; its own index says that it had one more."""
    first = save(run, 1, (0, 1, 2))
    save(run, 2, (0, 1))
    (run / "checkpoint-6" / shard_file(first, 2)).unlink()
    (slot,) = scan(run)
    assert (slot.generations[1].id, slot.generations[1].complete) == (first, False)
    with pytest.raises(Refused, match=f"generation {first} cannot be used: it is not whole"):
        plan_rollback(known(run), slot="checkpoint-6", to=first)


def test_a_withdrawn_checkpoint_comes_back_by_one_undo(run: Path) -> None:
    saved = save(run, 1)
    earlier = run / "checkpoint-3"
    drive(publish_kt(earlier, writer(4), run_dir=run))
    (earlier / "trainer_state.json").write_text('{"global_step": 3}')
    drive(carry_out(plan_withdraw(known(run), to_step=3)))
    assert not (run / "checkpoint-6").exists()
    drive(carry_out(plan_undo(known(run))))
    assert (live_at(run), live_value(run / "checkpoint-6")) == (saved, 1)


@pytest.mark.parametrize("make", [Crashed, lambda: OSError(5, "error")])
def test_a_roll_back_stopped_at_any_call_is_ended_by_recovery(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    runs = Runs(tmp_path, 1, 2)
    run, published = runs.fresh()
    plan = plan_rollback(known(run), slot="checkpoint-6")
    total = calls_in(lambda: drive(carry_out(plan)))
    for at in range(1, total + 1):
        run, published = runs.fresh()
        plan = plan_rollback(known(run), slot="checkpoint-6")
        try:
            with fs.hooked(Stop(at, make, is_crash=make is Crashed)):
                drive(carry_out(plan))
        except (CheckpointError, OSError, Crashed):
            pass
        where = f"call {at} of {total}"
        drive(recover(run))
        assert drive(recover(run)) == (), where
        entries = reflog.read(run).entries
        assert all(entry.outcome is not None for entry in entries), where
        done = [entry for entry in entries if entry.outcome == "done"]
        assert live_at(run) == done[-1].changes[0].after, where
        runs.check_nothing_lost(run, published, where)


def test_a_save_that_died_at_any_call_is_ended_by_recovery(tmp_path: Path) -> None:
    runs = Runs(tmp_path, 1, 2)
    run, published = runs.fresh()
    total = calls_in(lambda: save(run, 3))
    for at in range(1, total + 1):
        run, published = runs.fresh()
        try:
            with fs.hooked(Stop(at, Crashed, is_crash=True)):
                save(run, 3)
        except Crashed:
            pass
        where = f"call {at} of {total}"
        drive(recover(run))
        assert drive(recover(run)) == (), where
        done = [entry for entry in reflog.read(run).entries if entry.outcome == "done"]
        assert live_at(run) == done[-1].changes[0].after, where
        runs.check_nothing_lost(run, published, where)


# ---- power cuts -------------------------------------------------------------------------------


def keep_every_call(_call: fs.Call) -> bool:
    return False


def cut_off(
    run: Path, act: Callable[[Path], object], is_dropped: Callable[[fs.Call], bool]
) -> list[tuple[bool, dict[str, bytes | None]]]:
    """Return (whether the act had returned, the run) for all that power cuts may leave of it.

    Calls that are dropped are taken as not made.
    """
    before = take(run)
    calls: list[fs.Call] = []
    with fs.hooked(lambda call: calls.append(with_own_data(call))):
        act(run)
    dropped = [at for at, call in enumerate(calls) if is_dropped(call)]
    found = {}
    for made, picture in PowerCuts(str(run), before, calls, dropped).states():
        is_done = made == len(calls)
        found[is_done, mark(picture)] = is_done, picture
    return list(found.values())


def with_own_data(call: fs.Call) -> fs.Call:
    """A call whose data stays when its buffer is used again."""
    return replace(call, data=bytes(call.data)) if call.data is not None else call


def wrong_after_cuts(
    runs: Runs,
    act: Callable[[Path], object],
    is_dropped: Callable[[fs.Call], bool] = keep_every_call,
) -> list[str]:
    """What a power cut at any moment of an act on a run of two generations does wrong."""
    run, published = runs.fresh()
    was_live = live_at(run)
    states = cut_off(run, act, is_dropped)
    is_live = live_at(run)
    assert len(states) >= 8
    wrong = []
    for is_done, picture in states:
        place = run.with_name("cut")
        shutil.rmtree(place, ignore_errors=True)
        put(place, picture)
        try:
            live = live_at(place)
            assert live == is_live or (live == was_live and not is_done), f"live is {live}"
            runs.check_nothing_lost(place, published, "power cut")
        except (AssertionError, CheckpointError, KeyError) as error:
            wrong.append(f"done {is_done}: {error}")
    return wrong


@pytest.mark.parametrize("verb", ["save", "roll back"])
def test_a_power_cut_at_any_moment_loses_nothing(tmp_path: Path, verb: str) -> None:
    runs = Runs(tmp_path, 1, 2)
    assert wrong_after_cuts(runs, ACTS[verb]) == []


def roll_back(run: Path) -> None:
    drive(carry_out(plan_rollback(known(run), slot="checkpoint-6")))


ACTS = {"save": lambda run: save(run, 3), "roll back": roll_back}


@pytest.mark.parametrize(
    "name",
    [
        "kt_full_experts-",  # a shard's bytes
        ".kt_full_experts.index.json.new-",  # the index's bytes
        "checkpoint-6",  # the names of the shards, and of the index
    ],
)
def test_without_one_of_its_fsyncs_a_power_cut_would_lose_something(
    tmp_path: Path, name: str
) -> None:
    runs = Runs(tmp_path, 1, 2)

    def is_dropped(call: fs.Call) -> bool:
        is_sync = call.name in ("fsync", "fsync-directory")
        path = Path(call.path)
        return is_sync and path.name.startswith(name) and path.parent.name != "kt"

    assert wrong_after_cuts(runs, ACTS["save"], is_dropped) != []


def test_the_first_save_into_a_trainers_directory_is_not_undone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoint-5").mkdir(parents=True)
    (run / "checkpoint-5" / "trainer_state.json").write_text('{"global_step": 5}')
    drive(publish_kt(run / "checkpoint-5", writer(4), run_dir=run))
    before = snapshot(run)
    with pytest.raises(Refused, match="the first save into a directory that holds more"):
        plan_undo(known(run))
    assert snapshot(run) == before
