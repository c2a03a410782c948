"""Which tensors of two checkpoints belong together, and what else they do not say alike."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckpt.checkpoint import NOTHING, Checkpoint, Tensor
from ckpt.formats.kt_index import shard_name

SUFFIX = ".safetensors"
_DEEPEST = 64


class Pair(NamedTuple):
    """One tensor as both checkpoints have it, and the name that both know it by."""

    name: str
    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class Side:
    """The tensors of one checkpoint; those in the files of `moments` are an optimizer's."""

    tensors: tuple[Tensor, ...]
    generation: str | None = None
    moments: frozenset[str] = frozenset()

    @property
    def names(self) -> Iterator[str]:
        """The names of the weights, one for each."""
        return (tensor.name for tensor in self.tensors if tensor.file not in self.moments)

    @property
    def files(self) -> frozenset[str]:
        """The files that hold its tensors."""
        return frozenset(tensor.file for tensor in self.tensors) | self.moments


@dataclass(frozen=True, slots=True)
class Paired:
    """The tensors that both have, and the names of those that only one has."""

    pairs: tuple[Pair, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def pair(a: Side, b: Side) -> Paired:
    """Match tensors by name; where a name is not alone in its checkpoint, by its file too.

    A file is known by its name without the generation: KT's shards have another one each time.
    """
    crowded = {name for side in (a, b) for name, count in Counter(side.names).items() if count > 1}
    before, after = _known(a, crowded), _known(b, crowded)
    return Paired(
        tuple(Pair(name, tensor, after[name]) for name, tensor in before.items() if name in after),
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
    )


def is_moments(name: str) -> bool:
    """Whether a file is by its name one of an optimizer's tensors."""
    return name.endswith(SUFFIX) and "optim" in name.lower()


def metadata_changes(a: Checkpoint, b: Checkpoint) -> Mapping[str, tuple[Any, Any]]:
    """Return what the checkpoints say of themselves and do not say alike, by dotted key."""
    before, after = dict(_told(a)), dict(_told(b))
    changes = {}
    for key in dict.fromkeys((*before, *after)):
        values = before.get(key), after.get(key)
        if not _is_alike(*values):
            changes[key] = values
    return changes or NOTHING


def _known(side: Side, crowded: Iterable[str]) -> dict[str, Tensor]:
    known: dict[str, Tensor] = {}
    for tensor in side.tensors:
        name = tensor.name
        if name in crowded or tensor.file in side.moments:
            name = f"{_place(tensor.file, side.generation)}:{name}"
        known[name if name not in known else f"{tensor.file}:{tensor.name}"] = tensor
    return known


def _place(file: str, generation: str | None) -> str:
    shard = shard_name(file)
    if shard is not None:
        return f"layer-{shard[1]:05}"
    stem = file.removesuffix(SUFFIX)
    return stem.replace(generation, "") if generation else stem


def _told(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    yield from _flat(checkpoint.metadata, "", _DEEPEST)
    yield from _flat(checkpoint.settings, "settings.", _DEEPEST)


def _flat(values: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value and depth:
            yield from _flat(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def _is_alike(a: Any, b: Any) -> bool:
    """Whether two values are the same; true is not 1, and NaN is NaN."""
    if isinstance(a, bool) is isinstance(b, bool) and a == b:
        return True
    try:
        return json.dumps(a, sort_keys=True, default=str) == json.dumps(
            b, sort_keys=True, default=str
        )
    except (TypeError, ValueError, RecursionError):
        return False
