"""safetensors files, written as the library writes them, byte for byte, and hashed on the way.

Takes buffers, never a framework's tensors. Does not know what a checkpoint is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ckpt import jsontext
from ckpt.errors import PublishError
from ckpt.onepass import HashedFile, Written
from ckpt.tensorfile import DTYPE_BITS, LENGTH_BYTES, MAX_HEADER_BYTES, size_problem

Data: TypeAlias = memoryview | Callable[[], memoryview]
"""Row-major little-endian bytes, or what makes them when their turn comes."""

Buffer: TypeAlias = tuple[str, str, tuple[int, ...], Data]
"""(name, dtype, shape, data); of data made when its turn comes only one is alive at a time."""

Look: TypeAlias = Callable[[str, str, memoryview], None]
"""Takes the name, the dtype and the bytes of a tensor that is about to be written."""

_ORDER = {dtype: place for place, dtype in enumerate(DTYPE_BITS)}


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors as buffers.

    `tied` maps a name that is not written to the one that stands for it: both are one tensor.
    """

    buffers: tuple[Buffer, ...]
    tied: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """How many bytes the tensors take together."""
        sizes = (math.prod(shape) * DTYPE_BITS[dtype] for _, dtype, shape, _ in self.buffers)
        return sum(sizes) // 8


def write_tensors(
    path: Path,
    buffers: Sequence[Buffer],
    metadata: Mapping[str, str] | None = None,
    *,
    look: Look | None = None,
) -> Written:
    """Write a new safetensors file, durable, byte for byte as the safetensors library would.

    Written and hashed in one pass, without a copy of what it holds; space is reserved before the
    first byte. Metadata is sorted; the library's is in random order. `look` sees every tensor in
    the very memory that is written next.

    Raises:
        PublishError: a buffer does not fit its dtype and shape, is not contiguous, a name is given
            twice, metadata is no text, or the header would be larger than readers accept.
        OSError: the disk refused.
    """
    ordered = sorted(buffers, key=lambda buffer: (-_place(buffer), buffer[0]))
    sizes = [_checked_size(*buffer) for buffer in ordered]
    header = _build_header(ordered, sizes, metadata)
    with HashedFile(path) as file:
        file.reserve(len(header) + sum(sizes))
        file.write(header)
        for name, dtype, content in _contents(ordered, sizes):
            if look is not None:
                look(name, dtype, content)
            file.write(content)
        return file.finish()


def _place(buffer: Buffer) -> int:
    name, dtype, _, _ = buffer
    if dtype not in _ORDER:
        raise PublishError(f"tensor {name!r}: unsupported dtype {dtype}")
    return _ORDER[dtype]


def _checked_size(name: str, dtype: str, shape: Sequence[int], data: Data) -> int:
    """Return how many bytes a buffer has, or will have."""
    if name == "__metadata__":
        raise PublishError("a tensor cannot be named __metadata__")
    _check_text("tensor", name)
    size = math.prod(shape) * DTYPE_BITS[dtype] // 8
    if isinstance(data, memoryview):
        if not data.c_contiguous:
            raise PublishError(f"tensor {name!r}: its buffer is not contiguous")
        size = data.nbytes
    problem = size_problem(dtype, DTYPE_BITS[dtype], shape, size)
    if problem is not None:
        raise PublishError(f"tensor {name!r}: {problem}")
    return size


def _check_text(kind: str, name: str, *more: str) -> None:
    for text in (name, *more):
        try:
            text.encode()
        except UnicodeEncodeError:
            message = f"{kind} {name!r}: cannot be written as UTF-8"
            raise PublishError(message) from None


def _build_header(
    ordered: Sequence[Buffer], sizes: Sequence[int], metadata: Mapping[str, str] | None
) -> bytes:
    fields: dict[str, Any] = {}
    if metadata is not None:
        for key, item in metadata.items():
            if not isinstance(key, str):
                raise PublishError(f"metadata: expected keys of text, found {key!r:.60}")
            if not isinstance(item, str):
                raise PublishError(f"metadata {key!r}: expected text, found {item!r:.60}")
            _check_text("metadata", key, item)
        fields["__metadata__"] = dict(sorted(metadata.items()))
    at = 0
    for (name, dtype, shape, _), size in zip(ordered, sizes, strict=True):
        if name in fields:
            raise PublishError(f"tensor {name!r} is given twice")
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = jsontext.dumps_compact(fields).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise PublishError(
            f"a header of {len(text):,} bytes is larger than readers accept (100,000,000)",
            hint="save fewer tensors a file",
        )
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _contents(
    ordered: Sequence[Buffer], sizes: Sequence[int]
) -> Iterator[tuple[str, str, memoryview]]:
    """Yield the bytes of each buffer; those that are made here are gone before the next are."""
    for (name, dtype, _, data), size in zip(ordered, sizes, strict=True):
        view = data if isinstance(data, memoryview) else data()
        if view.nbytes != size or not view.c_contiguous:
            raise PublishError(f"tensor {name!r}: has {view.nbytes:,} bytes, expected {size:,}")
        with view.cast("B") if size else memoryview(b"") as content:
            yield name, dtype, content
        del view
