"""torch's tensors as the writer's buffers, and memory for what is read.

Knows dtypes, memory and what cannot be saved; knows nothing of files.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ckpt.checkpoint import Tensor
from ckpt.errors import PublishError, UnsupportedVersion
from ckpt.tensorwriter import Buffer, Packed

_SPELT = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    spelt: getattr(torch, name) for spelt, name in _SPELT.items() if hasattr(torch, name)
}
"""safetensors' name of a dtype → torch's; those that this torch knows."""

_NAMES = {dtype: spelt for spelt, dtype in TORCH_DTYPES.items()}
_PAIRS = "F4"  # torch counts its bytes, safetensors its values


def check_state_dict(state_dict: Mapping[str, torch.Tensor]) -> None:
    """Refuse, by name, what cannot be saved; looks at no value.

    Raises:
        PublishError: something in it is no dense tensor with memory of a dtype that safetensors
            knows, or has a name that cannot be written.
    """
    if not isinstance(state_dict, Mapping):
        raise PublishError(f"state dict: expected tensors by name, found {_kind(state_dict)}")
    for name, tensor in state_dict.items():
        _check_name(name)
        if not isinstance(tensor, torch.Tensor):
            raise PublishError(f"tensor {name!r}: expected a tensor, found {_kind(tensor)}")
        problem, hint = _problem(tensor)
        if problem:
            raise PublishError(f"tensor {name!r}: {problem} cannot be saved", hint=hint)


def pack(state_dict: Mapping[str, torch.Tensor]) -> Packed:
    """Return the buffers of a state dict; memory of contiguous CPU tensors is not copied.

    Of tensors that are the very same memory, read the same way, one is kept: the first by name.

    Raises:
        PublishError: as `check_state_dict`.
    """
    check_state_dict(state_dict)
    tied = _tied(state_dict)
    buffers = tuple(
        buffer_of(name, tensor) for name, tensor in state_dict.items() if name not in tied
    )
    return Packed(buffers, tied)


def buffer_of(name: str, tensor: torch.Tensor) -> Buffer:
    """Return one tensor as the writer takes it: its own memory, or the promise of a copy.

    Memory on another device, or not in the order of a file, is copied when its turn comes.
    """
    dtype, shape = _NAMES[tensor.dtype], shape_on_disk(tensor)
    if is_plain_memory(tensor):
        return name, dtype, shape, memory_of(tensor)
    return name, dtype, shape, lambda: memory_of(on_host(tensor))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU tensor of the same values."""
    return tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()


def shape_on_disk(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape as a header says it."""
    shape = tuple(tensor.shape)
    if _NAMES.get(tensor.dtype) == _PAIRS and shape:
        return (*shape[:-1], shape[-1] * 2)
    return shape


def dtype_on_disk(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype as a header spells it; torch's own word where it has none."""
    return _NAMES.get(tensor.dtype, str(tensor.dtype))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, shared with it and writable."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    memory: memoryview = flat.numpy().data
    return memory


def is_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes lie in this process's memory in the order of a file."""
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided memory: not sparse, quantized, nested or wrapped."""
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type != "meta"
    )


def empty_for(found: Tensor) -> torch.Tensor:
    """Return a new CPU tensor for what a header describes.

    Raises:
        UnsupportedVersion: torch has no such dtype.
    """
    dtype = TORCH_DTYPES.get(found.dtype)
    if dtype is None:
        message = f"{found.file}: tensor {found.name!r}: torch has no dtype {found.dtype}"
        raise UnsupportedVersion(message)
    shape = found.shape
    if found.dtype == _PAIRS and shape:
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty(shape, dtype=dtype)


def identity_of(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Return what two tensors share that are one: memory, dtype, shape and strides.

    None where there is no memory to share.
    """
    if not tensor.numel():
        return None
    place = tensor.device, tensor.data_ptr(), tensor.dtype
    return *place, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()


# ---- private ----------------------------------------------------------------------------------


def _tied(state_dict: Mapping[str, torch.Tensor]) -> dict[str, str]:
    kept: dict[tuple[object, ...], str] = {}
    tied = {}
    for name in sorted(state_dict):
        identity = identity_of(state_dict[name])
        if identity is not None and kept.setdefault(identity, name) != name:
            tied[name] = kept[identity]
    return tied


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise PublishError(f"state dict: expected names of text, found {name!r:.60}")
    if name == "__metadata__":
        raise PublishError("a tensor cannot be named __metadata__")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise PublishError(f"tensor {name!r}: its name cannot be written as UTF-8") from None


def _problem(tensor: torch.Tensor) -> tuple[str | None, str | None]:
    """Say what kind of tensor this is that has no file form, and what to do about it."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        hint = "gather it first: tensor.full_tensor()" if hasattr(tensor, "full_tensor") else None
        return f"a {kind}", hint
    if tensor.is_nested:
        return "a nested tensor", None
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({tensor.layout})", "save tensor.to_dense()"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})", "save tensor.int_repr() and its scale"
    if tensor.device.type == "meta":
        return "a tensor without memory (device meta)", "give the model its weights first"
    if tensor.dtype not in _NAMES:
        return f"dtype {tensor.dtype}", f"convert it to one of {_listed(_NAMES.values())}"
    return None, None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.40}"
