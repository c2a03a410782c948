"""AstrAI checkpoints: the real program's samples, and faults by kind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import astrai as sample

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, Severity, Verdict
from ckpt.errors import NoCheckpoint
from ckpt.formats import inspect
from ckpt.formats.astrai import AstrAI
from ckpt.manifest import Listed, build, read_manifest
from ckpt.operation import drive
from ckpt.tensorwriter import write_tensors
from ckpt.verify import verify

WHOLE = (
    ("good", "epoch_1_step_9", 9),
    ("with_extras", "epoch_0_step_5", 5),
    ("with_rng_extra", "epoch_0_step_5", 5),
    ("republished", "epoch_0_step_1", 1),
    ("legacy_no_manifest", "epoch_2_step_4", 4),
)


def expected(golden: Path, name: str) -> dict[str, Any]:
    return json.loads((golden / "astrai" / name / "EXPECTED.json").read_text())


def tensor_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        tensor.name: {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "nbytes": tensor.size_bytes,
        }
        for tensor in checkpoint.tensors
    }


def recorded(facts: dict[str, Any]) -> dict[str, Any]:
    """The tensors of EXPECTED.json without the hashes of their bytes."""
    return {
        name: {key: value for key, value in tensor.items() if key != "sha256"}
        for name, tensor in facts["tensors"].items()
    }


@pytest.mark.parametrize(("name", "directory", "step"), WHOLE, ids=[row[0] for row in WHOLE])
def test_a_real_checkpoint_gives_the_facts_of_its_program(
    golden: Path, name: str, directory: str, step: int
) -> None:
    facts = expected(golden, name)["facts"]
    path = golden / "astrai" / name / "tree" / directory
    checkpoint = inspect(path)
    assert checkpoint.format == "astrai"
    assert checkpoint.step == step
    assert checkpoint.epoch == facts["meta.json"]["epoch"]
    assert dict(checkpoint.metadata) == facts["meta.json"]
    assert dict(checkpoint.settings) == facts["config.json"]
    assert tensor_facts(checkpoint) == recorded(facts["model.safetensors"])
    files = facts.get("manifest.json", {"files": {}})["files"]
    assert {e.name: e.sha256 for e in checkpoint.files if e.sha256} == {
        file: entry["sha256"] for file, entry in files.items()
    }


@pytest.mark.parametrize("name", ["run_real", "run_resumed"])
def test_a_real_runs_checkpoints_give_the_facts_of_their_program(golden: Path, name: str) -> None:
    for directory, facts in expected(golden, name)["facts"].items():
        checkpoint = inspect(golden / "astrai" / name / "tree" / "exp1" / directory)
        assert facts["meta.json"].items() <= checkpoint.metadata.items()
        assert tensor_facts(checkpoint) == recorded(facts["model.safetensors"])
        assert checkpoint.step == int(directory.rsplit("_", 1)[1])
        assert checkpoint.complete is True
        assert checkpoint.findings == ()


DAMAGED = {
    "bad_flipped_weight_byte": ([], [("hash-mismatch", "model.safetensors")]),
    "bad_meta_same_size": ([], [("hash-mismatch", "meta.json")]),
    "bad_truncated_weights": (
        [("size-mismatch", "model.safetensors"), ("truncated", "model.safetensors")],
        [("size-mismatch", "model.safetensors"), ("truncated", "model.safetensors")],
    ),
    "bad_missing_config": ([("missing-file", "config.json")], [("missing-file", "config.json")]),
    "bad_manifest_truncated": (
        [("bad-manifest", "manifest.json")],
        [("bad-manifest", "manifest.json")],
    ),
    "odd_unlisted_pt": ([("unlisted-pickle", "stray.pt")], [("unlisted-pickle", "stray.pt")]),
}


@pytest.mark.parametrize(("name", "codes"), DAMAGED.items(), ids=DAMAGED)
def test_real_damage_is_named_at_the_depth_where_it_shows(
    golden: Path, name: str, codes: tuple[list[tuple[str, str]], list[tuple[str, str]]]
) -> None:
    (path,) = (golden / "astrai" / name / "tree").iterdir()
    shallow, deep = codes
    errors = [(f.code, f.file) for f in inspect(path).findings if f.severity is Severity.ERROR]
    assert errors == shallow
    report = drive(verify(path))
    assert report.verdict is Verdict.DAMAGED
    assert [(f.code, f.file) for f in report.findings if f.severity is Severity.ERROR] == deep


def test_a_newer_version_is_unsupported_and_its_bytes_are_not_judged(golden: Path) -> None:
    path = golden / "astrai" / "bad_manifest_version2" / "tree" / "epoch_1_step_9"
    report = drive(verify(path))
    assert report.verdict is Verdict.UNSUPPORTED
    (finding,) = [f for f in report.findings if f.code == "unsupported-version"]
    assert finding.message == ("manifest.json: made by a newer version (2), this program reads 1")


@pytest.mark.parametrize(
    "name", ["crash_after_publish", "crash_between_renames", "crash_mid_staging"]
)
def test_what_a_kill_left_gives_the_facts_of_its_program(golden: Path, name: str) -> None:
    for directory, facts in expected(golden, name)["facts"].items():
        checkpoint = inspect(golden / "astrai" / name / "tree" / directory)
        assert checkpoint.step == 1
        assert dict(checkpoint.metadata) == facts["meta.json"]
        assert dict(checkpoint.settings) == facts["config.json"]
        codes = [finding.code for finding in checkpoint.findings]
        if "manifest.json" in facts:
            assert codes == []
            assert tensor_facts(checkpoint) == recorded(facts["model.safetensors"])
        else:
            assert codes == ["truncated", "no-manifest"]


def test_a_newer_versions_pickles_are_not_called_damage(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "epoch_0_step_5"
    shutil.copytree(golden / "astrai" / "with_extras" / "tree" / path.name, path)
    edit(path / "manifest.json", lambda m: m.update(format_version=2))
    assert drive(verify(path)).verdict is Verdict.UNSUPPORTED
    assert inspect(path).complete is None


@pytest.mark.parametrize(
    ("name", "files", "is_slot"),
    [
        ("epoch_0_step_5", ["meta.json"], True),
        ("anything", ["meta.json", "config.json"], True),
        ("anything", ["manifest.json", "model.safetensors"], True),
        ("dataset", ["meta.json", "data.bin"], False),
        ("site", ["manifest.json", "index.html"], False),
        ("base", ["config.json", "model.safetensors"], False),
    ],
)
def test_another_programs_meta_or_manifest_is_no_slot(
    tmp_path: Path, name: str, files: list[str], is_slot: bool
) -> None:
    path = tmp_path / name
    path.mkdir()
    for file in files:
        (path / file).write_text("{}")
    assert AstrAI().is_slot(path) is is_slot


def test_a_byte_order_mark_is_read_and_said(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for name in ("config.json", "manifest.json"):
        (path / name).write_bytes(b"\xef\xbb\xbf" + (path / name).read_bytes())
    checkpoint = inspect(path)
    assert dict(checkpoint.settings) == {"hidden": 2}
    assert [f.file for f in checkpoint.findings if f.code == "upstream-refuses"] == [
        "config.json",
        "manifest.json",
    ]


def test_a_directory_with_only_metrics_is_no_checkpoint_and_says_what_was_looked_for(
    golden: Path,
) -> None:
    path = golden / "astrai" / "odd_metric_only_dir" / "tree" / "epoch_0_step_7"
    with pytest.raises(NoCheckpoint, match=r"is none of meta\.json or manifest\.json \(AstrAI\)"):
        inspect(path)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def manifest_codes(path: Path, change: Callable[[dict[str, Any]], None]) -> list[str]:
    edit(path / "manifest.json", change)
    return [finding.code for finding in inspect(path).findings]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (2, "unsupported-version"),
        ("1", "bad-manifest"),
        (True, "bad-manifest"),
        (1.0, "bad-manifest"),
        (None, "bad-manifest"),
        (0, "bad-manifest"),
    ],
)
def test_only_the_integer_one_is_a_version(tmp_path: Path, version: object, code: str) -> None:
    assert code in manifest_codes(sample(tmp_path), lambda m: m.update(format_version=version))


def test_hashes_in_upper_case_are_the_same_hashes(tmp_path: Path) -> None:
    path = sample(tmp_path)

    def shout(manifest: dict[str, Any]) -> None:
        for entry in manifest["files"].values():
            entry["sha256"] = entry["sha256"].upper()

    assert manifest_codes(path, shout) == []
    assert drive(verify(path)).verdict is Verdict.INTACT


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"size": -1}, "files.meta.json.size"),
        ({"size": True}, "files.meta.json.size"),
        ({"size": "12"}, "files.meta.json.size"),
        ({"sha256": "abc"}, "files.meta.json.sha256"),
        ({"sha256": "g" * 64}, "files.meta.json.sha256"),
        ({"sha256": None}, "files.meta.json.sha256"),
    ],
)
def test_an_entry_that_is_no_size_and_hash_is_named(
    tmp_path: Path, entry: dict[str, Any], says: str
) -> None:
    path = sample(tmp_path)
    edit(path / "manifest.json", lambda m: m["files"]["meta.json"].update(entry))
    messages = [finding.message for finding in inspect(path).findings]
    assert any(says in message for message in messages), messages


def test_a_key_given_twice_is_refused_at_every_depth() -> None:
    text = b'{"format_version": 1, "files": {"config.json": {}, "config.json": {}}}'
    (finding,) = read_manifest(text).findings
    assert finding.code == "duplicate-key"
    assert "config.json" in finding.message


def test_a_header_without_the_listed_tensors_is_noticed(tmp_path: Path) -> None:
    path = sample(tmp_path)
    (path / "manifest.json").unlink()
    (path / "model.safetensors").unlink()
    empty = write_tensors(path / "model.safetensors", [])
    listed = {
        name: Listed((path / name).stat().st_size, "0" * 64)
        for name in ("meta.json", "config.json")
    }
    listed["model.safetensors"] = Listed(empty.size_bytes, empty.sha256)
    (path / "manifest.json").write_bytes(build(listed, ["head.bias"], meta={}))
    assert [finding.code for finding in inspect(path).findings] == ["tensor-list-mismatch"]


def test_a_manifest_that_forgets_a_required_file_says_which(tmp_path: Path) -> None:
    path = sample(tmp_path)
    edit(path / "manifest.json", lambda m: m["files"].pop("config.json"))
    messages = [finding.message for finding in inspect(path).findings]
    assert "manifest.json: does not list config.json" in messages


def test_a_tensor_list_of_another_save_is_noticed(tmp_path: Path) -> None:
    codes = manifest_codes(sample(tmp_path), lambda m: m.update(tensors=["head.bias", "ghost"]))
    assert codes == ["tensor-list-mismatch"]


def test_unknown_keys_are_nobodys_fault(tmp_path: Path) -> None:
    path = sample(tmp_path)
    edit(path / "manifest.json", lambda m: m["files"]["meta.json"].update(mtime=3))
    assert manifest_codes(path, lambda m: m.update(extra={"a": 1})) == []


def test_what_is_added_after_publication_is_no_fault(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for name in ("metric.jsonl", "tokenizer.json", "tokenizer_config.json", "merges.txt"):
        (path / name).write_text("{}")
    assert inspect(path).findings == ()
    (path / "notes.txt").write_text("mine")
    (found,) = inspect(path).findings
    assert (found.code, found.severity, found.file) == (
        "unlisted-file",
        Severity.WARNING,
        "notes.txt",
    )


def test_a_pickle_that_nothing_lists_is_never_run(tmp_path: Path) -> None:
    path = sample(tmp_path)
    trap = b"cposix\nmkdir\n(S'" + str(tmp_path / "ran").encode() + b"'\ntR."
    (path / "trap.pt").write_bytes(trap)
    report = drive(verify(path))
    told = {finding.code: finding.message for finding in report.findings}
    assert "unlisted-pickle" in told
    assert "loading it runs posix.mkdir" in told["unsafe-pickle"]
    assert report.verdict is Verdict.DAMAGED
    assert not (tmp_path / "ran").exists()


def test_a_payload_that_is_a_link_is_reported_and_its_hash_is_not_told(tmp_path: Path) -> None:
    path = sample(tmp_path)
    elsewhere = tmp_path / "other.safetensors"
    shutil.move(path / "model.safetensors", elsewhere)
    (path / "model.safetensors").symlink_to(elsewhere)
    report = drive(verify(path))
    assert report.verdict is Verdict.DAMAGED
    assert [f.code for f in report.findings if f.file == "model.safetensors"] == ["symlink"]


def test_a_link_to_nothing_is_dangling_and_a_hub_link_is_a_note(tmp_path: Path) -> None:
    path = sample(tmp_path)
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("../gone.json")
    codes = {(f.code, f.severity) for f in inspect(path).findings}
    assert ("dangling-link", Severity.ERROR) in codes
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    weights = path / "model.safetensors"
    shutil.move(weights, blob)
    weights.symlink_to("../blobs/" + "ab" * 32)
    found = [(f.code, f.severity) for f in inspect(path).findings if f.file == weights.name]
    assert found == [("symlink", Severity.NOTE)]


def test_litter_of_the_system_is_told_apart(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for name in ("._model.safetensors", "._meta.json", ".DS_Store", ".nfs00001234abcd"):
        (path / name).write_bytes(b"\x00\x05\x16\x07" + b"\0" * 100)
    findings = inspect(path).findings
    assert {(f.code, f.severity) for f in findings} == {("litter", Severity.NOTE)}
    assert len(findings) == 4
    assert drive(verify(path)).verdict is Verdict.INTACT


def test_line_ends_turned_by_a_checkout_are_exactly_these_two_files(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for name in ("meta.json", "config.json"):
        (path / name).write_bytes((path / name).read_bytes().replace(b"\n", b"\r\n"))
    errors = [f for f in drive(verify(path)).findings if f.severity is Severity.ERROR]
    assert [(f.code, f.file) for f in errors] == [
        ("size-mismatch", "config.json"),
        ("size-mismatch", "meta.json"),
    ]
    assert all("CRLF" in (finding.hint or "") for finding in errors)


def test_nan_in_meta_is_read_and_said(tmp_path: Path) -> None:
    path = sample(tmp_path)
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text.replace('"epoch": 1', '"epoch": NaN'))
    checkpoint = inspect(path)
    assert checkpoint.epoch is None
    assert "nonfinite" in {finding.code for finding in checkpoint.findings}


@pytest.mark.parametrize(
    ("recorded_step", "step"), [(40, 40), (40.0, 40), ("40", 40), (None, 40), ("x", 40), (-1, 40)]
)
def test_odd_steps_are_read_or_the_name_tells(
    tmp_path: Path, recorded_step: object, step: int
) -> None:
    path = sample(tmp_path)
    edit(path / "meta.json", lambda m: m.update(optimizer_step=recorded_step))
    assert inspect(path, Depth.NAMES).step == step


def test_a_name_that_says_another_step_is_a_warning_and_meta_is_the_truth(tmp_path: Path) -> None:
    path = sample(tmp_path).rename(tmp_path / "epoch_1_step_45")
    checkpoint = inspect(path)
    assert checkpoint.step == 40
    (finding,) = checkpoint.findings
    assert (finding.code, finding.severity) == ("name-mismatch", Severity.WARNING)
    assert finding.message == "the name says step 45, meta.json says 40; meta.json is the truth"


def test_names_that_are_no_utf8_or_another_composition_are_reported(tmp_path: Path) -> None:
    path = sample(tmp_path)

    def list_composed(manifest: dict[str, Any]) -> None:
        manifest["files"]["Gonz\u00e1lez.json"] = manifest["files"]["meta.json"]

    edit(path / "manifest.json", list_composed)
    (path / "Gonza\u0301lez.json").write_text("{}")
    (path / b"\xff\xfe".decode(errors="surrogateescape")).write_text("{}")
    findings = inspect(path).findings
    assert [(finding.code, finding.file) for finding in findings] == [
        ("missing-file", "Gonz\u00e1lez.json"),
        ("unlisted-file", "\udcff\udcfe"),
    ]
    assert findings[0].message.endswith("; the same name in another Unicode composition is")


def test_a_directory_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = sample(tmp_path)

    def refuse(call: fs.Call) -> None:
        if call.name == "open" and call.path.endswith("meta.json"):
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        findings = inspect(path).findings
    assert ("permission-denied", "meta.json") in {(f.code, f.file) for f in findings}
    assert "missing-file" not in {f.code for f in findings}
