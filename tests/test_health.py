"""Verdicts: one view a row, the verdict and its words written out."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from ckpt.checkpoint import Depth, Finding, Generation, Severity, Slot, State, Verdict, Verified
from ckpt.health import judge, silence_s, stall_after_s
from ckpt.history import Row
from ckpt.pace import pace_between
from ckpt.run import (
    AtRisk,
    Disk,
    HealthState,
    RowsRead,
    RunProcess,
    RunView,
    Source,
    SourceRead,
    Warned,
    apply,
)

NOW = 1_000_000.0
PATH = "run/metrics.jsonl"
ALIVE = RunProcess(8123, "here", NOW - 5000, is_alive=True)
GONE = RunProcess(8123, "here", NOW - 5000, is_alive=False)


def trained(
    losses: list[float], *, every_s: float = 0.5, age_s: float = 1.0, total: int | None = None
) -> RunView:
    """A run with one loss a step, the last `age_s` ago."""
    end = NOW - age_s
    count = len(losses)
    rows = [
        Row(step, end - (count - step) * every_s, {"loss": loss})
        for step, loss in enumerate(losses, start=1)
    ]
    values = {"step": count, "loss": losses[-1], "total_steps": total}
    source = Source(
        PATH, "metrics", end, NOW, cadence_s=every_s, longest_gap_s=every_s, values=values
    )
    return apply(RunView(run=Path("run")), [RowsRead(PATH, rows, PATH), SourceRead(source)])


def source(**fields: object) -> RunView:
    """A run with one state file and no history."""
    known: dict[str, object] = {"modified_at": NOW - 10.0, "values": {"step": 50}}
    made = Source("run/training_state.json", "training-state", **{**known, **fields})  # type: ignore[arg-type] - a table's fields
    return apply(RunView(run=Path("run")), [SourceRead(made)])


def saved(step: int, **fields: object) -> Slot:
    known: dict[str, object] = {"created_at": NOW - 100, "size_bytes": 100, "complete": True}
    live = Generation(
        "g1",
        State.LIVE,
        "astrai",
        Path(f"run/step_{step}"),
        step,
        **{**known, **fields},  # type: ignore[arg-type] - a table's fields
    )
    return Slot(f"step_{step}", "astrai", live.path, State.LIVE, (live,))


def test_an_empty_run_says_what_it_waits_for() -> None:
    view = judge(RunView(run=Path("run")), NOW)
    assert view.health.state is HealthState.WAITING
    awaited = "training_state.json, metrics.jsonl, trainer_log.jsonl or a checkpoint"
    assert view.health.reasons == (f"nothing here yet; waiting for {awaited}",)
    assert view.advice is None


GOOD = [2.0 - step / 1000 for step in range(200)]
VERDICTS = [
    pytest.param(trained(GOOD), HealthState.TRAINING, "metrics.jsonl changed just now", id="live"),
    pytest.param(
        trained(GOOD, age_s=59.0),
        HealthState.TRAINING,
        "metrics.jsonl changed just now",
        id="quiet within a minute",
    ),
    pytest.param(
        trained(GOOD, age_s=180.0),
        HealthState.STALLED,
        "metrics.jsonl has not changed for 3 min; it changes every 0.5 s",
        id="quiet beyond its own cadence",
    ),
    pytest.param(
        trained(GOOD, every_s=60.0, age_s=180.0),
        HealthState.TRAINING,
        "metrics.jsonl changed 3 min ago",
        id="the same silence is nothing for a slower file",
    ),
    pytest.param(
        trained(GOOD, total=200),
        HealthState.FINISHED,
        "step 200 of 200 is done",
        id="all steps are done",
    ),
    pytest.param(
        source(values={"step": 50, "finished": True}),
        HealthState.FINISHED,
        "training_state.json records the end of training",
        id="the file says that it ended",
    ),
    pytest.param(
        replace(
            source(values={"step": 50, "finished": True}), process=replace(ALIVE, started_at=NOW)
        ),
        HealthState.TRAINING,
        "process 8123 is alive",
        id="it ended, and was started again since",
    ),
    pytest.param(
        replace(trained(GOOD), process=GONE),
        HealthState.DEAD,
        "process 8123 on this host (here) is gone",
        id="its process is gone",
    ),
    pytest.param(
        replace(trained(GOOD, total=200), process=GONE),
        HealthState.FINISHED,
        "step 200 of 200 is done",
        id="its process is gone because it was done",
    ),
    pytest.param(
        replace(trained(GOOD, age_s=500.0), process=RunProcess(8123, "elsewhere", NOW)),
        HealthState.STALLED,
        "metrics.jsonl has not changed for 8 min; it changes every 0.5 s",
        id="a process of another host says nothing",
    ),
    pytest.param(
        trained([*GOOD, *[math.nan] * 5]),
        HealthState.DIVERGED,
        "the loss is NaN since step 201 (5 points); the best was 1.8010",
        id="NaN that lasts",
    ),
    pytest.param(
        trained([*GOOD, math.nan, 1.8]),
        HealthState.TRAINING,
        "metrics.jsonl changed just now",
        id="one NaN is no divergence",
    ),
    pytest.param(
        trained([*GOOD, *[90.0 + step for step in range(12)]]),
        HealthState.DIVERGED,
        "the loss has risen to 101.0000 since step 203, far above anything before",
        id="exploding",
    ),
    pytest.param(
        trained([*GOOD, 90.0, 1.8]),
        HealthState.TRAINING,
        "metrics.jsonl changed just now",
        id="one spike is no divergence",
    ),
    pytest.param(
        replace(trained(GOOD), saving_at=NOW - 0.5),
        HealthState.SAVING,
        "a checkpoint is being written",
        id="saving",
    ),
    pytest.param(
        replace(trained(GOOD, age_s=1.0), saving_at=NOW - 30),
        HealthState.TRAINING,
        "metrics.jsonl changed just now",
        id="a left-over staging directory is no save",
    ),
    pytest.param(
        source(modified_at=NOW - 3000),
        HealthState.UNKNOWN,
        "training_state.json changed 50 min ago",
        id="silence without a cadence proves nothing",
    ),
    pytest.param(
        source(modified_at=NOW + 1200),
        HealthState.UNKNOWN,
        "the clock of training_state.json is ahead of this host's: its age is unknown",
        id="a clock ahead is not fresh for ever",
    ),
    pytest.param(
        source(values={}, error="run/training_state.json: not JSON", error_since=NOW - 9),
        HealthState.UNKNOWN,
        "run/training_state.json: not JSON",
        id="nothing but an unreadable file",
    ),
]


@pytest.mark.parametrize(("view", "state", "reason"), VERDICTS)
def test_verdicts(view: RunView, state: HealthState, reason: str) -> None:
    judged = judge(view, NOW)
    assert (judged.health.state, judged.health.reasons[0]) == (state, reason)


@pytest.mark.parametrize("view", [case.values[0] for case in VERDICTS])
def test_judging_twice_is_judging_once(view: RunView) -> None:
    assert judge(judge(view, NOW), NOW) == judge(view, NOW)


def test_a_trainer_that_writes_only_at_saves_is_not_called_stalled_too_early() -> None:
    fields = {"cadence_s": 600.0, "longest_gap_s": 700.0, "writes_only_at_saves": True}
    early = judge(source(modified_at=NOW - 1800, **fields), NOW)
    assert early.health.state is HealthState.TRAINING
    assert early.health.reasons[1] == "the trainer writes only at saves"
    late = judge(source(modified_at=NOW - 2200, **fields), NOW)
    assert late.health.state is HealthState.STALLED


def test_a_file_whose_clock_is_ahead_ages_by_when_we_saw_it_change() -> None:
    view = source(modified_at=NOW + 1200, changed_at=NOW - 40)
    assert silence_s(view, NOW) == 40
    assert [warned.code for warned in judge(view, NOW).warnings] == ["clock-ahead"]


def test_copied_files_teach_no_cadence() -> None:
    fields = {"cadence_s": 0.001, "longest_gap_s": 0.002, "writes_only_at_saves": True}
    assert stall_after_s(source(**fields)) is None


def test_a_pause_where_an_evaluation_is_due_is_an_evaluation() -> None:
    view = trained(GOOD, age_s=30.0)
    rows = [Row(step, NOW - 400 + step, {"eval_loss": 2.0}) for step in (50, 100, 150)]
    view = apply(view, [RowsRead(PATH, rows, PATH)])
    judged = judge(view, NOW)
    assert judged.health.state is HealthState.EVALUATING
    assert judged.health.reasons == ("quiet at step 200, where an evaluation is due",)


def test_a_process_that_is_gone_while_somebody_goes_on_writing_is_an_older_one() -> None:
    view = trained(GOOD, age_s=1.0)
    seen_gone_at = replace(GONE, gone_at=NOW - 60)
    assert judge(replace(view, process=seen_gone_at), NOW).health.state is HealthState.TRAINING
    just_now = replace(GONE, gone_at=NOW - 0.5)
    assert judge(replace(view, process=just_now), NOW).health.state is HealthState.DEAD


# ---- pace ---------------------------------------------------------------------------------------


def marks(seconds: list[float], start: float = 0.25) -> list[tuple[float, int]]:
    """(time, step) of steps that took so long."""
    times = [start]
    for each in seconds:
        times.append(times[-1] + each)
    return [(time, step) for step, time in enumerate(times)]


@pytest.mark.parametrize(
    ("took", "median", "gaps"),
    [
        pytest.param([2.0] * 10, 2.0, 0.0, id="even"),
        pytest.param([2.0] * 5 + [3600.0] + [2.0] * 5, 2.0, 0.0, id="one pause is forgotten"),
        pytest.param(([2.0] * 9 + [22.0]) * 2, 2.0, 1.0, id="saves widen the error"),
    ],
)
def test_pace(took: list[float], median: float, gaps: float) -> None:
    pace = pace_between(marks(took))
    assert pace is not None
    assert (pace.seconds_per_step, pace.gaps) == (median, gaps)


def test_whole_second_stamps_still_tell_the_pace_of_fast_steps() -> None:
    stamped = {}
    for step in range(400):
        stamped.setdefault(float(int(step * 0.4)), step)  # 2.5 steps a second
    pace = pace_between(sorted(stamped.items()))
    assert pace is not None
    assert abs(pace.seconds_per_step - 0.4) < 0.01


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_marks_tell_no_pace(count: int) -> None:
    assert pace_between(marks([2.0] * 5)[:count]) is None


def test_rate_and_what_remains_are_our_own() -> None:
    view = judge(trained(GOOD, every_s=0.5, total=1200), NOW)
    assert view.steps_per_second == pytest.approx(2.0)
    assert view.eta_seconds == pytest.approx(500.0)
    assert view.eta_error_seconds == pytest.approx(0.0, abs=1.0)
    assert view.loss_trend == pytest.approx(-0.068, abs=0.001)


def test_the_rate_is_that_of_the_newest_segment() -> None:
    view = trained(GOOD, every_s=0.5)
    rows = [Row(100 + step, NOW + step * 4.0, {"loss": 1.0}) for step in range(20)]
    assert judge(apply(view, [RowsRead(PATH, rows, PATH)]), NOW).steps_per_second == 0.25


def test_without_times_the_rate_is_that_from_save_to_save() -> None:
    slots = tuple(saved(step, created_at=NOW - 1000 + step) for step in (100, 200, 300, 400))
    view = judge(replace(source(values={"step": 400, "total_steps": 500}), slots=slots), NOW)
    assert (view.steps_per_second, view.eta_seconds) == (1.0, 100.0)


def test_a_run_that_does_not_move_has_no_rate() -> None:
    view = judge(trained(GOOD, age_s=900.0, total=1000), NOW)
    assert (view.steps_per_second, view.eta_seconds) == (None, None)


# ---- checkpoints --------------------------------------------------------------------------------

BROKEN = Finding("truncated", Severity.ERROR, "model.safetensors: cut short")
INTACT = Verified(Verdict.INTACT, Depth.BYTES, NOW)


def with_slots(*slots: Slot, step: int = 450, **fields: object) -> RunView:
    view = source(values={"step": step})
    return judge(replace(view, slots=slots, **fields), NOW)  # type: ignore[arg-type] - a table's fields


@pytest.mark.parametrize(
    ("slots", "risk"),
    [
        pytest.param((), AtRisk(450, None), id="no checkpoint"),
        pytest.param((saved(400),), AtRisk(50, 90.0), id="since the newest"),
        pytest.param((saved(300), saved(450)), AtRisk(0, 0.0), id="just saved"),
        pytest.param(
            (saved(300, created_at=NOW - 500), saved(400, findings=(BROKEN,))),
            AtRisk(150, 490.0),
            id="a damaged one does not count",
        ),
        pytest.param(
            (saved(300, created_at=NOW - 500), saved(400, complete=False)),
            AtRisk(150, 490.0),
            id="a half one does not count",
        ),
        pytest.param((saved(400, complete=None),), AtRisk(50, 90.0), id="an unproven one does"),
        pytest.param(
            (saved(300, created_at=NOW - 500), saved(900)),
            AtRisk(150, 490.0),
            id="one from before a restart, further than the run",
        ),
        pytest.param((saved(400, created_at=NOW + 1200),), AtRisk(50, 0.0), id="no negative time"),
    ],
)
def test_what_is_at_risk(slots: tuple[Slot, ...], risk: AtRisk) -> None:
    assert with_slots(*slots).at_risk == risk


INTERRUPTED = Finding("interrupted-publish", Severity.ERROR, "step_400 is missing; whole in x")
DAMAGED = Verified(Verdict.DAMAGED, Depth.BYTES, NOW)


def interrupted(**staged: object) -> Slot:
    """A name without a payload: step 400 in staging, step 300 retired."""
    new = replace(saved(400, **staged).generations[0], id="new", state=State.SEALED)
    old = replace(saved(300).generations[0], id="old", state=State.RETIRED)
    return replace(saved(400), state=State.BROKEN, generations=(new, old), findings=(INTERRUPTED,))


def withdrawn() -> Slot:
    return replace(interrupted(), state=State.WITHDRAWN, findings=())


@pytest.mark.parametrize(
    ("slot", "steps", "advice"),
    [
        (interrupted(), 50, "step_400 is missing; step_400@new is usable"),
        (interrupted(verified=DAMAGED), 150, "step_400 is missing; step_400@old is usable"),
        (withdrawn(), 450, "no checkpoint here can be used"),
    ],
)
def test_a_payload_behind_a_missing_name_is_usable_and_said(
    slot: Slot, steps: int, advice: str
) -> None:
    view = with_slots(slot)
    assert view.at_risk.steps == steps
    assert view.advice is not None
    assert view.advice.message == advice


def test_what_a_damaged_checkpoint_replaced_is_usable() -> None:
    retired = replace(saved(300).generations[0], id="old", state=State.RETIRED)
    damaged = saved(400, verified=DAMAGED)
    view = with_slots(replace(damaged, generations=(*damaged.generations, retired)))
    assert view.at_risk.steps == 150
    assert view.advice is not None
    assert view.advice.message == "step_400 is damaged; step_400@old is usable"


def test_newest_verified_is_the_furthest_whose_bytes_were_compared() -> None:
    quick = Verified(Verdict.INTACT, Depth.HEADERS, NOW)
    slots = (saved(100, verified=INTACT), saved(200, verified=INTACT), saved(300, verified=quick))
    assert with_slots(*slots).newest_verified == "step_200@g1"


def test_saves_left_are_counted_by_the_largest_of_the_newest_saves() -> None:
    view = with_slots(saved(1, size_bytes=100), saved(2, size_bytes=250), disk=Disk(1000))
    assert view.disk == Disk(1000, 250, 4)


ADVICE: list[tuple[Mapping[str, object], str | None, str | None]] = [
    ({"slots": (saved(400, verified=INTACT),)}, None, None),
    ({"slots": (saved(400),)}, "never-verified", "V"),
    ({"slots": (saved(400, findings=(BROKEN,)),)}, "damaged", "enter"),
    ({"slots": (saved(400, complete=False),)}, "no-usable-checkpoint", "enter"),
    ({"slots": (saved(400),), "disk": Disk(50)}, "disk-full", None),
    ({"slots": (saved(400),), "disk": Disk(250)}, "disk-low", None),
    ({"slots": (saved(400),), "process": GONE, "disk": Disk(50)}, "dead", "enter"),
    ({"process": GONE}, "dead", None),
    ({"is_reachable": False, "process": GONE}, "run-unreachable", None),
    ({"noticed": {"set": (Warned("torn-set", "42 beside 50"),)}}, "torn-set", None),
]


@pytest.mark.parametrize(("fields", "code", "key"), ADVICE)
def test_advice_is_one_line_the_worst_first(
    fields: Mapping[str, object], code: str | None, key: str | None
) -> None:
    view = judge(replace(source(values={"step": 450}), **fields), NOW)  # type: ignore[arg-type] - a table's fields
    advice = view.advice
    assert (advice.code if advice else None, advice.key if advice else None) == (code, key)
    assert advice is None or "\n" not in advice.message


def test_an_unreadable_file_is_named_with_the_time_since_when() -> None:
    view = source(error="run/training_state.json: not JSON at line 1", error_since=0.0)
    judged = judge(view, NOW)
    assert judged.warnings[0].code == "unreadable-source"
    assert judged.warnings[0].message.startswith("unreadable since ")
    assert judged.warnings[0].message.endswith(": run/training_state.json: not JSON at line 1")
    assert judged.step == 50


def test_a_name_and_a_state_that_tell_two_steps_are_reported() -> None:
    slot = replace(saved(26), name="checkpoint-45")
    assert with_slots(slot).warnings == (
        Warned(
            "name-mismatch",
            "checkpoint-45: holds step 26, another than its name says",
            "run/step_26",
        ),
    )


def test_a_sketch_says_that_it_is_one() -> None:
    view = apply(source(), [RowsRead(PATH, [Row(1, NOW, {"loss": 1.0})], PATH, is_sketch=True)])
    assert judge(view, NOW).warnings[0].code == "sketch"


def test_a_view_without_sources_but_with_checkpoints_is_unknown() -> None:
    view = replace(RunView(run=Path("run")), slots=(saved(5),), task=MappingProxyType({}))
    assert judge(view, NOW).health.state is HealthState.UNKNOWN
