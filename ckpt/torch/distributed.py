"""Reading on rank 0 for every rank: an error there is an error everywhere, and nobody waits.

Without an initialised process group there is one rank, and nothing is sent.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from ckpt.errors import CheckpointError

T = TypeVar("T")


def rank() -> int:
    """Return this process's rank, 0 without a process group."""
    return dist.get_rank() if _is_spread() else 0


def from_rank_zero(job: Callable[[], T]) -> T:
    """Run a job on rank 0 and return its result on every rank; it must pickle.

    Whatever is raised on rank 0 is raised on every rank, by the same class where it is one that
    can be sent. Every rank must call this.
    """
    if not _is_spread():
        return job()
    if rank() != 0:
        received: T = _received()
        return received
    try:
        result = job()
    except BaseException as error:
        dist.broadcast_object_list([(None, _sendable(error))], 0)
        raise
    try:
        dist.broadcast_object_list([(result, None)], 0)  # pickles all of it before it sends any
    except (AttributeError, TypeError, ValueError) as error:
        cannot = CheckpointError(f"rank 0: what it read cannot be sent: {error}")
        dist.broadcast_object_list([(None, cannot)], 0)
        raise cannot from error
    return result


def shared(
    read: Callable[[], tuple[T, Mapping[str, torch.Tensor]]],
) -> tuple[T, dict[str, torch.Tensor]]:
    """Read something with tensors on rank 0 and return both on every rank.

    What it is goes first, with names, shapes and dtypes, then the tensors one after the other, on
    the CPU. Names that stand for one tensor still do. Errors as `from_rank_zero`.
    """
    own: dict[str, torch.Tensor] = {}

    def read_first() -> tuple[T, dict[str, _Described]]:
        value, tensors = read()
        own.update(tensors)
        return value, _describe(own)

    value, described = from_rank_zero(read_first)
    if not _is_spread():
        return value, own
    tensors: dict[str, torch.Tensor] = {}
    for name, each in described.items():
        if each.same_as is not None:
            tensors[name] = tensors[each.same_as]
            continue
        tensors[name] = own[name] if name in own else torch.empty(each.shape, dtype=each.dtype)
        _share(tensors[name])
    return value, tensors


def shared_tensors(
    read: Callable[[], Mapping[str, torch.Tensor]], *, broadcast: bool
) -> dict[str, torch.Tensor]:
    """Read tensors here, or with `broadcast` on rank 0 for every rank."""
    return shared(lambda: (None, read()))[1] if broadcast else dict(read())


# ---- private ----------------------------------------------------------------------------------


def _is_spread() -> bool:
    is_ready = dist.is_available() and dist.is_initialized()
    return bool(is_ready and dist.get_world_size() > 1)


class _Described(NamedTuple):
    """What a rank must know of a tensor before it comes; `same_as` names its twin."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    same_as: str | None


def _describe(tensors: Mapping[str, torch.Tensor]) -> dict[str, _Described]:
    first: dict[int, str] = {}
    described = {}
    for name, tensor in tensors.items():
        twin = first.setdefault(id(tensor), name)
        same_as = None if twin == name else twin
        described[name] = _Described(tensor.dtype, tuple(tensor.shape), same_as)
    return described


def _share(tensor: torch.Tensor) -> None:
    """Send one tensor as bytes: not every backend knows every dtype."""
    if not tensor.numel():
        return
    flat = tensor.reshape(-1).view(torch.uint8)
    device = _device()
    if device is None:
        dist.broadcast(flat, 0)
        return
    moved = flat.to(device)
    dist.broadcast(moved, 0)
    if rank() != 0:
        flat.copy_(moved)


def _device() -> torch.device | None:
    """The device that this group sends from; None: host memory."""
    backend = str(dist.get_backend())
    if "nccl" not in backend or "gloo" in backend:
        return None
    return torch.device("cuda", torch.cuda.current_device())


def _received() -> Any:
    parts: list[Any] = [None]
    dist.broadcast_object_list(parts, 0)
    result, error = parts[0]
    if error is not None:
        raise error
    return result


def _sendable(error: BaseException) -> BaseException:
    """Return the error itself where it can be made again elsewhere, else its words."""
    if isinstance(error, CheckpointError | OSError):
        return error
    if isinstance(error, Exception):
        return CheckpointError(f"rank 0: {type(error).__name__}: {error}")
    return CheckpointError(f"rank 0 was stopped: {type(error).__name__}")
