"""What the watcher notices: by events, by polling, and when the ground moves under it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt import fs, watch
from ckpt.watch import Targets, Watcher

LIMIT_S = 15.0


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll directories more often than usual: none of these tests is about how often."""
    monkeypatch.setattr(watch, "DIRECTORY_S", 0.25)


@contextmanager
def watching(run: Path, targets: Targets, poll_s: float | None = None) -> Iterator[Watcher]:
    watcher = Watcher(run, poll_s=poll_s)
    watcher.watch(targets)
    try:
        yield watcher
    finally:
        watcher.stop()


def of(run: Path) -> Targets:
    return Targets((run / "training_state.json", run / "metrics.jsonl"), (run,))


def until(watcher: Watcher, condition: Callable[[frozenset[Path]], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if condition(watcher.wait(0.2)):
            return
    pytest.fail("waited in vain")


def until_events(watcher: Watcher) -> None:
    """Wait until events work and what starting them caused is over."""
    until(watcher, lambda _: watcher.watching.mode == "events")
    until(watcher, lambda found: not found)


def replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


@pytest.mark.parametrize("poll_s", [None, 0.05], ids=["events", "polling"])
def test_every_replacement_of_a_state_file_is_seen(tmp_path: Path, poll_s: float | None) -> None:
    state = tmp_path / "training_state.json"
    state.write_text("0")
    with watching(tmp_path, of(tmp_path), poll_s) as watcher:
        if poll_s is None:
            until_events(watcher)
        for step in range(20):
            replace(state, "x" * step)
            until(watcher, lambda found: state in found)


def test_an_event_ends_the_wait_long_before_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STATE_S", 3600.0)
    state = tmp_path / "training_state.json"
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        state.write_text("1")
        until(watcher, lambda found: state in found)
        replace(state, "2")
        until(watcher, lambda found: state in found)
        (tmp_path / "step_5").mkdir()
        until(watcher, lambda found: tmp_path in found)


def test_what_an_event_told_is_not_told_again_by_the_poll(tmp_path: Path) -> None:
    state = tmp_path / "training_state.json"
    state.write_text("1")
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        replace(state, "2")
        until(watcher, lambda found: state in found)
        until(watcher, lambda found: not found)
        assert watcher.wait(1.2) == frozenset()


def test_our_own_reading_wakes_nobody(tmp_path: Path) -> None:
    state = tmp_path / "training_state.json"
    state.write_text("1")
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        for _ in range(50):
            fs.read_bytes(state)
            fs.scan(tmp_path)
        assert watcher.wait(0.3) == frozenset()


def test_a_log_that_grows_is_not_the_runs_news(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("a")
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        for _ in range(20):
            with (tmp_path / "train.log").open("a") as log:
                log.write("more\n")
        assert watcher.wait(0.3) == frozenset()


def test_a_run_deleted_and_made_again_is_picked_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with watching(run, of(run)) as watcher:
        until_events(watcher)
        shutil.rmtree(run)
        until(watcher, lambda found: run in found)
        run.mkdir()
        until(watcher, lambda found: run in found)
        (run / "training_state.json").write_text("1")
        until(watcher, lambda found: run / "training_state.json" in found)
        until(watcher, lambda _: watcher.watching.mode == "events")


def test_a_run_swapped_by_rename_is_watched_at_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with watching(run, of(run)) as watcher:
        until_events(watcher)
        (tmp_path / "other").mkdir()
        run.rename(tmp_path / "old")
        (tmp_path / "other").rename(run)
        until(watcher, lambda found: run in found)
        until_events(watcher)
        assert fs.identity(run).inode in fs.inotify_inodes()


def test_a_link_that_is_pointed_elsewhere_is_followed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run = tmp_path / "latest"
    run.symlink_to("one")
    with watching(run, of(run)) as watcher:
        until_events(watcher)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").replace(run)
        until(watcher, lambda found: run in found)
        until_events(watcher)
        (tmp_path / "two" / "training_state.json").write_text("1")
        until(watcher, lambda found: run / "training_state.json" in found)
        assert fs.identity(tmp_path / "two").inode in fs.inotify_inodes()


def test_a_dead_emitter_is_noticed_and_replaced(tmp_path: Path) -> None:
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        before = watcher._events._observer
        for emitter in before.emitters:
            emitter.stop()
        until(watcher, lambda _: watcher._events._observer is not before)
        until_events(watcher)
        (tmp_path / "step_1").mkdir()
        until(watcher, lambda found: tmp_path in found)


def test_a_storm_of_files_is_calm_and_its_end_is_seen(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    with watching(tmp_path, of(tmp_path)) as watcher:
        until_events(watcher)
        stop = threading.Event()

        def storm() -> None:
            for number in range(3000):
                (tmp_path / f"file{number}").write_text("")
            replace(tmp_path / "training_state.json", "end")
            stop.set()

        thread = threading.Thread(target=storm)
        thread.start()
        answers, saw_end = 0, False
        deadline = time.monotonic() + LIMIT_S
        while not saw_end and time.monotonic() < deadline:
            found = watcher.wait(0.5)
            answers += bool(found)
            assert len(found) <= 3
            saw_end = tmp_path / "training_state.json" in found
        thread.join()
        assert saw_end
        assert answers < 500


def test_a_forced_poll_says_so_and_uses_no_events(tmp_path: Path) -> None:
    with watching(tmp_path, of(tmp_path), poll_s=0.5) as watcher:
        assert (watcher.watching.mode, watcher.watching.reason) == (
            "polling",
            "every 0.5 s, as asked",
        )
        assert fs.inotify_inodes() == frozenset()


@pytest.mark.parametrize(
    ("name", "is_passing"),
    [
        (".training_state.json.new-12-ab", True),
        ("adapter.safetensors.tmp", True),
        (".ckpt", True),
        ("step_5", False),
        ("adapter.safetensors", False),
        (".step_5.tmp-0ll_d68o", False),
        (".step_5.retired-n7l8kf_w", False),
        (".step_5.withdrawn-x", False),
        (".step_5.trash-x", False),
    ],
)
def test_hidden_generations_are_news_and_temporary_files_are_not(
    name: str, is_passing: bool
) -> None:
    assert watch._is_temporary(name) is is_passing


def test_a_slot_replaced_under_its_name_is_seen_by_polling(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    with watching(tmp_path, of(tmp_path), poll_s=0.05) as watcher:
        until(watcher, lambda found: not found)
        (tmp_path / ".step_1.tmp-abcdefgh").mkdir()
        until(watcher, lambda found: tmp_path in found)
        (tmp_path / "step_1").rename(tmp_path / ".step_1.retired-abcdefgh")
        (tmp_path / ".step_1.tmp-abcdefgh").rename(tmp_path / "step_1")
        until(watcher, lambda found: tmp_path in found)


@pytest.mark.parametrize(
    ("kind", "mode", "reason"),
    [
        ("nfs4", "polling", "nfs4"),
        ("fuse.sshfs", "polling", "fuse.sshfs"),
        ("weird", "polling", "weird"),
    ],
)
def test_a_file_system_that_is_not_known_to_be_local_is_polled_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str, reason: str
) -> None:
    monkeypatch.setattr(fs, "mount_of", lambda path: fs.Mount("/", kind, is_read_only=False))
    with watching(tmp_path, of(tmp_path)) as watcher:
        assert (watcher.watching.mode, watcher.watching.reason) == (mode, reason)
        assert [group.interval_s for group in watcher._groups] == [3.0, 0.75, 15.0]


LIMITED = """
import sys, time
from pathlib import Path
from ckpt.watch import Targets, Watcher
run = Path(sys.argv[1])
state = run / "training_state.json"
watcher = Watcher(run)
watcher.watch(Targets((state,), (run,)))
deadline = time.monotonic() + 10
while watcher.watching.reason in (None, "starting") and time.monotonic() < deadline:
    watcher.wait(0.1)
seen = 0
for step in range(int(sys.argv[2])):
    state.write_text("x" * (step + 1))
    while state not in watcher.wait(5):
        pass
    seen += 1
print(watcher.watching.mode, "|", watcher.watching.reason, "|", seen)
watcher.stop()
"""


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_inotify_watches", "inotify watch limit reached"),
        ("max_inotify_instances", "inotify instance limit reached"),
    ],
)
def test_at_a_limit_of_inotify_changes_are_still_seen_and_the_limit_is_named(
    tmp_path: Path, limit: str, reason: str
) -> None:
    probe = subprocess.run(
        ["unshare", "-r", "sh", "-c", f"echo 0 > /proc/sys/user/{limit}"],
        capture_output=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("this system does not let a test set inotify limits (unshare -r)")
    script = f'echo 0 > /proc/sys/user/{limit}; exec "$0" -c "$1" "$2" 3'
    done = subprocess.run(
        ["unshare", "-r", "sh", "-c", script, sys.executable, LIMITED, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == f"polling | {reason} | 3", done.stderr


def test_stop_ends_a_wait_at_once_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    watcher = Watcher(tmp_path)
    watcher.watch(of(tmp_path))
    until_events(watcher)
    threading.Timer(0.1, watcher.stop).start()
    started = time.monotonic()
    assert watcher.wait(30) == frozenset()
    assert time.monotonic() - started < 10
    deadline = time.monotonic() + LIMIT_S
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_wake_ends_a_wait(tmp_path: Path) -> None:
    with watching(tmp_path, of(tmp_path), poll_s=60) as watcher:
        watcher.wait(0)
        threading.Timer(0.1, watcher.wake).start()
        started = time.monotonic()
        assert watcher.wait(30) == frozenset()
        assert time.monotonic() - started < 10


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /home rw,nosuid - nfs4 server:/home rw
31 30 0:27 / /home/me/scratch ro - lustre 10.0.0.1@tcp:/lus rw
32 22 0:28 / /mnt/with\\040space rw - xfs /dev/vdb rw
33 22 0:29 / /over rw - tmpfs tmpfs rw
34 33 0:30 / /over rw - ext4 /dev/vdc rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "sends_events", "is_read_only"),
    [
        ("/data/runs", "ext4", True, False),
        ("/home/me/runs", "nfs4", False, False),
        ("/home/me/scratch/run", "lustre", False, True),
        ("/home/me/scratchy", "nfs4", False, False),
        ("/homes", "ext4", True, False),
        ("/mnt/with space/run", "xfs", True, False),
        ("/over/x", "ext4", True, False),
    ],
)
def test_the_mount_is_the_one_with_the_longest_prefix(
    path: str, kind: str, sends_events: bool, is_read_only: bool
) -> None:
    mount = fs.find_mount(MOUNTS, path)
    assert (mount.type, mount.sends_events, mount.is_read_only) == (
        kind,
        sends_events,
        is_read_only,
    )


def test_a_path_that_cannot_be_looked_at_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with watching(tmp_path / "loop", of(tmp_path / "loop"), poll_s=0.05) as watcher:
        assert watcher.wait(0.2) == frozenset()
        os.unlink(tmp_path / "loop")
        until(watcher, lambda found: tmp_path / "loop" in found)
