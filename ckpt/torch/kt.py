"""KT Full experts between a trainer's MoE layers and its checkpoints.

Rank 0 holds the weights and does the work; what it meets is met on every rank. Nothing is copied
into a model before all of a checkpoint was looked at, and its shards are open by then: a save
that removes them in the meantime takes nothing away.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Severity, Tensor
from ckpt.errors import DamagedCheckpoint, DoesNotFit, NoCheckpoint
from ckpt.formats.kt_directory import list_shards, read_index
from ckpt.formats.kt_full import KtFull
from ckpt.formats.kt_index import INDEX_NAME, PROJECTIONS, Index
from ckpt.formats.kt_write import index_text, write_shard
from ckpt.generations.kt import publish_kt
from ckpt.generations.kt_slot import kt_slot
from ckpt.operation import drive
from ckpt.retention import Policy, retain
from ckpt.torch.distributed import from_rank_zero, rank
from ckpt.torch.kt_layers import KtWrapper, Layer, Shapes, checked, full_layers
from ckpt.torch.tensors import memory_of

_NAMED = 6


def save_kt(
    wrappers: Sequence[KtWrapper],
    directory: str | Path,
    *,
    run_dir: str | Path | None = None,
    keep: Policy | None = None,
) -> bool:
    """Save the full layers as a new generation, durable; False: there are none, or off rank 0.

    The generation before it stays and can be rolled back to. `keep` says which older ones stay;
    None: all do until they are pruned, unlike what KT's own trainer does.

    Raises:
        DoesNotFit: a layer is given twice or negative, or a Parameter is not what can be saved.
            Nothing was written.
        PublishError: it could not be published; what was there still is.
    """
    full = full_layers(wrappers)
    if not full or rank() != 0:
        return False
    layers = checked(full)

    def write(target: Path, generation: str) -> bytes:
        shards = [
            write_shard(target, generation, layer.number, layer.buffers()) for layer in layers
        ]
        return index_text(generation, shards)

    run = Path(run_dir) if run_dir is not None else None
    slot = kt_slot(Path(directory), run)
    drive(publish_kt(slot.directory, write, run_dir=slot.run_dir))
    if keep is not None:
        retain(slot.run_dir, keep, slot=slot.name)
    return True


def resolve_kt(path: str | Path | None) -> Path | None:
    """Return the directory when a path is one with an index, or the index itself; else None."""
    if path is None:
        return None
    given = Path(path)
    index = given if given.name == INDEX_NAME else given / INDEX_NAME
    try:
        found = fs.identity(index)
    except OSError:
        return None
    return index.parent if found is not None and found.is_file else None


def load_kt_layer(
    path: str | Path, layer_idx: int, expected_shapes: Shapes
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one layer's gate, up and down projection as new contiguous CPU tensors.

    Raises:
        UnreadableCheckpoint: nothing is there, or the checkpoint is damaged (DamagedCheckpoint).
        DoesNotFit: there is no such layer, or its shapes are not the expected ones.
    """
    with ExitStack() as stack:
        shards = _opened(_located(path), stack, only=layer_idx)
        shard = shards.get(layer_idx)
        if shard is None:
            raise DoesNotFit(f"{path}: layer {layer_idx} is not in it", path=str(path))
        _compare_shapes(layer_idx, shard, expected_shapes)
        tensors = {
            name: torch.empty(shard.tensors[name].shape, dtype=torch.bfloat16)
            for name in PROJECTIONS
        }
        shard.read_into(tensors)
    gate, up, down = (tensors[name] for name in PROJECTIONS)
    return gate, up, down


def load_kt(wrappers: Sequence[KtWrapper], path: str | Path) -> bool:
    """Load a whole checkpoint into the layers' Parameters, in place; False: no layer is full.

    Rank 0 loads; every rank must call this, and every rank raises what rank 0 met. Until all of
    the checkpoint fits all of the layers nothing is changed. Each backend then has
    `_base_weights_dirty` True and `_kt_full_checkpoint_load_failed` False; where copying fails
    half-way, the latter is True on all of them.

    Raises:
        UnreadableCheckpoint: nothing is there, or the checkpoint is damaged (DamagedCheckpoint).
        DoesNotFit: its layers or shapes are not those of the model, or a Parameter cannot take
            them.
        OSError: it cannot be read.
    """
    full = full_layers(wrappers)
    if not full:
        return False
    from_rank_zero(lambda: _load_all(full, path))
    return True


