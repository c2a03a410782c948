"""Statistics of tensors whose bytes are in memory, as when they are saved.

Imports numpy, as `decoding` does.
"""

import numpy as np

from ckpt.checkpoint import TensorStats
from ckpt.numbers.decoding import Scratch, block_bytes, decode, is_decoded
from ckpt.numbers.sums import Sums


class Measuring:
    """Takes tensors one after the other; `found` has the statistics of those that are decoded."""

    def __init__(self) -> None:
        self.found: dict[str, TensorStats] = {}
        self._scratch = Scratch()

    def take(self, name: str, dtype: str, content: memoryview) -> None:
        """Measure a tensor by all of its bytes; nothing is kept of them."""
        if not is_decoded(dtype):
            return
        scratch = self._scratch
        raw = np.frombuffer(content, np.uint8)
        sums = Sums()
        step = block_bytes(dtype)
        with np.errstate(all="ignore"):  # of values that are not finite: they are counted
            for start in range(0, raw.size, step):
                sums.take(decode(dtype, raw[start : start + step], scratch.words), scratch)
        self.found[name] = sums.stats()
