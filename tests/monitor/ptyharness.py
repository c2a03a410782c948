"""A real pseudo-terminal around `ckpt-monitor`: what is on the screen, what went over the wire.

`Pty` starts a command and reads everything that it writes, in a thread, with the time at which it
came. The screen is what pyte makes of the bytes.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyte

ROOT = Path(__file__).parents[2]
MONITOR = (sys.executable, "-m", "monitor")
LIMIT_S = 20.0
_MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_NOT_FOR_PYTE = re.compile(rb"\x1b\[[<>=][\d;]*[a-zA-Z]|\x1b\[\?[\d;]*\$p|\x1b\][^\x07]*\x07")
ON_BY_DEFAULT = {7, 25}  # line wrap, the cursor


@dataclass(frozen=True)
class Chunk:
    """Bytes that came over the wire, and when (time.monotonic)."""

    at: float
    data: bytes


@dataclass(frozen=True)
class Usage:
    """What a process has used so far, all its threads together."""

    cpu_s: float
    wake_ups: int
    rss_bytes: int


class Pty:
    """One command on a terminal of its own; use it in a `with`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (80, 24),
        environment: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        ignores_hangup: bool = False,
        redirect: Mapping[int, int | None] | None = None,
    ) -> None:
        self.size = size
        self.master, self._slave = os.openpty()
        self._resize(size)
        self.modes_before = termios.tcgetattr(self._slave)
        self.chunks: list[Chunk] = []
        self.is_reading = threading.Event()
        self.is_reading.set()
        self._end = False
        self.started_at = time.monotonic()

        def prepare() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            if ignores_hangup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for target, source in (redirect or {}).items():
                if source is None:
                    os.close(target)
                else:
                    os.dup2(source, target)

        slave = self._slave
        self.process = subprocess.Popen(
            list(command), stdin=slave, stdout=slave, stderr=slave, close_fds=True,
            preexec_fn=prepare,  # noqa: PLW1509 - only the child can take the terminal as its own
            cwd=cwd or ROOT, env=environment_of(environment or {}),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._end = True
        self.is_reading.set()
        self._reader.join()
        for descriptor in (self._slave, self.master):
            if descriptor >= 0:
                os.close(descriptor)
        self._slave = self.master = -1

    # ---- what came ------------------------------------------------------------------------------

    @property
    def sent(self) -> bytes:
        """All bytes that came so far."""
        return b"".join(chunk.data for chunk in list(self.chunks))

    def bytes_since(self, at: float) -> int:
        return sum(len(chunk.data) for chunk in list(self.chunks) if chunk.at >= at)

    def when(self, *wanted: bytes, timeout_s: float = LIMIT_S, after: float = 0.0) -> float:
        """Wait until all texts have come (in this order or not) and return when that was."""
        deadline = time.monotonic() + timeout_s
        while True:
            collected = b""
            for chunk in list(self.chunks):
                if chunk.at < after:
                    continue
                collected += chunk.data
                if all(text in collected for text in wanted):
                    return chunk.at
            if time.monotonic() > deadline:
                raise AssertionError(f"{wanted!r} did not come; the screen:\n{self.text()}")
            time.sleep(0.01)

    def text(self) -> str:
        """The screen as text, lines without trailing blanks."""
        screen = pyte.Screen(*self.size)
        pyte.ByteStream(screen).feed(displayable(self.sent))
        return "\n".join(line.rstrip() for line in screen.display)

    def until(self, condition: Callable[[str], bool], timeout_s: float = LIMIT_S) -> str:
        """Wait until the screen's text is as wanted; return it."""
        deadline = time.monotonic() + timeout_s
        while not condition(text := self.text()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the screen did not become as wanted:\n{text}")
            time.sleep(0.05)
        return text

    def modes_left_on(self) -> set[int]:
        """DEC private modes that differ from a fresh terminal's by now (1049, 1000, 25, …)."""
        left: set[int] = set()
        for numbers, how in _MODE.findall(self.sent):
            for number in map(int, numbers.split(b";")):
                is_usual = (how == b"h") == (number in ON_BY_DEFAULT)
                (left.discard if is_usual else left.add)(number)
        return left

    @property
    def modes(self) -> list[object]:
        """The line's settings now (termios)."""
        return termios.tcgetattr(self._slave)

    # ---- acting on it ---------------------------------------------------------------------------

    def press(self, keys: str | bytes) -> None:
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns: int, rows: int) -> None:
        """Make the window another size; the screen's text begins anew."""
        self._resize((columns, rows))
        self.size = (columns, rows)
        self.chunks.clear()
        self.process.send_signal(signal.SIGWINCH)

    def hang_up(self) -> None:
        """Close the terminal, as a dropped connection does."""
        self._end = True
        self._reader.join()
        os.close(self._slave)
        os.close(self.master)
        self._slave = self.master = -1

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """Wait for the end, and for its last bytes; return the exit code (-n: killed by n)."""
        code = self.process.wait(timeout_s)
        quiet_from = len(self.chunks)
        while True:
            time.sleep(0.15)
            if len(self.chunks) == quiet_from:
                return code
            quiet_from = len(self.chunks)

    def usage(self) -> Usage:
        return usage_of(self.process.pid)

    def _resize(self, size: tuple[int, int]) -> None:
        columns, rows = size
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while not self._end:
            self.is_reading.wait()
            readable, _, _ = select.select([self.master], [], [], 0.05)
            if readable and self.is_reading.is_set():
                data = os.read(self.master, 1 << 16)
                self.chunks.append(Chunk(time.monotonic(), data))


def displayable(data: bytes) -> bytes:
    """What pyte understands of the bytes for a terminal."""
    return _NOT_FOR_PYTE.sub(b"", data)


def usage_of(pid: int) -> Usage:
    """What a process has used: CPU seconds, voluntary context switches, resident bytes now."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # the kernel's own clock of that process: ticks are counted by sampling, which work that a
    # timer starts (it wakes up on a tick) always hits
    cpu_s = time.clock_gettime((~pid << 3) | 2)
    wake_ups = sum(
        int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]  # the kernel writes it
        for text in (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    )
    return Usage(cpu_s, wake_ups, int(stat[21]) * os.sysconf("SC_PAGE_SIZE"))


def environment_of(changes: Mapping[str, str | None]) -> dict[str, str]:
    """A usual terminal's environment, with changes; None takes a variable away."""
    told = {name: value for name, value in os.environ.items() if not _is_of_a_terminal(name)}
    told |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    told.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start would compile the app anew
    for name, value in changes.items():
        if value is None:
            told.pop(name, None)
        else:
            told[name] = value
    return told


def _is_of_a_terminal(name: str) -> bool:
    return name.startswith(("TEXTUAL", "SSH_", "TMUX", "LC_")) or name in (
        "NO_COLOR", "COLUMNS", "LINES", "STY", "COLORTERM", "PYTHONUTF8",
    )  # fmt: skip
