"""Arrays of any framework as the writer's buffers: whatever has a dtype, a shape and memory.

Memory that lies in the order of a file is written from where it is. Any other array is converted
when its turn comes, one at a time. Imports no array library.
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from ckpt.errors import PublishError
from ckpt.tensorwriter import Buffer, Data, Packed

_DTYPES = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32",
    "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


class ArrayLike(Protocol):
    """What a tensor must have to be saved: numpy arrays do."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extent along each axis; `()` for a scalar."""

    @property
    def dtype(self) -> Any:
        """A dtype with `name` (`float32`), `byteorder` and `newbyteorder`, as numpy's."""

    def tobytes(self) -> bytes:
        """Its elements in row-major order, whatever its strides are."""


def pack(arrays: Mapping[str, ArrayLike]) -> Packed:
    """Return arrays as buffers; nothing is copied.

    Of arrays that are the very same memory, read the same way, one is kept: the first by name.

    Raises:
        PublishError: something in it is no array, or of a dtype that safetensors does not know.
    """
    buffers = [buffer_of(name, array) for name, array in arrays.items()]
    kept: dict[object, str] = {}
    tied: dict[str, str] = {}
    for name in sorted(arrays):
        first = kept.setdefault(_identity(arrays[name]), name)
        if first != name:
            tied[name] = first
    return Packed(tuple(buffer for buffer in buffers if buffer[0] not in tied), tied)


def buffer_of(name: str, array: ArrayLike) -> Buffer:
    """Return one array as the writer takes it: its own memory, or the promise of a copy.

    Raises:
        PublishError: it is no array, or of a dtype that safetensors does not know.
    """
    if not isinstance(name, str):
        raise PublishError(f"tensor {name!r}: expected a name of text")
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if dtype is None or shape is None or not callable(getattr(array, "tobytes", None)):
        raise PublishError(f"tensor {name!r}: expected an array, found {type(array).__name__}")
    spelt = _DTYPES.get(str(getattr(dtype, "name", dtype)))
    if spelt is None:
        raise PublishError(
            f"tensor {name!r}: dtype {dtype} cannot be saved",
            hint=f"convert it to one of {', '.join(sorted(_DTYPES))}",
        )
    return name, spelt, tuple(int(extent) for extent in shape), _data(array)


def _data(array: Any) -> Data:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray | numpy.generic):
        if array.flags.c_contiguous and not _is_foreign_order(array.dtype):
            return _bytes_of(array, numpy)
        return lambda: _bytes_of(_converted(array, numpy), numpy)
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError):
        return lambda: memoryview(array.tobytes())
    # tobytes() is row-major, which the buffer of a column-major array is not
    return view if view.c_contiguous else lambda: memoryview(array.tobytes())


def _bytes_of(array: Any, numpy: Any) -> memoryview:
    """Return a numpy array's own memory; as uint8, because numpy hands out none as bfloat16."""
    memory: memoryview = numpy.asarray(array).reshape(-1).view(numpy.uint8).data
    return memory


def _converted(array: Any, numpy: Any) -> Any:
    dtype = array.dtype
    return numpy.ascontiguousarray(
        array, dtype.newbyteorder("<") if _is_foreign_order(dtype) else dtype
    )


def _is_foreign_order(dtype: Any) -> bool:
    order = getattr(dtype, "byteorder", "=")
    return order == ">" or (order == "=" and sys.byteorder == "big")


def _identity(array: Any) -> object:
    """Return what two arrays share that are one: memory, dtype, shape and strides.

    Only numpy's arrays are asked for their memory: that of a scalar, or of what another
    framework converts on request, is gone again and may lie where the next one's will.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray) or not array.size:
        return id(array)
    place, _ = array.__array_interface__["data"]
    return place, str(array.dtype), array.shape, array.strides
