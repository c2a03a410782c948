"""A process that meets an error, or dies, at a chosen disk call: the hooks, and who runs them."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ckpt import fs
from ckpt.errors import CheckpointError

Act: TypeAlias = Callable[[Path], object]

CHANGING = frozenset(
    {"append", "create", "describe", "exchange", "fsync", "fsync-directory", "link", "mkdir",
     "rename", "reserve", "rmdir", "truncate", "unlink", "utime", "write"}
)  # fmt: skip
"""The calls that may change a disk: a death at any other leaves what a death at the next does."""


GROWING = frozenset({"append", "create", "fsync", "fsync-directory", "mkdir", "reserve", "write"})
"""The calls for which a file system may need more room."""


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C of the suite's own, told from one that the user sends."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a call answers: once, or from then on to every call that needs the same of the disk."""

    name: str
    number: int | None
    is_lasting: bool = False

    def can_hit(self, call: fs.Call) -> bool:
        """Whether a disk could answer so: a full one still reads."""
        return self.number not in (errno.ENOSPC, errno.EDQUOT) or call.name in CHANGING

    def goes_on(self, call: fs.Call) -> bool:
        """Whether a lasting fault answers this call too: a full disk still deletes."""
        if self.number in (errno.ENOSPC, errno.EDQUOT):
            return call.name in GROWING
        return call.name in CHANGING

    def raise_at(self, call: fs.Call) -> None:
        """Raise it."""
        if self.number is None:
            raise Interrupted
        raise OSError(self.number, os.strerror(self.number), call.path)


FAULTS = (
    Fault("ENOSPC", errno.ENOSPC),
    Fault("EIO", errno.EIO),
    Fault("EDQUOT", errno.EDQUOT),
    Fault("Ctrl-C", None),
    Fault("ENOSPC for ever", errno.ENOSPC, is_lasting=True),
    Fault("EIO for ever", errno.EIO, is_lasting=True),
    Fault("EDQUOT for ever", errno.EDQUOT, is_lasting=True),
)


@dataclass(slots=True)
class At:
    """A hook that does something at the n-th call, counted from 1; None: a crash."""

    place: int
    fault: Fault | None = None
    only: frozenset[str] | None = None
    count: int = 0
    call: fs.Call | None = None

    def __call__(self, call: fs.Call) -> None:
        """Count a call; raise at the chosen one, and after it whatever a dead process would."""
        if self.call is not None:
            self._again(call)
            return
        if self.only is None or call.name in self.only:
            self.count += 1
            if self.count == self.place:
                self.call = call
                if self.fault is None:
                    raise Killed
                self.fault.raise_at(call)

    def _again(self, call: fs.Call) -> None:
        if self.fault is None:
            raise Killed
        if self.fault.is_lasting and self.fault.goes_on(call):
            self.fault.raise_at(call)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an action ended under a hook: the call it was hit at, what it raised, if anything."""

    call: fs.Call | None
    error: BaseException | None = None
    is_foreign: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the action reported success."""
        return self.error is None


@contextmanager
def mode(*, is_exchange: bool) -> Iterator[None]:
    """Within it two names can be exchanged, or the file system says that it cannot do that."""
    with ExitStack() as stack:
        if not is_exchange:
            stack.enter_context(fs.hooked(_refuse_exchange))
        yield


def _refuse_exchange(call: fs.Call) -> None:
    if call.name == "exchange":
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), call.path)


@dataclass(slots=True)
class Recorder:
    """A hook that keeps every call, with a copy of what it writes."""

    calls: list[fs.Call] = field(default_factory=list)

    def __call__(self, call: fs.Call) -> None:
        """Keep a call."""
        data = None if call.data is None else bytes(call.data)
        kept = fs.Call(call.name, call.path, call.size_bytes, call.other, data, call.offset)
        self.calls.append(kept)


def hit(act: Act, run_dir: Path, hook: At, recorder: Recorder | None = None) -> Ended:
    """Run an action under a hook. An error of another kind than it may raise is foreign."""
    try:
        with fs.hooked(hook), fs.hooked(recorder or Recorder()):
            act(run_dir)
    except (Killed, Interrupted, CheckpointError) as error:
        return Ended(hook.call, error)
    except KeyboardInterrupt:
        raise  # the user's own
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the suite's to report
        return Ended(hook.call, error, is_foreign=True)
    return Ended(hook.call)


def calls_of(act: Act, run_dir: Path) -> list[fs.Call]:
    """Run an action and return its disk calls."""
    recorder = Recorder()
    with fs.hooked(recorder):
        act(run_dir)
    return recorder.calls
