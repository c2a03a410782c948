"""The tensors of a checkpoint as rows, in any order, with statistics where they were read.

The thread that reads fills rows in; the screen takes a table of them whenever it paints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING

from ckpt.checkpoint import Finding, Tensor
from ckpt.operation import Progress
from ckpt.present import TENSOR_COLUMNS, Cell, Column, Row, Tone, tensor_rows, visible
from monitor.widgets.row_table import Table

if TYPE_CHECKING:
    from ckpt.named import Named
    from ckpt.operation import Operation
    from ckpt.tensors import TensorStats

GROUP_BYTES = 64 << 20
"""Statistics of so many bytes come together: often enough to be seen coming."""


class Order(StrEnum):
    """How tensors are ordered; the value says so on the screen."""

    FILE = "as in the file"
    NAME = "by name"
    DAMAGED = "damaged first"
    SIZE = "largest first"
    NONFINITE = "not finite first"
    NORM = "largest norm first"
    PEAK = "farthest value first"
    ZEROS = "most zeros first"


PLAIN_ORDERS = (Order.FILE, Order.NAME, Order.DAMAGED, Order.SIZE)


class TensorList:
    """Rows of tensors; `orders` are those that make sense for what is known of them."""

    def __init__(
        self, tensors: Sequence[Tensor], *, ascii_only: bool = False, has_stats: bool = False
    ) -> None:
        self.tensors = tuple(tensors)
        self.stats: dict[Tensor, TensorStats] = {}
        self.order = Order.FILE
        self.hurt: frozenset[tuple[str, str]] = frozenset()
        self._orders = tuple(Order) if has_stats else PLAIN_ORDERS
        self._ascii_only = ascii_only
        self._columns, rows = self._rows_of(self.tensors) if has_stats else self._plain_rows()
        self._widths = Table.of(self._columns, rows).widths
        self._rows = list(rows)
        self._places: Sequence[int] = range(len(rows))

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders that make a difference."""
        return tuple(each for each in self._orders if self.hurt or each is not Order.DAMAGED)

    def next_order(self) -> Order:
        """Return the order that comes after this one."""
        orders = self.orders
        place = orders.index(self.order) + 1 if self.order in orders else 0
        return orders[place % len(orders)]

    def mark(self, hurt: frozenset[tuple[str, str]]) -> None:
        """Take which tensors are damaged, as (file, name)."""
        self.hurt = hurt

    def fill(self, found: "Mapping[Tensor, TensorStats]", first: int) -> None:
        """Take the statistics of tensors that follow each other, beginning with the `first`."""
        self.stats.update(found)
        columns, rows = self._rows_of(self.tensors[first : first + len(found)])
        self._rows[first : first + len(rows)] = rows
        widths = Table.of(columns, rows).widths
        self._widths = tuple(map(max, self._widths, widths))

    def arrange(self, order: Order) -> None:
        """Order the tensors by what is known of them now."""
        self.order = order
        key = _KEYS.get(order)
        count = len(self.tensors)
        if order is Order.DAMAGED:
            self._places = sorted(range(count), key=lambda at: not self._is_hurt(at))
            return
        if key is None:
            self._places = range(count)
            return
        tensors, stats = self.tensors, self.stats
        self._places = sorted(range(count), key=lambda at: key(tensors[at], stats))

    def table(self) -> Table:
        """Return the rows as they are now, in their order."""
        rows = self._rows
        shown = (rows[at] for at in self._places)
        if self.hurt:
            shown = (_marked(rows[at]) if self._is_hurt(at) else rows[at] for at in self._places)
        return Table(self._columns, tuple(shown), self._widths)

    def _is_hurt(self, at: int) -> bool:
        tensor = self.tensors[at]
        return (tensor.file, tensor.name) in self.hurt

    def _plain_rows(self) -> tuple[tuple[Column, ...], Sequence[Row]]:
        return TENSOR_COLUMNS, tensor_rows(self.tensors, ascii_only=self._ascii_only)

    def _rows_of(self, tensors: Sequence[Tensor]) -> tuple[tuple[Column, ...], Sequence[Row]]:
        from ckpt.present.contents import STATS_COLUMNS, stats_rows

        return STATS_COLUMNS, stats_rows(tensors, self.stats, ascii_only=self._ascii_only)


