"""Power cuts: the model itself against small traces, then every action of the protocol."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from ckpt import fs
from ckpt.selftest.crashes import calls_of
from ckpt.selftest.powercut import PowerCuts
from ckpt.selftest.scenarios import OVER, ROLL_BACK, SCENARIOS, Scenario
from ckpt.selftest.suites import (
    Case,
    Stage,
    Traced,
    stages,
    traced,
    traced_recoveries,
    traced_successors,
)
from ckpt.selftest.tree import Picture, put, take

Call = fs.Call


def left(before: Picture, *trace: Call, made: int | None = None) -> list[dict[str, bytes | None]]:
    """What a cut after the whole trace (or its first calls) may leave, each once."""
    cuts = PowerCuts("/r", before, trace)
    found: list[dict[str, bytes | None]] = []
    for state in cuts.states_after(len(trace) if made is None else made):
        if state not in found:
            found.append(state)
    return sorted(found, key=repr)


# ---- the model --------------------------------------------------------------------------------


def test_what_was_written_and_not_synced_may_be_empty_or_gone() -> None:
    create, write = Call("create", "/r/a"), Call("write", "/r/a", 2, data=b"xy")
    assert left({}, create, write) == [{"a": b""}, {"a": b"xy"}, {}]


def test_a_synced_file_may_still_have_no_name() -> None:
    calls = Call("create", "/r/a"), Call("write", "/r/a", 2, data=b"xy"), Call("fsync", "/r/a")
    assert left({}, *calls) == [{"a": b"xy"}, {}]
    assert left({}, *calls, Call("fsync-directory", "/r")) == [{"a": b"xy"}]


def test_an_fsync_of_the_directory_does_not_keep_what_is_in_the_file() -> None:
    calls = (
        Call("create", "/r/a"),
        Call("write", "/r/a", 2, data=b"xy"),
        Call("fsync-directory", "/r"),
    )
    assert left({}, *calls) == [{"a": b""}, {"a": b"xy"}]


def test_of_two_writes_the_first_alone_may_be_lost() -> None:
    calls = (
        Call("create", "/r/a"),
        Call("fsync-directory", "/r"),
        Call("write", "/r/a", 1, data=b"x"),
        Call("write", "/r/a", 1, data=b"y"),
    )
    assert left({}, *calls) == [{"a": b""}, {"a": b"\0y"}, {"a": b"x"}, {"a": b"xy"}]


def test_reserved_space_reads_as_zeros() -> None:
    calls = Call("create", "/r/a"), Call("fsync-directory", "/r"), Call("reserve", "/r/a", 3)
    assert left({}, *calls) == [{"a": b""}, {"a": b"\0\0\0"}]
    assert left({}, *calls, Call("write", "/r/a", 1, data=b"x"), Call("fsync", "/r/a")) == [
        {"a": b"x\0\0"}
    ]


def test_a_later_rename_may_be_kept_where_an_earlier_one_is_lost() -> None:
    """What makes the fsync between the two renames of the fallback necessary."""
    before = {"N": None, "N/old": b"1", "T": None, "T/new": b"2"}
    away, there = Call("rename", "/r/R", other="/r/N"), Call("rename", "/r/N", other="/r/T")
    lost_for_good = {"N": None, "N/new": b"2"}
    assert lost_for_good in left(before, away, there)
    synced = left(before, away, Call("fsync-directory", "/r"), there)
    assert synced == [
        {"N": None, "N/new": b"2", "R": None, "R/old": b"1"},
        {"R": None, "R/old": b"1", "T": None, "T/new": b"2"},
    ]


def test_an_exchange_is_kept_or_lost_as_one() -> None:
    before = {"a": b"1", "b": b"2"}
    assert left(before, Call("exchange", "/r/b", other="/r/a")) == [
        {"a": b"1", "b": b"2"},
        {"a": b"2", "b": b"1"},
    ]


def test_a_replacement_keeps_a_whole_file_only_when_it_was_synced_first() -> None:
    create, write = Call("create", "/r/t"), Call("write", "/r/t", 1, data=b"2")
    sync, rename = Call("fsync", "/r/t"), Call("rename", "/r/a", other="/r/t")
    before = {"a": b"1"}
    contents = {state["a"] for state in left(before, create, write, rename)}
    assert contents == {b"1", b"2", b""}
    contents = {state["a"] for state in left(before, create, write, sync, rename)}
    assert contents == {b"1", b"2"}


def test_a_file_moved_between_directories_is_in_one_of_them() -> None:
    before = {"d": None, "e": None, "d/a": b"1"}
    rename = Call("rename", "/r/e/a", other="/r/d/a")
    whole = [
        {"d": None, "d/a": b"1", "e": None},
        {"d": None, "e": None, "e/a": b"1"},
    ]
    assert left(before, rename) == whole
    assert left(before, rename, Call("fsync-directory", "/r/d")) == whole
    both = Call("fsync-directory", "/r/d"), Call("fsync-directory", "/r/e")
    assert left(before, rename, *both) == [whole[1]]


def test_an_unlink_is_durable_with_its_directory() -> None:
    unlink = Call("unlink", "/r/a")
    assert left({"a": b"1"}, unlink) == [{"a": b"1"}, {}]
    assert left({"a": b"1"}, unlink, Call("fsync-directory", "/r")) == [{}]


def test_calls_that_must_have_failed_change_nothing() -> None:
    before = {"a": b"1", "d": None, "d/x": b"2", "e": None}
    calls = [
        Call("create", "/r/a"),
        Call("mkdir", "/r/d"),
        Call("rename", "/r/d", other="/r/e"),
        Call("rename", "/r/b", other="/r/nothing"),
        Call("unlink", "/r/nothing"),
        Call("exchange", "/r/a", other="/r/nothing"),
        Call("link", "/r/d/x", other="/r/a"),
        Call("write", "/elsewhere/a", 1, data=b"9"),
    ]
    assert left(before, *calls) == [before]


def test_a_cut_in_the_middle_knows_nothing_of_what_comes_later() -> None:
    calls = Call("mkdir", "/r/d"), Call("fsync-directory", "/r"), Call("mkdir", "/r/e")
    assert left({}, *calls, made=1) == [{"d": None}, {}]
    assert left({}, *calls, made=2) == [{"d": None}]


def test_the_model_agrees_with_a_real_disk(tmp_path: Path) -> None:
    before = {"a": b"1", "d": None, "d/x": b"2", "e": None}
    root = put(tmp_path / "root", before)

    def act(_directory: Path) -> None:
        fs.replace_bytes(root / "a", b"new")
        fs.append_bytes(root / "log", b"line\n")
        fs.append_bytes(root / "log", b"line\n")
        fs.rename(root / "d", root / "e")
        with fs.NewFile(root / "e" / "y") as file:
            file.reserve(6)
            file.write(b"abc")
            file.write(b"def")
        fs.link(root / "e" / "y", root / "z")
        fs.truncate(root / "z", 4)
        fs.exchange(root / "a", root / "e")
        fs.rename_to_free_name(root / "z", root / "q")
        fs.make_directory(root / "p" / "q", parents=True)
        fs.remove_tree(root / "a" / "x")

    cuts = PowerCuts(str(root), before, calls_of(act, root))
    assert cuts.after == take(root)
    assert list(cuts.states_after(0)) == [before]
    assert take(root) in list(cuts.states_after(cuts.length))


# ---- the protocol -----------------------------------------------------------------------------

IS_FULL = os.environ.get("CKPT_FULL_SUITES") == "1"
FOLLOWED = SCENARIOS if IS_FULL else (ROLL_BACK,)


def tell(cases: Iterable[Case]) -> int:
    """Count the states; the first in which something is wrong fails the test, in full."""
    count = 0
    for case in cases:
        count += 1
        assert case.wrong == (), case
    print(f"{count} states")
    return count


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_no_power_cut_takes_back_what_was_reported(tmp_path: Path, scenario: Scenario) -> None:
    for stage in stages(tmp_path, scenario):
        assert tell(traced(stage).cuts()) > 2


@pytest.mark.parametrize("scenario", FOLLOWED, ids=lambda each: each.name)
def test_no_power_cut_in_or_after_a_recovery_does(tmp_path: Path, scenario: Scenario) -> None:
    for stage in stages(tmp_path, scenario):
        assert tell(case for each in traced_recoveries(stage) for case in each.cuts()) > 20


@pytest.mark.skipif(not IS_FULL, reason="takes minutes: CKPT_FULL_SUITES=1 runs it")
@pytest.mark.parametrize("scenario", FOLLOWED, ids=lambda each: each.name)
def test_no_power_cut_in_a_save_after_a_death_does(tmp_path: Path, scenario: Scenario) -> None:
    if scenario.is_broken:
        pytest.skip("a save over a broken slot is a recovery of its own")
    for stage in stages(tmp_path, scenario):
        assert tell(case for each in traced_successors(stage) for case in each.cuts()) > 20


def test_a_missing_fsync_is_noticed_wherever_it_is_needed(tmp_path: Path) -> None:
    """Each fsync of a save over a live name is left out in turn.

    The other three keep what two of a kind, a save after a death, or a reader before any recovery
    relies on.
    """
    trace = traced(Stage(tmp_path, OVER, is_exchange=False))
    needed = {_role(trace, at) for at in trace.syncs() if trace.needed(at)}
    assert needed == {
        "fsync model.safetensors",
        "fsync meta.json",
        "fsync config.json",
        "fsync .manifest.json.new",
        "fsync reflog",
        "fsync-directory run, between the renames",
    }


def _role(trace: Traced, at: int) -> str:
    call = trace.calls[at]
    name = Path(call.path).name.partition("-")[0]
    if (call.name, name) != ("fsync-directory", "run"):
        return f"{call.name} {name}"
    swaps = [each for each in trace.calls[:at] if each.name == "rename" and "step_1" in each.path]
    published = [each for each in swaps if "manifest" not in each.path]
    return f"{call.name} run, " + ("before", "between", "after")[len(published)] + " the renames"
