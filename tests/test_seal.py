"""Sealing what brings no hashes: where it lies, what it proves, and what it never calls damage."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kt_runs import writer
from samples import SAMPLES, Sample
from trees import put_checkpoint, snapshot

from ckpt import control, fs, seals
from ckpt.checkpoint import Depth, Generation, Report, Severity, State, Verdict
from ckpt.cli import main
from ckpt.errors import CheckpointError, Refused
from ckpt.generations import scan, verify_in_run
from ckpt.generations.inside import verify_inside
from ckpt.generations.kt import publish_kt
from ckpt.generations.sealing import Sealed
from ckpt.generations.sealing import seal as sealing
from ckpt.operation import Note, drive

PLAIN = [sample for sample in SAMPLES if not sample.hashed]
HUGGINGFACE = next(sample for sample in PLAIN if sample.format == "huggingface")


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the times of files tell a change at once, as they do on this file system."""
    monkeypatch.setattr(control, "SETTLED_S", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def seal(path: Path, **options: Any) -> Sealed:
    return drive(sealing(path, **options))


def verify(path: Path, depth: Depth = Depth.BYTES) -> Report:
    return drive(verify_in_run(path, depth))


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def state_of(path: Path) -> dict[Path, tuple[bytes, int]]:
    """The content and the time of each file of a checkpoint."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def change_bytes(file: Path, *, keep_time: bool) -> None:
    """Flip the last byte; with its time kept it is what a failing disk does."""
    found = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    time_ns = found.st_mtime_ns + (0 if keep_time else 1_000_000_000)
    os.utime(file, ns=(time_ns, time_ns))


# ---- every format without hashes --------------------------------------------------------------


@pytest.mark.parametrize("sample", PLAIN, ids=[f"{i}-{s.format}" for i, s in enumerate(PLAIN)])
def test_a_sealed_checkpoint_is_intact_until_one_of_its_bytes_differs(
    sample: Sample, run: Path
) -> None:
    path = sample.make(run)
    before = state_of(path)
    assert verify(path).verdict is Verdict.UNVERIFIABLE

    sealed = seal(path)
    assert sealed.seal is not None
    assert state_of(path) == before
    assert [each.name for each in (run / ".ckpt" / "seals").iterdir()] == [sealed.written.name]
    assert set(sealed.seal.files) == {file.name for file in before}

    report = verify(path)
    assert (report.verdict, report.sealed_at) == (Verdict.INTACT, sealed.seal.at)
    assert report.bytes_read == sealed.bytes_read == sum(len(data) for data, _ in before.values())
    assert "sealed" in codes(report)

    for file, (data, mtime_ns) in before.items():
        change_bytes(file, keep_time=True)
        assert verify(path).verdict is Verdict.DAMAGED, file
        file.write_bytes(data)
        os.utime(file, ns=(mtime_ns, mtime_ns))
    assert verify(path).verdict is Verdict.INTACT


def test_damage_of_a_sealed_checkpoint_names_the_tensors(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    change_bytes(path / "model-00001-of-00002.safetensors", keep_time=True)
    report = verify(path)
    [finding] = [each for each in report.findings if each.severity is Severity.ERROR]
    assert (finding.code, finding.tensor) == ("hash-mismatch", "a")
    assert [damage.file for damage in report.damage] == ["model-00001-of-00002.safetensors"]


def test_a_lesser_depth_is_no_better_for_a_seal(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    for depth in (Depth.NAMES, Depth.HEADERS):
        report = verify(path, depth)
        assert (report.verdict, report.sealed_at) == (Verdict.UNVERIFIABLE, None)
        assert codes(report) == ["no-optimizer", "not-compared"]


def test_a_checkpoint_without_its_manifest_can_be_sealed(run: Path) -> None:
    path = put_checkpoint(run / "step_1", 1)
    (path / "manifest.json").unlink()
    assert codes(verify(path)) == ["no-manifest"]
    seal(path)
    report = verify(path)
    assert (report.verdict, codes(report)) == (Verdict.INTACT, ["sealed"])
    (path / "metric.jsonl").write_text('{"step": 1}\n')
    assert verify(path).verdict is Verdict.INTACT


def test_what_brings_hashes_of_its_own_is_not_sealed(run: Path) -> None:
    path = put_checkpoint(run / "step_1", 1)
    before = snapshot(run)
    sealed = seal(path)
    assert (sealed.seal, sealed.written, sealed.bytes_read) == (None, None, 0)
    assert snapshot(run) == before


# ---- what changed since -----------------------------------------------------------------------


def test_a_new_time_alone_changes_nothing(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    for file in path.iterdir():
        os.utime(file, (1e9, 1e9))
    assert verify(path).verdict is Verdict.INTACT


def replace_config(path: Path) -> None:
    (path / "config.json").write_text('{"model_type": "else"}')
    os.utime(path / "config.json", (1e9, 1e9))


CHANGES = [
    ("same size, other time", replace_config, "its bytes and its time are others"),
    (
        "other size",
        lambda path: (path / "config.json").write_text("{}"),
        "2 bytes, it had 22 bytes",
    ),
    (
        "gone",
        lambda path: (path / "config.json").unlink(),
        "it is not there, it had 22 bytes",
    ),
    (
        "new",
        lambda path: (path / "notes.txt").write_text("x"),
        "it was not there then, and is compared with nothing",
    ),
]


@pytest.mark.parametrize(
    ("change", "words"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_what_was_changed_since_is_no_damage_and_never_intact(
    run: Path, change: Callable[[Path], object], words: str
) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    change(path)
    report = verify(path)
    [told] = [each for each in report.findings if each.code == "changed-since-sealed"]
    assert (report.verdict, told.severity) == (Verdict.UNVERIFIABLE, Severity.WARNING)
    assert told.message == f"{told.file}: changed since it was sealed: {words}"
    assert report.damage == ()
    seal(path)
    assert verify(path).verdict is Verdict.INTACT


def test_damage_elsewhere_is_still_damage_when_a_file_changed(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    replace_config(path)
    change_bytes(path / "model-00002-of-00002.safetensors", keep_time=True)
    report = verify(path)
    assert report.verdict is Verdict.DAMAGED
    assert codes(report)[:2] == ["hash-mismatch", "changed-since-sealed"]


def test_a_seal_goes_with_the_payload_to_another_name(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    seal(path)
    moved = run / ".checkpoint-8.retired-abcdefgh"
    path.rename(moved)
    assert verify(moved).verdict is Verdict.INTACT


def test_a_seal_says_nothing_of_another_payload_of_that_name(run: Path) -> None:
    path = next(each for each in PLAIN if each.format == "safetensors").make(run)
    seal(path)
    other = path.with_name("other")
    shutil.copy(path, other)
    change_bytes(other, keep_time=False)
    other.replace(path)
    report = verify(path)
    assert (report.verdict, codes(report)) == (
        Verdict.UNVERIFIABLE,
        ["changed-since-sealed", "sealed"],
    )


# ---- what is refused --------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_not_sealed(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    (path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(Refused, match="not sealed, it is not sound: model-00001-of-00002"):
        seal(path)
    assert not (run / ".ckpt").exists()


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_checkpoint_that_is_being_written_is_not_sealed(run: Path, is_cut: bool) -> None:
    path = HUGGINGFACE.make(run)
    model = path / "model-00001-of-00002.safetensors"
    seen = []

    def act(call: fs.Call) -> None:
        if call.name == "read" and "/proc/" in call.path and call.path.endswith(model.name):
            seen.append(call)
            if len(seen) == 1 and is_cut:
                os.truncate(model, 20)
            elif len(seen) == 1:
                model.write_bytes(model.read_bytes())

    with fs.hooked(act), pytest.raises(Refused, match="changed while it was read"):
        seal(path)
    assert not (run / ".ckpt").exists()


def test_it_waits_for_a_save_that_has_just_ended(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SETTLED_S", 0.4)
    path = HUGGINGFACE.make(run)
    events: list[object] = []
    sealed = drive(sealing(path), events.append)
    newest = max(file.stat().st_ctime for file in path.iterdir())
    assert sealed.seal is not None
    assert sealed.seal.at - newest >= 0.4
    assert any(isinstance(event, Note) and "just now" in event.text for event in events)


def test_a_fault_at_any_call_leaves_no_half_seal_and_no_trace_in_the_checkpoint(
    run: Path, tmp_path: Path
) -> None:
    path = HUGGINGFACE.make(run)
    before = snapshot(path)
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        seal(path)
    shutil.rmtree(run / ".ckpt")
    for at in range(len(calls)):
        seen: list[fs.Call] = []

        def fail(call: fs.Call, at: int = at, seen: list[fs.Call] = seen) -> None:
            seen.append(call)
            if len(seen) == at + 1:
                raise OSError(errno.EIO, "Input/output error", call.path)

        try:
            with fs.hooked(fail):
                seal(path)
        except (CheckpointError, OSError):
            pass
        assert snapshot(path) == before
        assert "bad-seal" not in codes(verify(path)), calls[at]
        shutil.rmtree(run / ".ckpt", ignore_errors=True)


@pytest.mark.parametrize("place", [".ckpt", ".ckpt/seals"])
def test_a_link_in_the_way_is_not_written_through(run: Path, tmp_path: Path, place: str) -> None:
    path = HUGGINGFACE.make(run)
    (tmp_path / "elsewhere").mkdir()
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"is a symbolic link|is no directory"):
        seal(path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# ---- seals that are wrong themselves ----------------------------------------------------------


def test_a_seal_of_which_any_byte_differs_is_not_used(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    written = seal(path).written
    assert written is not None
    good = written.read_bytes()
    for at in range(0, len(good), 37):
        hurt = bytearray(good)
        hurt[at] ^= 2
        written.write_bytes(hurt)
        report = verify(path)
        assert (report.verdict, report.damage) == (Verdict.UNVERIFIABLE, ())
        assert "bad-seal" in codes(report)
    written.write_bytes(good)
    assert verify(path).verdict is Verdict.INTACT


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"files": []},
        {"files": {"config.json": None}},
        {"files": {"config.json": {"size": True, "mtime_ns": 1, "sha256": "0" * 64}}},
        {"files": {"config.json": {"size": 22, "mtime_ns": 1, "sha256": 7, "chunks": []}}},
        {"files": {"config.json": {"size": 22, "mtime_ns": 1, "sha256": "x", "chunks": []}}},
        {"files": {"c": {"size": 1, "mtime_ns": 1, "sha256": "0" * 64, "chunks": [3]}}},
        {"chunk_bytes": 0},
        {"at": None},
        {"generation": 3},
        {"path": None},
    ],
)
def test_a_seal_that_somebody_made_up_is_a_finding_and_no_error(
    run: Path, change: dict[str, Any]
) -> None:
    path = HUGGINGFACE.make(run)
    written = seal(path).written
    assert written is not None
    value = {**json.loads(written.read_text()), **change}
    del value["check"]
    written.write_text(json.dumps({**value, "check": seals._check(value)}))
    report = verify(path)
    assert report.verdict is Verdict.UNVERIFIABLE
    assert "bad-seal" in codes(report)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"check": 1}', "[" * 100_000])
def test_a_file_that_is_no_seal_is_a_finding(run: Path, text: str) -> None:
    path = HUGGINGFACE.make(run)
    written = seal(path).written
    assert written is not None
    written.write_text(text)
    assert "bad-seal" in codes(verify(path))


def test_names_that_are_no_utf8_are_sealed(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    (path / "st\udcffep\n[]").write_text("x")
    seal(path)
    assert verify(path).verdict is Verdict.INTACT


# ---- generations side by side -----------------------------------------------------------------


def save(run: Path, value: int) -> str:
    swapped = drive(publish_kt(run / "experts", writer(value), run_dir=run))
    (change,) = swapped.changes
    assert change.after is not None
    return change.after


def retired(run: Path) -> Generation:
    [slot] = scan(run)
    return next(each for each in slot.generations if each.state is State.RETIRED)


def test_a_retired_generation_among_the_live_one_is_sealed_in_place(run: Path) -> None:
    old = save(run, 1)
    save(run, 2)
    before = snapshot(run / "experts")
    sealed = seal(run / "experts", generation=retired(run))
    assert snapshot(run / "experts") == before
    assert sealed.seal is not None
    assert sealed.seal.generation == old
    assert drive(verify_inside(retired(run), Depth.BYTES)).verdict is Verdict.INTACT
    assert verify(run / "experts").verdict is Verdict.UNVERIFIABLE

    change_bytes(next((run / "experts").glob(f"*{old}-layer-00001*")), keep_time=True)
    report = drive(verify_inside(retired(run), Depth.BYTES))
    assert (report.verdict, codes(report)) == (Verdict.DAMAGED, ["hash-mismatch", "sealed"])


def test_a_seal_stays_with_its_generation_when_the_next_one_is_saved(run: Path) -> None:
    save(run, 1)
    seal(run / "experts")
    save(run, 2)
    assert drive(verify_inside(retired(run), Depth.BYTES)).verdict is Verdict.INTACT
    report = verify(run / "experts")
    assert (report.verdict, codes(report)) == (Verdict.UNVERIFIABLE, ["no-hashes"])


def test_an_index_by_itself_is_intact_whatever_lies_beside_it(run: Path) -> None:
    save(run, 1)
    (run / "experts" / "optimizer.dat").write_text("x")
    seal(run / "experts")
    (run / "experts" / "optimizer.dat").unlink()
    assert verify(run / "experts" / "kt_full_experts.index.json").verdict is Verdict.INTACT
    assert verify(run / "experts").verdict is Verdict.UNVERIFIABLE


# ---- the command ------------------------------------------------------------------------------


def ckpt(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def test_the_command_says_what_was_sealed_and_where(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    result = ckpt("seal", path)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"sealed  {path}  5 files, ")
    document = json.loads(ckpt("seal", path, "--json").stdout)
    assert list(document) == [
        "schema", "path", "run", "format", "sealed", "generation", "at", "seal", "files",
        "bytes_read", "seconds",
    ]  # fmt: skip
    assert (document["schema"], document["sealed"]) == ("ckpt.seal/1", True)
    assert Path(document["seal"]).parent == run / ".ckpt" / "seals"
    assert ckpt("verify", path).exit_code == 0
    assert "as it was sealed" in ckpt("verify", path).stdout


def test_the_codes_of_the_command(run: Path) -> None:
    path = HUGGINGFACE.make(run)
    own = put_checkpoint(run / "step_1", 1)
    assert ckpt("seal", own).exit_code == 0
    assert "nothing to seal" in ckpt("seal", own).stdout
    assert json.loads(ckpt("seal", own, "--json").stdout)["sealed"] is False
    assert ckpt("seal", run / "absent").exit_code == 2
    (path / "model-00001-of-00002.safetensors").write_bytes(b"")
    refused = ckpt("seal", path, "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (1, "refused")


def test_a_generation_is_sealed_by_its_name(run: Path) -> None:
    old = save(run, 1)
    save(run, 2)
    name = f"{run}:experts@{old}"
    assert ckpt("verify", name).exit_code == 3
    assert ckpt("seal", name).exit_code == 0
    assert ckpt("verify", name).exit_code == 0
    document = json.loads(ckpt("verify", name, "--json").stdout)
    assert (document["path"], document["verdict"]) == (name, "intact")


def test_a_checkpoint_outside_of_any_run_is_sealed_beside_it(tmp_path: Path) -> None:
    path = HUGGINGFACE.make(tmp_path)
    sealed = seal(path)
    assert sealed.run_dir == tmp_path
    assert verify(path).verdict is Verdict.INTACT
    assert not (path / ".ckpt").exists()


def test_a_final_model_that_lies_in_the_run_itself_is_sealed_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    HUGGINGFACE.make(out)
    for file in (out / "checkpoint-8").iterdir():
        shutil.copy(file, out)
    sealed = seal(out)
    assert sealed.run_dir == out
    assert verify(out).verdict is Verdict.INTACT
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
