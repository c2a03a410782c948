"""ferrotensor's LoRA adapters for numpy arrays, and for anything with a buffer, dtype and shape.

Written as F32; read from F32, F16 and BF16. An adapter is applied wholly or not at all.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt import fs
from ckpt.checkpoint import Tensor, first_error
from ckpt.errors import (
    DamagedCheckpoint,
    DoesNotFit,
    NoCheckpoint,
    PublishError,
    UnreadableCheckpoint,
    UnsupportedVersion,
)
from ckpt.ferrotensor.saving import KEEP_LAST, publish_and_retain
from ckpt.formats.ferrotensor_adapter import ADAPTER_FORMAT, READABLE_DTYPES, lora_settings
from ckpt.formats.ferrotensor_state import MAX_INTEGER
from ckpt.formats.ferrotensor_write import decimal_text
from ckpt.generations.publishing import Staging
from ckpt.retention import Policy
from ckpt.tensorfile import Header, header_of
from ckpt.tensorwriter import Buffer, write_tensors

if TYPE_CHECKING:
    import numpy as np

_LARGEST_ALPHA = 3.4028234663852886e38
_WIDENED = ("float16", "bfloat16", "float32")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """What an adapter was trained with."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter's tensors as f32, and its settings or the reason why there are none."""

    tensors: "Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]"
    settings: LoraSettings | None
    reason: str | None


def save_adapter(
    path: str | Path,
    tensors: Mapping[str, Any],
    settings: LoraSettings | None,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
) -> Path:
    """Publish an adapter as one file, durable; the one before it can be rolled back to.

    Each tensor has a buffer, a dtype (float32, or float16 and bfloat16, which are widened) and a
    shape. Without settings the file has no metadata. `keep` says which older ones stay; None: all.

    Raises:
        PublishError: a tensor or setting cannot be written, by its name, or the disk refused.
        Busy: another process holds the run's lock.
    """
    buffers = adapter_buffers(tensors)
    return publish_adapter(Path(path), buffers, settings, run_dir=run_dir, keep=keep)


def load_adapter(path: str | Path) -> Adapter:
    """Load an adapter.

    Raises:
        NoCheckpoint: nothing is there.
        UnsupportedVersion: a tensor is neither F32, F16 nor BF16; the first by name.
        UnreadableCheckpoint: it cannot be read, or is damaged (DamagedCheckpoint).
    """
    source = Path(path)
    try:
        with fs.File(source) as file:
            header = header_of(file, source.name)
            _check_header(header, source)
            tensors = {
                tensor.name: _read(file, tensor, source)
                for tensor in sorted(header.tensors, key=lambda each: each.name)
            }
    except FileNotFoundError as error:
        raise NoCheckpoint(f"{source}: nothing is there", path=str(source)) from error
    except OSError as error:
        message = f"{source}: cannot be read: {error.strerror or error}"
        raise UnreadableCheckpoint(message, path=str(source)) from error
    told, reason = lora_settings(header.metadata)
    return Adapter(tensors, LoraSettings(**told) if told else None, reason)


def apply_adapter(targets: Mapping[str, Any], adapter: Adapter) -> int:
    """Write an adapter over the tensors of a model, in place; return how many.

    Each target is a writable array of floats, or has such a buffer. What the adapter holds beside
    them is ignored.

    Raises:
        DoesNotFit: a target is not in the adapter, or of another shape: the first by name.
            Nothing was changed.
    """
    import numpy as np

    found = {name: adapter.tensors.get(name) for name in targets}
    shapes = {name: None if each is None else each.shape for name, each in found.items()}
    refuse_misfits({name: _shape_of(each) for name, each in targets.items()}, shapes)
    places = {name: _writable(name, target) for name, target in sorted(targets.items())}
    for name, place in places.items():
        np.copyto(place, adapter.tensors[name], casting="same_kind")
    return len(places)


def load_weights(targets: Mapping[str, Any], path: str | Path) -> tuple[str, ...]:
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


# ---- what numpy and torch share ---------------------------------------------------------------


def publish_adapter(
    target: Path,
    buffers: Sequence[Buffer],
    settings: LoraSettings | None,
    *,
    run_dir: str | Path | None,
    keep: Policy | None,
) -> Path:
    """Publish an adapter of F32 buffers as one file.

    Raises:
        PublishError, Busy: as `save_adapter`.
    """
    metadata = adapter_metadata(settings)

    def write(staging: Staging) -> None:
        write_tensors(staging.path, buffers, metadata)

    return publish_and_retain(target, write, run_dir=run_dir, keep=keep, is_file=True)


