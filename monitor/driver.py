"""Textual's driver for this terminal, with three faults of it mended.

Bytes that are no UTF-8, or that Textual's parser cannot take, lose a key and not the keyboard; a
terminal that is gone ends the app instead of burning a core; at rest no thread wakes up.
"""

import os
import re
import select
import signal
import threading
from codecs import getincrementaldecoder
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from monitor.terminal import ENTER, Screen

if TYPE_CHECKING:
    from io import TextIOWrapper

    from textual.app import App

CHUNK_BYTES = 4096
AFTER_ESCAPE_S = constants.ESCAPE_DELAY + 0.01
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{3}")
_OLD_MOUSE_BEGUN = re.compile(rb"\x1b\[M[\x20-\xff]{0,2}\Z")


class InputDecoder:
    """Bytes of a keyboard → text, whatever they are.

    Old-style mouse reports (`ESC [ M` and three bytes, which are no UTF-8 from column 96 on) come
    from terminals without the newer ones, and from a tmux that was attached again: they are left
    out.
    """

    def __init__(self) -> None:
        self._utf8 = getincrementaldecoder("utf-8")("replace")
        self._begun = b""

    def decode(self, data: bytes) -> str:
        """Return the text so far; what may go on is kept for the next call."""
        data = _OLD_MOUSE.sub(b"", self._begun + data)
        begun = _OLD_MOUSE_BEGUN.search(data)
        self._begun = b"" if begun is None else begun.group()
        return self._utf8.decode(data[: len(data) - len(self._begun)])


class TerminalDriver(LinuxDriver):
    """The driver of `MonitorApp`; `screen` says in which state the terminal is."""

    screen = Screen()

    def __init__(self, app: "App[Any]", **options: Any) -> None:
        super().__init__(app, **options)
        assert self._file is not None
        self._file = cast("TextIOWrapper", _Output(self._file))
        self._ending: tuple[int, int] | None = None
        self._is_suspended = False
        # Textual's own handlers run between any two instructions, also within a queue's lock,
        # and what they do needs that lock.
        self._loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        self._loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    # ---- output ---------------------------------------------------------------------------------

    def write(self, data: str) -> None:
        """Write; the alternate screen is not entered twice, or the way back would be lost."""
        if data == ENTER:
            if self.screen.is_alternate:
                return
            self.screen.is_alternate = True
        super().write(data)

    def close(self) -> None:
        """Wait until all is written: only then the terminal is known to be as it was."""
        super().close()
        self.screen.is_alternate = False

    def _enable_mouse_support(self) -> None:
        """Ask for clicks and the wheel: each motion would cross the link."""
        if self._mouse:
            self.write("\x1b[?1000h\x1b[?1006h")

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write("\x1b[?1000l\x1b[?1006l\x1b[?1016l")

    # ---- input ----------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Take the terminal over."""
        if self._ending is None:
            self._ending = os.pipe()
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual's own

    def disable_input(self) -> None:
        """Let the thread that reads keys end: a closed pipe wakes it for good."""
        if self._ending is not None:
            os.close(self._ending[1])
        super().disable_input()
        if self._ending is not None:
            os.close(self._ending[0])
            self._ending = None

    def run_input_thread(self) -> None:
        """Read keys until `disable_input`, or until the terminal is gone."""
        assert self._ending is not None
        ending = self._ending[0]
        decoder, parser = InputDecoder(), XTermParser(self._debug)
        is_escape_open = False
        while True:
            timeout_s = AFTER_ESCAPE_S if is_escape_open else None
            readable, _, _ = select.select([self.fileno, ending], [], [], timeout_s)
            if ending in readable:
                return
            try:
                data = os.read(self.fileno, CHUNK_BYTES) if readable else b""
            except OSError:
                data = b""
            if readable and not data:
                _hang_up()
                return
            try:
                for event in parser.feed(text) if (text := decoder.decode(data)) else ():
                    self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
            except Exception:  # noqa: BLE001 - no bytes may cost the user the keyboard
                parser = XTermParser(self._debug)
            is_escape_open = bool(data)

    # ---- stopped and continued ------------------------------------------------------------------

    def suspend_application_mode(self) -> None:
        """Give the terminal to the shell."""
        self._is_suspended = True
        super().suspend_application_mode()

    def resume_application_mode(self) -> None:
        """Take the terminal back."""
        self._is_suspended = False
        super().resume_application_mode()

    def _sigcont_application(self, *_: int | FrameType | None) -> None:
        """Go on; after a SIGSTOP nobody gave the terminal back, so that is done first."""
        if not self._is_suspended:
            self.suspend_application_mode()
        self.resume_application_mode()
        self._app.refresh(layout=True)  # whatever was drawn meanwhile is drawn over


class _Output:
    """The stream that the writing thread has: when it is gone the app is told, nothing raised."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_gone = False

    def write(self, text: str) -> None:
        if not self._is_gone:
            try:
                self._stream.write(text)
            except OSError:
                self._lose()

    def flush(self) -> None:
        if not self._is_gone:
            try:
                self._stream.flush()
            except OSError:
                self._lose()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _lose(self) -> None:
        self._is_gone = True
        _hang_up()


def _hang_up() -> None:
    """Do as the kernel does when a terminal goes away; it does not tell every process."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGHUP)
