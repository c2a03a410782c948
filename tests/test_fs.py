"""The one module that touches the disk: hooks, reads that cannot hurt, writes that cannot tear."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ckpt import fs


def test_a_hook_sees_every_call_and_the_bytes_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    seen: list[fs.Call] = []
    with fs.hooked(seen.append):
        assert fs.read_bytes(tmp_path / "a", limit=3) == b"123"
        fs.identity(tmp_path / "a")
        fs.scan(tmp_path)
    fs.scan(tmp_path)
    assert [(call.name, call.size_bytes) for call in seen] == [
        ("open", 0),
        ("fstat", 0),
        ("read", 3),
        ("stat", 0),
        ("scan", 0),
    ]


def test_what_is_not_there_is_none_and_what_cannot_be_looked_at_is_an_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert fs.identity(tmp_path / "nothing") is None
    assert fs.identity(tmp_path / "file" / "below") is None
    with pytest.raises(OSError, match="symbolic links") as caught:
        fs.identity(tmp_path / "loop")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(OSError, match="symbolic links"):
        fs.real_path(tmp_path / "loop" / "x")


def test_only_a_regular_file_is_opened_and_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            fs.File(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_blocks_yield_the_whole_file_in_order(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9
    (tmp_path / "a").write_bytes(content)
    with fs.File(tmp_path / "a") as file:
        assert b"".join(bytes(block) for block in file.blocks(1000)) == content
        assert file.read_at(250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
        assert file.read_at(len(content) - 2, 10) == bytes([254, 255])


def test_a_file_cut_while_it_is_read_ends_early_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3000)
    with fs.File(tmp_path / "a") as file:
        blocks = file.blocks(1000)
        assert bytes(next(blocks)) == b"x" * 1000
        os.truncate(tmp_path / "a", 1500)
        assert b"".join(bytes(block) for block in blocks) == b"x" * 500
        assert file.identity().size_bytes == 1500


@pytest.mark.parametrize("failing", ["create", "write", "fsync", "rename"])
def test_a_replacement_that_fails_leaves_the_old_content_and_no_litter(
    tmp_path: Path, failing: str
) -> None:
    (tmp_path / "state.json").write_text("old")

    def fail(call: fs.Call) -> None:
        if call.name == failing:
            raise OSError(errno.EIO, "broken")

    with fs.hooked(fail), pytest.raises(OSError, match="broken"):
        fs.replace_bytes(tmp_path / "state.json", b"new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"state.json": "old"}


def test_a_replacement_is_durable_before_it_takes_the_name_and_its_name_after(
    tmp_path: Path,
) -> None:
    order: list[str] = []
    with fs.hooked(lambda call: order.append(call.name)):
        fs.replace_bytes(tmp_path / "a", b"new")
    assert order == ["create", "write", "fsync", "rename", "fsync-directory"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_new_files_and_directories_get_the_users_mode_and_never_replace(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        fs.make_directory(tmp_path / "d")
        fs.write_new(tmp_path / "d" / "a", b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "d" / "a").stat().st_mode) == 0o640
    with pytest.raises(FileExistsError):
        fs.write_new(tmp_path / "d" / "a", b"2")
    assert (tmp_path / "d" / "a").read_bytes() == b"1"


def test_a_taken_name_is_never_renamed_over(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("taken", "dangling"):
        with pytest.raises(FileExistsError):
            fs.rename_to_free_name(tmp_path / "staging", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "staging", "taken"]


def test_an_append_that_the_disk_cut_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole_write(descriptor, data[:2]))
    with pytest.raises(OSError, match="only 2 of 5 bytes were appended"):
        fs.append_bytes(tmp_path / "a", b"12345")


def test_a_process_is_told_from_a_later_one_of_the_same_number() -> None:
    assert fs.is_process_alive(os.getpid())
    assert isinstance(fs.process_start_ticks(os.getpid()), int)
    assert not fs.is_process_alive(2**22 + 5)
    assert fs.process_start_ticks(2**22 + 5) is None
