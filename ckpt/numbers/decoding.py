"""The bytes of a tensor as numbers: every dtype of safetensors but F6, without a framework.

Imports numpy, so it is imported when numbers are read and not before.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckpt.tensorfile import DTYPE_BITS

Raw: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[Any]

BLOCK_VALUES = 1 << 16
"""So many values are looked at at a time: what is made of them stays in the processor's cache."""

WIDEST_BYTES = 8


class Scratch:
    """The memory in which one thread works; it is overwritten by each block."""

    def __init__(self) -> None:
        self.raw: Raw = np.empty(BLOCK_VALUES * WIDEST_BYTES, np.uint8)
        self.words = np.empty(BLOCK_VALUES, np.uint32)
        self.wide = np.empty(BLOCK_VALUES, np.float64)
        self.flags = np.empty(BLOCK_VALUES, np.bool_)
        self._beside: Scratch | None = None

    @property
    def beside(self) -> "Scratch":
        """Return as much memory again, for what a block is compared with."""
        if self._beside is None:
            self._beside = Scratch()
        return self._beside


def block_bytes(dtype: str) -> int:
    """Return how many bytes a block of a dtype takes."""
    return BLOCK_VALUES * DTYPE_BITS[dtype] // 8


def is_decoded(dtype: str) -> bool:
    """Whether the values of a dtype can be told: the order of F6's bits is written nowhere."""
    return dtype in _DECODERS


def decode(dtype: str, raw: Raw, words: NDArray[np.uint32]) -> Numbers:
    """Return the values of a block as integers, or as floats of 32 or 64 bits.

    A view of `raw` or `words` where that is possible; `words` holds as many values as a block.
    """
    values: Numbers = _DECODERS[dtype](raw, words)
    return values


def _as(name: str) -> Callable[[Raw, NDArray[np.uint32]], Numbers]:
    return lambda raw, _: raw.view(name)


def _bool(raw: Raw, _words: NDArray[np.uint32]) -> Numbers:
    values: Numbers = (raw != 0).view(np.uint8)
    return values


def _f16(raw: Raw, words: NDArray[np.uint32]) -> Numbers:
    values = raw.view("<f2")
    wide = words[: values.size].view(np.float32)
    np.copyto(wide, values)
    return wide


def _bf16(raw: Raw, words: NDArray[np.uint32]) -> Numbers:
    """BF16 is the upper half of a float of 32 bits."""
    halves = raw.view("<u2")
    wide = words[: halves.size]
    np.left_shift(halves, 16, out=wide, dtype=np.uint32)
    return wide.view(np.float32)


def _c64(raw: Raw, _words: NDArray[np.uint32]) -> Numbers:
    """The magnitudes; NaN wherever a part is, also beside an infinite one."""
    values = raw.view("<c8").astype(np.complex128)
    magnitudes: Numbers = np.abs(values)
    magnitudes[np.isnan(values)] = np.nan
    return magnitudes


def _by_table(table: NDArray[np.float32]) -> Callable[[Raw, NDArray[np.uint32]], Numbers]:
    return lambda raw, _: np.take(table, raw, axis=0).reshape(-1)


def _small_floats(
    exponent_bits: int, mantissa_bits: int, *, bias: int, special: str = ""
) -> NDArray[np.float32]:
    """Return the values of all codes of a small float with a sign.

    `special` is what its highest codes mean: "ieee" (the top exponent is Inf and NaN), "fn" (the
    very highest is NaN), "fnuz" (no code but that of a negative zero: it is NaN), else nothing.
    """
    signs = 1 << (exponent_bits + mantissa_bits)
    codes = np.arange(signs)
    exponents, mantissas = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    is_normal = exponents > 0
    fractions = mantissas / (1 << mantissa_bits) + is_normal
    values = np.ldexp(fractions, np.where(is_normal, exponents, 1) - bias)
    if special == "ieee":
        top = signs - (1 << mantissa_bits)
        values[top], values[top + 1 :] = np.inf, np.nan
    elif special == "fn":
        values[-1] = np.nan
    negative = -values
    if special == "fnuz":
        negative[0] = np.nan
    return np.concatenate([values, negative]).astype(np.float32)


def _e8m0() -> NDArray[np.float32]:
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


def _pairs_of(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the two values of every byte that holds two codes, the lower half first."""
    codes = np.arange(256)
    return np.stack([table[codes & 15], table[codes >> 4]], axis=1)


_DECODERS: Mapping[str, Callable[[Raw, NDArray[np.uint32]], Numbers]] = {
    "BOOL": _bool, "F16": _f16, "BF16": _bf16, "C64": _c64,
    **{name: _as(f"<{name[0].lower()}{int(name[1:]) // 8}")
       for name in ("U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F32", "F64")},
    "F8_E4M3": _by_table(_small_floats(4, 3, bias=7, special="fn")),
    "F8_E5M2": _by_table(_small_floats(5, 2, bias=15, special="ieee")),
    "F8_E4M3FNUZ": _by_table(_small_floats(4, 3, bias=8, special="fnuz")),
    "F8_E5M2FNUZ": _by_table(_small_floats(5, 2, bias=16, special="fnuz")),
    "F8_E8M0": _by_table(_e8m0()),
    "F4": _by_table(_pairs_of(_small_floats(2, 1, bias=1))),
}  # fmt: skip
