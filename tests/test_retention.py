"""What stays and what goes: policies in tables, prunes that fail or die at every disk call."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kt_runs import live_value
from kt_runs import save as kt_save
from samples import floats
from trees import put_checkpoint, snapshot

from ckpt import fs, reflog
from ckpt.checkpoint import Depth, Finding, Generation, Severity, Slot, State, Verdict, Verified
from ckpt.control import pin
from ckpt.errors import Busy, CheckpointError, Refused, StalePlan
from ckpt.formats.astrai_write import write_checkpoint
from ckpt.generations import Known, Staging, carry_out, plan_rollback, publish, recover, scan
from ckpt.generations.names import hidden
from ckpt.lock import swap_lock
from ckpt.operation import Note, drive
from ckpt.reflog import Change, Entry, Journal, Outcome
from ckpt.retention import Policy, plan_prune, preview_prune, prune, retain
from ckpt.verify import verify

NOW = 10_000.0
RUN = Path("run")


# ---- policies ---------------------------------------------------------------------------------


def retired(name: str, step: int | None = None, **more: object) -> Generation:
    path = RUN / f".last.retired-{name}"
    values = {"step": step, "size_bytes": 10, "complete": True} | more
    return Generation(name, State.RETIRED, "astrai", path, **values)  # type: ignore[arg-type]  # literals of the tables below


def live(name: str = "live", step: int | None = None, **more: object) -> Generation:
    return replace(retired(name, step, **more), state=State.LIVE, path=RUN / "last")


def slot(*generations: Generation, name: str = "last", state: State = State.LIVE) -> Slot:
    return Slot(name, "astrai", RUN / name, state, generations)


def published(*ids: str, name: str = "last", verb: str = "publish", first: int = 1) -> Journal:
    """The journal of a slot that was published over and over, one save in a hundred seconds."""
    before: list[str | None] = [None, *ids]
    entries = tuple(
        Entry(
            first + at, 100.0 * (at + 1), verb, (Change(name, old, new),), "x", None, Outcome.DONE
        )
        for at, (old, new) in enumerate(zip(before, ids))  # noqa: B905 - the last one replaces none
    )
    return journal_of(entries)


def journal_of(entries: tuple[Entry, ...]) -> Journal:
    from ckpt.reflog import _by_slot

    return Journal(entries, slots=_by_slot(entries))


def going(
    policy: Policy, *slots: Slot, journal: Journal | None = None, now: float = NOW
) -> list[str]:
    plan = plan_prune(Known(RUN, slots, journal or Journal(), now), policy)
    assert [change.before for change in plan.changes] == [each.id for each in plan.removed]
    assert plan.frees_bytes == sum(each.size_bytes or 0 for each in plan.removed)
    return [each.id for each in plan.removed]


NOTHING_SET = Policy(keep_last=None)
FOUR = slot(
    live(step=50, loss=1.0),
    *[retired(f"r{step}", step, loss=loss) for step, loss in ((40, 4.0), (30, 2.0), (20, 3.0))],
)
JOURNAL_OF_FOUR = published("r20", "r30", "r40", "live")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(Policy(), ["r20", "r30"], id="the last one stays by default"),
        pytest.param(Policy(keep_last=2), ["r20"], id="last 2"),
        pytest.param(Policy(keep_last=9), [], id="more than there are"),
        pytest.param(Policy(keep_last=0), ["r20", "r30", "r40"], id="0 keeps none of the retired"),
        pytest.param(NOTHING_SET, [], id="no policy removes nothing"),
        pytest.param(Policy(keep_last=None, keep_best=1), ["r20", "r40"], id="best"),
        pytest.param(Policy(keep_best=1), ["r20"], id="one policy is enough to stay"),
        pytest.param(Policy(keep_last=None, keep_every=20), ["r30"], id="every 20 steps"),
        pytest.param(Policy(keep_last=None, keep_every=0), ["r20", "r30", "r40"], id="every 0"),
        pytest.param(Policy(keep_last=0, keep_best=0, keep_s=0), ["r20", "r30", "r40"], id="0s"),
        pytest.param(Policy(keep_last=None, max_bytes=30), [], id="within the limit"),
        pytest.param(Policy(keep_last=None, max_bytes=29), ["r20"], id="over: the oldest first"),
        pytest.param(Policy(keep_last=3, max_bytes=10), ["r20", "r30"], id="a limit on the kept"),
        pytest.param(
            Policy(keep_last=None, max_bytes=0), ["r20", "r30", "r40"], id="a limit of 0"
        ),
        # r40 was retired at 400 s, r30 at 300 s, r20 at 200 s
        pytest.param(Policy(keep_last=None, keep_s=9650), ["r20", "r30"], id="for a duration"),
        pytest.param(Policy(keep_last=None, keep_s=9750), ["r20"], id="for a longer one"),
    ],
)
def test_policies_compose(policy: Policy, expected: list[str]) -> None:
    assert going(policy, FOUR, journal=JOURNAL_OF_FOUR) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": -1}, {"keep_best": -2}, {"keep_every": -1}, {"keep_s": -0.5},
        {"max_bytes": -1}, {"keep_s": float("nan")},
    ],
)  # fmt: skip
def test_a_negative_number_is_refused_in_words(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(Refused) as caught:
        Policy(**wrong)  # type: ignore[arg-type]  # one of them by name
    assert caught.value.message == f"{name}: expected 0 or more, found {value}"


def test_a_metric_that_nothing_records_is_refused() -> None:
    with pytest.raises(Refused, match="metric: expected loss, found 'accuracy'"):
        Policy(keep_best=1, metric="accuracy")


def intact(depth: Depth = Depth.BYTES, verdict: Verdict = Verdict.INTACT) -> Verified:
    return Verified(verdict, depth, 1.0)


DAMAGED = Finding("hash-mismatch", Severity.ERROR, "model.safetensors: hash differs")
NONFINITE = Finding("nonfinite", Severity.WARNING, "loss is nan")


@pytest.mark.parametrize(
    ("generations", "reasons"),
    [
        pytest.param([live(), retired("a", pinned=True)], {"a": "pinned"}, id="pinned"),
        pytest.param(
            [live(verified=intact(verdict=Verdict.DAMAGED)), retired("a", verified=intact())],
            {"a": "the last one that is verified"},
            id="the last that is verified",
        ),
        pytest.param(
            [live(step=5), retired("b", 4), retired("a", 3, verified=intact())],
            {"a": "the last one that is verified"},
            id="older but verified",
        ),
        pytest.param(
            [live(step=5), retired("a", 3, verified=intact(Depth.HEADERS))],
            {},
            id="headers prove nothing",
        ),
        pytest.param(
            [live(findings=(DAMAGED,)), retired("b", 4), retired("a", 3)],
            {"b": "the last whole one: none is verified"},
            id="none verified: the last whole one",
        ),
        pytest.param(
            [live(verified=intact(), findings=(NONFINITE,)), retired("a", verified=intact())],
            {"a": "the last one that is verified"},
            id="what is not finite is not good",
        ),
        pytest.param(
            [live(verified=intact(), loss=float("nan")), retired("a", verified=intact())],
            {"a": "the last one that is verified"},
            id="a loss that is none",
        ),
        pytest.param(
            [live(), retired("a", complete=False), retired("b", findings=(DAMAGED,))],
            {
                "a": "damaged or not whole: goes only when that is asked for",
                "b": "damaged or not whole: goes only when that is asked for",
            },
            id="damaged ones only when asked for",
        ),
        pytest.param(
            [live("x"), retired("x-2"), retired("x-old")],
            {"x-2": "the same as what is live"},
            id="the live one under a second name",
        ),
    ],
)
def test_no_policy_removes_what_always_stays(
    generations: list[Generation], reasons: dict[str, str]
) -> None:
    for policy in (Policy(keep_last=0), Policy(keep_last=0, max_bytes=0)):
        preview = preview_prune(Known(RUN, [slot(*generations)], Journal(), NOW), policy)
        assert {each.generation.id: each.reason for each in preview.kept} == reasons
        rest = {each.id for each in generations[1:]} - reasons.keys()
        assert {each.id for each in preview.plan.removed} == rest


def test_damaged_ones_do_not_count_and_go_when_asked_for() -> None:
    generations = [
        live(step=9),
        retired("bad", 8, complete=False),
        retired("a", 7),
        retired("b", 6),
    ]
    assert going(Policy(keep_last=1), slot(*generations)) == ["b"]
    asked = Policy(keep_last=1, is_damaged_too=True)
    assert sorted(going(asked, slot(*generations))) == ["b", "bad"]


def test_what_an_undo_needs_stays_and_a_trainers_own_saves_do_not() -> None:
    rolled_back = Entry(4, 400.0, "rollback", (Change("last", "c", "b"),), "x", None, Outcome.DONE)
    entries = (*published("a", "b", "c").entries, rolled_back)
    it = slot(live("b"), retired("c"), retired("a"))
    preview = preview_prune(Known(RUN, [it], journal_of(entries), NOW), Policy(keep_last=0))
    assert [each.id for each in preview.plan.removed] == ["a"]
    assert [(k.generation.id, k.reason) for k in preview.kept] == [
        ("c", "needed to undo what was done")
    ]


def test_a_swap_that_was_cut_off_keeps_what_it_was_about() -> None:
    pending = Entry(2, 200.0, "publish", (Change("last", "a", "b"),), "x")
    journal = journal_of((*published("a").entries, pending))
    it = replace(slot(live("b"), retired("a"), retired("0")), interrupted=("a", "b"))
    assert going(Policy(keep_last=0), it, journal=journal) == ["0"]
    broken = slot(retired("a"), retired("0"), state=State.BROKEN)
    assert going(Policy(keep_last=0), broken) == []


def test_the_live_one_and_what_is_staged_never_go() -> None:
    staged = replace(retired("s"), state=State.SEALED)
    trash = replace(retired("t"), state=State.TRASH)
    assert going(Policy(keep_last=0), slot(live(), staged, trash)) == []


def test_withdrawn_ones_count_like_retired_ones() -> None:
    withdrawn = replace(retired("w", 9), state=State.WITHDRAWN)
    gone = slot(withdrawn, retired("a", 8), name="last", state=State.WITHDRAWN)
    other = slot(live("o", 10), name="other")
    assert going(Policy(), gone, other) == ["a"]


# ---- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [lambda step: 1.0, lambda step: 1e6 - step])
def test_order_is_by_number_never_by_text_or_time(times: Callable[[int], float]) -> None:
    steps = [*range(9000, 10000, 100), 10000]
    generations = [retired(f"s{step}", step, created_at=times(step)) for step in steps]
    it = slot(live(step=10100), *generations)
    assert going(Policy(keep_last=2), it) == [f"s{step}" for step in steps[:-2]]


def test_across_slots_the_oldest_goes_first_by_number() -> None:
    slots = [
        slot(live(f"l{step}", step), retired(f"r{step}"), name=f"checkpoint-{step}")
        for step in (9900, 10000, 9000)
    ]
    assert going(Policy(keep_last=None, max_bytes=10), *slots) == ["r9000", "r9900"]


def test_the_journal_is_believed_before_the_steps() -> None:
    """A new run in an old directory saves lower steps than what lies there."""
    it = slot(live("new", 100), retired("old", 700), retired("newer", 90))
    assert going(Policy(keep_last=1), it, journal=published("old", "newer", "new")) == []
    only_by_step = [live("new", 100), retired("old", 700), retired("newer", 90)]
    assert going(Policy(keep_last=1), slot(*only_by_step)) == ["newer"]
    three = slot(live("new", 100), retired("old", 70), retired("newer", 90))
    assert going(Policy(keep_last=1), three, journal=published("old", "newer", "new")) == ["old"]


def test_where_the_order_is_not_known_all_of_them_are_the_last() -> None:
    it = slot(live(), retired("a"), retired("b"), retired("c"))
    assert going(Policy(keep_last=1), it) == []
    assert going(Policy(keep_last=0), it) == ["a", "b", "c"]


def test_only_one_slot_can_be_asked_about() -> None:
    one = slot(live("l1", 5), retired("a", 2), retired("b", 1), name="one")
    two = slot(live("l2", 5), retired("c", 2), retired("d", 1), name="two")
    known = Known(RUN, [one, two], Journal(), NOW)
    assert [each.id for each in plan_prune(known, Policy(), slot="two").removed] == ["d"]
    preview = preview_prune(known, Policy(), slot="two")
    assert {(k.generation.id, k.reason) for k in preview.kept} == {
        ("a", "among the last 1 of its slot"),
        ("b", "of another slot"),
        ("c", "among the last 1 of its slot"),
    }


# ---- on the disk ------------------------------------------------------------------------------

META = {"epoch": 0, "timestamp": "2026-12-01T07:00:00"}


def save(run: Path, step: int, name: str = "last") -> str:
    def write(staging: Staging) -> None:
        meta = {**META, "optimizer_step": step, "save": step}
        write_checkpoint(staging.path, meta, {}, [floats("w", float(step))], origin=staging.origin)

    (change,) = drive(publish(run / name, write, run_dir=run)).changes
    assert change.after is not None
    return change.after


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five saves under one name."""
    return saved_five(tmp_path / "run")


