"""The documents of `ckpt --json`: every key written out, for each schema."""

import json
import math
from pathlib import Path
from typing import Any

from ckpt.checkpoint import (
    Checkpoint,
    Damage,
    Depth,
    FileEntry,
    Finding,
    Generation,
    Leftover,
    Report,
    Severity,
    Slot,
    State,
    Tensor,
    Verdict,
    Verified,
)
from ckpt.errors import NoSuchRun
from ckpt.history import Segment
from ckpt.present.shapes import error_json, list_json, show_json, status_json, verify_json
from ckpt.series import Series
from ckpt.view import Advice, AtRisk, Disk, Health, HealthState, RunView, Source, Warned, Watching

NOW = 1_764_590_400.0
SAVED = "2025-12-01T12:00:00+00:00"

STATUS_KEYS = [
    "schema", "run", "health", "step", "total_steps", "epoch", "loss", "loss_nonfinite",
    "loss_trend", "eval_loss", "best_loss", "best_step", "learning_rate", "grad_norm",
    "steps_per_second", "eta_seconds", "eta_error_seconds", "updated_at", "sources", "values_from",
    "points", "segments", "task", "watching", "slots", "newest_verified", "at_risk", "disk",
    "advice", "warnings", "gpus", "cause_of_death",
]  # fmt: skip
GENERATION_KEYS = [
    "id", "state", "format", "path", "step", "epoch", "loss", "created_at", "size_bytes",
    "file_count", "tensor_count", "verified", "pinned", "complete", "findings", "finite",
]  # fmt: skip
SLOT_KEYS = ["name", "format", "path", "state", "generations", "leftovers", "findings"]
SHOW_KEYS = [
    "schema", "path", "format", "format_label", "step", "epoch", "complete", "files", "tensors",
    "metadata", "settings", "findings",
]  # fmt: skip
REPORT_KEYS = [
    "path", "format", "depth", "verdict", "findings", "bytes_read", "seconds", "damage",
    "sealed_at",
]  # fmt: skip
FINDING_KEYS = ["code", "severity", "file", "tensor", "message", "hint"]
ERROR_KEYS = ["schema", "code", "message", "path", "hint"]