# ---- loading ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shard:
    """One layer's open file and where its three tensors lie in it."""

    file: fs.File
    tensors: Mapping[str, Tensor]

    def read_into(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill contiguous bfloat16 CPU tensors of the very shapes."""
        for name, found in self.tensors.items():
            count = self.file.read_into([memory_of(targets[name])], found.start)
            if count < found.size_bytes:
                message = f"{self.file.path}: cut while {name} was read"
                raise DamagedCheckpoint(message, path=self.file.path)


def _load_all(full: Sequence[KtWrapper], path: str | Path) -> None:
    layers = checked(full)
    with ExitStack() as stack:
        shards = _opened(_located(path), stack)
        _compare_layers(layers, shards, path)
        for layer in layers:
            _compare_shapes(layer.number, shards[layer.number], layer.shapes)
        try:
            with torch.no_grad():
                for layer in layers:
                    shards[layer.number].read_into(layer.parameters)
        except BaseException:
            for layer in layers:
                layer.backend._kt_full_checkpoint_load_failed = True  # noqa: SLF001 - KT's own name for it
            raise
    for layer in layers:
        layer.backend._base_weights_dirty = True  # noqa: SLF001 - KT's own name for it
        layer.backend._kt_full_checkpoint_load_failed = False  # noqa: SLF001 - KT's own name for it


def _located(path: str | Path) -> Path:
    directory = resolve_kt(path)
    if directory is None:
        message = f"{path}: no KT Full checkpoint: looked for {INDEX_NAME}"
        raise NoCheckpoint(message, path=str(path))
    return directory


def _opened(directory: Path, stack: ExitStack, *, only: int | None = None) -> dict[int, _Shard]:
    """Check a checkpoint and open its shards, or the one of a layer.

    A save that replaces the index may remove the shards it named before: look again then.
    """
    tried: str | None = None
    while True:
        seen = KtFull().read(directory / INDEX_NAME)
        try:
            index = read_index(list_shards(directory / INDEX_NAME))
            _refuse_damage(directory, seen, index, only)
            return _open_shards(directory, seen, index, stack, only)
        except (DamagedCheckpoint, FileNotFoundError):
            if seen.generation in (tried, None):
                raise
            tried = seen.generation


def _refuse_damage(directory: Path, seen: Checkpoint, index: Index, only: int | None) -> None:
    """Refuse what is wrong with the index or a shard that is to be read.

    What else lies there is the trainer's; one layer can be had although another is damaged.
    """
    files = {shard.file for shard in index.shards if only in (None, shard.layer)}
    for finding in seen.findings:
        is_ours = finding.file == INDEX_NAME or finding.file in files
        is_ours = is_ours or (only is None and finding.code == "missing-layer")
        if finding.severity is Severity.ERROR and is_ours:
            raise DamagedCheckpoint(f"{directory}: {finding.message}", path=str(directory))
    if index.generation != seen.generation:
        message = f"{directory}: {INDEX_NAME} was replaced while it was looked at"
        raise DamagedCheckpoint(message, path=str(directory), hint="try again")


def _open_shards(
    directory: Path, seen: Checkpoint, index: Index, stack: ExitStack, only: int | None
) -> dict[int, _Shard]:
    by_file: dict[str, dict[str, Tensor]] = {}
    for tensor in seen.tensors:
        by_file.setdefault(tensor.file, {})[tensor.name] = tensor
    shards = {}
    for shard in index.shards:
        if shard.file is None or only not in (None, shard.layer):
            continue
        opened = stack.enter_context(fs.File(directory / shard.file))
        if opened.opened_as.size_bytes != shard.size_bytes:
            message = f"{directory}: {shard.file} changed while it was looked at"
            raise DamagedCheckpoint(message, path=str(directory), hint="try again")
        shards[shard.layer] = _Shard(opened, by_file[shard.file])
    return shards


def _compare_layers(
    layers: Sequence[Layer], shards: Mapping[int, _Shard], path: str | Path
) -> None:
    wanted = {layer.number for layer in layers}
    problems = []
    if missing := sorted(wanted - shards.keys()):
        problems.append(f"it has no layer {_some(missing)} of the model")
    if extra := sorted(shards.keys() - wanted):
        problems.append(f"the model has no layer {_some(extra)} of it")
    if problems:
        raise DoesNotFit(f"{path}: {'; '.join(problems)}", path=str(path))


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more


def _compare_shapes(number: int, shard: _Shard, expected: Shapes) -> None:
    for name in PROJECTIONS:
        found, wanted = shard.tensors[name].shape, tuple(expected[name])
        if found != wanted:
            message = f"layer {number}: {name} has shape {list(found)}, expected {list(wanted)}"
            raise DoesNotFit(message, path=shard.file.path)