def saved_five(run: Path) -> Path:
    run.mkdir()
    for step in range(1, 6):
        save(run, step)
    return run


def payloads(run: Path) -> dict[str, bytes | None]:
    """All but what tells who held the lock last."""
    return {name: data for name, data in snapshot(run).items() if name != ".ckpt/lock"}


def known(run: Path) -> Known:
    return Known(run, scan(run), reflog.read(run), NOW)


def steps_in(run: Path) -> dict[State, list[int | None]]:
    found: dict[State, list[int | None]] = {}
    for it in scan(run):
        for each in it.generations:
            found.setdefault(each.state, []).append(each.step)
    return found


def test_what_goes_is_gone_and_the_rest_is_as_it_was(run: Path) -> None:
    before = snapshot(run)
    plan = plan_prune(known(run), Policy(keep_last=2))
    assert [each.step for each in plan.removed] == [1, 2]
    assert snapshot(run) == before
    notes: list[object] = []
    freed = drive(prune(plan), notes.append)
    assert freed == plan.frees_bytes > 0
    assert notes == [Note("pruning 2 of last")]
    assert steps_in(run) == {State.LIVE: [5], State.RETIRED: [4, 3]}
    after = snapshot(run)
    gone = {each.path.name for each in plan.removed}
    assert {name.split("/")[0] for name in before.keys() - after.keys()} == gone
    assert all(after[name] == before[name] for name in after if not name.startswith(".ckpt"))
    last = reflog.read(run).entries[-1]
    assert (last.verb, last.outcome) == ("prune", Outcome.DONE)
    assert [change.before for change in last.changes] == [each.id for each in plan.removed]


