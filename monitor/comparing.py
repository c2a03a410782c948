"""Comparing two generations of a run, in the operation's thread, made ready to paint."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt.present import (
    FINDING_COLUMNS,
    Cell,
    Column,
    Row,
    finding_rows,
    visible,
)
from monitor.widgets.row_table import Table

if TYPE_CHECKING:
    from ckpt.named import Named
    from ckpt.operation import Operation
    from ckpt.tensors import Difference

SAME_COLUMNS = (Column("tensor whose bytes are identical"),)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison came to: one line, and a table each for what differs and what does not."""

    line: tuple[Cell, ...]
    tensors: Table
    frozen: Table
    said: Table
    findings: Table


class Comparing:
    """Compares `before` with `after`; `compared` is there once it is over."""

    def __init__(self, before: "Named", after: "Named", *, ascii_only: bool = False) -> None:
        self.before = before
        self.after = after
        self.compared: Compared | None = None
        self._ascii_only = ascii_only

    @property
    def names(self) -> tuple[str, str]:
        """What both are called within their run."""
        return _within_run(self.before), _within_run(self.after)

    @property
    def title(self) -> str:
        """What is at work, in few words."""
        before, after = self.names
        return f"compare {before} with {after}"

    def operation(self) -> "Operation[Compared]":
        """Read both, side by side."""
        from ckpt.named import open_named
        from ckpt.tensors import diff

        with ExitStack() as stack:
            before, places_a = open_named(self.before, stack)
            after, places_b = open_named(self.after, stack)
            difference = yield from diff(before, after, places_a=places_a, places_b=places_b)
        self.compared = compared_of(difference, ascii_only=self._ascii_only)
        return self.compared


def compared_of(difference: "Difference", *, ascii_only: bool = False) -> Compared:
    """Make a difference ready to paint."""
    from ckpt.present.contents import (
        CHANGE_COLUMNS,
        SAID_COLUMNS,
        change_rows,
        difference_line,
        said_rows,
    )

    frozen = [Row(name, (Cell(visible(name)),)) for name in difference.same]
    found = finding_rows(difference.findings, ascii_only=ascii_only)
    return Compared(
        difference_line(difference),
        Table.of(CHANGE_COLUMNS, change_rows(difference, ascii_only=ascii_only)),
        Table.of(SAME_COLUMNS, frozen),
        Table.of(SAID_COLUMNS, said_rows(difference, ascii_only=ascii_only)),
        Table.of(FINDING_COLUMNS, found),
    )


def _within_run(named: "Named") -> str:
    return visible(str(named.name).removeprefix(f"{named.run_dir}:"))
