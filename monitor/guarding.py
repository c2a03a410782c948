"""The guard of a run in a thread of its own, for as long as the screen is open."""

import threading
from collections.abc import Callable
from pathlib import Path

from ckpt.operation import Event, Note, drive


class Guarding:
    """Keeps what a run's trainer publishes. `tell` is called in the guard's own thread.

    It gets each sentence that the guard says, and at its end the error that ended it, if any.
    """

    def __init__(
        self,
        run_dir: Path,
        tell: Callable[[str | Exception], None],
        *,
        poll_s: float | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._tell = tell
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="guard", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """Let it end soon; wait for that no longer than this."""
        self._stopped.set()
        if wait_s:
            self._thread.join(wait_s)

    def _work(self) -> None:
        from ckpt.guard import guard

        try:
            drive(
                guard(self._run_dir, is_stopped=self._stopped.is_set, poll_s=self._poll_s),
                self._on_event,
            )
        except Exception as error:  # noqa: BLE001 - whatever ended it is shown on the screen
            self._tell(error)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Note) and not self._stopped.is_set():
            self._tell(event.text)