FINDING = Finding("symlink", Severity.ERROR, "a\udcff: a link", "a\udcff", None, "copy the file")
FINDING_SHAPE = {
    "code": "symlink",
    "severity": "error",
    "file": "a\\xff",
    "tensor": None,
    "message": "a\\xff: a link",
    "hint": "copy the file",
}
SLOT = Slot(
    "step_1",
    "astrai",
    Path("run/step_1"),
    State.LIVE,
    (
        Generation(
            "c41d07",
            State.LIVE,
            "astrai",
            Path("run/step_1"),
            step=1,
            epoch=0.5,
            loss=math.inf,
            created_at=NOW,
            size_bytes=12,
            file_count=3,
            tensor_count=2,
            verified=Verified(Verdict.INTACT, Depth.BYTES, NOW),
            pinned=True,
            complete=True,
            findings=(FINDING,),
        ),
        Generation("b", State.RETIRED, "astrai", Path("run/.step_1.retired-b")),
    ),
    (Leftover(Path("run/.step_1.tmp-a"), "staging", "its writer died"),),
    (FINDING,),
)
SLOT_SHAPE = {
    "name": "step_1",
    "format": "astrai",
    "path": "run/step_1",
    "state": "live",
    "generations": [
        {
            "id": "c41d07",
            "state": "live",
            "format": "astrai",
            "path": "run/step_1",
            "step": 1,
            "epoch": 0.5,
            "loss": None,
            "created_at": SAVED,
            "size_bytes": 12,
            "file_count": 3,
            "tensor_count": 2,
            "verified": {"verdict": "intact", "depth": "bytes", "at": SAVED},
            "pinned": True,
            "complete": True,
            "findings": [FINDING_SHAPE],
            "finite": None,
        },
        {
            "id": "b",
            "state": "retired",
            "format": "astrai",
            "path": "run/.step_1.retired-b",
            "step": None,
            "epoch": None,
            "loss": None,
            "created_at": None,
            "size_bytes": None,
            "file_count": None,
            "tensor_count": None,
            "verified": None,
            "pinned": False,
            "complete": None,
            "findings": [],
            "finite": None,
        },
    ],
    "leftovers": [{"path": "run/.step_1.tmp-a", "kind": "staging", "reason": "its writer died"}],
    "findings": [FINDING_SHAPE],
}


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """Through text and back, as a reader that refuses what is no JSON would."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = json.dumps(document, allow_nan=False)
    parsed: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert parsed == document
    return parsed


# ---- shapes ---------------------------------------------------------------------------------


def test_a_status_whose_every_value_is_known() -> None:
    losses = Series()
    losses.append(0, 1, NOW, 2.5)
    losses.append(1, 1, NOW, math.nan)
    view = RunView(
        run=Path("run"),
        step=10,
        total_steps=20,
        epoch=0.5,
        loss=math.nan,
        loss_nonfinite=1,
        loss_trend=-0.1,
        eval_loss=1.5,
        best_loss=1.25,
        best_step=9,
        learning_rate=1e-4,
        grad_norm=math.inf,
        steps_per_second=2.0,
        eta_seconds=5.0,
        eta_error_seconds=1.0,
        updated_at=NOW,
        health=Health(HealthState.DIVERGED, ("the loss is NaN",)),
        sources=(Source("run/s.json", "training-state", NOW, NOW, "half-written"),),
        values_from={"step": "run/s.json"},
        series={"loss": losses.view()},
        segments=(Segment(1, 10, "run/s.json"),),
        task={"task": "sft", "seed": math.nan},
        watching=Watching("polling", "nfs"),
        slots=(SLOT,),
        newest_verified="step_1@c41d07",
        at_risk=AtRisk(9, 4.5),
        disk=Disk(100, 12, 8),
        advice=Advice("diverged", "look", "enter"),
        warnings=(Warned("torn", "half a file", "run/s.json"),),
    )
    expected = {
        "schema": "ckpt.status/1",
        "run": "run",
        "health": {"state": "diverged", "reasons": ["the loss is NaN"]},
        "step": 10,
        "total_steps": 20,
        "epoch": 0.5,
        "loss": None,
        "loss_nonfinite": 1,
        "loss_trend": -0.1,
        "eval_loss": 1.5,
        "best_loss": 1.25,
        "best_step": 9,
        "learning_rate": 1e-4,
        "grad_norm": None,
        "steps_per_second": 2.0,
        "eta_seconds": 5.0,
        "eta_error_seconds": 1.0,
        "updated_at": SAVED,
        "sources": [
            {
                "path": "run/s.json",
                "kind": "training-state",
                "modified_at": SAVED,
                "read_at": SAVED,
                "error": "half-written",
            }
        ],
        "values_from": {"step": "run/s.json"},
        "points": 2,
        "segments": [{"first_step": 1, "last_step": 10, "source": "run/s.json"}],
        "task": {"task": "sft", "seed": None},
        "watching": {"mode": "polling", "reason": "nfs"},
        "slots": [SLOT_SHAPE],
        "newest_verified": "step_1@c41d07",
        "at_risk": {"steps": 9, "seconds": 4.5},
        "disk": {"free_bytes": 100, "save_bytes": 12, "saves_left": 8},
        "advice": {"code": "diverged", "message": "look", "key": "enter"},
        "warnings": [{"code": "torn", "message": "half a file", "path": "run/s.json"}],
        "gpus": [],
        "cause_of_death": None,
    }
    document = strict(status_json(view))
    assert document == expected
    assert list(document) == STATUS_KEYS
    assert strict(status_json(view, series=True)) == {
        **expected,
        "series": {"loss": [[0, 1, 2.5], [1, 1, None]]},
    }


def test_a_status_of_nothing_has_every_key() -> None:
    document = strict(status_json(RunView(run=Path("run"))))
    assert list(document) == STATUS_KEYS
    assert document["health"] == {"state": "waiting", "reasons": []}
    assert document["at_risk"] == {"steps": None, "seconds": None}
    assert document["disk"] == {"free_bytes": None, "save_bytes": None, "saves_left": None}
    assert document["loss_nonfinite"] == 0
    assert document["advice"] is None


def test_a_list() -> None:
    document = strict(list_json(Path("run"), [SLOT]))
    assert document == {"schema": "ckpt.list/1", "run": "run", "slots": [SLOT_SHAPE]}
    assert list(document["slots"][0]) == SLOT_KEYS
    assert list(document["slots"][0]["generations"][0]) == GENERATION_KEYS


def test_a_checkpoint() -> None:
    checkpoint = Checkpoint(
        Path("run/step_1"),
        "astrai",
        "AstrAI",
        step=1,
        epoch=0.0,
        complete=True,
        files=(FileEntry("a\udcff", 12, "ab" * 32, True), FileEntry("b", None)),
        tensors=(Tensor("w", "BF16", (2, 3), 12, "model.safetensors", 0, 12),),
        metadata={"best": math.nan},
        settings={"rank": 16},
        findings=(FINDING,),
    )
    document = strict(show_json(checkpoint))
    assert list(document) == SHOW_KEYS
    assert document == {
        "schema": "ckpt.show/1",
        "path": "run/step_1",
        "format": "astrai",
        "format_label": "AstrAI",
        "step": 1,
        "epoch": 0.0,
        "complete": True,
        "files": [
            {"name": "a\\xff", "size_bytes": 12, "sha256": "ab" * 32, "listed": True},
            {"name": "b", "size_bytes": None, "sha256": None, "listed": None},
        ],
        "tensors": [
            {
                "name": "w",
                "dtype": "BF16",
                "shape": [2, 3],
                "size_bytes": 12,
                "file": "model.safetensors",
            }
        ],
        "metadata": {"best": None},
        "settings": {"rank": 16},
        "findings": [FINDING_SHAPE],
    }


def test_one_report_and_several() -> None:
    hurt = Damage("m\udcff", ((0, 64),), ("w",), 3, 2)
    damaged = Report(
        Path("a"), "astrai", Depth.BYTES, Verdict.DAMAGED, (FINDING,), 12, 0.5, (hurt,), 1.0
    )
    intact = Report(Path("b"), "", Depth.NAMES, Verdict.INTACT, (), 0, 0.0)
    shape = {
        "path": "a",
        "format": "astrai",
        "depth": "bytes",
        "verdict": "damaged",
        "findings": [FINDING_SHAPE],
        "bytes_read": 12,
        "seconds": 0.5,
        "damage": [
            {
                "file": "m\\xff",
                "ranges": [[0, 64]],
                "tensors": ["w"],
                "tensor_count": 3,
                "proven_count": 2,
                "located": True,
            }
        ],
        "sealed_at": "1970-01-01T00:00:01+00:00",
    }
    one = strict(verify_json([damaged], is_single=True))
    assert one == {"schema": "ckpt.verify/1", **shape}
    assert list(one) == ["schema", *REPORT_KEYS]
    assert list(one["findings"][0]) == FINDING_KEYS
    several = strict(verify_json([intact, damaged], is_single=False))
    assert list(several) == ["schema", "verdict", "reports"]
    assert several["verdict"] == "damaged"
    assert several["reports"][1] == shape
    assert several["reports"][0]["format"] is None


def test_an_error() -> None:
    document = strict(error_json(NoSuchRun("r\udcff: no run", path="r\udcff", hint="look")))
    assert list(document) == ERROR_KEYS
    assert document == {
        "schema": "ckpt.error/1",
        "code": "no-such-run",
        "message": "r\\xff: no run",
        "path": "r\\xff",
        "hint": "look",
    }


# ---- what the command prints ----------------------------------------------------------------


def printed(*arguments: str | Path) -> dict[str, Any]:
    from click.testing import CliRunner

    from ckpt.cli import main

    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.stdout.count("\n") == 1
    assert result.stdout.isascii()
    return strict(json.loads(result.stdout))


def test_the_command_prints_exactly_these_keys(golden: Path) -> None:
    run = golden / "astrai" / "run_real" / "tree" / "exp1"
    status = printed("status", run)
    assert list(status) == STATUS_KEYS
    assert list(printed("status", run, "--series")) == [*STATUS_KEYS, "series"]
    assert list(status["health"]) == ["state", "reasons"]
    assert list(status["sources"][0]) == ["path", "kind", "modified_at", "read_at", "error"]
    assert list(status["segments"][0]) == ["first_step", "last_step", "source"]
    listed = printed("list", run)
    assert list(listed) == ["schema", "run", "slots"]
    assert [list(slot) for slot in listed["slots"]] == [SLOT_KEYS] * 3
    assert list(listed["slots"][0]["generations"][0]) == GENERATION_KEYS
    shard = golden / "kt_full" / "killed_mid_save" / "tree" / "ckpt"
    seen = printed("show", shard)
    assert list(seen) == SHOW_KEYS
    assert list(seen["files"][0]) == ["name", "size_bytes", "sha256", "listed"]
    assert list(seen["tensors"][0]) == ["name", "dtype", "shape", "size_bytes", "file"]
    assert list(seen["findings"][0]) == FINDING_KEYS
    report = printed("verify", shard)
    assert list(report) == ["schema", *REPORT_KEYS]
    assert list(report["findings"][0]) == FINDING_KEYS
    several = printed("verify", shard, shard, "--depth", "names")
    assert list(several) == ["schema", "verdict", "reports"]
    assert [list(each) for each in several["reports"]] == [REPORT_KEYS] * 2
    assert list(printed("show", golden / "absent")) == ERROR_KEYS


def test_times_carry_a_zone_and_nan_is_null(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "time": 1764590400.0, "loss": 2.5}\n'
        '{"step": 2, "time": 1764590401.0, "loss": NaN}\n'
        '{"step": 3, "time": 1764590402.0, "loss": null, "nonfinite": ["loss"]}\n'
    )
    status = printed("status", tmp_path, "--series")
    assert status["loss"] is None
    assert status["loss_nonfinite"] == 2
    assert status["series"]["loss"] == [[0, 1, 2.5], [0, 2, None], [0, 3, None]]
    assert status["sources"][0]["modified_at"].endswith("+00:00")
