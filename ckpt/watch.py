"""What may have changed in a run: a targeted poll is the truth, file events only shorten the wait.

Knows paths, not what is in them. Events are used where the file system is known to be local and
the kernel really took the watches; on any doubt it polls, and says why.
"""

import errno
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt import fs
from ckpt.view import Watching

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

STATE_S, DIRECTORY_S, CHECKPOINT_S = 1.0, 2.0, 5.0
REMOTE_FACTOR = 3.0
SETTLE_S = 0.004  # a trainer writes its files one after the other: they are told together
QUIET_S = 0.02  # after a hint was acted on, what follows is collected for this long
MOST_ANSWERS, ANSWERS_PER_S = 120.0, 2.5  # a storm of events is answered at once, then calmly
RETRY_EVENTS_S = 60.0
MOST_WATCHES = 32
_PASSING = re.compile(r"(?!.*\.(?:tmp|retired|withdrawn|trash)-)(?:\..*|.*\.tmp)")
_LIMITS = {
    errno.EMFILE: "inotify instance limit reached",
    errno.ENFILE: "too many open files",
    errno.ENOSPC: "inotify watch limit reached",
}


@dataclass(frozen=True, slots=True)
class Targets:
    """What to look at, by how often it may change. A path that is not there yet is fine.

    State files beside the checkpoints (their parent is no run directory) are looked at as seldom
    as the checkpoint directories.
    """

    state_files: tuple[Path, ...] = ()
    run_directories: tuple[Path, ...] = ()
    checkpoint_directories: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Group:
    """Paths that are polled together, and what each looked like last time."""

    interval_s: float
    seen: dict[Path, fs.Stamp | None] = field(default_factory=dict)
    due: float = 0.0

    def keep(self, paths: Iterable[Path]) -> None:
        """Poll these from now on; a new one counts as just seen."""
        before = self.seen
        self.seen = {path: before[path] if path in before else fs.stamp(path) for path in paths}

    def look_at(self, paths: set[Path]) -> None:
        """Take note of what an event told, so that the next poll does not tell it again."""
        for path in self.seen.keys() & paths:
            self.seen[path] = fs.stamp(path)

    def changed(self) -> set[Path]:
        found = set()
        for path, before in self.seen.items():
            now = fs.stamp(path)
            if now != before:
                self.seen[path] = now
                found.add(path)
        return found


@dataclass(slots=True)
class _Directories(_Group):
    """Directories. Their time changes also when a state file in them is replaced: no news.

    So where a time changed the names and inodes in it are compared, less what is passing.
    """

    ignored: frozenset[str] = frozenset()
    names: dict[Path, int | None] = field(default_factory=dict)

    def keep(self, paths: Iterable[Path]) -> None:
        super(_Directories, self).keep(paths)
        known = self.names
        self.names = {
            path: known[path] if path in known else self._names_in(path) for path in self.seen
        }

    def look_at(self, paths: set[Path]) -> None:
        super(_Directories, self).look_at(paths)
        for path in self.seen.keys() & paths:
            self.names[path] = self._names_in(path)

    def changed(self) -> set[Path]:
        found = set()
        for path in super(_Directories, self).changed():
            now = self._names_in(path)
            if now is None or now != self.names[path]:
                found.add(path)
            self.names[path] = now
        return found

    def _names_in(self, path: Path) -> int | None:
        try:
            return hash(
                frozenset(
                    (name, inode)
                    for name, inode in fs.names_and_inodes(path)
                    if name not in self.ignored and not _is_temporary(name)
                )
            )
        except OSError:
            return None


