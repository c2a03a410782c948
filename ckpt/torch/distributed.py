"""Reading on rank 0 for every rank: an error there is an error everywhere, and nobody waits.

Without an initialised process group there is one rank, and nothing is sent.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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


def share_tensors(tensors: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Return rank 0's tensors on every rank: what they are first, then one after the other.

    The other ranks give None. Names that stand for one tensor still do.
    """
    if not _is_spread():
        return dict(tensors or {})
    shapes: Any = None
    if tensors is not None:
        shapes = _described(tensors)
    shapes = from_rank_zero(lambda: shapes)
    shared: dict[str, torch.Tensor] = {}
    for name, (dtype, shape, same_as) in shapes.items():
        if same_as is not None:
            shared[name] = shared[same_as]
            continue
        tensor = tensors[name] if tensors is not None else torch.empty(shape, dtype=dtype)
        _share(tensor)
        shared[name] = tensor
    return shared


# ---- private ----------------------------------------------------------------------------------


def _is_spread() -> bool:
    is_ready = dist.is_available() and dist.is_initialized()
    return bool(is_ready and dist.get_world_size() > 1)


def _described(
    tensors: Mapping[str, torch.Tensor],
) -> dict[str, tuple[torch.dtype, tuple[int, ...], str | None]]:
    first: dict[int, str] = {}
    described = {}
    for name, tensor in tensors.items():
        same_as = first.setdefault(id(tensor), name)
        described[name] = (tensor.dtype, tuple(tensor.shape), None if same_as == name else same_as)
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
