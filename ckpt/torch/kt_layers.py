"""KT's MoE layers as its trainer hands them over, and what must be true of them.

Looks at attributes only; knows nothing of files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from ckpt.errors import DoesNotFit
from ckpt.formats.kt_index import PROJECTIONS
from ckpt.tensorwriter import Buffer
from ckpt.torch.tensors import buffer_of

Shapes: TypeAlias = Mapping[str, tuple[int, int, int]]
"""`gate_proj` and `up_proj`: (experts, intermediate, hidden); `down_proj`: (experts, hidden,
intermediate).
"""


class MoeConfig(Protocol):
    """The sizes of one MoE layer."""

    expert_num: int
    intermediate_size: int


class KtWrapper(Protocol):
    """One MoE layer as KT's trainer hands it over.

    Only layers whose `_full_weight_grad` is true take part. `wrapper` is the backend, on rank 0
    alone (elsewhere None): its Parameters `gate_proj_buf`, `up_proj_buf` and `down_proj_buf` are
    bfloat16 on the CPU, contiguous, and require gradients.
    """

    layer_idx: int
    hidden_size: int
    moe_config: MoeConfig
    wrapper: Any
    _full_weight_grad: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """One full layer whose Parameters were checked."""

    number: int
    shapes: Shapes
    backend: Any
    parameters: Mapping[str, torch.nn.Parameter]

    def buffers(self) -> list[Buffer]:
        """Return the Parameters as the writer takes them; nothing is copied."""
        return [buffer_of(name, parameter) for name, parameter in self.parameters.items()]


def full_layers(wrappers: Sequence[KtWrapper]) -> list[KtWrapper]:
    """Return the layers that take part: those whose experts are trained in full."""
    return [each for each in wrappers if getattr(each, "_full_weight_grad", False)]


def checked(full: Sequence[KtWrapper]) -> list[Layer]:
    """Check every layer and Parameter; return the layers by number.

    Raises:
        DoesNotFit: the first fault, by layer and name.
    """
    seen: set[int] = set()
    layers = []
    for wrapper in full:
        number = wrapper.layer_idx
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise DoesNotFit(f"layer {number!r}: expected a number that is not negative")
        if number in seen:
            raise DoesNotFit(f"layer {number}: given twice")
        seen.add(number)
        layers.append(_checked_layer(wrapper))
    return sorted(layers, key=lambda layer: layer.number)


def _checked_layer(wrapper: KtWrapper) -> Layer:
    shapes = _expected_shapes(wrapper)
    backend = wrapper.wrapper
    if backend is None:
        raise DoesNotFit(f"layer {wrapper.layer_idx}: no backend on rank 0")
    parameters: dict[str, torch.nn.Parameter] = {}
    for name in PROJECTIONS:
        attribute = f"{name}_buf"
        parameter: Any = getattr(backend, attribute, None)
        problem = _parameter_problem(parameter, shapes[name])
        if problem is not None:
            raise DoesNotFit(f"layer {wrapper.layer_idx}: {attribute} {problem}")
        parameters[name] = parameter
    return Layer(wrapper.layer_idx, shapes, backend, parameters)


def _expected_shapes(wrapper: KtWrapper) -> Shapes:
    experts = wrapper.moe_config.expert_num
    inner = wrapper.moe_config.intermediate_size
    hidden = wrapper.hidden_size
    return {
        "gate_proj": (experts, inner, hidden),
        "up_proj": (experts, inner, hidden),
        "down_proj": (experts, hidden, inner),
    }


def _parameter_problem(parameter: Any, shape: tuple[int, int, int]) -> str | None:
    """Say why something is no Parameter that a shard can be read into, None when it is one."""
    if parameter is None:
        return "is not there"
    if not isinstance(parameter, torch.nn.Parameter):
        return f"is a {type(parameter).__name__}, expected a Parameter"
    if tuple(parameter.shape) != shape:
        return f"has shape {list(parameter.shape)}, expected {list(shape)}"
    if parameter.dtype != torch.bfloat16:
        return f"is {parameter.dtype}, expected torch.bfloat16"
    if parameter.device.type != "cpu":
        return f"is on {parameter.device}, expected the CPU"
    if not parameter.is_contiguous():
        return "is not contiguous"
    if not parameter.requires_grad:
        return "does not require gradients"
    return None
