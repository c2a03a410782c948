"""What all progress files share: how a source is driven, learned cadences, numbers as found.

Rows are read by hand and not by a validator: a file may hold a million of them, and a record with
one odd value still tells the others.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ckpt.run import RunEvent

RETRY_S = 0.25
GIVE_UP_S = 0.75
CADENCE_INTERVALS = 64
SLICE_BYTES = 1 << 20
SLACK_BYTES = 1 << 16
"""How much more than its size is asked of a file that may grow while it is read."""

_SPELT_OUT: Mapping[str, float] = {
    **dict.fromkeys(("NaN", "nan"), math.nan),
    **dict.fromkeys(("Infinity", "inf"), math.inf),
    **dict.fromkeys(("-Infinity", "-inf"), -math.inf),
}


class ProgressFile(Protocol):
    """One source of a run, driven by `sources.RunReader`."""

    @property
    def has_more(self) -> bool:
        """Whether there is more to read at once: it reads in slices."""

    @property
    def backlog_bytes(self) -> int:
        """Roughly how many bytes `has_more` stands for."""

    @property
    def retry_at(self) -> float | None:
        """When to read again though nothing may have changed (epoch seconds), None: no need."""

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield what changed since the last call; cheap when nothing did. Never raises."""


class Cadence:
    """Learns how often a file changes from the times at which it did."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=CADENCE_INTERVALS + 1)

    def note(self, at: float) -> None:
        """Note a change at a time; one that is not newer than the last is none."""
        if math.isfinite(at) and (not self._times or at > self._times[-1]):
            self._times.append(at)

    def forget(self) -> None:
        """Begin anew: what comes is the work of another process."""
        self._times.clear()

    @property
    def median_s(self) -> float | None:
        """The median interval, None with fewer than three."""
        gaps = self._gaps()
        if len(gaps) < 3:
            return None
        import statistics  # late: see `pace`

        return statistics.median(gaps)

    @property
    def longest_s(self) -> float | None:
        """The longest interval, None with fewer than three."""
        gaps = self._gaps()
        return max(gaps) if len(gaps) >= 3 else None

    def _gaps(self) -> list[float]:
        times = list(self._times)
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def number(value: Any) -> float | None:
    """Return a JSON number as a float, None for anything else (`true` too).

    NaN included, also as the text that writers of strict JSON put for it.
    """
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int:
        try:
            return float(value)
        except OverflowError:  # an integer of more than 308 digits
            return math.inf if value > 0 else -math.inf
    return _SPELT_OUT.get(value) if kind is str else None


def whole(value: Any) -> int | None:
    """Return a step: a whole number from 0, also as `42.0` or `"42"`; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():  # NaN and infinity are none either
        return None
    return int(value) if 0 <= value < 1 << 48 else None


def numbers(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of a record under our names; `names` maps the file's key to ours."""
    found: dict[str, float] = {}
    for key, name in names.items():
        value = record.get(key)
        if value is not None and (as_number := number(value)) is not None:
            found[name] = as_number
    return found


def sentence(error: OSError) -> str:
    """Say why a file could not be read, in lower case and without its path."""
    return (error.strerror or str(error)).lower()
