"""Publishing: whatever fails and wherever, what was live is whole and live, or the new one is."""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from saving import fill, lying, save, without_exchange
from trees import put_checkpoint

from ckpt import fs, reflog
from ckpt.checkpoint import State, Verdict
from ckpt.errors import PublishError
from ckpt.formats.plain import Plain
from ckpt.generations import Staging, publish, recover, scan
from ckpt.generations.names import hidden_name, shortened
from ckpt.operation import Note, drive
from ckpt.tensorwriter import write_tensors
from ckpt.verify import verify

Mode = Callable[[], AbstractContextManager[None]]
MODES = [pytest.param(nullcontext, id="exchange"), pytest.param(without_exchange, id="fallback")]


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


def write(staging: Staging) -> None:
    fill(staging, 9)


def verdict(path: Path) -> Verdict:
    return drive(verify(path)).verdict


def test_what_is_published_is_intact_and_nothing_else_is_left(run: Path) -> None:
    before = lying(run)
    save(run / "step_9", 9)
    assert verdict(run / "step_9") is Verdict.INTACT
    after = lying(run)
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


@pytest.mark.parametrize("mode", MODES)
def test_a_save_over_a_name_retires_what_was_live(run: Path, mode: Mode) -> None:
    with mode():
        ids = [save(run / "step_9", 9, float(value)) for value in range(4)]
    (slot,) = [slot for slot in scan(run) if slot.name == "step_9"]
    assert [each.id for each in slot.generations] == ids[::-1]
    assert [each.state for each in slot.generations] == [State.LIVE, *[State.RETIRED] * 3]
    assert [verdict(each.path) for each in slot.generations] == [Verdict.INTACT] * 4
    assert [each.path.name for each in slot.generations[1:]] == [
        f".step_9.retired-{each}" for each in ids[-2::-1]
    ]


def test_the_modes_are_the_umasks(run: Path) -> None:
    with umask(0o027):
        save(run / "step_9", 9)
    assert stat.S_IMODE((run / "step_9").stat().st_mode) == 0o750
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (run / "step_9").iterdir()}
    assert modes == {0o640}


def order(run: Path) -> list[tuple[str, str]]:
    """The calls that make a save over `step_9` durable, with short names for what they touch."""
    seen: list[tuple[str, str]] = []

    def see(call: fs.Call) -> None:
        name = Path(call.path).name
        short = "STAGING" if name.startswith(".step_9.tmp-") else name
        short = "RETIRED" if name.startswith(".step_9.retired-") else short
        short = "manifest (new)" if name.startswith(".manifest.json.new-") else short
        if call.name in ("mkdir", "fsync", "fsync-directory", "rename", "exchange", "append"):
            seen.append((call.name, short))

    with fs.hooked(see):
        save(run / "step_9", 9, 5.0)
    return seen


STAGED = [
    ("mkdir", "STAGING"),
    ("fsync", "model.safetensors"),
    ("fsync", "meta.json"),
    ("fsync", "config.json"),
    ("fsync", "manifest (new)"),
    ("rename", "manifest.json"),
    ("fsync-directory", "STAGING"),
    ("fsync-directory", "STAGING"),
    ("fsync-directory", "run"),
    ("append", "reflog"),
    ("fsync", "reflog"),
]


def test_the_order_makes_it_durable(run: Path) -> None:
    """Every file before the manifest, the directory before the intent, that before the name."""
    save(run / "step_9", 9)
    assert order(run) == [
        *STAGED,
        ("exchange", "step_9"),
        ("fsync-directory", "run"),
        ("rename", "RETIRED"),
        ("append", "reflog"),
    ]


def test_without_an_exchange_the_old_one_is_durably_retired_first(run: Path) -> None:
    save(run / "step_9", 9)
    with without_exchange():
        seen = order(run)
    assert seen == [
        *STAGED,
        ("rename", "RETIRED"),
        ("fsync-directory", "run"),
        ("rename", "step_9"),
        ("fsync-directory", "run"),
        ("append", "reflog"),
    ]


