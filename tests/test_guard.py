"""Guarding: what trainers delete themselves can still be rolled back to, with every hash right."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kt_runs import live_value, writer
from samples import huggingface
from trees import put_checkpoint, snapshot, weights

from ckpt import fs, reflog
from ckpt.checkpoint import Generation, State, Verdict
from ckpt.errors import Refused
from ckpt.formats.kt_index import INDEX_NAME, shard_name
from ckpt.formats.kt_write import new_generation
from ckpt.generations import Known, carry_out, plan_rollback, plan_undo, recover, scan
from ckpt.generations.names import hidden
from ckpt.guard import Guard, guard
from ckpt.operation import Note, drive
from ckpt.retention import Policy, plan_prune, prune
from ckpt.verify import verify

ALL = Policy(keep_last=None)


def astrai_saves(run: Path, step: int, name: str = "latest") -> None:
    """Save as AstrAI does: stage, rename the live one away, rename into place, delete the old."""
    live, staging = run / name, run / f".{name}.tmp-abcdefg{step % 10}"
    put_checkpoint(staging, step)
    retired = run / f".{name}.retired-abcdefg{step % 10}"
    if live.exists():
        os.rename(live, retired)
    os.rename(staging, live)
    shutil.rmtree(retired, ignore_errors=True)


def kt_saves(run: Path, value: int) -> str:
    """Save as KT does: new shards, the index replaced, the superseded shards removed."""
    directory = run / "checkpoint-6"
    directory.mkdir(exist_ok=True)
    generation = new_generation()
    index = writer(value)(directory, generation)
    (directory / "index.tmp").write_bytes(index)
    os.replace(directory / "index.tmp", directory / INDEX_NAME)
    for path in directory.iterdir():
        named = shard_name(path.name)
        if named is not None and named[0] != generation:
            path.unlink()
    (directory / "trainer_state.json").write_text('{"global_step": 6}')
    return generation


def known(run: Path) -> Known:
    return Known(run, scan(run), reflog.read(run), 1e9)


def states(run: Path) -> list[tuple[State, int | None]]:
    return [(each.state, each.step) for slot in scan(run) for each in slot.generations]


def generations(run: Path) -> list[Generation]:
    (slot,) = scan(run)
    return list(slot.generations)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


# ---- AstrAI -----------------------------------------------------------------------------------


def test_after_each_save_the_one_before_can_be_rolled_back_to(run: Path) -> None:
    keeper = Guard(run)
    for step in range(1, 6):
        astrai_saves(run, step)
        assert len(keeper.look()) == (1 if step < 3 else 2)
        if step > 1:
            expected = [(State.LIVE, step), (State.RETIRED, step), (State.RETIRED, step - 1)]
            assert states(run) == expected
            plan = plan_rollback(known(run))
            assert plan.target is not None
            assert plan.target.step == step - 1
            assert drive(verify(plan.target.path)).verdict is Verdict.INTACT
    drive(carry_out(plan_rollback(known(run))))
    assert (run / "latest" / "model.safetensors").read_bytes() == weights(4.0)
    assert drive(verify(run / "latest")).verdict is Verdict.INTACT
    assert keeper.count == 5


def test_what_was_rolled_back_to_outlives_the_trainers_next_save(run: Path) -> None:
    keeper = Guard(run, keep=ALL)
    for step in (1, 2):
        astrai_saves(run, step)
        keeper.look()
    drive(carry_out(plan_rollback(known(run))))
    keeper.look()
    astrai_saves(run, 3)
    keeper.look()
    steps = [step for state, step in states(run) if state is State.RETIRED]
    assert set(steps) == {1, 2, 3}
    for each in generations(run):
        assert drive(verify(each.path)).verdict is Verdict.INTACT


def test_the_journal_tells_the_order_of_a_trainers_saves(run: Path) -> None:
    """Of one step, saved three times within a second, only the journal can tell it."""
    keeper = Guard(run, keep=ALL)
    for value in (3.0, 1.0, 2.0):
        live = run / "latest"
        shutil.rmtree(live, ignore_errors=True)
        put_checkpoint(run / ".latest.tmp-abcdefgh", 7, value)
        os.rename(run / ".latest.tmp-abcdefgh", live)
        keeper.look()
    found = [(each.path / "model.safetensors").read_bytes() for each in generations(run)]
    assert found == [weights(2.0), weights(2.0), weights(1.0), weights(3.0)]
    verbs = [(entry.verb, entry.changes[0].after) for entry in reflog.read(run).entries]
    assert [verb for verb, _ in verbs] == ["publish"] * 3
    assert verbs[-1][1] == generations(run)[0].id


def test_an_undo_takes_a_trainers_save_back(run: Path) -> None:
    keeper = Guard(run)
    for step in (1, 2):
        astrai_saves(run, step)
        keeper.look()
    drive(carry_out(plan_undo(known(run))))
    assert states(run)[0] == (State.LIVE, 1)


def test_a_link_to_what_is_live_is_no_target_and_never_pruned(run: Path) -> None:
    astrai_saves(run, 1)
    Guard(run).look()
    live, twin = generations(run)
    assert (twin.id, twin.state) == (f"{live.id}-2", State.RETIRED)
    with pytest.raises(Refused, match="no slot has a retired generation"):
        plan_rollback(known(run))
    with pytest.raises(Refused, match="is live already"):
        plan_rollback(known(run), slot="latest", to=live.id)
    assert plan_prune(known(run), Policy(keep_last=0)).removed == ()


def test_what_is_kept_takes_no_space_of_its_own(run: Path) -> None:
    astrai_saves(run, 1)
    Guard(run).look()
    live, twin = generations(run)
    for path in live.path.iterdir():
        assert path.samefile(twin.path / path.name)


def test_what_is_kept_is_as_private_as_what_is_live(run: Path) -> None:
    astrai_saves(run, 1)
    (run / "latest").chmod(0o700)
    Guard(run).look()
    assert generations(run)[1].path.stat().st_mode & 0o777 == 0o700


def test_freed_bytes_are_those_that_no_other_name_holds(run: Path) -> None:
    keeper = Guard(run, keep=ALL)
    for step in (1, 2):
        astrai_saves(run, step)
        keeper.look()
    drive(carry_out(plan_rollback(known(run))))
    before = sorted(each.path.name for each in generations(run) if each.state is State.RETIRED)
    assert len(before) == 2
    plan = plan_prune(known(run), Policy(keep_last=1))
    assert len(plan.removed) == 1
    assert drive(prune(plan)) == 0


def test_looking_again_keeps_nothing_twice(run: Path) -> None:
    keeper = Guard(run)
    astrai_saves(run, 1)
    assert len(keeper.look()) == 1
    before = snapshot(run)
    assert keeper.look() == ()
    assert Guard(run).look() == ()
    assert snapshot(run) == before


def test_a_metrics_file_that_comes_later_changes_nothing(run: Path) -> None:
    keeper = Guard(run)
    astrai_saves(run, 1)
    keeper.look()
    (run / "latest" / "metric.jsonl").write_text("{}\n")
    assert keeper.look() == ()
    assert drive(verify(generations(run)[1].path)).verdict is Verdict.INTACT


def test_a_save_that_is_not_whole_is_not_kept(run: Path) -> None:
    put_checkpoint(run / "latest", 1)
    (run / "latest" / "model.safetensors").unlink()
    assert Guard(run).look() == ()
    assert [path.name for path in run.iterdir()] == ["latest"]


def test_a_swap_in_the_middle_of_the_linking_leaves_nothing_half(run: Path) -> None:
    astrai_saves(run, 1)
    count = 0

    def swap(call: fs.Call) -> None:
        nonlocal count
        if call.name == "link":
            count += 1
            if count == 2:
                astrai_saves(run, 2)

    keeper = Guard(run)
    with fs.hooked(swap):
        assert keeper.look() == ()
    assert [path.name for path in run.glob(".latest.*")] == []
    assert len(keeper.look()) == 1
    assert states(run) == [(State.LIVE, 2), (State.RETIRED, 2)]


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


class At:
    """Meets the n-th call: with an error, or as a death that ends every later one too."""

    def __init__(self, at: int, *, is_death: bool) -> None:
        self.at, self.is_death, self.count = at, is_death, 0

    def __call__(self, call: fs.Call) -> None:
        self.count += 1
        if self.is_death and self.count >= self.at:
            raise Killed
        if self.count == self.at:
            raise OSError(errno.EIO, "Input/output error", call.path)


@pytest.mark.parametrize("is_death", [True, False], ids=["death", "error"])
@pytest.mark.parametrize("kind", ["astrai", "kt"])
def test_a_guard_hit_at_any_call_leaves_nothing_half(
    tmp_path: Path, kind: str, is_death: bool
) -> None:
    template = tmp_path / "template"
    template.mkdir()
    saves: Callable[[Path, int], object] = kt_saves if kind == "kt" else astrai_saves
    keeper = Guard(template)
    saves(template, 1)
    keeper.look()
    saves(template, 2)
    at = 1
    while True:
        run = tmp_path / f"run_{at}"
        copy_with_links(template, run)
        hook = At(at, is_death=is_death)
        hit = Guard(run)
        with suppress(Killed), fs.hooked(hook):
            hit.look()
        if hook.count < at:
            break
        whole = [each.complete for each in generations(run)]
        assert whole == [True] * len(whole)
        if is_death:
            drive(recover(run))
            Guard(run).look()
        else:
            hit.look()
        drive(carry_out(plan_rollback(known(run))))
        saved = run / ("checkpoint-6" if kind == "kt" else "latest")
        if kind == "kt":
            assert live_value(saved) == 1
        else:
            assert (saved / "model.safetensors").read_bytes() == weights(1.0)
            assert drive(verify(saved)).verdict is Verdict.INTACT
        kinds = {found.kind for path in run.rglob(".*") if (found := hidden(path.name))}
        assert kinds <= {"retired"}
        assert len(generations(run)) == 3 - (kind == "kt")
        at += 5 if at > 20 else 1
    assert at > 60


def copy_with_links(source: Path, target: Path) -> None:
    seen: dict[int, Path] = {}

    def copy(one: str, other: str) -> str:
        inode = os.stat(one).st_ino
        if inode in seen:
            os.link(seen[inode], other)
        else:
            shutil.copy2(one, other)
            seen[inode] = Path(other)
        return other

    shutil.copytree(source, target, copy_function=copy)


# ---- KT ---------------------------------------------------------------------------------------


def test_kt_shards_that_the_trainer_removed_come_back(run: Path) -> None:
    keeper = Guard(run, keep=ALL)
    ids = []
    for value in (1, 2, 3):
        ids.append(kt_saves(run, value))
        assert len(keeper.look()) == 1
    found = {each.id: (each.state, each.complete) for each in generations(run)}
    assert found == {
        ids[2]: (State.LIVE, True),
        ids[1]: (State.RETIRED, True),
        ids[0]: (State.RETIRED, True),
    }
    assert [each.id for each in generations(run)] == ids[::-1]
    time_before = (run / "checkpoint-6").stat().st_mtime_ns
    drive(carry_out(plan_rollback(known(run))))
    assert live_value(run / "checkpoint-6") == 2
    assert (run / "checkpoint-6").stat().st_mtime_ns == time_before
    drive(carry_out(plan_rollback(known(run), to=ids[0])))
    assert live_value(run / "checkpoint-6") == 1
    drive(carry_out(plan_undo(known(run))))
    assert live_value(run / "checkpoint-6") == 2


def test_kt_copies_age_out_by_the_policy(run: Path) -> None:
    keeper = Guard(run)
    for value in (1, 2, 3, 4):
        kt_saves(run, value)
        keeper.look()
    assert len(generations(run)) == 2
    kept = sorted(path.name for path in (run / ".ckpt" / "kt" / "checkpoint-6").iterdir())
    assert kept == sorted(
        name for each in generations(run) for name in (each.id, f"{each.id}.json")
    )
    drive(carry_out(plan_rollback(known(run))))
    assert live_value(run / "checkpoint-6") == 3


def test_a_kt_prune_frees_what_no_name_holds_any_more(run: Path) -> None:
    keeper = Guard(run, keep=ALL)
    for value in (1, 2):
        kt_saves(run, value)
        keeper.look()
    retired = generations(run)[1]
    plan = plan_prune(known(run), Policy(keep_last=0))
    assert [each.id for each in plan.removed] == [retired.id]
    assert drive(prune(plan)) == retired.size_bytes == plan.frees_bytes
    assert [each.state for each in generations(run)] == [State.LIVE]
    assert live_value(run / "checkpoint-6") == 2


# ---- what cannot be kept ----------------------------------------------------------------------


def test_what_is_written_in_place_is_refused_with_the_reason(run: Path) -> None:
    (run / "adapter.safetensors").write_bytes(weights(1.0))
    keeper = Guard(run)
    (sentence,) = keeper.look()
    assert sentence == (
        "adapter.safetensors: cannot be guarded: its trainer writes the file in place, "
        "so that a link changes too"
    )
    assert keeper.look() == ()
    assert [path.name for path in run.iterdir()] == ["adapter.safetensors"]


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.EPERM, "this file system has no hard links, or the files belong to somebody else"),
        (errno.EMLINK, "a file of it has as many names as the file system allows"),
        (errno.ENOSPC, "no space left on device"),
    ],
)
def test_where_no_link_can_be_made_it_says_so_once_and_leaves_nothing(
    run: Path, number: int, why: str
) -> None:
    astrai_saves(run, 1)

    def refuse(call: fs.Call) -> None:
        if call.name == "link":
            raise OSError(number, os.strerror(number), call.path)
        if call.name == "clone":
            raise OSError(errno.EOPNOTSUPP, "not supported", call.path)

    keeper = Guard(run)
    with fs.hooked(refuse):
        assert keeper.look() == (f"latest: cannot be kept: {why}",)
        assert keeper.look() == ()
    assert [path.name for path in run.glob(".latest.*")] == []
    assert len(keeper.look()) == 1


def test_our_own_saves_need_no_guard(run: Path) -> None:
    put_checkpoint(
        run / "latest", 1, ckpt={"v": 1, "generation": "0123456789ab", "slot": "latest"}
    )
    assert Guard(run).look() == ()


# ---- what a trainer removes altogether --------------------------------------------------------


def test_a_checkpoint_that_its_trainer_removed_is_withdrawn_not_broken(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Guard(run)
    for step in (1, 2, 3):
        astrai_saves(run, step, f"step_{step}")
    keeper.look()
    shutil.rmtree(run / "step_1")
    assert keeper.look() == ()
    monkeypatch.setattr("ckpt.guard.QUIET_S", 0.0)
    assert keeper.look() == ("step_1: removed by its trainer, kept as withdrawn",)
    shutil.rmtree(run / "step_2")
    told = keeper.look()
    assert told[0] == "step_2: removed by its trainer, kept as withdrawn"
    assert told[1].startswith("step_1: let go of generation ")
    assert [(slot.name, slot.state) for slot in scan(run)] == [
        ("step_3", State.LIVE),
        ("step_2", State.WITHDRAWN),
    ]


def test_a_publish_that_was_cut_off_is_left_to_recovery(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.guard.QUIET_S", 0.0)
    keeper = Guard(run)
    astrai_saves(run, 1)
    keeper.look()
    os.rename(run / "latest", run / ".latest.retired-abcdefgh")
    assert keeper.look() == ()
    assert scan(run)[0].state is State.BROKEN


def test_what_a_trainer_lost_altogether_is_recovered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in AstrAI's second rename deletes the new and the old checkpoint."""
    monkeypatch.setattr("ckpt.guard.QUIET_S", 0.0)
    keeper = Guard(run)
    astrai_saves(run, 1, "step_1")
    astrai_saves(run, 2, "step_2")
    keeper.look()
    shutil.rmtree(run / "step_2")
    assert keeper.look() == ()
    drive(recover(run))
    assert (run / "step_2" / "model.safetensors").read_bytes() == weights(2.0)
    assert [each for slot in scan(run) for each in slot.findings] == []


