"""Who is at work in a run: the lock that every swap holds, and the claims of those who write.

Both are kernel locks where the file system has them, so that they end with their holder; else a
file that names the holder, believed while that process lives.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ckpt import fs, jsontext
from ckpt.control import DIRECTORY, make_control
from ckpt.errors import Busy, DuplicateKey, TornRead

WAIT_S = 10.0
"""How long a saver waits for a swap, which holds the lock for milliseconds."""

LOCK_ABANDONED_S, CLAIM_ABANDONED_S = 3600.0, 86400.0
"""A lock, a claim of another machine is believed for that long after it was made."""

_PAUSE_S = 0.01
_NAMELESS_S = 5.0
_LOCK, _HELD, _WRITERS = "lock", "lock.held", "writers"
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Holder:
    """The process behind a lock or claim; `started` is in clock ticks since that boot."""

    pid: int
    host: str
    boot: str | None
    started: int | None
    what: str
    at: float

    @property
    def words(self) -> str:
        """The holder as a person would name it."""
        return _words(self.what, self.pid, self.host)


@contextmanager
def swap_lock(run_dir: Path, what: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the run's lock; `what` tells others who holds it (`rollback`).

    Raises:
        Busy: somebody else holds it still after `wait_s`.
        OSError: the run cannot be written to.
    """
    path = make_control(run_dir) / _LOCK
    deadline = time.monotonic() + wait_s
    with ExitStack() as stack:
        lock = stack.enter_context(fs.FileLock(path))
        while not lock.take():
            if not lock.is_supported and _take_by_name(path, what, stack):
                break
            if time.monotonic() >= deadline:
                raise _busy(run_dir, path if lock.is_supported else path.with_name(_HELD))
            time.sleep(_PAUSE_S)
        if lock.is_held:
            lock.describe(_describe(what))
        yield


def _take_by_name(lock: Path, what: str, stack: ExitStack) -> bool:
    """Hold the lock by a file that only one can make; one left by a dead process is taken over."""
    held = lock.with_name(_HELD)
    holder = _read(held)
    is_dead = _is_old(held) if holder is None else _is_dead(holder, LOCK_ABANDONED_S)
    if is_dead:
        fs.unlink(held)
    try:
        with fs.NewFile(held) as file:
            file.write(_describe(what))
    except FileExistsError:
        return False
    stack.callback(fs.unlink, held)
    return True


def _is_old(held: Path) -> bool:
    """Whether a lock that names nobody was not just made: its maker died before it wrote."""
    found = fs.identity(held, follow=False)
    return found is not None and time.time() - found.modified_at > _NAMELESS_S


def _busy(run_dir: Path, path: Path) -> Busy:
    holder = _read(path)
    who = holder.words if holder else "another process"
    message = f"{run_dir}: busy: {who} is changing its checkpoints"
    return Busy(message, path=str(run_dir), hint="try again when that is done")


# ---- who writes -------------------------------------------------------------------------------


@contextmanager
def writing(run_dir: Path, generation: str, slot: str) -> Iterator[None]:
    """Claim a generation that is being written, so that no recovery takes it for left over.

    Raises:
        OSError: the run cannot be written to.
    """
    directory = make_control(run_dir) / _WRITERS
    if fs.identity(directory) is None:
        with suppress(FileExistsError):  # made by another saver since
            fs.make_directory(directory)
    claim = directory / generation
    with fs.FileLock(claim) as lock:
        lock.take()
        lock.describe(_describe(f"the save of {slot}"))
        try:
            yield
        finally:
            with suppress(OSError):  # a claim without its holder is nobody's
                fs.unlink(claim)


def writer_of(run_dir: Path, generation: str) -> str | None:
    """Return who is writing a generation, in words; None: nobody any more."""
    claim = run_dir / DIRECTORY / _WRITERS / generation
    try:
        if fs.identity(claim, follow=False) is None:
            return None
        with fs.FileLock(claim) as lock:
            is_free, is_known = lock.take(), lock.is_supported
    except OSError:
        return "a process that cannot be asked"
    holder = _read(claim)
    if holder is None:
        return None if is_free else "another process"
    is_elsewhere = holder.host != _host()
    if is_elsewhere or not is_known:  # another machine's lock may not show here
        return None if _is_dead(holder, CLAIM_ABANDONED_S) else holder.words
    return None if is_free else holder.words


def forget_dead_writers(run_dir: Path) -> None:
    """Remove the claims of those who died.

    Raises:
        OSError: they cannot be listed or removed.
    """
    directory = run_dir / DIRECTORY / _WRITERS
    if fs.identity(directory) is None:
        return
    for entry in fs.scan(directory):
        if writer_of(run_dir, entry.name) is None:
            fs.unlink(directory / entry.name)


# ---- holders ----------------------------------------------------------------------------------


def own_words(what: str) -> str:
    """Return this process as a person would name it: `rollback (pid 812 on gpu-7)`."""
    return _words(what, os.getpid(), _host())


def _words(what: str, pid: int, host: str) -> str:
    return f"{what} (pid {pid} on {host})"


def own(what: str) -> Holder:
    """Return this process as a holder."""
    pid = os.getpid()
    return Holder(pid, _host(), fs.boot_id(), fs.process_start_ticks(pid), what, time.time())


def _describe(what: str) -> bytes:
    return json.dumps(asdict(own(what))).encode()


def _host() -> str:
    return os.uname().nodename


def _read(path: Path) -> Holder | None:
    try:
        value = jsontext.parse(fs.read_small(path, _MOST_BYTES), path=path.name)
        return Holder(
            int(value["pid"]),
            str(value["host"]),
            value["boot"],
            value["started"],
            str(value["what"]),
            float(value["at"]),
        )
    except (OSError, TornRead, DuplicateKey, KeyError, TypeError, ValueError):
        return None


def _is_dead(holder: Holder, abandoned_s: float) -> bool:
    """Whether a holder is gone: known on its own machine, believed after a while on another."""
    if holder.host != _host():
        return time.time() - holder.at > abandoned_s
    if holder.boot is not None and holder.boot != fs.boot_id():
        return True
    if not fs.is_process_alive(holder.pid):
        return True
    return holder.started is not None and holder.started != fs.process_start_ticks(holder.pid)