def test_nothing_to_prune_leaves_no_trace(run: Path) -> None:
    before = snapshot(run)
    assert drive(prune(plan_prune(known(run), Policy(keep_last=9)))) == 0
    assert snapshot(run) == before


def test_three_saves_of_one_step_in_one_second_keep_their_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    ids = [save(run, 7) for _ in range(4)]
    plan = plan_prune(known(run), Policy(keep_last=1))
    assert [each.id for each in plan.removed] == ids[:2]


def test_a_single_file_goes_too(tmp_path: Path) -> None:
    from ckpt.tensorwriter import write_tensors

    run = tmp_path / "run"
    run.mkdir()
    for value in range(3):
        drive(
            publish(
                run / "adapter.safetensors",
                lambda staging, value=value: write_tensors(staging.path, [floats("w", value)]),
                run_dir=run,
                is_file=True,
            )
        )
    drive(prune(plan_prune(known(run), Policy())))
    assert [each.state for each in scan(run)[0].generations] == [State.LIVE, State.RETIRED]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(
            lambda run, path: os.rename(path, run / "away"), "not where it was", id="gone"
        ),
        pytest.param(lambda run, path: pin(run, path.name.split("-")[1]), "pinned", id="pinned"),
        pytest.param(
            lambda run, path: drive(
                carry_out(plan_rollback(known(run), to=path.name.split("-")[1]))
            ),
            "not where it was",
            id="live again",
        ),
    ],
)
def test_a_plan_that_the_disk_has_left_behind_is_refused_whole(
    run: Path, change: Callable[[Path, Path], object], why: str
) -> None:
    plan = plan_prune(known(run), Policy(keep_last=1))
    change(run, plan.removed[-1].path)
    before = payloads(run)
    with pytest.raises(StalePlan, match=why):
        drive(prune(plan))
    assert payloads(run) == before


