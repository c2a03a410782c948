"""Reading weights: into new tensors, or straight into those of a model that exists.

The bytes are hashed as they are read, in other threads. Knows what fits what, and what state a
model is in when something does not.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ckpt import fs
from ckpt.checkpoint import Tensor
from ckpt.errors import DamagedCheckpoint, DoesNotFit
from ckpt.tensorfile import Header, read_header
from ckpt.torch.filling import Mismatch, Recorded, Segment, fill
from ckpt.torch.opening import Opened
from ckpt.torch.tensors import (
    dtype_on_disk,
    empty_for,
    identity_of,
    is_plain_memory,
    memory_of,
    shape_on_disk,
)

_NAMED = 3
_FORMAT = "format"  # what other programs put among the metadata; never a tensor's name
_log = logging.getLogger(__name__)


def new_tensors(opened: Opened, *, verify: bool) -> dict[str, torch.Tensor]:
    """Read all weights into new CPU tensors.

    Raises:
        DamagedCheckpoint: the bytes are not the recorded ones.
        UnsupportedVersion: torch has no such dtype.
    """
    tensors = {found.name: empty_for(found) for found in sorted(opened.seen.tensors, key=_name_of)}
    with ExitStack() as stack:
        hurt = _fill_all(_sources(opened, tensors, stack, verify=verify))
    if hurt:
        raise _damaged(opened.path, hurt)
    for name, kept in _tied(opened).items():
        if kept in tensors:
            tensors.setdefault(name, tensors[kept])
    return tensors


def tensors_of_file(file: fs.File, header: Header, path: Path) -> dict[str, torch.Tensor]:
    """Read one safetensors file of a sound header into new CPU tensors.

    Raises:
        DamagedCheckpoint: it was cut while it was read.
        UnsupportedVersion: torch has no such dtype.
    """
    tensors = {found.name: empty_for(found) for found in header.tensors}
    segments = _segments(header.tensors, tensors, header.size_bytes or 0)
    source = _Source(path.name, file, header.tensors, segments, Recorded())
    if hurt := _fill_all([source]):
        raise _damaged(path, hurt)
    tied = _tied_in(header)
    return tensors | {name: tensors[kept] for name, kept in tied.items() if name not in tensors}


def read_into(targets: Mapping[str, torch.Tensor], opened: Opened, *, verify: bool) -> None:
    """Read all weights into tensors that exist; names, shapes and dtypes are compared first.

    Raises:
        DoesNotFit: they differ. Nothing has been changed then.
        DamagedCheckpoint: the bytes are not the recorded ones; the targets hold them now.
    """
    found = {tensor.name: tensor for tensor in opened.seen.tensors}
    tied = {name: kept for name, kept in _tied(opened).items() if kept in found}
    _compare(targets, found, tied, opened.path)
    direct = {name: target for name, target in targets.items() if name in found}
    placed = {
        name: target if _is_reachable(target) else empty_for(found[name])
        for name, target in direct.items()
    }
    with torch.no_grad(), ExitStack() as stack:
        sources = _sources(opened, placed, stack, verify=verify)
        try:
            hurt = _fill_all(sources)
        except OSError as error:
            raise _half_loaded(f"{opened.path}: {error.strerror or error}", opened.path) from error
        for name, target in direct.items():
            if placed[name] is not target:
                target.copy_(placed[name])
        for name, kept in tied.items():
            if name in targets and name not in direct:
                _tie(targets[name], direct[kept])
    if hurt:
        raise _half_loaded(_damaged(opened.path, hurt).message, opened.path)


def targets_of(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a model, or of a state dict, by the names of its checkpoint.

    Raises:
        DoesNotFit: something in it is no tensor, or has no memory to read into.
    """
    state = model.state_dict(keep_vars=True) if isinstance(model, torch.nn.Module) else model
    for name, target in state.items():
        if not isinstance(target, torch.Tensor):
            raise DoesNotFit(f"{name}: expected a tensor to read into, found {target!r:.60}")
        if target.device.type == "meta" or target.layout != torch.strided:
            what = "has no memory" if target.device.type == "meta" else f"is {target.layout}"
            raise DoesNotFit(f"{name}: cannot be read into: it {what}")
    return dict(state)


# ---- what fits --------------------------------------------------------------------------------


def _compare(
    targets: Mapping[str, torch.Tensor],
    found: Mapping[str, Tensor],
    tied: Mapping[str, str],
    path: Path,
) -> None:
    """Compare all names, shapes and dtypes; a target counts as found where its memory does."""
    reached = {identity_of(targets[name]) for name in found.keys() & targets.keys()} - {None}
    missing = [
        name
        for name, target in targets.items()
        if name not in found and name not in tied and identity_of(target) not in reached
    ]
    problems = []
    if missing:
        problems.append(f"not in the checkpoint: {_some(missing)}")
    if extra := [name for name in found if name not in targets]:
        problems.append(f"not in the model: {_some(extra)}")
    for name in found.keys() & targets.keys():
        problem = _difference(targets[name], found[name])
        if problem:
            problems.append(f"{name}: {problem}")
    for name, kept in tied.items():
        if (
            name in targets
            and name not in found
            and (problem := _difference(targets[name], found[kept]))
        ):
            problems.append(f"{name}: {problem}")
    if problems:
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        message = f"{path}: does not fit the model: {'; '.join(sorted(problems)[:_NAMED])}{more}"
        raise DoesNotFit(message, path=str(path), hint="nothing was changed")


