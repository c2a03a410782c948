"""A copy of tensors in host memory that is allocated once, faulted in beforehand and used again.

Tensors are found wherever dicts, lists and tuples hold them; whatever else there is is copied too.
"""

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import torch

from ckpt.errors import PublishError
from ckpt.torch.tensors import identity_of, is_dense, is_plain_memory, memory_of

_Key: TypeAlias = tuple[object, ...]
_LARGE_BYTES = 1 << 16
_PIECE_BYTES = 8 << 20
_MOST_THREADS = 4
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Snapshot:
    """Host memory for one copy of a tree of tensors; a later copy overwrites the one before.

    Memory is kept for as long as the next tree has a tensor of that dtype and shape in its place.
    """

    def __init__(self) -> None:
        self._memory: dict[_Key, torch.Tensor] = {}

    def prepare(self, tree: Any) -> None:
        """Allocate memory for a tree like this one, and touch every page of it."""
        copy = _Copy(self._memory, is_dry=True)
        copy.of(tree, ())
        self._memory = copy.used

    def take(self, tree: Any) -> Any:
        """Copy a tree and return the copy; whatever in it changes later, the copy does not.

        Tensors that are one and the same still are.

        Raises:
            PublishError: something in it cannot be copied.
        """
        copy = _Copy(self._memory)
        with torch.no_grad():
            taken = copy.of(tree, ())
        _copy_all(copy.plain)
        self._memory = copy.used
        for device in copy.pending:
            torch.cuda.current_stream(device).synchronize()
        return taken


class _Copy:
    """One walk over a tree: what it copied so far, and the memory that it used."""

    def __init__(self, memory: dict[_Key, torch.Tensor], *, is_dry: bool = False) -> None:
        self.used: dict[_Key, torch.Tensor] = {}
        self.plain: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.pending: set[torch.device] = set()
        self._memory = memory
        self._is_dry = is_dry
        self._taken: dict[object, torch.Tensor] = {}
        self._twins: dict[int, Any] = {}

    def of(self, value: Any, key: _Key) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, key)
        if isinstance(value, _PLAIN):
            return value
        kind = type(value)
        if kind in (dict, OrderedDict):
            return kind((name, self.of(item, (*key, name))) for name, item in value.items())
        if kind in (list, tuple):
            return kind(self.of(item, (*key, at)) for at, item in enumerate(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self.of(item, (*key, at)) for at, item in enumerate(value)))
        if self._is_dry:
            return None
        try:
            return deepcopy(value, self._twins)
        except Exception as error:
            where = ".".join(map(str, key))
            raise PublishError(f"{where}: a {kind.__name__} cannot be copied: {error}") from error

    def _tensor(self, tensor: torch.Tensor, key: _Key) -> torch.Tensor:
        if not is_dense(tensor):
            return tensor if self._is_dry else tensor.detach().clone().to("cpu")
        identity = identity_of(tensor)
        if identity is not None and identity in self._taken:
            return self._taken[identity]
        memory = self._memory.get(key)
        if memory is None or memory.dtype != tensor.dtype or memory.shape != tensor.shape:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            if self._is_dry:
                memory.reshape(-1).view(torch.uint8).zero_()
        if not self._is_dry:
            self._copy(tensor, memory)
        self.used[key] = memory
        if identity is not None:
            self._taken[identity] = memory
        return memory

    def _copy(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        if tensor.nbytes >= _LARGE_BYTES and is_plain_memory(tensor):
            self.plain.append((memory, tensor))
            return
        memory.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        if tensor.is_cuda:
            self.pending.add(tensor.device)


def _copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy plain memory to plain memory, from the second to the first of each pair.

    In threads of our own: torch's meet after every tensor, and where a processor is busy with
    something else each meeting costs as much as the copy.
    """
    pieces = deque(_pieces(pairs))

    def work() -> None:
        while pieces:
            try:
                target, source = pieces.popleft()
            except IndexError:  # another thread took the last one
                return
            np.copyto(target, source)

    helpers = min(_MOST_THREADS, os.cpu_count() or 1, len(pieces)) - 1
    threads = [threading.Thread(target=work, name="ckpt-copy") for _ in range(helpers)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()


def _pieces(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[Any, Any]]:
    for memory, tensor in pairs:
        target, source = (np.frombuffer(memory_of(each), np.uint8) for each in (memory, tensor))
        for at in range(0, len(source), _PIECE_BYTES):
            yield target[at : at + _PIECE_BYTES], source[at : at + _PIECE_BYTES]