def test_what_is_needed_to_undo_since_is_not_removed(run: Path) -> None:
    plan = plan_prune(known(run), Policy(keep_last=0))
    drive(carry_out(plan_rollback(known(run), to=plan.removed[0].id)))
    drive(carry_out(plan_rollback(known(run), to=plan.removed[1].id)))
    rest = replace(plan, changes=plan.changes[:1], removed=plan.removed[:1])
    before = payloads(run)
    with pytest.raises(StalePlan):
        drive(prune(rest))
    assert payloads(run) == before


def test_a_prune_waits_for_nobody_long(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.retention.pruning.BUSY_WAIT_S", 0.01)
    plan = plan_prune(known(run), Policy())
    with swap_lock(run, "rollback"), pytest.raises(Busy, match=r"rollback \(pid"):
        drive(prune(plan))
    assert steps_in(run) == {State.LIVE: [5], State.RETIRED: [4, 3, 2, 1]}


def test_a_link_is_never_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "model.safetensors").write_bytes(b"mine")
    plan = plan_prune(known(run), Policy())
    (plan.removed[0].path / "link").symlink_to(tmp_path / "precious")
    drive(prune(plan))
    assert (tmp_path / "precious" / "model.safetensors").read_bytes() == b"mine"
    assert not plan.removed[0].path.exists()


