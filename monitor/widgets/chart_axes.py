"""The axes of a chart: round bounds and labels for values, doubling buckets for steps.

Pure numbers. The value axis only has round ends, so it rarely changes while a curve falls; the
step axis grows by doubling, so what is drawn stays where it is until it is squeezed into half.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NARROWEST = -5  # a step is at most 2^5 dots wide
_LARGEST = sys.float_info.max
_SMALLEST = 5e-324
_NOTHING = 1e-290  # below this a difference has no digits of its own
_SAME = 1e-9
_DECADE = 10


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """From `bottom` to `top`, with labelled `ticks`; all positive when `is_log`."""

    bottom: float
    top: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def dot(self, value: float, dots: int) -> int:
        """Return the dot of a value, 0 at the bottom; what lies outside is put at the edge."""
        return self.placing(dots)(value)

    def placing(self, dots: int) -> Callable[[float], int]:
        """Return what tells the dot of each of many values."""
        last = dots - 1
        if self.is_log:
            bottom, top = math.log(self.bottom), math.log(self.top)
        else:  # halves: the span of the largest numbers is no number
            bottom, top = self.bottom / 2, self.top / 2
        span, is_log, log = top - bottom, self.is_log, math.log

        def place(value: float) -> int:
            if is_log:
                if value <= 0:
                    return 0
                height = log(value)
            else:
                height = value / 2
            share = (height - bottom) / span  # infinite where a value lies very far outside
            return 0 if share <= 0 else last if share >= 1 else round(share * last)

        return place


def value_axis(low: float, high: float, rows: int, *, is_log: bool = False) -> ValueAxis:
    """Make the axis that holds two finite values, for a height of so many rows.

    With `is_log` both must be positive.
    """
    if is_log:
        if high <= low * (1 + _SAME):
            low, high = max(low / 2, _SMALLEST), min(high * 2, _LARGEST)
        if high / low >= _DECADE or high < _NOTHING:
            return _decades(low, high, rows)
    elif high / 2 - low / 2 <= max(abs(low), abs(high)) * _SAME or high - low < _NOTHING:
        room = abs(low) / 20 if abs(low) > _NOTHING else 1.0
        low, high = max(low - room, -_LARGEST), min(high + room, _LARGEST)
    span = min(high - low, _LARGEST)
    grain = _round_up(span / 12)
    bottom = max(math.floor(low / grain) * grain, -_LARGEST)
    top = min(math.ceil(high / grain) * grain, _LARGEST)
    if is_log and bottom <= 0:
        bottom = low
    step = _round_up(span / max(1, min(6, rows // 2)))
    start, stop = math.ceil(bottom / step - _SAME), math.floor(top / step + _SAME)
    values = (number * step for number in range(start, stop + 1))
    largest = max(abs(bottom), abs(top))
    ticks = tuple((at, _label(at, step, largest)) for at in values if math.isfinite(at))
    return ValueAxis(bottom, top, ticks, is_log)


def _decades(low: float, high: float, rows: int) -> ValueAxis:
    marks = _one_two_five(low, high)
    decades = math.log10(marks[-1]) - math.log10(marks[0])
    every = math.ceil(decades / max(1, rows // 2))
    if rows >= len(marks) * 2:
        chosen = marks
    else:
        whole = (mark for mark in marks if f"{mark:e}".startswith("1.000000e"))
        chosen = [mark for mark in whole if round(math.log10(mark)) % every == 0]
    ticks = tuple((mark, _short(f"{mark:g}")) for mark in chosen or marks[:1])
    return ValueAxis(marks[0], marks[-1], ticks, is_log=True)


def _one_two_five(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, … from the last at or below `low` to the first at or above `high`."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    spelt = (float(f"{lead}e{power}") for power in powers for lead in (1, 2, 5))
    marks = [mark for mark in spelt if 0 < mark < math.inf]
    below = max((mark for mark in marks if mark <= low), default=low)
    above = min((mark for mark in marks if mark >= high), default=high)
    between = [mark for mark in marks if below < mark < above]
    return [below, *between, above]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = math.floor(math.log10(value))
    for lead in (1, 2, 5):
        if value <= float(f"{lead}e{power}"):
            return float(f"{lead}e{power}")
    return min(float(f"1e{power + 1}"), _LARGEST)


def _label(value: float, step: float, largest: float) -> str:
    """Spell a tick with the digits that tell it from its neighbours."""
    if abs(value) < step / 2:
        value = 0.0
    power = math.floor(math.log10(step) + 1e-9)
    if largest < 1e6 and power >= -4:
        return f"{value:.{max(0, -power)}f}"
    if value == 0:
        return "0"
    digits = math.floor(math.log10(abs(value)) + 1e-9) - power
    return _short(f"{value:.{max(0, digits)}e}")


def _short(number: str) -> str:
    """Spell an exponent as people do: `1e-05` is `1e-5`."""
    mantissa, mark, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else number


@dataclass(frozen=True, slots=True)
class StepAxis:
    """A row of dots for steps: a bucket is 2^bits steps and 2^stretch dots wide.

    One of both is 1. Bucket `first` is at dot 0; `zoom` counts the halvings of everything.
    """

    first: int
    bits: int
    stretch: int
    dots: int
    zoom: int = 0

    @property
    def count(self) -> int:
        """Number of buckets."""
        return max(1, self.dots >> self.stretch)

    @property
    def start(self) -> int:
        """The first step on it."""
        return self.first << self.bits

    @property
    def stop(self) -> int:
        """The first step beyond it."""
        return (self.first + self.count) << self.bits

    def dot(self, step: int) -> int:
        """Return the dot where a step's bucket begins; beyond the ends for steps outside."""
        return ((step >> self.bits) - self.first) << self.stretch

    def step(self, dot: int) -> int:
        """Return the first step of the bucket at a dot."""
        return (self.first + (dot >> self.stretch)) << self.bits

    def ticks(self, room: int) -> Iterator[int]:
        """Yield round steps that are at least `room` dots apart."""
        span = (self.stop - self.start) * room / self.dots
        every = max(1, round(_round_up(span)))
        yield from range(-(-self.start // every) * every, self.stop, every)


def step_axis(
    first_step: int, last_step: int, dots: int, *, zoom: int = 0, anchor: int | None = None
) -> StepAxis:
    """Make the axis that holds all steps, or with `zoom` the stretch around the step `anchor`.

    A zoomed stretch moves by half of itself when the anchor leaves it, not by every step.
    """
    level = NARROWEST
    while not _holds(first_step, last_step, dots, level):
        level += 1
    zoom = max(0, min(zoom, level - NARROWEST))
    level -= zoom
    bits, stretch = max(level, 0), max(-level, 0)
    first = first_step >> bits
    if zoom:
        half = max(1, (dots >> stretch) // 2)
        at = (last_step if anchor is None else anchor) >> bits
        first = max(first, (at // half - 1) * half)
    return StepAxis(first, bits, stretch, dots, zoom)


def _holds(first_step: int, last_step: int, dots: int, level: int) -> bool:
    if level >= 0:
        return (last_step >> level) - (first_step >> level) < dots
    return last_step - first_step < dots >> -level
