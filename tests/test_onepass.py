"""One pass writes, hashes and makes durable; whatever fails in it is told and nothing hangs."""

import _thread
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import blake3
import pytest

from ckpt import fs
from ckpt.onepass import HashedFile, Sink, Written, write_hashed

MIB = 1 << 20
PATTERN = bytes(range(251)) * 4178  # a little over a MiB, in step with no block


def content(size: int) -> bytes:
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def putting(data: bytes, *, piece: int = 1_000_003) -> Callable[[Sink], None]:
    def write(sink: Sink) -> None:
        for at in range(0, len(data), piece):
            assert sink.write(data[at : at + piece]) == len(data[at : at + piece])
        sink.flush()

    return write


def expected(data: bytes) -> Written:
    chunks = [data[at : at + (64 << 20)] for at in range(0, len(data), 64 << 20)]
    hashes = tuple(blake3.blake3(chunk).hexdigest() for chunk in chunks)
    return Written(len(data), hashlib.sha256(data).hexdigest(), 67_108_864, hashes)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    "size",
    [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 4097, 40 * MIB, 64 * MIB, 64 * MIB + 5],
)
def test_what_is_written_is_hashed_as_a_whole_and_by_chunks(tmp_path: Path, size: int) -> None:
    data = content(size)
    assert write_hashed(tmp_path / "w", putting(data)) == expected(data)
    assert (tmp_path / "w").read_bytes() == data


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_it_does_not_matter_in_what_pieces_it_comes(tmp_path: Path, piece: int) -> None:
    data = content(50_000)
    assert write_hashed(tmp_path / "w", putting(data, piece=piece)) == expected(data)
    assert (tmp_path / "w").read_bytes() == data


def test_the_hashes_of_nothing_are_of_no_chunk(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert write_hashed(tmp_path / "w", lambda sink: None) == Written(0, empty, 64 * MIB, ())


def test_a_small_file_is_written_by_the_callers_thread_in_one_order(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    threads = set()

    def see(call: fs.Call) -> None:
        seen.append((call.name, call.size_bytes))
        threads.add(threading.current_thread())

    with fs.hooked(see), HashedFile(tmp_path / "w") as file:
        file.reserve(3 * MIB)
        for _ in range(3):
            file.write(bytes(MIB))
        file.finish()
    assert seen == [("create", 0), ("reserve", 0), ("write", 3 * MIB), ("fsync", 0)]
    assert threads == {threading.current_thread()}


@contextmanager
def failing(name: str, error: BaseException, *, at: int = 1) -> Iterator[None]:
    """Let the n-th call of a name fail, and only that one."""
    count = 0
    lock = threading.Lock()

    def fail(call: fs.Call) -> None:
        nonlocal count
        with lock:
            count += call.name == name
            is_due = call.name == name and count == at
        if is_due:
            raise error

    with fs.hooked(fail):
        yield


@pytest.mark.parametrize("name", ["direct", "write"])
def test_a_file_system_that_refuses_direct_writing_gets_the_same_bytes(
    tmp_path: Path, name: str
) -> None:
    data = content(17 * MIB + 3)
    with failing(name, OSError(errno.EINVAL, "Invalid argument")):
        assert write_hashed(tmp_path / "w", putting(data)) == expected(data)
    assert (tmp_path / "w").read_bytes() == data


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no tmpfs here")
def test_a_tmpfs_gets_the_same_bytes() -> None:
    path = Path("/dev/shm") / f"ckpt-test-{os.getpid()}"
    data = content(9 * MIB + 1)
    try:
        assert write_hashed(path, putting(data)) == expected(data)
        assert path.read_bytes() == data
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
        KeyboardInterrupt(),
    ],
    ids=["ENOSPC", "EIO", "KeyboardInterrupt"],
)
@pytest.mark.parametrize(
    ("name", "at"), [("create", 1), ("write", 1), ("write", 3), ("write", 6), ("fsync", 1)]
)
def test_a_failure_in_any_thread_is_the_one_that_the_caller_gets(
    tmp_path: Path, name: str, at: int, error: BaseException
) -> None:
    data = content(20 * MIB + 9)  # five blocks and a tail that is written last
    with failing(name, error, at=at), pytest.raises(type(error)) as raised:
        write_hashed(tmp_path / "w", putting(data))
    assert raised.value is error


@pytest.mark.parametrize("at", [1, 2])
def test_a_failure_in_a_small_file_is_the_one_that_the_caller_gets(
    tmp_path: Path, at: int
) -> None:
    error = OSError(errno.EDQUOT, "Disk quota exceeded")
    name = ("write", "fsync")[at - 1]
    with failing(name, error), pytest.raises(OSError, match="quota") as raised:
        write_hashed(tmp_path / "w", putting(b"123"))
    assert raised.value is error


def test_the_failure_is_told_and_not_what_a_framework_makes_of_it(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")

    def write(sink: Sink) -> None:
        try:
            putting(content(90 * MIB))(sink)
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0") from None

    with failing("write", error), pytest.raises(OSError, match="No space") as raised:
        write_hashed(tmp_path / "w", write)
    assert raised.value is error
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_what_the_callers_own_code_raises_ends_it(tmp_path: Path) -> None:
    def write(sink: Sink) -> None:
        putting(content(20 * MIB))(sink)
        raise LookupError("no such thing")

    with pytest.raises(LookupError):
        write_hashed(tmp_path / "w", write)


def test_ctrl_c_ends_it_once_no_thread_writes_any_more(tmp_path: Path) -> None:
    written: list[fs.Call] = []

    def interrupt(call: fs.Call) -> None:
        if call.name == "write":
            written.append(call)
            if len(written) in (1, 2):  # a second one while the first is dealt with
                _thread.interrupt_main()

    with fs.hooked(interrupt), pytest.raises(KeyboardInterrupt):
        write_hashed(tmp_path / "w", putting(content(40 * MIB)))


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"here before")
    with pytest.raises(FileExistsError):
        write_hashed(tmp_path / "w", putting(b"123"))
    assert (tmp_path / "w").read_bytes() == b"here before"


@pytest.mark.parametrize("size", [5, 9 * MIB])
def test_the_mode_is_the_umasks(tmp_path: Path, size: int) -> None:
    before = os.umask(0o027)
    try:
        write_hashed(tmp_path / "w", putting(bytes(size)))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o640
