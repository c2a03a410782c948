"""One operation at work in a thread of its own, never waiting for the screen.

It tells how far it is, now and then, and how it ended. Stopped it is only where nothing is lost.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ckpt.operation import Note, Operation, Progress

TELL_EVERY_S = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class At:
    """How far a job is: `done` of `total` bytes were verified; None: it has not said yet.

    `is_changing`: it changes the run by now, and ends by itself.
    """

    done: int = 0
    total: int | None = None
    is_changing: bool = False


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """How a job ended: with a `result`, with an `error`, or because it was cancelled."""

    result: T | None = None
    error: Exception | None = None
    is_cancelled: bool = False


class Job(Generic[T]):
    """Runs one operation. `tell` is called in the job's own thread.

    An operation that verifies first says by its first note that it changes the run from then on;
    with `is_changing` it does so from the start.
    """

    def __init__(
        self,
        title: str,
        operation: Operation[T],
        tell: Callable[[At | Ended[T]], None],
        *,
        is_changing: bool = False,
    ) -> None:
        self.title = title
        self._operation = operation
        self._tell = tell
        self._lock = threading.Lock()
        self._at = At(is_changing=is_changing)
        self._is_cancelled = False
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._work, name="operation", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def at(self) -> At:
        """How far it is."""
        return self._at

    def cancel(self) -> bool:
        """Let it stop before it changes anything; False: too late, it ends by itself soon."""
        with self._lock:
            if self._at.is_changing:
                return False
            self._is_cancelled = True
            return True

    def join(self, timeout_s: float) -> None:
        """Wait for its end, but no longer than this."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        ended: Ended[T]
        try:
            ended = self._drive()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is shown on the screen
            ended = Ended(error=error)
        self._tell(ended)

    def _drive(self) -> Ended[T]:
        while True:
            try:
                event = next(self._operation)
            except StopIteration as stop:
                return Ended(result=stop.value)
            with self._lock:
                if self._is_cancelled:
                    self._operation.close()
                    return Ended(is_cancelled=True)
                if isinstance(event, Note):
                    self._at = At(self._at.done, self._at.total, is_changing=True)
                elif isinstance(event, Progress):
                    self._at = At(event.done, event.total, self._at.is_changing)
            self._tell_now_and_then(is_due=isinstance(event, Note))

    def _tell_now_and_then(self, *, is_due: bool) -> None:
        now = time.monotonic()
        if is_due or now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self._tell(self._at)
