"""The few words that verdicts need: spans, clock times in local time, losses. Pure."""

import math
from datetime import UTC, datetime


def span(seconds: float) -> str:
    """Say a span of time in its largest fitting unit: `45 s`, `12 min`, `3 h`, `2 days`."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def clock_time(at: float) -> str:
    """Say a time of day: `15:42`."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def loss_word(value: float) -> str:
    """Say a loss: `NaN`, `inf`, `1.834`."""
    return "NaN" if math.isnan(value) else f"{value:.4g}"