def test_a_failure_after_the_commit_says_so_and_removes_nothing(run: Path) -> None:
    old = save(run / "step_9", 9)

    swapped: list[str] = []

    def refuse(call: fs.Call) -> None:
        if call.name == "exchange":
            swapped.append(call.path)
        if swapped and call.name == "fsync-directory" and call.path == str(run):
            raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError, match="published, but not known to be"):
        save(run / "step_9", 9, 5.0)
    (slot,) = [slot for slot in scan(run) if slot.name == "step_9"]
    assert slot.live is not None
    assert slot.live.id != old
    assert [each.id for each in slot.generations if each.state is not State.LIVE] == [old]
    assert {verdict(each.path) for each in slot.generations} == {Verdict.INTACT}


@pytest.mark.parametrize("error", [errno.EIO, None])
def test_an_error_in_the_second_rename_puts_the_old_one_back(run: Path, error: int | None) -> None:
    old = save(run / "step_9", 9)
    before = lying(run)

    def refuse(call: fs.Call) -> None:
        if call.name == "rename" and call.path == str(run / "step_9") and ".tmp-" in call.other:
            raise KeyboardInterrupt if error is None else OSError(error, os.strerror(error))

    expected = KeyboardInterrupt if error is None else PublishError
    with without_exchange(), fs.hooked(refuse), pytest.raises(expected):
        save(run / "step_9", 9, 5.0)
    assert lying(run) == before
    assert reflog.read(run).of_slot("step_9").lived.keys() == {old}
    assert reflog.read(run).pending == ()


def test_a_rename_whose_reply_was_lost_counts(run: Path) -> None:
    """On NFS a rename that succeeded can be answered with ENOENT."""

    def lose(call: fs.Call) -> None:
        if call.name == "rename" and call.path == str(run / "step_9"):
            os.rename(call.other, call.path)
            raise OSError(errno.ENOENT, "No such file or directory", call.path)

    with fs.hooked(lose):
        save(run / "step_9", 9)
    assert verdict(run / "step_9") is Verdict.INTACT


def test_an_interrupt_right_after_the_commit_removes_nothing(run: Path) -> None:
    def interrupt(call: fs.Call) -> None:
        if call.name == "rename" and call.path == str(run / "step_9"):
            os.rename(call.other, call.path)
            raise KeyboardInterrupt

    with fs.hooked(interrupt), pytest.raises(KeyboardInterrupt):
        save(run / "step_9", 9)
    assert verdict(run / "step_9") is Verdict.INTACT


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("directory of other things", "what stands there is no checkpoint; it is untouched"),
        ("empty directory", "what stands there is no checkpoint; it is untouched"),
        ("file", "a file stands there, expected a directory; it is untouched"),
        ("dangling link", "a link stands there; it is untouched"),
        ("link to another disk", "a link stands there; it is untouched"),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_anything_is_written(
    run: Path, kind: str, message: str
) -> None:
    target = run / "step_9"
    if kind.endswith("directory"):
        target.mkdir()
    elif kind.startswith("directory"):
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere" if kind.startswith("dangling") else "/dev/shm")
    before = lying(run)
    with pytest.raises(PublishError) as caught:
        save(target, 9)
    assert caught.value.message == f"{target}: {message}"
    assert lying(run) == before


