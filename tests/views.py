"""Hand-made views: one run in every state that a screen must be right in. No disk."""

import json
import math
from pathlib import Path

from ckpt.checkpoint import (
    Depth,
    Finding,
    Generation,
    Leftover,
    Severity,
    Slot,
    State,
    Verdict,
    Verified,
)
from ckpt.history import Segment
from ckpt.reflog import Change, Entry, Journal, Outcome
from ckpt.series import Series, SeriesView
from ckpt.view import (
    Advice,
    AtRisk,
    Disk,
    Health,
    HealthState,
    RunView,
    Source,
    Warned,
    Watching,
)

NOW = 1_764_590_400.0
RUN = Path("runs/exp1")
STATE_FILE = "runs/exp1/training_state.json"


def state_file(step: int) -> str:
    """What ferrotensor writes as `training_state.json`."""
    return json.dumps(
        {
            "step": step,
            "total_steps": 100,
            "best_loss": 1.25,
            "lr": 0.0001,
            "epoch": 1,
            "batch_size": 2,
            "grad_accum_steps": 8,
            "sequence_length": 128,
            "fp16": True,
            "train_modules": "lora",
        }
    )


def loss_at(step: int) -> float:
    """A curve that falls, with a little of everything but no noise that a seed would change."""
    return 1.7 + 1.4 * math.exp(-step / 3000) + 0.03 * math.sin(step / 70)


def loss_series(
    last_step: int, *, every: int = 20, nan_at: frozenset[int] = frozenset()
) -> Series:
    series = Series()
    for step in range(every, last_step + 1, every):
        value = math.nan if step in nan_at else loss_at(step)
        series.append(0, step, NOW - (last_step - step) * 0.43, value)
    return series


def generation(
    step: int, *, name: str = "live", state: State = State.LIVE, **more: object
) -> Generation:
    values: dict[str, object] = {
        "format": "astrai",
        "path": RUN / f"step_{step}",
        "step": step,
        "loss": loss_at(step),
        "created_at": NOW - (12_400 - step) * 0.43,
        "size_bytes": 1_234_567_890,
        "file_count": 3,
        "tensor_count": 291,
        "complete": True,
        **more,
    }
    return Generation(id=name, state=state, **values)  # type: ignore[arg-type]


def slot(step: int, *generations: Generation, **more: object) -> Slot:
    values: dict[str, object] = {
        "format": "astrai",
        "path": RUN / f"step_{step}",
        "state": State.LIVE,
        **more,
    }
    return Slot(
        name=f"step_{step}",
        generations=generations or (generation(step),),
        **values,  # type: ignore[arg-type]
    )


def verified(verdict: Verdict, minutes_ago: int = 2) -> Verified:
    return Verified(verdict, Depth.BYTES, NOW - 60 * minutes_ago)


DAMAGE = Finding(
    "hash-mismatch",
    Severity.ERROR,
    "model.safetensors: sha256 differs from the manifest's",
    file="model.safetensors",
    tensor="layers.17.up_proj",
)

GOOD_SLOT = slot(
    12_000,
    generation(12_000, name="c41d07", verified=verified(Verdict.INTACT)),
    generation(
        12_000,
        name="a1b2c3",
        state=State.RETIRED,
        path=RUN / ".step_12000.retired-a1b2c3",
        loss=1.9104,
        created_at=NOW - 3720,
    ),
)


def published(sequence: int, name: str, before: str | None, after: str) -> Entry:
    return Entry(
        sequence,
        NOW - 60 * (10 - sequence),
        "publish",
        (Change(name, before, after),),
        "publish (pid 8123 on gpu7)",
        outcome=Outcome.DONE,
    )


def healthy() -> RunView:
    """Everything is known and well."""
    series = loss_series(12_400)
    return RunView(
        run=RUN,
        step=12_400,
        total_steps=50_000,
        epoch=0.8,
        loss=1.8342,
        loss_trend=-0.012,
        eval_loss=1.9012,
        best_loss=1.8201,
        best_step=12_100,
        learning_rate=2e-4,
        grad_norm=0.81,
        steps_per_second=2.31,
        eta_seconds=16_260.0,
        eta_error_seconds=360.0,
        updated_at=NOW - 3,
        seen_at=NOW,
        health=Health(HealthState.TRAINING, ("a step every 0.4 s",)),
        sources=(
            Source(STATE_FILE, "training-state", modified_at=NOW - 3, read_at=NOW, cadence_s=1.0),
        ),
        values_from={"step": STATE_FILE, "loss": STATE_FILE},
        series={"loss": series.view()},
        segments=(Segment(20, 12_400, STATE_FILE),),
        task={"task": "sft", "adapter": "lora r16", "dtype": "bf16"},
        watching=Watching("events"),
        slots=(GOOD_SLOT, slot(11_000), slot(10_000)),
        journal=Journal(
            (
                published(1, "step_11000", None, "live"),
                published(2, "step_12000", None, "a1b2c3"),
                published(3, "step_12000", "a1b2c3", "c41d07"),
            )
        ),
        newest_verified="step_12000@c41d07",
        at_risk=AtRisk(400, 180.0),
        disk=Disk(50_600_000_000, 1_234_567_890, 41),
    )