# ---- Hugging Face -----------------------------------------------------------------------------


def test_a_trainers_checkpoint_is_kept_when_it_is_whole_and_quiet(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = huggingface(run)
    (directory / "rng").mkdir()
    (directory / "rng" / "rng_state_0.pth").write_bytes(b"x")
    keeper = Guard(run)
    assert keeper.look() == ()
    monkeypatch.setattr("ckpt.guard.QUIET_S", 0.0)
    (sentence,) = keeper.look()
    assert sentence.startswith("checkpoint-8: kept generation ")
    (kept,) = run.glob(".checkpoint-8.retired-*")
    before = {str(path.relative_to(directory)): path.stat().st_ino for path in files(directory)}
    assert {str(path.relative_to(kept)): path.stat().st_ino for path in files(kept)} == before
    assert "rng/rng_state_0.pth" in before


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_what_holds_a_link_is_not_kept(run: Path) -> None:
    astrai_saves(run, 1)
    (run / "latest" / "tokenizer.json").symlink_to("/etc/passwd")
    assert Guard(run).look() == ()
    assert [path.name for path in run.glob(".latest.*")] == []


# ---- the operation ----------------------------------------------------------------------------


def test_it_goes_on_until_it_is_stopped_and_tells_what_it_keeps(run: Path) -> None:
    is_stopped = threading.Event()
    notes: list[str] = []
    is_kept = threading.Event()

    def note(event: object) -> None:
        assert isinstance(event, Note)
        notes.append(event.text)
        if "kept generation" in event.text:
            is_kept.set()

    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(
            drive(guard(run, is_stopped=is_stopped.is_set, poll_s=0.05), note)
        )
    )
    thread.start()
    for step in (1, 2):
        is_kept.clear()
        astrai_saves(run, step)
        assert is_kept.wait(30)
    is_stopped.set()
    thread.join(30)
    assert results == [2]
    assert notes[0] == f"guarding {run}: what is published there is kept by hard links"
    assert [note.rpartition(",")[2] for note in notes[1:]] == [" step 1", " step 2"]
    assert states(run)[-1] == (State.RETIRED, 1)


def test_an_interrupt_ends_it_and_leaves_nothing_half(run: Path) -> None:
    astrai_saves(run, 1)

    def interrupt(call: fs.Call) -> None:
        if call.name == "link" and call.path.endswith("model.safetensors"):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), fs.hooked(interrupt):
        drive(guard(run, poll_s=0.05))
    assert [path.name for path in run.glob(".latest.*")] == []
