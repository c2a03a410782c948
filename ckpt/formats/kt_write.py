"""Writing KT Full: one shard a layer and the text of the index that ties them together.

A shard gets its name only when its bytes are durable, so that a name of the pattern is a whole
shard. Nothing here replaces an index or removes a file of another generation.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ckpt import fs, jsontext
from ckpt.checkpoint import Severity
from ckpt.errors import PublishError, UnreadableCheckpoint
from ckpt.formats.kt_index import (
    DTYPE,
    FORMAT,
    PROJECTIONS,
    TEMPORARY_SUFFIX,
    VERSION,
    Shard,
    generation_of,
)
from ckpt.tensorfile import Header, read_header
from ckpt.tensorwriter import Buffer, write_tensors


def new_generation() -> str:
    """Return the name of a generation that no other save has: 32 hex digits."""
    return uuid.uuid4().hex


def shard_file(generation: str, layer: int) -> str:
    """Return the file name of one layer's shard."""
    return f"kt_full_experts-{generation}-layer-{layer:05d}.safetensors"


def write_shard(directory: Path, generation: str, layer: int, buffers: Sequence[Buffer]) -> Shard:
    """Write one layer's shard, durable but for its name; return what the index says of it.

    `buffers` are `gate_proj` and `up_proj` (experts, intermediate, hidden) and `down_proj`
    (experts, hidden, intermediate), all BF16.

    Raises:
        PublishError: the layer or a buffer is not what a shard holds.
        OSError: the disk refused.
    """
    shapes = _checked_shapes(layer, buffers)
    file = shard_file(generation, layer)
    temporary = directory / (file + TEMPORARY_SUFFIX)
    written = write_tensors(temporary, buffers, _metadata(generation, layer))
    fs.rename_to_free_name(temporary, directory / file)
    return Shard(layer, file, written.size_bytes, shapes)


def index_text(generation: str, shards: Iterable[Shard]) -> bytes:
    """Return the bytes of an index, as KT's own trainer would write it."""
    layers = {
        str(shard.layer): {
            "file": shard.file,
            "shapes": {name: list(shape) for name, shape in shard.shapes.items()},
            "size_bytes": shard.size_bytes,
        }
        for shard in shards
    }
    value = {
        "dtype": DTYPE,
        "format": FORMAT,
        "generation": generation,
        "layers": layers,
        "version": VERSION,
    }
    return jsontext.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def rebuilt_index(directory: Path, generation: str, files: Mapping[int, str]) -> bytes:
    """Make an index anew from the names (`{layer: file}`) and the headers of its shards.

    Raises:
        UnreadableCheckpoint: there is no shard, or one of them is not what its name says.
    """
    if not files:
        message = f"{directory}: no shard of generation {generation}"
        raise UnreadableCheckpoint(message, path=str(directory))
    shards = [
        _shard_of_header(read_header(directory / file, file), generation, layer, file)
        for layer, file in sorted(files.items())
    ]
    return index_text(generation, shards)


def own_files(directory: Path, generation: str) -> tuple[str, ...]:
    """Return the files in a directory that a save of this generation makes, but for the index.

    By the whole name only: what does not match the pattern and the generation is never ours.
    """
    return tuple(
        sorted(
            entry.name
            for entry in fs.scan(directory)
            if not entry.is_directory and generation_of(entry.name) == generation
        )
    )


def remove_own_files(directory: Path, generation: str) -> None:
    """Remove what a save of this generation made before it failed; a failure leaves the rest."""
    with suppress(OSError):
        for name in own_files(directory, generation):
            fs.unlink(directory / name)


# ---- private ----------------------------------------------------------------------------------


def _metadata(generation: str, layer: int) -> dict[str, str]:
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "generation": generation,
        "layer_idx": str(layer),
    }


def _checked_shapes(layer: int, buffers: Sequence[Buffer]) -> dict[str, tuple[int, ...]]:
    if layer < 0:
        raise PublishError(f"layer {layer}: a layer's number is not negative")
    names = sorted(name for name, *_ in buffers)
    if names != sorted(PROJECTIONS):
        raise PublishError(f"layer {layer}: tensors {names}, expected {sorted(PROJECTIONS)}")
    for name, dtype, _, _ in buffers:
        if dtype != DTYPE:
            raise PublishError(f"layer {layer}: {name} is {dtype}, expected {DTYPE}")
    shapes = {name: tuple(shape) for name, _, shape, _ in buffers}
    problem = shape_problem(shapes)
    if problem is not None:
        raise PublishError(f"layer {layer}: {problem}")
    return shapes


def shape_problem(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Say why three shapes are not one layer's, None when they are."""
    gate, up, down = (shapes[name] for name in PROJECTIONS)
    if len(gate) != 3:
        return f"gate_proj has shape {list(gate)}, expected three extents"
    experts, intermediate, hidden = gate
    if up != gate:
        return f"up_proj has shape {list(up)}, expected gate_proj's {list(gate)}"
    if down != (experts, hidden, intermediate):
        return f"down_proj has shape {list(down)}, expected {[experts, hidden, intermediate]}"
    return None


def _shard_of_header(header: Header, generation: str, layer: int, file: str) -> Shard:
    """Read a shard's entry out of its own header."""
    for finding in header.findings:
        if finding.severity is Severity.ERROR:
            raise UnreadableCheckpoint(finding.message, path=file)
    for key, expected in _metadata(generation, layer).items():
        got = (header.metadata or {}).get(key)
        if got != expected:
            message = f"{file}: metadata {key} is {got!r}, expected {expected!r}"
            raise UnreadableCheckpoint(message, path=file)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    odd = [tensor for tensor in header.tensors if tensor.dtype != DTYPE]
    if sorted(shapes) != sorted(PROJECTIONS):
        problem: str | None = f"tensors {sorted(shapes)}, expected {sorted(PROJECTIONS)}"
    elif odd:
        problem = f"{odd[0].name} is {odd[0].dtype}, expected {DTYPE}"
    else:
        problem = shape_problem(shapes)
    if problem is not None:
        raise UnreadableCheckpoint(f"{file}: {problem}", path=file)
    return Shard(layer, file, header.size_bytes, shapes)
