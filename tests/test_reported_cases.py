"""Faults from public bug reports, end to end: what lies on the disk, and what is said of it."""

import hashlib
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from following import STATE
from samples import astrai, floats

from ckpt import fs
from ckpt.cli import main
from ckpt.formats import inspect
from ckpt.generations import scan
from ckpt.operation import drive
from ckpt.tensorwriter import write_tensors
from ckpt.verify import verify


def status(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        CliRunner().invoke(main, ["status", str(run), "--json"]).stdout
    )
    return told


def errors(path: Path) -> list[tuple[str, str | None]]:
    found = drive(verify(path)).findings
    return [(each.code, each.file) for each in found if each.severity.value == "error"]


def put_state(run: Path, **changes: object) -> None:
    (run / "training_state.json").write_text(json.dumps({**STATE, **changes}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"best_loss": None, "lr": None}, {"step": 42, "best_loss": None, "learning_rate": None}),
        ({"best_loss": float("nan")}, {"step": 42, "best_loss": None}),
        ({"step": 42.0}, {"step": 42}),
        ({"step": "42"}, {"step": None}),
        ({"total_steps": 0}, {"step": 42, "total_steps": None, "eta_seconds": None}),
    ],
    ids=["null", "nan", "float step", "text step", "no total"],
)
def test_an_odd_state_is_told_as_far_as_it_goes(
    tmp_path: Path, changes: dict[str, object], told: dict[str, object]
) -> None:
    put_state(tmp_path, **changes)
    seen = status(tmp_path)
    assert {name: seen[name] for name in told} == told
    assert bool(seen["warnings"]) is (changes != {"total_steps": 0})


def test_a_loss_that_turned_to_nan_is_never_better_and_never_dropped(tmp_path: Path) -> None:
    rows = [{"step": 1200, "loss": 0.045}, *({"step": s, "loss": None} for s in range(1201, 1801))]
    lines = [json.dumps(row).replace("null", "NaN") for row in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    told = status(tmp_path)
    assert (told["best_loss"], told["best_step"]) == (0.045, 1200)
    assert (told["loss_nonfinite"], told["loss"]) == (600, None)
    assert told["health"]["state"] == "diverged"
    [reason] = told["health"]["reasons"]
    assert reason.startswith("the loss is NaN since step 1,201 (600 points); the best was 0.045")


def test_a_clock_ahead_is_neither_fresh_nor_of_a_negative_age(tmp_path: Path) -> None:
    put_state(tmp_path)
    ahead = os.stat(tmp_path).st_mtime + 1200
    os.utime(tmp_path / "training_state.json", (ahead, ahead))
    told = status(tmp_path)
    assert told["health"]["state"] == "unknown"
    assert [warned["code"] for warned in told["warnings"]] == ["clock-ahead"]
    assert "-" not in CliRunner().invoke(main, ["status", str(tmp_path), "--line"]).stdout.replace(
        str(tmp_path), ""
    ).replace("e-", "")


def test_every_bad_shard_is_named_in_one_report(tmp_path: Path) -> None:
    run = tmp_path / "final"
    run.mkdir()
    names = [f"model-{place:05}-of-00008.safetensors" for place in range(1, 9)]
    for name in names:
        write_tensors(run / name, [floats(name, 1, 2, 3, 4)])
    index = {"metadata": {}, "weight_map": {name: name for name in names}}
    (run / "model.safetensors.index.json").write_text(json.dumps(index))
    (run / "config.json").write_text("{}")
    for name in (names[0], names[3]):
        os.truncate(run / name, 0)
    os.truncate(run / names[4], os.stat(run / names[4]).st_size - 1)
    (run / f"{names[5]}.tmp").write_bytes(b"x")
    assert sorted(set(errors(run))) == [
        ("empty-file", names[0]),
        ("empty-file", names[3]),
        ("truncated", names[4]),
    ]


def test_ends_of_lines_that_were_changed_name_exactly_the_changed_files(tmp_path: Path) -> None:
    run = astrai(tmp_path)
    listed = json.loads((run / "manifest.json").read_text())
    for name in ("meta.json", "config.json"):
        data = b"{\n" + (run / name).read_bytes()[1:]
        (run / name).write_bytes(data.replace(b"\n", b"\r\n"))
        listed["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / "manifest.json").write_text(json.dumps(listed))
    assert sorted(errors(run)) == [
        ("size-mismatch", "config.json"),
        ("size-mismatch", "meta.json"),
    ]


def test_a_name_composed_otherwise_and_one_that_is_no_text_are_reported(tmp_path: Path) -> None:
    run = astrai(tmp_path)
    composed = unicodedata.normalize("NFC", "González.json")
    decomposed = unicodedata.normalize("NFD", composed)
    listed = json.loads((run / "manifest.json").read_text())
    listed["files"][composed] = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    (run / "manifest.json").write_text(json.dumps(listed))
    (run / decomposed).write_text("{}")
    Path(os.fsdecode(os.fsencode(run) + b"/\xff\xfe")).write_bytes(b"")
    assert errors(run) == [("missing-file", composed)]
    told = "listed in manifest.json and not there; the same name in another Unicode composition is"
    assert [(each.code, each.message) for each in inspect(run).findings] == [
        ("missing-file", f"{composed}: {told}"),
        ("unlisted-file", "\udcff\udcfe: not listed in manifest.json"),
    ]
    ended = CliRunner().invoke(main, ["verify", str(run)])
    assert ended.exit_code == 1
    assert "\\xff\\xfe" in ended.output


def test_a_quick_look_passes_says_so_and_is_not_listed_as_verified(tmp_path: Path) -> None:
    run = astrai(tmp_path)
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-4:] = bytes(4)
    (run / "model.safetensors").write_bytes(data)
    quick = CliRunner().invoke(main, ["verify", str(run), "--depth", "headers"])
    assert quick.exit_code == 3
    assert "no byte was compared" in quick.output
    [slot] = scan(tmp_path)
    assert slot.live is not None
    assert slot.live.verified is None or slot.live.verified.verdict.value == "unverifiable"
    assert errors(run) == [("hash-mismatch", "model.safetensors")]


def test_a_pickle_that_nothing_lists_is_reported_and_never_opened(tmp_path: Path) -> None:
    run = astrai(tmp_path)
    (run / "trap.pt").write_bytes(b"cos\nmkdir\n(Vpwned\ntR.")
    opened = []
    with fs.hooked(lambda call: opened.append(call.path) if call.name == "open" else None):
        assert errors(run) == [("unlisted-pickle", "trap.pt")]
    assert opened
    assert not [path for path in opened if path.endswith("trap.pt")]
