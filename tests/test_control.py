"""What a run's .ckpt/ remembers, and that it is never in the way."""

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from trees import put_checkpoint

from ckpt import control, fs
from ckpt.checkpoint import Depth, Verdict, Verified
from ckpt.control import Stamp, VerifiedCache, VerifiedEntry
from ckpt.generations import scan, verify_in_run
from ckpt.operation import drive

OLD = Stamp("aa", 1000.0)


def entry(path: str = "step_1", digest: str = "aa", at: float = 5.0) -> VerifiedEntry:
    return VerifiedEntry(path, "g1", digest, Verified(Verdict.INTACT, Depth.BYTES, at))


def found(run: Path, stamp: Stamp = OLD) -> Verified | None:
    cache = VerifiedCache(run)
    cache.refresh()
    return cache.lookup(stamp)


@pytest.fixture
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the times of files tell a change at once, as they do on this file system."""
    monkeypatch.setattr(control, "SETTLED_S", 0.0)


# ---- samples and pins -------------------------------------------------------------------------


def test_samples_are_lines_of_strict_json(tmp_path: Path) -> None:
    assert control.append_sample(tmp_path, {"step": 1, "loss": None})
    assert control.append_sample(tmp_path, {"step": 2, "loss": 0.5})
    assert control.samples_path(tmp_path) == tmp_path / ".ckpt" / "samples.jsonl"
    assert control.samples_path(tmp_path).read_text() == (
        '{"step": 1, "loss": null}\n{"step": 2, "loss": 0.5}\n'
    )


def test_a_line_is_appended_behind_the_half_line_of_a_dead_writer(tmp_path: Path) -> None:
    (tmp_path / ".ckpt").mkdir()
    control.samples_path(tmp_path).write_text('{"step": 1}\n{"ste')
    assert control.append_sample(tmp_path, {"step": 2})
    assert control.samples_path(tmp_path).read_text() == '{"step": 1}\n{"ste\n{"step": 2}\n'


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_where_nothing_can_be_written_the_answer_says_so(tmp_path: Path, number: int) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name in ("mkdir", "append", "create"):
            raise OSError(number, os.strerror(number), call.path)

    with fs.hooked(refuse):
        assert control.append_sample(tmp_path, {"step": 1}) is False
        assert VerifiedCache(tmp_path).remember(entry(), OLD) is False
    assert list(tmp_path.iterdir()) == []


def test_a_removed_run_is_not_made_again(tmp_path: Path) -> None:
    assert control.append_sample(tmp_path / "gone", {"step": 1}) is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", [".ckpt", ".ckpt/samples.jsonl"])
def test_nothing_is_written_through_a_link(tmp_path: Path, linked: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (run / linked).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine\n")
    (run / linked).symlink_to(elsewhere / "file" if "samples" in linked else elsewhere)
    assert control.append_sample(run, {"step": 1}) is False
    assert (elsewhere / "file").read_text() == "mine\n"
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


def test_pins_are_the_first_word_of_each_line(tmp_path: Path) -> None:
    assert control.read_pins(tmp_path) == frozenset()
    (tmp_path / ".ckpt").mkdir()
    (tmp_path / ".ckpt" / "pins").write_bytes(b"abc the good one\n\n  def\n\xff")
    assert control.read_pins(tmp_path) == {"abc", "def", "\udcff"}


# ---- the verified cache -----------------------------------------------------------------------


def test_what_was_remembered_is_found_by_the_same_files_only(tmp_path: Path) -> None:
    assert VerifiedCache(tmp_path).remember(entry(), OLD)
    assert found(tmp_path) == Verified(Verdict.INTACT, Depth.BYTES, 5.0)
    assert found(tmp_path, Stamp("bb", 1000.0)) is None


def test_the_last_entry_of_a_payload_wins(tmp_path: Path) -> None:
    cache = VerifiedCache(tmp_path)
    cache.remember(entry(at=5.0), OLD)
    cache.remember(entry(at=7.0), OLD)
    cache.remember(entry(digest="bb", at=9.0), Stamp("bb", 1000.0))
    assert found(tmp_path) is None
    assert found(tmp_path, Stamp("bb", 1000.0)) == Verified(Verdict.INTACT, Depth.BYTES, 9.0)


def test_a_quick_look_does_not_replace_what_a_deep_one_said_unless_it_found_damage(
    tmp_path: Path,
) -> None:
    cache = VerifiedCache(tmp_path)
    deep = entry(at=5.0)
    assert cache.remember(deep, OLD)
    quick = Verified(Verdict.UNVERIFIABLE, Depth.HEADERS, 7.0)
    assert cache.remember(VerifiedEntry("step_1", "g1", "aa", quick), OLD) is False
    assert found(tmp_path) == deep.verified
    damaged = Verified(Verdict.DAMAGED, Depth.HEADERS, 8.0)
    assert cache.remember(VerifiedEntry("step_1", "g1", "aa", damaged), OLD)
    assert found(tmp_path) == damaged


def test_files_younger_than_two_seconds_are_not_remembered(tmp_path: Path) -> None:
    cache = VerifiedCache(tmp_path)
    assert cache.remember(entry(), Stamp("aa", time.time() - 1.0)) is False
    assert cache.remember(entry(), Stamp("aa", time.time() + 600.0)) is False
    assert not (tmp_path / ".ckpt").exists()
    assert cache.remember(entry(), Stamp("aa", time.time() - 2.5)) is True


@pytest.mark.parametrize(
    "damage",
    [
        b'{"path": "step_2", "gen',
        b"\xff\xfe\n",
        b"[]\n",
        b'{"path": 1, "generation": "g", "key": "aa", "verdict": "intact", "depth": "bytes"}\n',
        b'{"path":"a","generation":"g","key":"aa","verdict":"fine","depth":"bytes","at":1}\n',
        b'{"path":"a","generation":"g","key":"aa","verdict":"intact","depth":"deep","at":1}\n',
    ],
)
def test_a_line_that_does_not_parse_is_not_there(tmp_path: Path, damage: bytes) -> None:
    VerifiedCache(tmp_path).remember(entry(), OLD)
    with (tmp_path / ".ckpt" / "verified").open("ab") as file:
        file.write(damage)
    assert found(tmp_path) == Verified(Verdict.INTACT, Depth.BYTES, 5.0)
    assert VerifiedCache(tmp_path).remember(entry("other", "cc", 6.0), Stamp("cc", 1.0))
    assert found(tmp_path, Stamp("cc", 1.0)) == Verified(Verdict.INTACT, Depth.BYTES, 6.0)


def test_a_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    cache = VerifiedCache(tmp_path)
    assert cache.remember(entry("st\udcffep\n[/]"), OLD)
    line = (tmp_path / ".ckpt" / "verified").read_bytes()
    assert json.loads(line)["path"] == "st\udcffep\n[/]"
    assert line.count(b"\n") == 1


def test_the_cache_is_compacted_when_it_grows_and_loses_nothing_valid(tmp_path: Path) -> None:
    cache = VerifiedCache(tmp_path)
    cache.remember(entry("other", "cc", 1.0), Stamp("cc", 1.0))
    for at in range(control.COMPACT_LINES + 5):
        cache.remember(entry(at=float(at)), OLD)
    lines = (tmp_path / ".ckpt" / "verified").read_bytes().splitlines()
    assert len(lines) < 10
    assert found(tmp_path) == Verified(Verdict.INTACT, Depth.BYTES, 260.0)
    assert found(tmp_path, Stamp("cc", 1.0)) == Verified(Verdict.INTACT, Depth.BYTES, 1.0)


# ---- verifying a payload of a run -------------------------------------------------------------


@pytest.mark.usefixtures("soon_settled")
def test_a_verified_payload_is_known_as_such_until_a_file_of_it_changes(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1)
    (tmp_path / "run.json").write_text("{}")
    assert drive(verify_in_run(path)).verdict is Verdict.INTACT
    verified = scan(tmp_path)[0].generations[0].verified
    assert verified is not None
    assert (verified.verdict, verified.depth) == (Verdict.INTACT, Depth.BYTES)
    assert time.time() - verified.at < 60

    (path / "metric.jsonl").write_text("added later, no part of the payload")
    assert scan(tmp_path)[0].generations[0].verified == verified

    os.rename(path, tmp_path / ".step_1.retired-abcdefgh")
    assert scan(tmp_path)[0].generations[0].verified == verified

    model = tmp_path / ".step_1.retired-abcdefgh" / "model.safetensors"
    model.write_bytes(model.read_bytes())
    assert scan(tmp_path)[0].generations[0].verified is None


@pytest.mark.usefixtures("soon_settled")
def test_a_copy_of_a_verified_payload_is_not_verified(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1)
    drive(verify_in_run(path, run_dir=tmp_path))
    shutil.copytree(path, tmp_path / "step_1_copy")
    known = {slot.name: slot.generations[0].verified is not None for slot in scan(tmp_path)}
    assert known == {"step_1": True, "step_1_copy": False}


@pytest.mark.usefixtures("soon_settled")
def test_a_read_only_run_is_verified_and_nothing_is_written(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1)
    (tmp_path / "run.json").write_text("{}")

    def refuse(call: fs.Call) -> None:
        if call.name in ("mkdir", "append", "create", "rename"):
            raise OSError(errno.EROFS, "Read-only file system", call.path)

    with fs.hooked(refuse):
        assert drive(verify_in_run(path)).verdict is Verdict.INTACT
        assert scan(tmp_path)[0].generations[0].verified is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.json", "step_1"]


@pytest.mark.usefixtures("soon_settled")
def test_a_checkpoint_outside_of_any_run_leaves_no_trace(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "models" / "step_1", 1)
    assert drive(verify_in_run(path)).verdict is Verdict.INTACT
    assert [each.name for each in path.parent.iterdir()] == ["step_1"]