class Watcher:
    """Waits for changes of one run. One thread waits; `wake` and `stop` may be called by any."""

    def __init__(self, run_dir: Path, *, poll_s: float | None = None) -> None:
        self._run_dir = run_dir
        self._condition = threading.Condition()
        self._hints: set[Path] = set()
        self._is_stopped = self._is_woken = False
        self._targets = Targets()
        self._quiet_until = self._hinted_at = 0.0
        self._allowance = _Allowance()
        mount = _mount_of(run_dir)
        self._polling_reason = _why_polling(mount, poll_s)
        scale = 1.0 if mount is None or mount.sends_events else REMOTE_FACTOR
        base = scale * STATE_S if poll_s is None else poll_s
        self._files = _Group(base)
        self._directories = _Directories(base * DIRECTORY_S)
        self._checkpoints = _Group(base * CHECKPOINT_S)
        self._groups = (self._files, self._directories, self._checkpoints)
        self._events = None if self._polling_reason else _Events(self._hint)

    @property
    def watching(self) -> Watching:
        """How changes are noticed right now, and why it is polling if it is."""
        if self._events is None:
            return Watching("polling", self._polling_reason)
        if self._events.is_working:
            return Watching("events")
        return Watching("polling", self._events.problem)

    def watch(self, targets: Targets) -> None:
        """Look at these from now on; the same ones again cost nothing."""
        if targets == self._targets:
            return
        self._targets = targets
        near = set(targets.run_directories)
        files = [path for path in targets.state_files if path.parent in near]
        inner = [path for path in targets.state_files if path.parent not in near]
        self._files.keep(files)
        self._directories.ignored = frozenset(path.name for path in files)
        self._directories.keep(targets.run_directories)
        self._checkpoints.keep((*targets.checkpoint_directories, *inner))
        if self._events is not None:
            self._events.watch(targets)

    def wait(self, timeout_s: float) -> frozenset[Path]:
        """Return the targets that may have changed, empty after `timeout_s` or when stopped.

        The first event is acted on as soon as those of the same moment are there; those that
        follow are collected a little longer.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._poll()
            with self._condition:
                now = time.monotonic()
                if self._is_stopped:
                    return frozenset()
                ready_at = max(self._quiet_until, self._hinted_at + SETTLE_S)
                if self._hints and now >= ready_at:
                    found |= self._take_hints()
                    self._quiet_until = now + self._allowance.take(now)
                if found or self._is_woken or now >= deadline:
                    self._is_woken = False
                    return frozenset(found)
                until = min(deadline, self._next_poll())
                if self._hints:
                    until = min(until, ready_at)
                self._condition.wait(max(0.0, until - now))

    def wake(self) -> None:
        """Let `wait` return soon."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def stop(self) -> None:
        """Let `wait` return at once, now and for ever; no thread of ours is left behind."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        if self._events is not None:
            self._events.stop()

    def _poll(self) -> set[Path]:
        found: set[Path] = set()
        for group in self._groups:
            now = time.monotonic()
            if group.due <= now:
                found |= group.changed()
                group.due = now + group.interval_s
                if group is self._directories and self._events is not None:
                    self._events.check()
        return found

    def _take_hints(self) -> set[Path]:
        hints, self._hints = self._hints, set()
        for group in self._groups:
            group.look_at(hints)
        return hints

    def _next_poll(self) -> float:
        return min(group.due for group in self._groups)

    def _hint(self, path: Path) -> None:
        with self._condition:
            if not self._hints:
                self._hinted_at = time.monotonic()
                self._condition.notify_all()
            self._hints.add(path)


@dataclass(slots=True)
class _Allowance:
    """How many more hints may be answered at once; it fills up again while it is quiet."""

    left: float = MOST_ANSWERS
    at: float = 0.0

    def take(self, now: float) -> float:
        """Count one answer; return how long to collect hints before the next one."""
        self.left = min(MOST_ANSWERS, self.left + (now - self.at) * ANSWERS_PER_S) - 1
        self.at = now
        return QUIET_S if self.left > 0 else 1 / ANSWERS_PER_S


class _Events:
    """inotify through watchdog, on a few directories, never trusted: see `check`.

    `problem` says why it does not work, None before it was started. Starting (and importing
    watchdog) happens in a thread of its own, so that nobody waits for it.
    """

    def __init__(self, hint: Callable[[Path], None]) -> None:
        self.problem: str | None = None
        self.is_working = False
        self._hint = hint
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._directories: Mapping[Path, fs.Stamp | None] = {}
        self._files: frozenset[Path] = frozenset()
        self._retry_at = 0.0
        self._is_starting = self._is_stopped = False

    def watch(self, targets: Targets) -> None:
        """Take these targets; the watches follow at the next `check`."""
        self._files = frozenset(targets.state_files)
        wanted = targets.run_directories[:MOST_WATCHES]
        if set(wanted) != set(self._directories):
            self._directories = dict.fromkeys(wanted)
            self._restart()

    def check(self) -> None:
        """Start anew where a directory is another one by now, or the threads have died."""
        if self._is_starting or self._is_stopped:
            return
        if not self.is_working:
            if time.monotonic() >= self._retry_at:
                self._restart()
            return
        observer = self._observer
        is_alive = observer is not None and observer.is_alive()
        is_alive = is_alive and all(emitter.is_alive() for emitter in observer.emitters)  # type: ignore[union-attr]  # not None: see above
        if not is_alive or any(
            _inode(fs.stamp(path)) != _inode(before) for path, before in self._directories.items()
        ):
            self._restart()

    def stop(self) -> None:
        """End watchdog's threads without waiting for them."""
        self._is_stopped = True
        with self._lock:
            self._end()

    def _restart(self) -> None:
        self._is_starting = True
        threading.Thread(target=self._start, name="watch-events", daemon=True).start()

    def _start(self) -> None:
        with self._lock:
            try:
                self._end()
                if not self._is_stopped:
                    self._begin()
            except OSError as error:
                self._fail(_LIMITS.get(error.errno or 0) or f"no events: {error.strerror}")
            finally:
                self._is_starting = False

    def _begin(self) -> None:
        from watchdog.events import (
            DirCreatedEvent,
            DirDeletedEvent,
            DirMovedEvent,
            FileClosedEvent,
            FileCreatedEvent,
            FileDeletedEvent,
            FileModifiedEvent,
            FileMovedEvent,
        )
        from watchdog.observers.inotify import InotifyObserver

        # what our own reading causes (opened, closed without a write) is not asked for
        kinds: list[type[FileSystemEvent]] = [
            DirCreatedEvent, DirDeletedEvent, DirMovedEvent, FileClosedEvent, FileCreatedEvent,
            FileDeletedEvent, FileModifiedEvent, FileMovedEvent,
        ]  # fmt: skip
        observer = InotifyObserver()
        watched: dict[Path, fs.Stamp | None] = {}
        for directory in self._directories:
            stamp = fs.stamp(directory)
            watched[directory] = stamp
            if stamp is not None and fs.is_directory(directory):
                real = fs.real_path(directory)
                handler = _Handler(self, real, directory)
                observer.schedule(handler, str(real), event_filter=kinds)  # type: ignore[arg-type]  # it only calls dispatch
        self._directories = watched
        observer.start()
        self._observer = observer
        taken = fs.inotify_inodes()
        missing = [s for s in watched.values() if s is not None and s.inode not in taken]
        if missing:
            self._end()
            self._fail(_LIMITS[errno.ENOSPC])
            return
        self.is_working, self.problem = True, None
        for directory in watched:  # what changed while nobody listened
            self._hint(directory)

    def _end(self) -> None:
        self.is_working = False
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._retry_at = time.monotonic() + RETRY_EVENTS_S

    def take(self, event: "FileSystemEvent", real: Path, directory: Path) -> None:
        """Turn an event into the targets that it speaks of; called by watchdog's thread."""
        for name in (event.src_path, event.dest_path):
            text = name if isinstance(name, str) else name.decode(errors="surrogateescape")
            parent, _, last = text.rpartition("/")
            if parent != str(real):
                continue
            path = directory / last
            if path in self._files:
                self._hint(path)
            elif event.is_directory or not _is_passing(event.event_type, last):
                self._hint(directory)


@dataclass(frozen=True, slots=True, eq=False)
class _Handler:
    """What watchdog calls: the one method that it uses of a handler."""

    events: _Events
    real: Path
    directory: Path

    def dispatch(self, event: "FileSystemEvent") -> None:
        self.events.take(event, self.real, self.directory)


def _is_passing(event_type: str, name: str) -> bool:
    """Whether a file's event says nothing of the run: an unknown file grew, or is temporary."""
    return event_type in ("modified", "closed") or _is_temporary(name)


def _is_temporary(name: str) -> bool:
    """Whether a name is one that is replaced in a moment; generations of a slot are not."""
    return _PASSING.fullmatch(name) is not None


def _inode(stamp: fs.Stamp | None) -> int | None:
    return None if stamp is None else stamp.inode


def _mount_of(run_dir: Path) -> fs.Mount | None:
    try:
        return fs.mount_of(run_dir)
    except OSError:
        return None


def _why_polling(mount: fs.Mount | None, poll_s: float | None) -> str | None:
    if poll_s is not None:
        return f"every {poll_s:g} s, as asked"
    if mount is None:
        return "unknown file system"
    return None if mount.sends_events else mount.type
