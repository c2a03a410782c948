"""Reported ways to be led astray by what lies in a directory: names, links, pickles, escapes."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, say
from samples import SAMPLES, astrai, golden, huggingface, lora_set
from saving import save
from trees import put_checkpoint, snapshot

from ckpt import fs, reflog

KT, BUNDLE = "kt_full_experts.index.json", "kt_adapter_manifest.json"
HF = "model.safetensors.index.json"
SECRET = b"secret"
RUNS_CODE = b"cos\nmkdir\n(Vpwned\ntR."


def in_manifest(value: dict[str, Any], name: str) -> None:
    value["files"][name] = {"size": len(SECRET), "sha256": "0" * 64}


def in_weight_map(value: dict[str, Any], name: str) -> None:
    value["weight_map"]["evil"] = name


def in_layers(value: dict[str, Any], name: str) -> None:
    value["layers"]["0"]["file"] = name


def in_artifacts(value: dict[str, Any], name: str) -> None:
    value["artifacts"][name] = {"size": len(SECRET), "sha256": "0" * 64}


Lister = tuple[Callable[[Path], Path], str, Callable[[dict[str, Any], str], None]]
LISTERS: dict[str, Lister] = {
    "astrai": (astrai, "manifest.json", in_manifest),
    "set": (lora_set, "manifest.json", in_manifest),
    "huggingface": (huggingface, HF, in_weight_map),
    "kt": (golden("kt_full", "tiny3", "tree", "ckpt"), KT, in_layers),
    "bundle": (golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"), BUNDLE, in_artifacts),
}
LEADING_OUT = [
    "../x", "/etc/hostname", "a/b", "..", ".", "", "\0", "x\0y", "./config.json", "config.json/",
    "//x", "a/../config.json", "../../../../../../../../etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("name", LEADING_OUT)
@pytest.mark.parametrize(("make", "lister", "put"), LISTERS.values(), ids=LISTERS)
def test_a097_a_name_that_leaves_the_directory_is_refused_before_any_open(
    tmp_path: Path,
    make: Callable[[Path], Path],
    lister: str,
    put: Callable[[dict[str, Any], str], None],
    name: str,
) -> None:
    run = make(tmp_path)
    (tmp_path / "x").write_bytes(SECRET)
    value = json.loads((run / lister).read_text())
    put(value, name)
    (run / lister).write_text(json.dumps(value))
    opened: list[str] = []
    with fs.hooked(lambda call: opened.append(call.path) if call.name == "open" else None):
        told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert ("bad-entry-name", lister) in told.errors
    inside = re.compile(rf"({re.escape(str(run))}|/proc/self/fd/\d+)(/\.ckpt)?(/[^/]+)?")
    assert not [path for path in opened if not inside.fullmatch(path) or path.endswith("/..")]
    assert hashlib.sha256(SECRET).hexdigest() not in json.dumps(told.told)


@pytest.mark.parametrize(
    "slot", ["../other/step_5", "{other}/step_5", "a/../../other/step_5", "\0"]
)
def test_a097_a_journal_that_names_a_slot_elsewhere_changes_nothing_there(
    tmp_path: Path, slot: str
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for each in (run, other):
        each.mkdir()
        first = save(each / "step_5", 5, 1.0)
        second = save(each / "step_5", 5, 2.0)
        shutil.rmtree(each / ".ckpt")
    change = reflog.Change(slot.format(other=other), first, second)
    reflog.intend(run, "publish", [change])
    number = reflog.intend(run, "rollback", [change])
    reflog.conclude(run, number, reflog.Outcome.DONE)
    before = snapshot(other)
    told = ask("log", run)
    assert (told.exit_code, told.told["entries"]) == (0, [])
    assert "damaged lines passed over" in say("log", run)
    for verb in ("recover", "undo", "rollback", "redo"):
        ask(verb, run, *([] if verb == "recover" else ["--yes"]))
        assert snapshot(other) == before


@pytest.mark.parametrize("generation", ["../../x", "a/b", 5, "x" * 500, "", "\0"])
def test_a097_an_id_that_is_no_name_becomes_part_of_none(
    tmp_path: Path, generation: object
) -> None:
    put_checkpoint(tmp_path / "step_5", 5, ckpt={"v": 1, "generation": generation})
    told = ask("verify", tmp_path / "step_5")
    assert (told.verdict, told.codes) == ("intact", ["bad-manifest"])
    [slot] = ask("list", tmp_path).told["slots"]
    assert len(slot["generations"][0]["id"]) == 12


LINKED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "astrai weights": (astrai, "model.safetensors"),
    "astrai meta": (astrai, "meta.json"),
    "astrai manifest": (astrai, "manifest.json"),
    "set": (lora_set, "adapter.safetensors"),
    "huggingface": (huggingface, "model-00001-of-00002.safetensors"),
    "huggingface state": (huggingface, "trainer_state.json"),
    "kt index": (golden("kt_full", "tiny3", "tree", "ckpt"), KT),
    "bundle": (
        golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"),
        "fused_expert_lora.safetensors",
    ),
}


@pytest.mark.parametrize("target", ["../other/{name}", "{there}", "inner-{name}"])
@pytest.mark.parametrize(("make", "name"), LINKED.values(), ids=LINKED)
def test_a098_a_link_is_reported_whatever_it_leads_to_and_its_hash_is_not_told(
    tmp_path: Path, make: Callable[[Path], Path], name: str, target: str
) -> None:
    run = make(tmp_path)
    (tmp_path / "other").mkdir()
    content = (run / name).read_bytes()
    for copy in (tmp_path / "other" / name, run / f"inner-{name}"):
        copy.write_bytes(content)
    (run / name).unlink()
    (run / name).symlink_to(target.format(name=name, there=tmp_path / "other" / name))
    told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert ("symlink", name) in told.errors
    shown = json.dumps(told.told) + json.dumps(ask("show", run).told["findings"])
    assert hashlib.sha256(content).hexdigest() not in shown


@pytest.mark.parametrize("name", ["model.safetensors", "meta.json", "config.json"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "/dev/zero", "itself"])
def test_a098_what_is_no_file_is_never_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    run = astrai(tmp_path)
    (run / name).unlink()
    if kind == "fifo":
        os.mkfifo(run / name)
    elif kind == "directory":
        (run / name).mkdir()
    else:
        (run / name).symlink_to(name if kind == "itself" else kind)
    told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert name in {file for _, file in told.errors}
    assert ask("status", tmp_path).exit_code == 1


@pytest.mark.parametrize("control", ["reflog", "pins", "verified", "lock", "samples.jsonl"])
def test_a098_nothing_is_written_through_a_link_in_the_control_directory(
    tmp_path: Path, control: str
) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    for value in range(2):
        save(run / "step_5", 5, float(value))
    (run / "training_state.json").write_text("{}")
    victim.write_text("mine\n")
    path = run / ".ckpt" / control
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    [slot] = ask("list", run).told["slots"]
    for verb in ("status", "verify", "recover", "rollback", "undo", "prune"):
        changes = verb in ("rollback", "undo", "prune")
        ask(verb, run, *(["--keep-last", "1"] if verb == "prune" else []), *["--yes"] * changes)
    ask("pin", run, slot["generations"][0]["id"])
    assert victim.read_text() == "mine\n"


PICKLES = ["trap.pt", "trap.pth", "trap.bin", "trap.pkl", "trap.pickle", "trap.ckpt", "TRAP.PT",
           ".hidden.pt", "two\nlines.pt", "optimizer.pt"]  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("make", [astrai, lora_set])
def test_a099_a_pickle_that_no_manifest_lists_is_an_error_and_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path)
    (run / name).write_bytes(RUNS_CODE)
    told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert "unlisted-pickle" in {code for code, _ in told.errors}
    for verb in ("show", "list", "status"):
        ask(verb, run if verb == "show" else tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "make", [huggingface, golden("kt_full", "tiny3", "tree", "ckpt")], ids=["huggingface", "kt"]
)
def test_a099_where_nothing_is_listed_a_pickle_is_a_warning_and_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path)
    (run / "trap.pt").write_bytes(RUNS_CODE)
    told = ask("verify", run)
    assert "unlisted-pickle" in told.codes
    assert told.exit_code == 3
    assert not (tmp_path / "pwned").exists()


LEVELS = {
    "top": ('"format_version": 1', '"format_version": 1, "format_version": 1'),
    "files": ('"config.json": {', '"config.json": {"size": 1}, "config.json": {'),
    "entry": ('"size": ', '"size": 5, "size": '),
    "extension": ('"tensors"', '"ckpt": {"v": 1, "x": {"a": 1, "a": 2}}, "tensors"'),
}


@pytest.mark.parametrize(("old", "new"), LEVELS.values(), ids=LEVELS)
def test_a032_a_key_twice_is_refused_at_every_level(tmp_path: Path, old: str, new: str) -> None:
    run = put_checkpoint(tmp_path / "step_5", 5)
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace(old, new, 1))
    for depth in ("names", "headers", "bytes"):
        told = ask("verify", run, "--depth", depth)
        assert (told.exit_code, told.errors) == (1, [("duplicate-key", "manifest.json")])


TWICE = {
    "kt": (golden("kt_full", "tiny3", "tree", "ckpt"), KT, '"version"'),
    "bundle": (golden("kt_full", "adapter_bundle", "tree", "checkpoint-2"), BUNDLE, '"version"'),
    "index": (huggingface, HF, '"a"'),
    "trainer": (huggingface, "trainer_state.json", '"global_step"'),
    "config": (huggingface, "config.json", '"model_type"'),
    "meta": (astrai, "meta.json", '"epoch"'),
    "set": (lora_set, "training_state.json", '"step"'),
}


@pytest.mark.parametrize(("make", "file", "key"), TWICE.values(), ids=TWICE)
def test_a032_a_key_twice_is_refused_in_every_file(
    tmp_path: Path, make: Callable[[Path], Path], file: str, key: str
) -> None:
    run = make(tmp_path)
    text = (run / file).read_text()
    (run / file).write_text(text.replace(key, f"{key}: null, {key}", 1))
    told = ask("verify", run)
    assert (told.exit_code, told.verdict) == (1, "damaged")
    assert ("duplicate-key", file) in told.errors
    assert any(key.replace('"', "'") in message for message in told.messages)


HOSTILE = {
    "title": "a\x1b]0;PWNED\x07b", "colour": "\x1b[31m", "C1": "x\x9b31m", "line": "a\nb",
    "return": "a\rb", "turned": "\u202eevil", "isolate": "\u2066x", "separator": "a\u2028b",
    "tab": "a\tb", "delete": "\x7f", "next line": "\x85", "mark": "\ufeff", "nothing": "\u200b",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a074_a_name_with_escapes_is_made_visible_wherever_it_is_said(
    tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    slot = put_checkpoint(run / f"step_5{name}", 5)
    (slot / f"file{name}").write_text("x")
    (run / "training_state.json").write_text(json.dumps({"step": name}))
    said = [say(verb, run) for verb in ("list", "status", "log", "verify", "recover")]
    said += [say(verb, slot) for verb in ("show", "verify")]
    raw = {letter for letter in name if not letter.isalnum() and letter not in "[];"}
    for text in said:
        assert not raw & set(text.replace("\n", "") if "\n" not in name else text) - {"\n"}
    assert len([line for line in said[0].splitlines() if "step_5" in line]) == 1


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_a100_what_an_index_names_is_never_deleted(tmp_path: Path, sample: Any) -> None:
    """Nothing that looks at a checkpoint removes a file, whatever stands in it."""
    path = sample.make(tmp_path)
    before = snapshot(tmp_path)
    for verb in ("verify", "show"):
        ask(verb, path)
    for verb in ("recover", "prune"):
        ask(
            verb,
            tmp_path,
            *(["--keep-last", "0", "--damaged", "--yes"] if verb == "prune" else []),
        )
    after = snapshot(tmp_path)
    assert {name: after.get(name) for name in before} == before


CONTROL = {
    "verified": b'{"path": "step_5", "generation": "a", "key": "b", "verdict": "intact", '
    b'"depth": "bytes", "at": %s}\n' % (b"9" * 400),
    "pins": b"\xff\xfe\n\0\n../../x\n",
    "reflog": b"\xff" * 300,
    "samples.jsonl": b'\xff\n{"step": 1e999, "time": 1e999, "loss": 1}\n' + b"[" * 9000,
    "lock": b"\xff" * 100,
}


@pytest.mark.parametrize(("control", "content"), CONTROL.items(), ids=CONTROL)
def test_whatever_stands_in_the_control_directory_is_survived(
    tmp_path: Path, control: str, content: bytes
) -> None:
    run = tmp_path / "run"
    for value in range(2):
        save(run / "step_5", 5, float(value))
    (run / "training_state.json").write_text(json.dumps({"step": 5}))
    (run / ".ckpt" / control).write_bytes(content)
    for verb in ("status", "list", "log", "verify", "recover", "rollback"):
        told = ask(verb, run, *(["--yes"] if verb == "rollback" else []))
        assert told.told.get("code") != "internal-error"
    assert ask("verify", run / "step_5").verdict == "intact"
