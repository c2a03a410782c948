"""A verification that was cancelled is gone on with, honestly, and only once."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from trees import put_checkpoint

from ckpt import compared, control, fs
from ckpt.checkpoint import Depth, Report, Severity, Verdict
from ckpt.generations import verify_in_run
from ckpt.operation import Progress, drive

EXTRAS = ("a.dat", "b.dat", "c.dat")
EACH = 100_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep also what was read of little, and let times tell a change at once."""
    monkeypatch.setattr(compared, "LEAST_BYTES", 0)
    monkeypatch.setattr(compared, "SETTLED_S", 0.0)
    monkeypatch.setattr(control, "SETTLED_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint of six files in a run, read in the order of their names."""
    (tmp_path / "run.json").write_text("{}")
    path = put_checkpoint(tmp_path / "step_1", 1)
    manifest = json.loads((path / "manifest.json").read_bytes())
    for name in EXTRAS:
        data = os.urandom(EACH)
        (path / name).write_bytes(data)
        manifest["files"][name] = {"size": EACH, "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def verify(path: Path) -> Report:
    return drive(verify_in_run(path))


def cancel_behind(path: Path, name: str, *, by: str = "close") -> None:
    """Verify until that file is compared, then stop."""
    operation = verify_in_run(path)
    for event in operation:
        if isinstance(event, Progress) and event.what == name:
            break
    if by == "close":
        operation.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            operation.throw(KeyboardInterrupt())


def before(report: Report) -> list[str]:
    told = [each for each in report.findings if each.code == "compared-before"]
    assert {each.severity for each in told} <= {Severity.NOTE}
    return [each.message.split(" were")[0] for each in told]


@pytest.mark.parametrize("by", ["close", "interrupt"])
def test_what_was_compared_is_not_read_again_and_the_report_says_so(path: Path, by: str) -> None:
    whole = verify(path)
    cancel_behind(path, "b.dat", by=by)
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.INTACT, ["2 of 6 files"])
    assert report.bytes_read == whole.bytes_read - 2 * EACH


def test_the_verification_after_that_reads_everything_again(path: Path) -> None:
    whole = verify(path)
    cancel_behind(path, "b.dat")
    verify(path)
    report = verify(path)
    assert (before(report), report.bytes_read) == ([], whole.bytes_read)


def test_a_second_cancellation_adds_to_the_first(path: Path) -> None:
    cancel_behind(path, "a.dat")
    cancel_behind(path, "b.dat")
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.INTACT, ["2 of 6 files"])


def test_a_file_that_changed_since_is_read_again(path: Path) -> None:
    cancel_behind(path, "b.dat")
    found = (path / "a.dat").stat()
    content = bytearray((path / "a.dat").read_bytes())
    content[5] ^= 1
    (path / "a.dat").write_bytes(content)
    os.utime(path / "a.dat", ns=(found.st_mtime_ns, found.st_mtime_ns))
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.DAMAGED, ["1 of 6 files"])
    assert [each.file for each in report.damage] == ["a.dat"]


def test_what_is_recorded_now_is_compared_now(path: Path) -> None:
    cancel_behind(path, "b.dat")
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"]["a.dat"]["sha256"] = "0" * 64
    (path / "manifest.json").write_text(json.dumps(manifest))
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.DAMAGED, ["1 of 6 files"])


def test_damage_is_never_kept_as_compared(path: Path) -> None:
    (path / "a.dat").write_bytes(bytes(EACH))
    cancel_behind(path, "b.dat")
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.DAMAGED, ["1 of 6 files"])


def test_all_that_was_compared_before_makes_it_intact(path: Path) -> None:
    operation = verify_in_run(path)
    names = []
    for event in operation:
        if isinstance(event, Progress):
            names.append(event.what)
        if len({*names}) == 6 and event.done == event.total:
            break
    operation.close()
    report = verify(path)
    assert (report.verdict, report.bytes_read, before(report)) == (
        Verdict.INTACT,
        0,
        ["6 of 6 files"],
    )


@pytest.mark.parametrize(("age_s", "kept"), [(60.0, 2), (90_000.0, 0), (-60.0, 0)])
def test_what_was_compared_ages(path: Path, age_s: float, kept: int) -> None:
    cancel_behind(path, "b.dat")
    file = path.parent / ".ckpt" / "compared"
    entries = {key: at - age_s for key, at in json.loads(file.read_bytes()).items()}
    assert len(entries) == 2
    file.write_text(json.dumps(entries))
    assert before(verify(path)) == ([f"{kept} of 6 files"] if kept else [])


def test_a_file_that_is_too_new_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "SETTLED_S", 60.0)
    cancel_behind(path, "b.dat")
    assert before(verify(path)) == []


def test_little_is_not_worth_keeping(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "LEAST_BYTES", 10 * EACH)
    cancel_behind(path, "b.dat")
    assert not (path.parent / ".ckpt").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"k": "x", "l": null, "m": 1e999}', "[" * 9999])
def test_a_file_of_another_kind_in_its_place_is_nothing(path: Path, text: str) -> None:
    (path.parent / ".ckpt").mkdir()
    (path.parent / ".ckpt" / "compared").write_text(text)
    report = verify(path)
    assert (report.verdict, before(report)) == (Verdict.INTACT, [])


def test_a_run_that_cannot_be_written_to_is_no_error(path: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name in ("mkdir", "append", "create", "rename"):
            raise OSError(30, "Read-only file system", call.path)

    with fs.hooked(refuse):
        cancel_behind(path, "b.dat")
        assert verify(path).verdict is Verdict.INTACT


def test_a_verdict_is_remembered_only_of_files_that_were_old_when_the_reading_began(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SETTLED_S", 0.3)
    remembered = path.parent / ".ckpt" / "verified"

    def slow(event: object) -> None:
        if isinstance(event, Progress) and event.what == "a.dat":
            time.sleep(0.4)

    (path / "config.json").write_bytes((path / "config.json").read_bytes())
    drive(verify_in_run(path, Depth.BYTES), slow)
    assert not remembered.exists()
    drive(verify_in_run(path, Depth.BYTES))
    assert remembered.exists()
