"""The terminal before and after Textual: is there one, how it is left, what signals do.

It is imported before the first frame, so it imports no Textual. It knows no run.
"""

import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, MutableMapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

ENTER = "\x1b[?1049h"
LEAVE = "\x1b[?1049l"
_BLANK_FRAME = ENTER + "\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_ALL_OFF = (
    "\x18"  # a sequence that was cut half-way
    "\x1b[?2026l"  # a frame that was begun and not ended
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # the mouse
    "\x1b[?2004l\x1b[?2048l\x1b[?1004l"  # paste, sizes, focus
    "\x1b[<u\x1b[?7h\x1b[0m" + LEAVE + "\x1b[?25h"
)
GRACE_S = 3.0  # a stalled link blocks Textual's loop: after this long the process ends anyway
RESTORING_S = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_FAR_AWAY = ("SSH_CONNECTION", "SSH_TTY", "TMUX", "STY")
_LIGHT = {"TEXTUAL_FPS": "10", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}


def is_drawable(environment: MutableMapping[str, str]) -> bool:
    """Whether a screen can be drawn: Textual draws on stderr, people look at stdout."""
    return (
        environment.get("TERM", "") not in ("", "dumb")
        and _is_terminal(sys.__stdout__)
        and _is_terminal(sys.__stderr__)
    )


def has_keyboard() -> bool:
    """Whether keys can be read."""
    return _is_terminal(sys.__stdin__)


def be_light(environment: MutableMapping[str, str]) -> None:
    """Over SSH and in a multiplexer, send fewer frames; what the user has set stays."""
    if any(environment.get(name) for name in _FAR_AWAY):
        for name, value in _LIGHT.items():
            environment.setdefault(name, value)


def measure_ourselves(environment: MutableMapping[str, str]) -> None:
    """Forget a size that was only told (`docker exec -e COLUMNS=…`): it would outlive a resize."""
    assert sys.__stderr__ is not None
    try:
        is_told_by_terminal = all(os.get_terminal_size(sys.__stderr__.fileno()))
    except OSError:
        return
    if is_told_by_terminal:
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)


class Screen:
    """The terminal's state: taken over by `paint` or by Textual's driver, given back at the end.

    `is_alternate` is whether the alternate screen is on; the driver keeps it up to date.
    """

    def __init__(self) -> None:
        self.is_alternate = False
        self._modes: list[Any] | None = None

    def __enter__(self) -> Self:
        """Remember how the terminal is."""
        assert sys.__stdin__ is not None
        try:
            self._modes = termios.tcgetattr(sys.__stdin__.fileno())
        except termios.error:  # it is gone already
            self._modes = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def paint(self, lines: Sequence[str]) -> None:
        """Show plain lines at once, unless we run in the background of a shell."""
        stream = sys.__stderr__
        assert stream is not None
        descriptor = stream.fileno()
        try:
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                return
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            return
        shown = "\r\n".join(line[: max(0, columns - 1)] for line in lines[: max(0, rows - 1)])
        encoded = (_BLANK_FRAME + shown).encode(stream.encoding, "backslashreplace")
        if _write(descriptor, encoded):
            self.is_alternate = True

    def restore(self) -> None:
        """Give the terminal back as it was; never waits for it, and says nothing if it is gone."""
        if self._modes is not None and sys.__stdin__ is not None:
            try:
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._modes)
            except termios.error:
                self._modes = None
        if self.is_alternate and sys.__stderr__ is not None:
            self.is_alternate = False
            _write(sys.__stderr__.fileno(), _ALL_OFF.encode())


class Leaving:
    """What TERM, HUP, INT and QUIT do, also where HUP was ignored (nohup): the process ends, soon.

    Until `by` is called they raise `SystemExit`; afterwards they call what it was given, and where
    that does not help within `GRACE_S`, the terminal is restored and the process ends.
    """

    def __init__(self, screen: Screen) -> None:
        self.number: int | None = None
        """The signal that came, None while none did."""
        self._screen = screen
        self._leave: Callable[[], object] | None = None
        self._timer: threading.Timer | None = None
        for each in SIGNALS:
            signal.signal(each, self._on_signal)

    def by(self, leave: Callable[[], object]) -> None:
        """Leave like this from now on; `leave` may be called between any two instructions."""
        self._leave = leave

    def done(self) -> None:
        """Take note that the screen is over; the signals of stopping do the usual again.

        What is still to be tidied up is not interrupted: a shell hangs up on its jobs once more.
        """
        if self._timer is not None:
            self._timer.cancel()
        _ignore_signals()
        for each in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            signal.signal(each, signal.SIG_DFL)

    @property
    def exit_code(self) -> int:
        """What a process that a signal ended exits with; 0 while none came."""
        return 0 if self.number is None else 128 + self.number

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        if self._leave is None:
            _ignore_signals()
            raise SystemExit(self.exit_code)
        if self._timer is None:
            self._timer = threading.Timer(GRACE_S, self._force)
            self._timer.daemon = True
            self._timer.start()
        self._leave()

    def _force(self) -> None:
        restoring = threading.Thread(target=self._screen.restore, daemon=True)
        restoring.start()
        restoring.join(RESTORING_S)  # a write may wait behind the one that is stalled
        os._exit(self.exit_code)


def _ignore_signals() -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _is_terminal(stream: object) -> bool:
    try:
        return stream is not None and stream.isatty()  # type: ignore[attr-defined]  # any stream
    except ValueError:  # closed
        return False


def _write(descriptor: int, data: bytes) -> bool:
    """Write a little, if the terminal takes it now."""
    try:
        _, writable, _ = select.select([], [descriptor], [], 0)
        return bool(writable) and os.write(descriptor, data) > 0
    except OSError:
        return False