# ---- what dies, what fails --------------------------------------------------------------------


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


CHANGING = frozenset(
    {"append", "create", "describe", "fsync", "fsync-directory", "mkdir", "rename", "rmdir",
     "unlink", "write"}
)  # fmt: skip


class At:
    """Meets the n-th call that changes the disk (or any), and as a death every later one too."""

    def __init__(self, at: int, number: int | None, *, is_any: bool = False) -> None:
        self.at, self.number, self.is_any, self.count = at, number, is_any, 0

    def __call__(self, call: fs.Call) -> None:
        self.count += self.is_any or call.name in CHANGING
        if self.count == self.at and self.number is not None:
            self.count += 1
            raise OSError(self.number, os.strerror(self.number), call.path)
        if self.count >= self.at and self.number is None:
            raise Killed


def rest_is_whole(run: Path, before: dict[str, bytes | None]) -> None:
    """Each generation is as it was, or one that was to go is gone; nobody offers half of one."""
    for it in scan(run):
        for each in it.generations:
            if each.state is not State.TRASH:
                assert drive(verify(each.path)).verdict is Verdict.INTACT
            assert each.path.parent == run
    found = steps_in(run)
    assert found[State.LIVE] == [5]
    assert found[State.RETIRED][0] == 4
    assert set(found[State.RETIRED]) <= {4, 3, 2, 1}
    after = snapshot(run)
    for name, data in before.items():
        first = name.split("/")[0]
        if not first.startswith("."):
            assert after.get(name) == data


@pytest.mark.parametrize(
    ("number", "is_any"),
    [
        pytest.param(None, False, id="death"),
        pytest.param(errno.EIO, True, id="EIO"),
        pytest.param(errno.EBUSY, False, id="EBUSY"),
        pytest.param(errno.ENOTEMPTY, False, id="ENOTEMPTY"),
        pytest.param(errno.ENOSPC, False, id="ENOSPC"),
    ],
)
def test_a_prune_that_is_hit_at_any_call_loses_only_what_was_to_go(
    tmp_path: Path, number: int | None, is_any: bool
) -> None:
    template = saved_five(tmp_path / "template")
    before = snapshot(template)
    total = 0
    for at in range(1, 1000, 4 if is_any else 1):
        run = tmp_path / f"run_{at}"
        shutil.copytree(template, run)
        plan = plan_prune(known(run), Policy())
        hook = At(at, number, is_any=is_any)
        with suppress(Killed, CheckpointError), fs.hooked(hook):
            drive(prune(plan))
        if hook.count < at:
            break
        total += 1
        rest_is_whole(run, before)
        drive(recover(run))
        rest_is_whole(run, before)
        drive(prune(plan_prune(known(run), Policy())))
        assert steps_in(run) == {State.LIVE: [5], State.RETIRED: [4]}
        assert left_in(run) == []
        assert not reflog.read(run).pending
    assert total > 20