def _difference(target: torch.Tensor, found: Tensor) -> str | None:
    dtype, shape = dtype_on_disk(target), shape_on_disk(target)
    if (dtype, shape) == (found.dtype, found.shape):
        return None
    return f"expected {dtype} {list(shape)}, found {found.dtype} {list(found.shape)}"


def _some(names: Collection[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def _tied(opened: Opened) -> dict[str, str]:
    """Names that are not in a file and the tensor that stands for each, as its writer says."""
    tied: dict[str, str] = {}
    for file in opened.weights:
        tied |= _tied_in(read_header(Path(opened.directory.inside(file)), file))
    return tied


def _tied_in(header: Header) -> dict[str, str]:
    names = {tensor.name for tensor in header.tensors}
    said = (header.metadata or {}).items()
    return {name: kept for name, kept in said if name != _FORMAT and kept in names}


# ---- reading ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Hurt:
    """What of one file is not what was recorded, and whose bytes those are."""

    file: str
    message: str
    tensors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """One weights file, open, and where each of its bytes goes."""

    file: str
    opened: fs.File
    tensors: tuple[Tensor, ...]
    segments: list[Segment]
    recorded: Recorded


def _sources(
    opened: Opened, tensors: Mapping[str, torch.Tensor], stack: ExitStack, *, verify: bool
) -> list[_Source]:
    """Open every file before the first byte is read."""
    sources = []
    for name, found in opened.weights.items():
        file = stack.enter_context(fs.File(opened.directory.inside(name)))
        segments = _segments(found, tensors, file.opened_as.size_bytes)
        if segments[-1].end != file.opened_as.size_bytes:
            message = f"{opened.path}: {name}: replaced while it was opened"
            raise DamagedCheckpoint(message, path=str(opened.path))
        recorded = opened.recorded(name) if verify else Recorded()
        sources.append(_Source(name, file, found, segments, recorded))
    return sources


def _fill_all(sources: list[_Source]) -> list[_Hurt]:
    hurt = []
    for source in sources:
        try:
            mismatches = fill(source.opened, source.segments, source.recorded)
        except EOFError as error:
            mismatches = (Mismatch(0, source.segments[-1].end, str(error)),)
        hurt += [_hurt(source.file, mismatch, source.tensors) for mismatch in mismatches]
    return hurt


def _segments(
    found: tuple[Tensor, ...], tensors: Mapping[str, torch.Tensor], size: int
) -> list[Segment]:
    """Say where each byte of a file goes: its header to nowhere, the rest into the tensors."""
    begin = found[0].start if found else size
    segments = [Segment("the header", 0, begin, memoryview(bytearray(begin)))]
    for each in found:
        tensor = tensors[each.name]
        place = memory_of(tensor) if is_plain_memory(tensor) else _sender(tensor)
        segments.append(Segment(each.name, each.start, each.end, place))
    return segments


def _sender(tensor: torch.Tensor) -> Callable[[int, memoryview], None]:
    """Return what copies bytes into a contiguous tensor on another device."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)

    def send(offset: int, data: memoryview) -> None:
        flat[offset : offset + data.nbytes].copy_(torch.frombuffer(data, dtype=torch.uint8))

    return send


def _is_reachable(tensor: torch.Tensor) -> bool:
    """Whether bytes of a file can be put into a tensor's memory as they come."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _hurt(name: str, mismatch: Mismatch, found: tuple[Tensor, ...]) -> _Hurt:
    inside = [t.name for t in found if t.start < mismatch.end and t.end > mismatch.start]
    return _Hurt(name, mismatch.message, inside)


def _damaged(path: Path, hurt: list[_Hurt]) -> DamagedCheckpoint:
    told = "; ".join(f"{each.file}: {each.message}" for each in hurt[:_NAMED])
    names = dict.fromkeys(name for each in hurt for name in each.tensors)
    message = f"{path}: {told}; among {_some(names)}" if names else f"{path}: {told}"
    hint = "another generation may be whole: ckpt rollback"
    return DamagedCheckpoint(message, path=str(path), hint=hint)


def _half_loaded(message: str, path: Path) -> DamagedCheckpoint:
    said = f"{message}; the model holds bytes of it now and must not be used as it is"
    return DamagedCheckpoint(said, path=str(path), hint="load another generation into it")


def _tie(target: torch.Tensor, kept: torch.Tensor) -> None:
    if identity_of(target) != identity_of(kept):
        target.copy_(kept)


def _name_of(tensor: Tensor) -> str:
    return tensor.name
