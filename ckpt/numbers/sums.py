"""Sums over many values that neither overflow nor vanish: what statistics are made of.

Everything is accumulated in float64. Imports numpy, as `decoding` does.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckpt.checkpoint import TensorStats
from ckpt.numbers.decoding import Numbers, Scratch

_LARGE, _SMALL = 1e140, 1e-140  # the squares of what lies between them can be added as they are
_ROW = 8192  # short enough that numpy's dot products start no threads of their own


@dataclass(slots=True)
class Scaled:
    """A sum kept as `value` times two to the `exponent`: squares of any float fit into it."""

    value: float = 0.0
    exponent: int = 0

    def add(self, value: float, exponent: int = 0) -> None:
        """Add `value` times two to the `exponent`."""
        if value == 0:
            return
        if self.value == 0:
            self.value, self.exponent = value, exponent
            return
        top = max(self.exponent, exponent)
        self.value = math.ldexp(self.value, self.exponent - top) + math.ldexp(
            value, exponent - top
        )
        self.exponent = top

    def over(self, count: int) -> float:
        """Return the sum divided by a count."""
        return _ldexp(self.value / count, self.exponent)

    def root_over(self, other: "Scaled") -> float:
        """Return the root of this sum over another: infinite over nothing, unless both are."""
        if other.value == 0:
            return math.inf if self.value else 0.0
        (upper, up), (lower, down) = math.frexp(self.value), math.frexp(other.value)
        ratio = Scaled(upper / lower, self.exponent + up - other.exponent - down)
        return ratio.root()

    def root(self) -> float:
        """Return the square root of the sum; infinite when no float holds it."""
        odd = self.exponent % 2
        return _ldexp(math.sqrt(math.ldexp(self.value, odd)), (self.exponent - odd) // 2)


@dataclass(slots=True)
class Sums:
    """What is known of some values of a tensor; two of them add up to that of all their values.

    `count` are the finite ones; `low` and `high` are exact for integers too.
    """

    count: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    low: float | None = None
    high: float | None = None
    total: Scaled = field(default_factory=Scaled)
    squares: Scaled = field(default_factory=Scaled)

    def take(self, numbers: Numbers, scratch: Scratch) -> None:
        """Add a block of values."""
        low, high = numbers.min(), numbers.max()
        if numbers.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
            numbers = self._only_finite(numbers)
            if not numbers.size:
                return
            low, high = numbers.min(), numbers.max()
        self.count += numbers.size
        self._widen(low.item(), high.item())
        if low <= 0 <= high:
            flags = np.equal(numbers, 0, out=scratch.flags[: numbers.size])
            self.zeros += int(np.count_nonzero(flags))
        wide = as_float64(numbers, scratch.wide)
        exponent = scale_down(wide, max(abs(float(low)), abs(float(high))))
        self.total.add(float(wide.sum()), exponent)
        self.squares.add(square_sum(wide), 2 * exponent)

    def join(self, other: "Sums") -> None:
        """Add what is known of other values of the same tensor."""
        self.count += other.count
        self.nan += other.nan
        self.inf += other.inf
        self.zeros += other.zeros
        if other.low is not None and other.high is not None:
            self._widen(other.low, other.high)
        self.total.add(other.total.value, other.total.exponent)
        self.squares.add(other.squares.value, other.squares.exponent)

    def stats(self) -> TensorStats:
        """Return the statistics of all that was added."""
        seen = self.count > 0
        return TensorStats(
            self.count + self.nan + self.inf,
            self.nan,
            self.inf,
            self.zeros,
            self.low,
            self.high,
            self.total.over(self.count) if seen else None,
            self.squares.root() if seen else None,
        )

    def _only_finite(self, numbers: Numbers) -> Numbers:
        is_finite = np.isfinite(numbers)
        nan = int(np.count_nonzero(np.isnan(numbers)))
        self.nan += nan
        self.inf += numbers.size - int(np.count_nonzero(is_finite)) - nan
        kept: Numbers = numbers[is_finite]
        return kept

    def _widen(self, low: float, high: float) -> None:
        self.low = low + 0 if self.low is None else min(self.low, low + 0)  # -0.0 becomes 0.0
        self.high = high + 0 if self.high is None else max(self.high, high + 0)


def as_float64(numbers: Numbers, into: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers as float64, in memory that may be changed."""
    wide = into[: numbers.size]
    np.copyto(wide, numbers)
    return wide


def scale_down(wide: NDArray[np.float64], largest: float) -> int:
    """Scale values whose squares would overflow or vanish; return two's exponent of the scale."""
    if largest == 0 or _SMALL < largest < _LARGE:
        return 0
    exponent = math.frexp(largest)[1]
    np.ldexp(wide, -exponent, out=wide)
    return exponent


def add_squares(to: Scaled, wide: NDArray[np.float64], largest: float, exponent: int = 0) -> None:
    """Add the squares of values times two to the `exponent`; the values are used up."""
    exponent += scale_down(wide, largest)
    to.add(square_sum(wide), 2 * exponent)


def magnitude(wide: NDArray[np.float64]) -> float:
    """Return the largest magnitude; not finite where a value is not."""
    return max(abs(float(wide.min())), abs(float(wide.max()))) if wide.size else 0.0


def square_sum(wide: NDArray[np.float64]) -> float:
    """Return the sum of the squares."""
    whole = wide.size - wide.size % _ROW
    rows = wide[:whole].reshape(-1, 1, _ROW)
    rest = wide[whole:]
    if not whole:
        return float(np.dot(rest, rest))
    products: NDArray[Any] = np.matmul(rows, rows.transpose(0, 2, 1))
    return float(products.sum()) + float(np.dot(rest, rest))


def _ldexp(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