def adapter_metadata(settings: LoraSettings | None) -> dict[str, str] | None:
    """Return the metadata of an adapter's file, None without settings.

    Raises:
        PublishError: a setting is not what ferrotensor reads.
    """
    if settings is None:
        return None
    rank, alpha, modules = settings.rank, settings.alpha, settings.target_modules
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank <= MAX_INTEGER:
        raise PublishError(f"rank is {rank!r:.60}, expected an integer that is not negative")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise PublishError(f"alpha is {alpha!r:.60}, expected a number")
    if not -_LARGEST_ALPHA <= alpha <= _LARGEST_ALPHA:
        raise PublishError(f"alpha is {alpha}, expected a finite number")
    for module in modules:
        if not isinstance(module, str) or not module or "," in module:
            raise PublishError(f"target_modules: {module!r:.60} is no name without a comma")
    return {
        "format": ADAPTER_FORMAT,
        "rank": str(rank),
        "alpha": decimal_text(alpha),
        "target_modules": ",".join(modules),
    }


def refuse_misfits(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...] | None]
) -> None:
    """Raise for the first target, by name, that the adapter lacks or has in another shape.

    Raises:
        DoesNotFit: it is the one or the other.
    """
    for name, shape in sorted(wanted.items()):
        there = found.get(name)
        if there is None:
            raise DoesNotFit(f"the adapter has no tensor {name!r}", hint="nothing was changed")
        if tuple(there) != shape:
            message = f"{name}: expected shape {list(shape)}, the adapter has {list(there)}"
            raise DoesNotFit(message, hint="nothing was changed")


def report_missing(names: Iterable[str], path: Path) -> tuple[str, ...]:
    """Log each name that a file of weights lacks; return them sorted."""
    missing = tuple(sorted(names))
    for name in missing:
        _log.warning("%s: no tensor %r: the model keeps its own", path.name, name)
    return missing


def adapter_buffers(tensors: Mapping[str, Any]) -> list[Buffer]:
    """Return tensors as F32 for the writer; contiguous float32 is not copied.

    Raises:
        PublishError: one of them is of another kind, by its name.
    """
    return [_buffer(name, tensor) for name, tensor in tensors.items()]


# ---- arrays -----------------------------------------------------------------------------------


def _buffer(name: str, tensor: Any) -> Buffer:
    import numpy as np

    dtype = getattr(tensor, "dtype", None)
    spelt = str(getattr(dtype, "name", dtype))
    if spelt not in _WIDENED:
        message = f"tensor {name!r}: {spelt} cannot be written as F32"
        raise PublishError(message, hint="convert it to float32")
    array = np.asarray(tensor)
    if array.dtype.name != spelt:
        raise PublishError(f"tensor {name!r}: its buffer is {array.dtype.name}, it says {spelt}")
    widened = array.astype("<f4", order="C", copy=False)
    return name, "F32", tuple(array.shape), widened.data


def _read(file: fs.File, tensor: Tensor, path: Path) -> Any:
    """Read one tensor into a new array of float32."""
    import numpy as np

    raw = np.empty(tensor.size_bytes, dtype=np.uint8)
    if file.read_into([raw.data], tensor.start) < tensor.size_bytes:
        message = f"{path}: cut while {tensor.name} was read"
        raise DamagedCheckpoint(message, path=str(path))
    if tensor.dtype == "BF16":
        values: Any = (raw.view("<u2").astype("<u4") << 16).view("<f4")
    elif tensor.dtype == "F16":
        values = raw.view("<f2").astype("<f4")
    else:
        values = raw.view("<f4")
    return values.reshape(tensor.shape)


def _check_header(header: Header, path: Path) -> None:
    wrong = first_error(header.findings)
    if wrong is not None:
        raise DamagedCheckpoint(f"{path.parent}: {wrong.message}", path=str(path))
    odd = [tensor for tensor in header.tensors if tensor.dtype not in READABLE_DTYPES]
    if odd:
        first = min(odd, key=lambda tensor: tensor.name)
        message = f"{path}: tensor {first.name} is {first.dtype}, expected F32, F16 or BF16"
        raise UnsupportedVersion(message, path=str(path))


def _shape_of(target: Any) -> tuple[int, ...]:
    return tuple(target.shape)


def _writable(name: str, target: Any) -> Any:
    """Return an array over the target's own memory."""
    import numpy as np

    try:
        array = target if isinstance(target, np.ndarray) else np.asarray(memoryview(target))
    except TypeError:
        raise DoesNotFit(f"{name}: {type(target).__name__} has no buffer to write to") from None
    if array.dtype.kind != "f" or not array.flags.writeable:
        what = f"is {array.dtype.name}" if array.dtype.kind != "f" else "is read-only"
        raise DoesNotFit(f"{name}: {what}, expected floats that can be written")
    return array
