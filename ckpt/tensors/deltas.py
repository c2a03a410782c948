"""How far values moved, added up over blocks of both sides.

Everything is accumulated in float64. Imports numpy, as `decoding` does.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckpt.numbers.decoding import Numbers, Raw, Scratch
from ckpt.numbers.sums import Scaled, add_squares, as_float64, magnitude

Wide = NDArray[np.float64]


@dataclass(slots=True)
class Delta:
    """What is known of the values of two sides; two of them add up to that of all their values."""

    is_different: bool = False
    before: Scaled = field(default_factory=Scaled)
    update: Scaled = field(default_factory=Scaled)
    largest: float = 0.0
    nonfinite_before: int = 0
    nonfinite_after: int = 0

    def take(self, before: Numbers, after: Numbers, scratch: Scratch) -> None:
        """Add a block of both sides, whose bytes are not the same."""
        self.is_different = True
        a = as_float64(before, scratch.wide)
        b = as_float64(after, scratch.beside.wide)
        moved = _exactly(before, after) if _are_long(before, after) else np.subtract(b, a, out=b)
        largest = magnitude(moved)
        if math.isfinite(largest):
            self._add(a, moved, largest)
        else:
            self._take_finite(a, as_float64(after, scratch.beside.wide))

    def take_same(self, values: Numbers, scratch: Scratch) -> None:
        """Add a block that is the same on both sides."""
        wide = as_float64(values, scratch.wide)
        if not math.isfinite(magnitude(wide)):
            finite = np.isfinite(wide)
            lost = wide.size - int(np.count_nonzero(finite))
            self.nonfinite_before += lost
            self.nonfinite_after += lost
            wide = wide[finite]
        add_squares(self.before, wide, magnitude(wide))

    def join(self, other: "Delta") -> None:
        """Add what is known of other values of the same tensor."""
        self.is_different |= other.is_different
        self.before.add(other.before.value, other.before.exponent)
        self.update.add(other.update.value, other.update.exponent)
        self.largest = max(self.largest, other.largest)
        self.nonfinite_before += other.nonfinite_before
        self.nonfinite_after += other.nonfinite_after

    def _take_finite(self, a: Wide, b: Wide) -> None:
        """Add the values that are finite on both sides, and count the others."""
        is_finite, is_finite_after = np.isfinite(a), np.isfinite(b)
        self.nonfinite_before += a.size - int(np.count_nonzero(is_finite))
        self.nonfinite_after += b.size - int(np.count_nonzero(is_finite_after))
        is_finite &= is_finite_after
        a, b = a[is_finite], b[is_finite]
        moved = b - a
        if math.isfinite(largest := magnitude(moved)):
            self._add(a, moved, largest)
            return
        halves = b / 2 - a / 2  # farther apart than a float can say
        self._add(a, halves, magnitude(halves), exponent=1)

    def _add(self, a: Wide, moved: Wide, largest: float, exponent: int = 0) -> None:
        self.largest = max(self.largest, largest * 2**exponent)
        add_squares(self.update, moved, largest, exponent)
        add_squares(self.before, a, magnitude(a))


def are_same(a: Raw, b: Raw) -> bool:
    """Whether the bytes of two blocks are the same."""
    if a.size % 8 == 0:
        return bool(np.array_equal(a.view(np.uint64), b.view(np.uint64)))
    return bool(np.array_equal(a, b))


def _are_long(before: Numbers, after: Numbers) -> bool:
    return before.dtype.kind in "iu" and after.dtype.kind in "iu" and before.dtype.itemsize == 8


def _exactly(before: Numbers, after: Numbers) -> Wide:
    """Return the difference of integers that float64 would round before they are subtracted."""
    moved: Wide = (after.astype(np.longdouble) - before.astype(np.longdouble)).astype(np.float64)
    return moved
