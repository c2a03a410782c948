"""ferrotensor's LoRA adapters as real tensors: saved as F32, loaded as float32, applied in place.

What the files hold and what fits is `ckpt.ferrotensor`'s to say; here are only torch's tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ckpt import ferrotensor
from ckpt.errors import DoesNotFit, PublishError
from ckpt.ferrotensor.adapter import publish_adapter, refuse_misfits, report_missing
from ckpt.ferrotensor.checkpoint import TrainingCheckpoint
from ckpt.ferrotensor.saving import KEEP_LAST, publish_and_retain
from ckpt.ferrotensor.together import set_writer
from ckpt.retention import Policy
from ckpt.tensorwriter import Buffer
from ckpt.torch.tensors import buffer_of, check_state_dict

LoraSettings = ferrotensor.LoraSettings
_WIDENED = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter:
    """An adapter's tensors as float32 on the CPU, and its settings or why there are none."""

    tensors: Mapping[str, torch.Tensor]
    settings: LoraSettings | None
    reason: str | None


@dataclass(frozen=True, slots=True, eq=False)
class LoraSet:
    """An adapter and the training checkpoint that was saved with it."""

    adapter: LoraAdapter
    checkpoint: TrainingCheckpoint


def save_adapter(
    path: str | Path,
    tensors: Mapping[str, torch.Tensor],
    settings: LoraSettings | None,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
) -> Path:
    """Publish an adapter as one file, durable; the one before it can be rolled back to.

    Written as F32: float16 and bfloat16 are widened. Without settings the file has no metadata.
    `keep` says which older ones stay (None: all).

    Raises:
        PublishError: a tensor or setting cannot be written, by its name, or the disk refused.
        Busy: another process holds the run's lock.
    """
    return publish_adapter(Path(path), _buffers(tensors), settings, run_dir=run_dir, keep=keep)


def load_adapter(path: str | Path) -> LoraAdapter:
    """Load an adapter.

    Raises:
        NoCheckpoint: nothing is there.
        UnsupportedVersion: a tensor is neither F32, F16 nor BF16; the first by name.
        UnreadableCheckpoint: it cannot be read, or is damaged (DamagedCheckpoint).
    """
    return _as_torch(ferrotensor.load_adapter(path))


def apply_adapter(targets: Mapping[str, torch.Tensor], adapter: LoraAdapter) -> int:
    """Write an adapter over the tensors of a model, in place; return how many.

    `targets` are the model's LoRA tensors by name, of any floating dtype and device; what the
    adapter holds beside them is ignored.

    Raises:
        DoesNotFit: a target is not in the adapter, or of another shape, or takes no floats: the
            first by name. Nothing was changed.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in adapter.tensors.items()}
    refuse_misfits({name: tuple(each.shape) for name, each in targets.items()}, shapes)
    for name, target in sorted(targets.items()):
        if not target.dtype.is_floating_point or target.device.type == "meta":
            what = f"{target.dtype} on {target.device}"
            raise DoesNotFit(f"{name}: is {what}, expected floats that can be written")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(adapter.tensors[name])
    return len(targets)


def load_weights(targets: Mapping[str, torch.Tensor], path: str | Path) -> tuple[str, ...]:
    """Write what a file holds over the targets of the same name; return the names it lacks.

    Each missing name is logged as a warning too.

    Raises:
        DoesNotFit: a tensor has another shape than its target: the first by name. Nothing was
            changed.
        UnreadableCheckpoint: as `load_adapter`.
    """
    adapter = load_adapter(path)
    there = {name: target for name, target in targets.items() if name in adapter.tensors}
    apply_adapter(there, adapter)
    return report_missing(targets.keys() - there.keys(), Path(path))


def save_set(  # noqa: PLR0913 - the parts of a set, then by name where and what stays
    directory: str | Path,
    tensors: Mapping[str, torch.Tensor],
    settings: LoraSettings | None,
    checkpoint: TrainingCheckpoint,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
) -> Path:
    """Publish an adapter, its training state and its optimizer as one directory, durable.

    They are of one step then and go back together. The moments may be tensors too. `keep` says
    which older ones stay (None: all).

    Raises:
        PublishError: a value cannot be written, by its name, or the disk refused. What was there
            still is.
        Busy: another process holds the run's lock.
    """
    write = set_writer(_buffers(tensors), settings, checkpoint)
    return publish_and_retain(Path(directory), write, run_dir=run_dir, keep=keep)


def load_set(directory: str | Path) -> LoraSet:
    """Load what was saved together; every file is compared with the manifest's hash first.

    Raises:
        NoCheckpoint: there is no such set.
        UnreadableCheckpoint: it cannot be read, or is damaged (DamagedCheckpoint).
    """
    found = ferrotensor.load_set(directory)
    return LoraSet(_as_torch(found.adapter), found.checkpoint)


# ---- private ----------------------------------------------------------------------------------


def _buffers(tensors: Mapping[str, torch.Tensor]) -> list[Buffer]:
    check_state_dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype not in _WIDENED:
            message = f"tensor {name!r}: {tensor.dtype} cannot be written as F32"
            raise PublishError(message, hint="convert it to float32")
    return [buffer_of(name, tensor.detach().to(torch.float32)) for name, tensor in tensors.items()]


def _as_torch(adapter: ferrotensor.Adapter) -> LoraAdapter:
    """Let torch see the very memory that was read into."""
    tensors = {name: torch.from_numpy(array) for name, array in adapter.tensors.items()}
    return LoraAdapter(tensors, adapter.settings, adapter.reason)
