"""The thread that reads a run and hands the screen one whole view at a time.

It imports what reading needs only when it starts, so that the first frame does not wait for that.
It never waits for the screen, and no failure in it is silent or ends it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt.errors import CheckpointError
from ckpt.view import RunView, Warned

if TYPE_CHECKING:
    from ckpt.run import RunEvent
    from ckpt.sources import RunReader
    from ckpt.watch import Targets, Watcher

JUDGE_EVERY_S = 5.0  # a stall shows itself by time passing, not by a file changing
AGES_EVERY_S = 60.0
RETRY_AFTER_S = 1.0
PIECES_EVERY_S = 0.25  # a first reading that takes longer shows what it has so far


@dataclass(frozen=True, slots=True)
class Shown:
    """A view and the time its ages are counted from, which moves on in whole minutes only.

    `is_whole` is False for what was known before the first reading was over: no news in it.
    """

    view: RunView
    now: float
    is_whole: bool = True


class Feed:
    """Reads one run until it is stopped; `post` gets every view worth painting, in this thread."""

    def __init__(
        self,
        run_dir: Path,
        post: Callable[[Shown], None],
        *,
        poll_s: float | None = None,
        is_read_only: bool = False,
    ) -> None:
        self._run_dir = run_dir
        self._post = post
        self._poll_s = poll_s
        self._is_read_only = is_read_only
        self._stopped = threading.Event()
        self._is_asked = threading.Event()
        self._watcher: Watcher | None = None
        self._view = RunView(run=run_dir)
        self._whole = self._view
        self._posted: RunView | None = None
        self._ages_from = 0.0
        self._judged_at = 0.0
        self._fault: Warned | None = None

    def start(self) -> None:
        """Start the thread: a daemon, so that a hung disk cannot keep the app from ending."""
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end soon; returns at once."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.stop()

    def look_again(self) -> None:
        """Look at all of the run soon: somebody here has just changed it."""
        self._is_asked.set()
        if self._watcher is not None:
            self._watcher.wake()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - whatever went wrong is shown, and tried again
                if self._stopped.is_set():
                    return
                self._fault = Warned("reading-failed", sentence(error), str(self._run_dir))
                self._publish(self._whole, time.time(), is_forced=True)
                self._stopped.wait(RETRY_AFTER_S)

    def _follow(self) -> None:
        from ckpt.sources import RunReader
        from ckpt.watch import Watcher

        reader = RunReader(self._run_dir, record_samples=not self._is_read_only)
        self._view = RunView(run=self._run_dir)
        self._read(reader, None, is_first=True)
        self._watcher = watcher = Watcher(self._run_dir, poll_s=self._poll_s)
        try:
            watched: Targets | None = None
            while not self._stopped.is_set():
                targets = reader.targets
                if targets != watched:
                    watcher.watch(targets)
                    watched = targets
                    self._read(reader, None)  # or a change since the last look is never told
                    continue
                changed = watcher.wait(self._rest_s(reader))
                if self._stopped.is_set():
                    return
                self._view = replace(self._view, watching=watcher.watching)
                is_asked = self._is_asked.is_set()
                self._is_asked.clear()
                self._read(reader, None if is_asked else changed)
        finally:
            watcher.stop()

    def _read(
        self, reader: "RunReader", changed: frozenset[Path] | None, *, is_first: bool = False
    ) -> None:
        """Read what changed (None: look at everything) and publish; a first reading in pieces."""
        from ckpt.run import apply

        now = time.time()
        batch: list[RunEvent] = []
        due = 0.0
        for event in reader.read(changed, now):
            if self._stopped.is_set():
                return
            batch.append(event)
            if not is_first or time.monotonic() < due:
                continue
            self._view, batch = apply(self._view, batch), []
            if self._view.step is not None:
                self._publish(self._view, now, is_whole=False)
                due = time.monotonic() + PIECES_EVERY_S
        self._view = apply(self._view, batch)
        self._whole = self._view
        had_fault, self._fault = self._fault is not None, None
        self._publish(self._view, now, is_forced=is_first or bool(batch) or had_fault)

    def _rest_s(self, reader: "RunReader") -> float:
        """How long nothing needs to be done unless a file changes."""
        if reader.has_more:
            return 0.0
        due = [self._ages_from + AGES_EVERY_S]
        if reader.retry_at is not None:
            due.append(reader.retry_at)
        return max(0.05, min(JUDGE_EVERY_S, min(due) - time.time()))

    def _publish(
        self, view: RunView, now: float, *, is_forced: bool = False, is_whole: bool = True
    ) -> None:
        """Judge and hand on, unless nothing came and the clock changed no verdict and no age."""
        is_minute_over = not 0 <= now - self._ages_from < AGES_EVERY_S
        is_news = is_forced or is_minute_over or self._posted is None
        if not is_news and self._was_judged(view, now):
            return
        from ckpt.health import judge

        self._judged_at = now
        judged = judge(view, now)
        if self._fault is not None:
            judged = replace(judged, warnings=(self._fault, *judged.warnings))
        if not is_news and self._posted is not None and _says_the_same(self._posted, judged):
            return
        if is_minute_over:
            self._ages_from = now
        self._posted = judged
        self._post(Shown(judged, self._ages_from, is_whole))

    def _was_judged(self, view: RunView, now: float) -> bool:
        """Whether nothing came since the last verdict, and it is too young to be wrong by now."""
        is_young = 0 <= now - self._judged_at < JUDGE_EVERY_S / 2
        return is_young and self._posted is not None and self._posted.watching == view.watching


def sentence(error: BaseException) -> str:
    """Say in one line what went wrong, without a traceback."""
    if isinstance(error, CheckpointError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror.lower()}"
    return f"a fault in ckpt-monitor itself: {type(error).__name__}: {error}"


def _says_the_same(shown: RunView, judged: RunView) -> bool:
    """Whether only what the clock moves differs (ages and durations wait for the minute)."""
    return (
        shown.health == judged.health
        and shown.advice == judged.advice
        and shown.warnings == judged.warnings
        and shown.is_reachable == judged.is_reachable
        and shown.watching == judged.watching
        and shown.step == judged.step
        and shown.slots == judged.slots
    )