def test_of_several_writers_each_generation_is_of_one_and_the_last_is_live(tmp_path: Path) -> None:
    target = tmp_path / "step_9"
    barrier = threading.Barrier(4)
    published: list[str] = []

    def save_one(value: float) -> None:
        barrier.wait()
        published.append(save(target, 9, value, value))

    threads = [threading.Thread(target=save_one, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (slot,) = scan(tmp_path)
    assert sorted(each.id for each in slot.generations) == sorted(published)
    assert len(published) == 4
    assert slot.leftovers == ()
    assert {verdict(each.path) for each in slot.generations} == {Verdict.INTACT}
    assert slot.live is not None
    assert slot.live.id == reflog.read(tmp_path).entries[-1].changes[0].after


def test_what_is_not_whole_is_not_published(run: Path) -> None:
    def half(staging: Staging) -> None:
        write(staging)
        os.truncate(staging.path / "model.safetensors", 10)

    before = lying(run)
    for writer in (half, lambda _staging: None):
        with pytest.raises(PublishError, match="not published"):
            drive(publish(run / "step_9", writer))
        assert lying(run) == before


def test_an_error_of_the_writer_passes_and_its_staging_goes(run: Path) -> None:
    def fail(staging: Staging) -> None:
        (staging.path / "model.safetensors").write_bytes(b"x")
        raise ValueError("no such tensor")

    before = lying(run)
    with pytest.raises(ValueError, match="no such tensor"):
        drive(publish(run / "step_9", fail))
    assert lying(run) == before


def test_closing_before_the_commit_leaves_nothing(run: Path) -> None:
    before = lying(run)
    operation = publish(run / "step_9", write)
    assert next(operation) == Note("writing step_9")
    operation.close()
    assert lying(run) == before


def test_a_full_disk_is_named_with_what_is_free(run: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "write" and "model" in call.path:
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    with fs.hooked(refuse), pytest.raises(PublishError) as caught:
        save(run / "step_9", 9)
    start = f"{run / 'step_9'}: not published: No space left on device ("
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith(" bytes are free there)")


@pytest.mark.parametrize("name", ["", "..", ".hidden"])
def test_a_name_that_no_reader_would_list_is_refused(run: Path, name: str) -> None:
    with pytest.raises(PublishError, match="no name for a checkpoint"):
        drive(publish(run / name if name else Path("/"), write))


@pytest.mark.parametrize("size", [200, 240, 245, 255])
def test_a_long_name_is_published_again_and_again(tmp_path: Path, size: int) -> None:
    name = "step_9_" + "é" * ((size - 7) // 2)
    name += "x" * (size - len(name.encode()))
    staged: list[str] = []

    def slow(staging: Staging) -> None:
        staged.append(staging.path.name)
        write(staging)
        (slot,) = scan(tmp_path)
        assert State.SEALED in [each.state for each in slot.generations]

    for _ in range(3):
        drive(publish(tmp_path / name, slow))
    (tmp_path / staged[0]).mkdir()
    (slot,) = scan(tmp_path)
    assert (slot.name, [each.path.name for each in slot.leftovers]) == (name, staged[:1])
    states = [each.state for each in slot.generations]
    assert states == [State.LIVE, State.RETIRED, State.RETIRED]
    assert max(len(path.name.encode()) for path in tmp_path.iterdir()) <= 255


def test_a_name_too_long_for_the_disk_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="not published: File name too long"):
        save(tmp_path / ("x" * 256), 9)
    assert lying(tmp_path) == {}


def test_hidden_names_are_shortened_only_where_they_must_be() -> None:
    assert hidden_name("step_9", "tmp", "abcdefgh") == ".step_9.tmp-abcdefgh"
    assert hidden_name("x" * 206, "tmp", "abcdefgh") == f".{'x' * 206}.tmp-abcdefgh"
    long = "x" * 250
    assert hidden_name(long, "tmp", "abcdefgh") == f".{shortened(long)}.tmp-abcdefgh"
    assert len(hidden_name(long, "withdrawn", "a" * 36)) == 255
    assert shortened(long) != shortened("x" * 249 + "y")


def test_the_directories_above_a_new_name_are_made(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    save(run / "checkpoints" / "deep" / "step_9", 9, run_dir=run)
    assert [slot.name for slot in scan(run)] == ["checkpoints/deep/step_9"]
    assert [entry.changes[0].slot for entry in reflog.read(run).entries] == [
        "checkpoints/deep/step_9"
    ]


def test_a_single_file_is_a_slot_too(tmp_path: Path) -> None:
    def file_of(value: float) -> None:
        from samples import floats

        def make(staging: Staging) -> None:
            write_tensors(staging.path, [floats("w", value)])

        drive(publish(tmp_path / "adapter.safetensors", make, run_dir=tmp_path, is_file=True))

    for value in (1.0, 2.0, 3.0):
        file_of(value)
    (slot,) = scan(tmp_path)
    assert slot.name == "adapter.safetensors"
    assert [each.state for each in slot.generations] == [
        State.LIVE,
        State.RETIRED,
        State.RETIRED,
    ]
    values = [Plain().read(each.path).size_bytes for each in slot.generations]
    assert values == [values[0]] * 3
    assert drive(recover(tmp_path)) == ()