def test_a_prune_of_shards_that_dies_at_any_call_loses_only_what_was_to_go(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    for value in (1, 2, 3, 4):
        kt_save(template, value)
    (template / "checkpoint-6" / "trainer_state.json").write_text('{"global_step": 6}')
    total = 0
    for at in range(1, 1000, 2):
        run = tmp_path / f"run_{at}"
        shutil.copytree(template, run)
        plan = plan_prune(known(run), Policy())
        assert len(plan.removed) == 2
        hook = At(at, None)
        with suppress(Killed), fs.hooked(hook):
            drive(prune(plan))
        if hook.count < at:
            break
        total += 1
        assert live_value(run / "checkpoint-6") == 4
        drive(recover(run))
        drive(prune(plan_prune(known(run), Policy())))
        (it,) = scan(run)
        assert [(each.state, each.complete) for each in it.generations] == [
            (State.LIVE, True),
            (State.RETIRED, True),
        ]
        assert it.leftovers == ()
        drive(carry_out(plan_rollback(known(run))))
        assert live_value(run / "checkpoint-6") == 3
    assert total > 6


def left_in(run: Path) -> list[str]:
    return [path.name for path in run.glob(".last.*") if hidden(path.name).kind != "retired"]  # type: ignore[union-attr]  # the glob says so


def busy() -> Callable[[fs.Call], None]:
    """Refuse to remove directories: NFS keeps a file in them for somebody who reads it."""

    def refuse(call: fs.Call) -> None:
        if call.name == "rmdir" and ".trash-" in call.path:
            raise OSError(errno.EBUSY, "Device or resource busy", call.path)

    return refuse


def test_what_cannot_be_deleted_yet_is_told_and_gone_the_next_time(run: Path) -> None:
    events: list[object] = []
    with fs.hooked(busy()):
        drive(prune(plan_prune(known(run), Policy(keep_last=2))), events.append)
    texts = [event.text for event in events if isinstance(event, Note)]
    assert len(texts) == 3
    assert all(text.endswith("deleted later: a reader holds its files open") for text in texts[1:])
    assert len(left_in(run)) == 2
    assert [each.step for it in scan(run) for each in it.generations] == [5, 4, 3]
    assert drive(prune(plan_prune(known(run), Policy(keep_last=1)))) > 0
    assert left_in(run) == []


# ---- what a saver does ------------------------------------------------------------------------


def test_a_saver_keeps_the_last_retired_one(run: Path) -> None:
    assert retain(run, Policy(), slot="last") > 0
    assert steps_in(run) == {State.LIVE: [5], State.RETIRED: [4]}
    assert retain(run, Policy(), slot="last") == 0


def test_a_saver_deletes_much_in_a_thread_of_its_own(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.retention.pruning.QUICK_BYTES", 1)
    is_seen = threading.Event()
    may_go_on = threading.Event()

    def wait(call: fs.Call) -> None:
        if call.name == "unlink" and ".trash-" in call.path:
            is_seen.set()
            assert may_go_on.wait(30)

    with fs.hooked(wait):
        assert retain(run, Policy(), slot="last") > 0
        assert is_seen.wait(30)
        assert steps_in(run)[State.RETIRED] == [4]
        assert len(left_in(run)) == 3
        with swap_lock(run, "publish"):
            may_go_on.set()
        (thread,) = [each for each in threading.enumerate() if each.name == "prune"]
        thread.join(30)
    assert left_in(run) == []


def test_a_saver_leaves_other_slots_alone(run: Path) -> None:
    for step in (1, 2, 3):
        save(run, step, "other")
    retain(run, Policy(), slot="last")
    (other,) = [it for it in scan(run) if it.name == "other"]
    assert [each.step for each in other.generations] == [3, 2, 1]


def test_a_saver_that_fails_to_prune_warns_and_goes_on(run: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "rename":
            raise OSError(errno.EACCES, "Permission denied", call.path)

    with fs.hooked(refuse), pytest.warns(RuntimeWarning, match="the save is done, but nothing"):
        assert retain(run, Policy(), slot="last") == 0
    assert steps_in(run) == {State.LIVE: [5], State.RETIRED: [4, 3, 2, 1]}


def test_what_another_program_saved_is_pruned_like_ours(tmp_path: Path) -> None:
    run = tmp_path / "run"
    put_checkpoint(run / "last", 3)
    for step in (1, 2):
        put_checkpoint(run / f".last.retired-abcdefg{step}", step)
    drive(prune(plan_prune(known(run), Policy())))
    assert steps_in(run) == {State.LIVE: [3], State.RETIRED: [2]}
