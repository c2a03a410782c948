"""What verifications that were cancelled had compared already, so that the next one goes on there.

Each entry holds for exactly one state of one file and for the hashes it was compared with. It is
used once, by the verification that comes to its end, and for a day at most.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ckpt import fs, jsontext
from ckpt.control import DIRECTORY, SETTLED_S, make_control
from ckpt.errors import DuplicateKey, TornRead

LEAST_BYTES = 64 << 20
"""What was read of less is sooner read again."""

LONGEST_S = 86_400.0
_NAME = "compared"
_MOST_BYTES = 8 << 20


class Compared:
    """The files of one payload that were compared and found to be as recorded."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._began_at = time.time()
        self._known = _read(run_dir, self._began_at)
        self._own: dict[str, float] = {}
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known, so that no file need be looked at."""
        return not self._known

    def lookup(self, found: fs.Identity, hashes: Iterable[str]) -> float | None:
        """Return when (epoch s) exactly this file was compared with these hashes, None: never."""
        at = self._known.get(_key(found, hashes))
        if at is not None:
            self._own[_key(found, hashes)] = at
        return at

    def note(self, found: fs.Identity, hashes: Iterable[str]) -> None:
        """Take down that a file was compared; not when it had changed just before."""
        if self._began_at - max(found.mtime_ns, found.ctime_ns) / 1e9 >= SETTLED_S:
            self._own[_key(found, hashes)] = time.time()
            self._bytes += found.size_bytes

    def keep(self) -> None:
        """The verification was cancelled: keep what it had compared, where the run takes it."""
        if self._bytes >= LEAST_BYTES:
            self._write({**_read(self._run_dir, self._began_at), **self._own})

    def forget(self) -> None:
        """The verification came to its end: the next one reads everything again."""
        if not self._own.keys().isdisjoint(self._known):
            known = _read(self._run_dir, self._began_at)
            self._write({key: at for key, at in known.items() if key not in self._own})

    def _write(self, entries: Mapping[str, float]) -> None:
        with suppress(OSError):  # a comfort, never a condition
            path = make_control(self._run_dir) / _NAME
            fs.replace_bytes(path, json.dumps(entries).encode(), durable=False)


def _read(run_dir: Path, now: float) -> dict[str, float]:
    try:
        value = jsontext.parse(fs.read_small(run_dir / DIRECTORY / _NAME, _MOST_BYTES), path=_NAME)
    except (OSError, TornRead, DuplicateKey):
        return {}
    entries = value.items() if isinstance(value, dict) else ()
    return {
        key: at for key, at in entries if isinstance(at, float) and now - LONGEST_S < at <= now
    }


def _key(found: fs.Identity, hashes: Iterable[str]) -> str:
    digest = hashlib.sha256(repr(found[:5]).encode())
    for each in hashes:
        digest.update(f"\n{each}".encode("utf-8", errors="surrogateescape"))
    return digest.hexdigest()[:32]
