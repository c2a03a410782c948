"""What every open file, directory and lock shares: one descriptor, closed once."""

import os
from types import TracebackType
from typing import Self


class Opened:
    """Something with a descriptor of its own, closed at the end of a `with` or by `close`."""

    _descriptor: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
