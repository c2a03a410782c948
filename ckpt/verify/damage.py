"""From bytes that differ to the tensors in them, and the words for it. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ckpt.checkpoint import Damage, Tensor

Range = tuple[int, int]
FEW = 3


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return (start, end) ranges in order, those that touch as one."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def located(file: str, ranges: Iterable[Range], tensors: Sequence[Tensor]) -> Damage:
    """Return the damage of a file all of whose chunks were compared; `tensors` are its own.

    Where the header itself lies in a part that differs nothing says where the tensors are: those
    that it names there are told, and none counts as proven.
    """
    bad = joined(ranges)
    hurt = [tensor.name for tensor in tensors if _is_hurt(tensor, bad)]
    first = min((tensor.start for tensor in tensors), default=0)
    is_header_good = bool(tensors) and all(start >= first for start, _ in bad)
    proven = len(tensors) - len(hurt) if is_header_good else 0
    return Damage(file, bad, tuple(hurt), len(tensors), proven)


def in_words(damage: Damage) -> str:
    """Say what is hurt: `bytes 0 to 1,023: layers.1.up, 1 of 4 tensors; the other 3 …`."""
    where = _ranges(damage.ranges)
    if not damage.tensor_count:
        return where
    hurt, count = len(damage.tensors), damage.tensor_count
    if not hurt:
        names = "no tensor lies there"
    else:
        names = ", ".join(damage.tensors[:FEW])
        more = f" and {hurt - FEW:,} more" if hurt > FEW else ""
        plural = "" if count == 1 else "s"
        names = f"{names}{more}, {hurt:,} of {count:,} tensor{plural}"
    if damage.proven_count:
        rest = "all" if not hurt else "the other"
        verb = "is" if damage.proven_count == 1 else "are"
        return f"{where}: {names}; {rest} {damage.proven_count:,} {verb} proven good"
    if hurt < count:
        return f"{where}: the header lies there, so that no tensor is proven good"
    return f"{where}: {names}"


def _is_hurt(tensor: Tensor, bad: Sequence[Range]) -> bool:
    place = bisect_left(bad, (tensor.end,))  # ranges before it begin before the tensor ends
    return tensor.size_bytes > 0 and place > 0 and tensor.start < bad[place - 1][1]


def _ranges(ranges: Sequence[Range]) -> str:
    start, end = ranges[0]
    first = f"bytes {start:,} to {end - 1:,}"
    more = len(ranges) - 1
    plural = "" if more == 1 else "s"
    return f"{first} and {more:,} more place{plural}" if more else first
