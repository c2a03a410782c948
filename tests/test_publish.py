"""Publishing under a free name: whatever fails and wherever, the name is absent or complete."""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from samples import floats
from trees import put_checkpoint, snapshot

from ckpt import fs
from ckpt.checkpoint import State, Verdict
from ckpt.errors import PublishError
from ckpt.formats.astrai import write_checkpoint
from ckpt.generations import publish_new, scan
from ckpt.generations.names import shortened, staging_name
from ckpt.operation import Note, drive
from ckpt.verify import verify

META = {"epoch": 1, "consumed_samples": 8, "timestamp": "2026-12-01T07:00:00", "optimizer_step": 9}


def write(staging: Path, name: str = "step_9") -> None:
    write_checkpoint(staging, META, {"hidden": 2}, [floats("w", 1, 2, 3)], slot=name)


def publish(target: Path) -> Path:
    return drive(publish_new(target, lambda staging: write(staging, target.name)))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with another checkpoint and the staging of somebody else in it."""
    directory = tmp_path / "run"
    put_checkpoint(directory / "step_8", 8)
    (directory / ".step_9.tmp-foreign0").mkdir()
    (directory / ".step_9.tmp-foreign0" / "model.safetensors").write_bytes(b"half")
    return directory


def calls_of(target: Path) -> list[fs.Call]:
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        publish(target)
    return calls


def test_what_is_published_is_intact_and_nothing_else_is_left(run: Path) -> None:
    before = snapshot(run)
    assert publish(run / "step_9") == run / "step_9"
    assert drive(verify(run / "step_9")).verdict is Verdict.INTACT
    after = snapshot(run)
    assert sorted(after.keys() - before.keys()) == [
        "step_9",
        "step_9/config.json",
        "step_9/manifest.json",
        "step_9/meta.json",
        "step_9/model.safetensors",
    ]
    assert {name: after[name] for name in before} == before
    assert [(slot.name, slot.state) for slot in scan(run)] == [
        ("step_9", State.LIVE),
        ("step_8", State.LIVE),
    ]


def test_the_modes_are_the_umasks(run: Path) -> None:
    with umask(0o027):
        publish(run / "step_9")
    assert stat.S_IMODE((run / "step_9").stat().st_mode) == 0o750
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (run / "step_9").iterdir()}
    assert modes == {0o640}


def test_the_order_makes_it_durable(run: Path) -> None:
    """Every file before the manifest, the directory before the name, the name before success."""
    seen: list[tuple[str, str]] = []
    for call in calls_of(run / "step_9"):
        if call.name in ("mkdir", "fsync", "fsync-directory", "rename"):
            name = Path(call.path).name
            is_staging = name.startswith(".step_9.tmp-")
            is_temporary = name.startswith(".manifest.json.new-")
            short = "STAGING" if is_staging else "manifest (new)" if is_temporary else name
            seen.append((call.name, short))
    assert seen == [
        ("mkdir", "STAGING"),
        ("fsync", "model.safetensors"),
        ("fsync", "meta.json"),
        ("fsync", "config.json"),
        ("fsync", "manifest (new)"),
        ("rename", "manifest.json"),
        ("fsync-directory", "STAGING"),
        ("fsync-directory", "STAGING"),
        ("rename", "step_9"),
        ("fsync-directory", "run"),
    ]


class Fault:
    """Raises once at the given call; the calls after it go through."""

    def __init__(self, at: int, make: Callable[[], BaseException]) -> None:
        self.at, self.make, self.count = at, make, 0
        self.call: fs.Call | None = None

    def __call__(self, call: fs.Call) -> None:
        self.count += 1
        if self.count == self.at:
            self.call = call
            raise self.make()


FAULTS = [
    pytest.param(lambda: OSError(errno.ENOSPC, "No space left on device"), id="ENOSPC"),
    pytest.param(lambda: OSError(errno.EIO, "Input/output error"), id="EIO"),
    pytest.param(lambda: OSError(errno.EDQUOT, "Disk quota exceeded"), id="EDQUOT"),
    pytest.param(KeyboardInterrupt, id="KeyboardInterrupt"),
]


@pytest.mark.parametrize("make", FAULTS)
def test_a_fault_at_any_call_leaves_the_name_absent_or_complete(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    total = len(calls_of(fresh(tmp_path, 0) / "step_9"))
    assert total > 20
    for at in range(1, total + 1):
        run = fresh(tmp_path, at)
        before = snapshot(run)
        fault = Fault(at, make)
        raised: BaseException | None = None
        try:
            with fs.hooked(fault):
                publish(run / "step_9")
        except (PublishError, KeyboardInterrupt) as error:
            raised = error
        assert fault.call is not None
        where = f"call {at} of {total}: {fault.call}"
        after = snapshot(run)
        assert {name: after.get(name, b"gone") for name in before} == before, where
        new = {name.split("/")[0] for name in after.keys() - before.keys()}
        assert new <= {"step_9"}, where
        if raised is None:
            assert new == {"step_9"}, where
        if new:
            assert drive(verify(run / "step_9")).verdict is Verdict.INTACT, where


def test_a_second_fault_in_the_clean_up_harms_nothing_either(tmp_path: Path) -> None:
    run = fresh(tmp_path, 0)
    before = snapshot(run)

    def refuse(call: fs.Call) -> None:
        if call.name in ("fsync", "unlink", "rmdir"):
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError, match="not published: Input/output error"):
        publish(run / "step_9")
    after = snapshot(run)
    assert {name: after[name] for name in before} == before
    assert not (run / "step_9").exists()
    left = {name.split("/")[0] for name in after.keys() - before.keys()}
    assert all(name.startswith(".step_9.tmp-") for name in left)
    (slot,) = [slot for slot in scan(run) if slot.name == "step_9"]
    assert len(slot.leftovers) == 2


def fresh(tmp_path: Path, number: int) -> Path:
    run = tmp_path / f"run_{number}"
    put_checkpoint(run / "step_8", 8)
    (run / ".step_9.tmp-foreign0").mkdir()
    (run / ".step_9.tmp-foreign0" / "model.safetensors").write_bytes(b"half")
    return run


def test_a_failure_after_the_commit_says_so_and_removes_nothing(run: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "fsync-directory" and call.path == str(run):
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError, match="published, but not known"):
        publish(run / "step_9")
    assert drive(verify(run / "step_9")).verdict is Verdict.INTACT


def test_a_rename_whose_reply_was_lost_counts(run: Path) -> None:
    """On NFS a rename that succeeded can be answered with ENOENT."""

    def lose(call: fs.Call) -> None:
        if call.name == "rename" and call.path == str(run / "step_9"):
            (staging,) = [path for path in run.glob(".step_9.tmp-*") if "foreign" not in path.name]
            os.rename(staging, run / "step_9")
            raise OSError(errno.ENOENT, "No such file or directory", call.path)

    with fs.hooked(lose):
        assert publish(run / "step_9") == run / "step_9"
    assert drive(verify(run / "step_9")).verdict is Verdict.INTACT


def test_an_interrupt_right_after_the_commit_removes_nothing(run: Path) -> None:
    def interrupt(call: fs.Call) -> None:
        if call.name == "rename" and call.path == str(run / "step_9"):
            (staging,) = [path for path in run.glob(".step_9.tmp-*") if "foreign" not in path.name]
            os.rename(staging, run / "step_9")
            raise KeyboardInterrupt

    with fs.hooked(interrupt), pytest.raises(KeyboardInterrupt):
        publish(run / "step_9")
    assert drive(verify(run / "step_9")).verdict is Verdict.INTACT


@pytest.mark.parametrize("kind", ["directory", "empty directory", "file", "dangling link"])
def test_an_occupied_name_is_refused_before_anything_is_written(run: Path, kind: str) -> None:
    target = run / "step_9"
    if kind == "directory":
        put_checkpoint(target, 9)
    elif kind == "empty directory":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    before = snapshot(run)
    with pytest.raises(PublishError) as caught:
        publish(target)
    assert caught.value.message == f"{target}: the name is taken; what stands there is untouched"
    assert snapshot(run) == before


def test_a_name_taken_while_it_was_written_is_left_alone(run: Path) -> None:
    target = run / "step_9"

    def slow(staging: Path) -> None:
        write(staging)
        put_checkpoint(target, 9, 4.0)

    with pytest.raises(PublishError, match="the name is taken"):
        drive(publish_new(target, slow))
    assert sorted(path.name for path in run.iterdir()) == [
        ".step_9.tmp-foreign0",
        "step_8",
        "step_9",
    ]
    assert drive(verify(target)).verdict is Verdict.INTACT


def test_of_several_writers_one_wins_and_the_others_are_told(tmp_path: Path) -> None:
    target = tmp_path / "step_9"
    barrier = threading.Barrier(4)
    outcomes: list[str] = []

    def save() -> None:
        barrier.wait()
        try:
            publish(target)
            outcomes.append("published")
        except PublishError as error:
            outcomes.append(error.message)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = f"{target}: the name is taken; what stands there is untouched"
    assert sorted(outcomes) == sorted(["published", taken, taken, taken])
    assert [path.name for path in tmp_path.iterdir()] == ["step_9"]
    assert drive(verify(target)).verdict is Verdict.INTACT


def test_what_is_not_whole_is_not_published(run: Path) -> None:
    def half(staging: Path) -> None:
        write(staging)
        os.truncate(staging / "model.safetensors", 10)

    before = snapshot(run)
    for writer in (half, lambda _staging: None):
        with pytest.raises(PublishError, match="not published"):
            drive(publish_new(run / "step_9", writer))
        assert snapshot(run) == before


def test_an_error_of_the_writer_passes_and_its_staging_goes(run: Path) -> None:
    def fail(staging: Path) -> None:
        (staging / "model.safetensors").write_bytes(b"x")
        raise ValueError("no such tensor")

    before = snapshot(run)
    with pytest.raises(ValueError, match="no such tensor"):
        drive(publish_new(run / "step_9", fail))
    assert snapshot(run) == before


def test_closing_before_the_commit_leaves_nothing(run: Path) -> None:
    before = snapshot(run)
    operation = publish_new(run / "step_9", write)
    assert next(operation) == Note("writing step_9")
    operation.close()
    assert snapshot(run) == before


def test_a_full_disk_is_named_with_what_is_free(run: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "write":
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError) as caught:
        publish(run / "step_9")
    start = f"{run / 'step_9'}: not published: No space left on device ("
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith(" bytes are free there)")


@pytest.mark.parametrize("name", ["", "..", ".hidden"])
def test_a_name_that_no_reader_would_list_is_refused(run: Path, name: str) -> None:
    with pytest.raises(PublishError, match="no name for a checkpoint"):
        drive(publish_new(run / name if name else Path("/"), write))


@pytest.mark.parametrize("size", [200, 240, 245, 255])
def test_a_long_name_is_published_and_its_staging_belongs_to_it(tmp_path: Path, size: int) -> None:
    name = "step_9_" + "é" * ((size - 7) // 2)
    name += "x" * (size - len(name.encode()))
    seen: list[str] = []

    def slow(staging: Path) -> None:
        seen.append(staging.name)
        write(staging, name)
        (slot,) = scan(tmp_path)
        assert len(staging.name.encode()) <= 255
        assert slot.generations[0].state is State.SEALED

    drive(publish_new(tmp_path / name, slow))
    (tmp_path / seen[0]).mkdir()
    (slot,) = scan(tmp_path)
    assert (slot.name, [each.path.name for each in slot.leftovers]) == (name, seen)


def test_a_name_too_long_for_the_disk_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="not published: File name too long"):
        publish(tmp_path / ("x" * 256))
    assert list(tmp_path.iterdir()) == []


def test_hidden_names_are_shortened_only_where_they_must_be() -> None:
    assert staging_name("step_9", "abcdefgh") == ".step_9.tmp-abcdefgh"
    assert staging_name("x" * 241, "abcdefgh") == f".{'x' * 241}.tmp-abcdefgh"
    assert staging_name("x" * 250, "abcdefgh") == f".{shortened('x' * 250)}.tmp-abcdefgh"
    assert len(shortened("x" * 250)) + len("..withdrawn-abcdefgh") == 255
    assert shortened("x" * 250) != shortened("x" * 249 + "y")