class Measuring:
    """Reads the statistics of a checkpoint's tensors.

    `listed` is there once the headers were read; `filled` of its tensors have statistics, and
    `findings` are what is wrong with those.
    """

    def __init__(self, named: "Named", *, ascii_only: bool = False) -> None:
        self.named = named
        self.listed: TensorList | None = None
        self.filled = 0
        self.findings: tuple[Finding, ...] = ()
        self._ascii_only = ascii_only

    def operation(self) -> "Operation[TensorList]":
        """Read all tensors, group by group; what was read so far stays when it is cancelled."""
        from ckpt.named import open_named
        from ckpt.tensors import stats, stats_findings

        with ExitStack() as stack:
            checkpoint, places = open_named(self.named, stack)
            tensors = checkpoint.tensors
            total = sum(tensor.size_bytes for tensor in tensors)
            self.listed = listed = TensorList(tensors, ascii_only=self._ascii_only, has_stats=True)
            done = 0
            yield Progress(0, total, self.named.path.name)
            for group in groups_of(tensors):
                reading = stats(checkpoint, group, places=places)
                found = yield from _moved_on(reading, done, total)
                self.findings += stats_findings(found.items())
                listed.fill(found, self.filled)
                self.filled += len(found)
                done += sum(tensor.size_bytes for tensor in group)
            yield Progress(done, total, self.named.path.name)
        return listed

    @property
    def words(self) -> str:
        """What is to be said first of what was read."""
        if not self.findings:
            return "all finite"
        more = f" (and {len(self.findings) - 1:,} more)" if len(self.findings) > 1 else ""
        return visible(self.findings[0].message) + more


def _marked(row: Row) -> Row:
    """The row of a damaged tensor."""
    first = row.cells[0]
    return Row(row.key, (Cell(f"✗ {first.text}", Tone.BAD), *row.cells[1:]))


def groups_of(tensors: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield stretches of tensors whose statistics are told together."""
    start, size_bytes = 0, 0
    for at, tensor in enumerate(tensors):
        size_bytes += tensor.size_bytes
        if size_bytes >= GROUP_BYTES:
            yield tensors[start : at + 1]
            start, size_bytes = at + 1, 0
    if start < len(tensors):
        yield tensors[start:]


def _moved_on(
    reading: "Operation[Mapping[Tensor, TensorStats]]", done: int, total: int
) -> "Operation[Mapping[Tensor, TensorStats]]":
    """Drive a reading that is a part of a longer one."""
    try:
        while True:
            event = next(reading)
            if isinstance(event, Progress):
                yield Progress(done + event.done, total, event.what)
            else:
                yield event
    except StopIteration as stop:
        found: Mapping[Tensor, TensorStats] = stop.value
        return found
    finally:
        reading.close()


# ---- orders -------------------------------------------------------------------------------------

_Key = Callable[[Tensor, "Mapping[Tensor, TensorStats]"], tuple[float | str, ...]]


def _by_stats(value: "Callable[[TensorStats], float | None]") -> _Key:
    """The largest first; what is unknown comes last."""

    def key(tensor: Tensor, stats: "Mapping[Tensor, TensorStats]") -> tuple[float | str, ...]:
        known = stats.get(tensor)
        number = None if known is None else value(known)
        return (1.0, 0.0) if number is None else (0.0, -number)

    return key


def _peak(stats: "TensorStats") -> float | None:
    if stats.minimum is None or stats.maximum is None:
        return None
    return max(abs(stats.minimum), abs(stats.maximum))


def _zeros(stats: "TensorStats") -> float | None:
    return stats.zero_count / stats.count if stats.count and stats.zero_count is not None else None


_KEYS: dict[Order, _Key] = {
    Order.NAME: lambda tensor, _: (tensor.name,),
    Order.SIZE: lambda tensor, _: (-tensor.size_bytes,),
    Order.NONFINITE: _by_stats(lambda stats: stats.nonfinite_count),
    Order.NORM: _by_stats(lambda stats: stats.norm),
    Order.PEAK: _by_stats(_peak),
    Order.ZEROS: _by_stats(_zeros),
}