def changed(view: RunView, **more: object) -> RunView:
    """The same view with other values."""
    from dataclasses import replace

    return replace(view, **more)  # type: ignore[arg-type]


def stalled() -> RunView:
    return changed(
        healthy(),
        health=Health(HealthState.STALLED, ("no step for 14 min; one took 0.4 s before",)),
        updated_at=NOW - 840,
        steps_per_second=None,
        eta_seconds=None,
        eta_error_seconds=None,
        advice=Advice("stalled", "no step for 14 min: look at the trainer's log"),
    )


def diverged() -> RunView:
    series = loss_series(12_400, nan_at=frozenset(range(12_200, 12_401)))
    return changed(
        healthy(),
        loss=math.nan,
        loss_nonfinite=series.nonfinite,
        loss_trend=None,
        series={"loss": series.view()},
        health=Health(HealthState.DIVERGED, ("the loss is NaN since step 12,200",)),
        advice=Advice("diverged", "the loss is NaN since step 12,200; step_12000 is before it"),
    )


def damaged() -> RunView:
    bad = slot(
        11_000,
        generation(11_000, verified=verified(Verdict.DAMAGED, 5), findings=(DAMAGE,)),
    )
    return changed(
        healthy(),
        slots=(GOOD_SLOT, bad, slot(10_000)),
        advice=Advice("damaged", "step_11000 is damaged; step_12000 is verified", key="enter"),
    )


def torn() -> RunView:
    """The state file is half-written for longer than a write takes, and a save died half-way."""
    reason = "training_state.json: no whole JSON for 2 min; the values are the last good ones"
    half = slot(
        12_400,
        generation(12_400, complete=False, size_bytes=412_000_000, tensor_count=None),
        leftovers=(
            Leftover(RUN / ".step_12400.staging-8123", "staging", "its writer, pid 8123, is gone"),
        ),
    )
    return changed(
        healthy(),
        slots=(half, GOOD_SLOT),
        warnings=(Warned("torn-state", reason, STATE_FILE),),
        sources=(
            Source(
                STATE_FILE,
                "training-state",
                modified_at=NOW - 120,
                read_at=NOW,
                error="half-written",
            ),
        ),
    )


def empty() -> RunView:
    """The run's directory is there and nothing is in it."""
    return RunView(
        run=RUN,
        seen_at=NOW,
        health=Health(
            HealthState.WAITING, ("nothing in the run yet: waiting for its first file",)
        ),
        watching=Watching("events"),
    )


def no_run() -> RunView:
    """The directory is not there, or not any more."""
    return changed(
        empty(),
        is_reachable=False,
        watching=Watching("polling", "the run's directory is not there"),
    )


def gone() -> RunView:
    """The directory went away while it was being watched: what was known is kept."""
    return changed(
        healthy(),
        is_reachable=False,
        watching=Watching("polling", "the run's directory is not there"),
        warnings=(Warned("unreachable", "the run is not reachable since 3 min; history is kept"),),
    )


def many_slots(count: int = 300) -> RunView:
    steps = range(count * 40, 0, -40)
    return changed(healthy(), slots=tuple(slot(step) for step in steps))


def hostile() -> RunView:
    """Names and texts as an attacker, or a careless script, would write them."""
    names = [
        "[/data/x]",
        "\x1b]0;PWNED\x07",
        "two\nlines",
        "\u202egnp.exe",
        "\udcff\udcfe",
        "n" * 255,
    ]
    return changed(
        healthy(),
        run=Path("runs/[@click=app.quit]x\x1b[31m"),
        slots=tuple(_named(100 * at, name) for at, name in enumerate(names, 1)),
        advice=Advice("x", "[bold]not bold[/] \x1b[2J"),
        health=Health(HealthState.TRAINING, ("[/]",)),
        task={"model_path": "[/data/x]", "note": "\x9b31m"},
    )


def _named(step: int, name: str) -> Slot:
    path = RUN / name
    return Slot(
        name=name,
        format="astrai",
        path=path,
        state=State.LIVE,
        generations=(generation(step, path=path),),
    )


def without_points(view: RunView) -> RunView:
    return changed(view, series={"loss": SeriesView(Series(), 0)})


ALL = {
    "healthy": healthy,
    "stalled": stalled,
    "nan": diverged,
    "damaged": damaged,
    "torn": torn,
    "empty": empty,
    "no_run": no_run,
    "gone": gone,
    "300_slots": many_slots,
    "hostile": hostile,
}
