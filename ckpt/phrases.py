"""Words that verdicts and screens share: durations, clock times in local time, losses. Pure."""

import math
from datetime import UTC, datetime

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float | None) -> str:
    """Seconds in at most two units: `45 s`, `3 min`, `4 h 31 min`, `2 d 3 h`; `?` for unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        hours, rest = divmod(whole, HOUR)
        return f"{hours} h {rest // MINUTE} min" if rest >= MINUTE else f"{hours} h"
    days, rest = divmod(whole, DAY)
    return f"{days} d {rest // HOUR} h" if rest >= HOUR else f"{days} d"


def clock_time(at: float) -> str:
    """Say a time of day: `15:42`."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def loss(value: float | None) -> str:
    """A loss with five significant digits or so: `1.8342`, `1.230e-04`; NaN and inf as words."""
    if value is None:
        return "?"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    magnitude = abs(value)
    if magnitude == 0 or 1e-3 <= magnitude < 1e4:
        return f"{value:.4f}"
    return f"{value:.3e}"
