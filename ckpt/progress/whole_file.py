"""A file that is written whole, atomically or in place: a reader of the latter meets half of it.

Half a file is not news: the last good value stays, the file is read again a few times, and only
then is it called unreadable, since when and why.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ckpt import fs
from ckpt.errors import CheckpointError, TornRead
from ckpt.progress.base import GIVE_UP_S, RETRY_S, SLACK_BYTES, sentence

T = TypeVar("T")
MAX_BYTES = 64 << 20
SPINS = 8  # a busy in-place writer leaves its file empty most of the time, but never for long
BUSY_S = 10.0  # a file that is rewritten without a pause is called unreadable only then
RACY_S = 0.05  # a clock tick can hide a second write behind the first one's time


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What one look gave: a new value, or why there is none (`error`, since `error_since`)."""

    value: T | None
    identity: fs.Identity | None
    error: str | None = None
    error_since: float | None = None


class WholeFile(Generic[T]):
    """Reads one file when it has changed; `parse` raises CheckpointError for what is no value."""

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        self.path = path
        self.retry_at: float | None = None
        self._parse = parse
        self._identity: fs.Identity | None = None
        self._given_up_on: fs.Identity | None = None
        self._torn_as: fs.Identity | None = None
        self._still_since = 0.0
        self._failing_since: float | None = None
        self._is_reported = False
        self._was_there = False

    def look(self, now: float) -> Reading[T] | None:
        """Return what is new, None when nothing is or when it is too early to tell."""
        try:
            identity = fs.identity(self.path)
            if identity is None:
                return self._missing(now)
            if self._is_known(identity, now):
                return None
            value, identity = self._read()
        except TornRead as torn:
            return self._torn(torn.message, now, identity)
        except CheckpointError as wrong:
            self._settle(identity, now)
            return Reading(None, identity, wrong.message, now)
        except OSError as error:
            return self._torn(f"{self.path}: {sentence(error)}", now, is_final=True)
        is_same = identity == self._identity and not self._is_reported
        self._settle(identity, now)
        return None if is_same else Reading(value, identity)

    def _read(self) -> tuple[T, fs.Identity]:
        for spin in range(SPINS):
            with fs.File(self.path) as file:
                identity = file.identity()
                if identity.size_bytes > MAX_BYTES:
                    raise CheckpointError(
                        f"{self.path}: {identity.size_bytes} bytes, expected a small file"
                    )
                data = file.read_at(0, min(MAX_BYTES, identity.size_bytes + SLACK_BYTES))
            try:
                return self._parse(data), identity
            except TornRead:
                if spin == SPINS - 1:
                    raise
        raise AssertionError

    def _is_known(self, identity: fs.Identity, now: float) -> bool:
        if identity not in (self._identity, self._given_up_on):
            return False
        return self.retry_at is None or now < self.retry_at

    def _settle(self, identity: fs.Identity | None, now: float) -> None:
        """Take a reading as final; one made right after a write is looked at once more."""
        is_racy = identity is not None and abs(now - identity.modified_at) < RACY_S
        self.retry_at = now + RETRY_S if is_racy and identity != self._identity else None
        self._identity, self._given_up_on = identity, None
        self._failing_since, self._is_reported = None, False
        self._was_there = True

    def _torn(
        self,
        message: str,
        now: float,
        identity: fs.Identity | None = None,
        *,
        is_final: bool = False,
    ) -> Reading[T] | None:
        self._was_there = True
        if self._failing_since is None or now < self._failing_since:
            self._failing_since = self._still_since = now
        if identity != self._torn_as:  # it is being written right now: wait for it to rest
            self._torn_as, self._still_since = identity, now
        is_still = now - self._still_since >= GIVE_UP_S
        is_given_up = is_final or is_still or now - self._failing_since >= BUSY_S
        self.retry_at = None if is_given_up else now + RETRY_S
        self._given_up_on = identity if is_given_up else None
        if not is_given_up or self._is_reported:
            return None
        self._is_reported = True
        return Reading(None, self._identity, message, self._failing_since)

    def _missing(self, now: float) -> Reading[T] | None:
        """A file between unlink and create is being written too; one never seen is no news."""
        if not self._was_there:
            self.retry_at = None
            return None
        return self._torn(f"{self.path}: the file is gone", now)
