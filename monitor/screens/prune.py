"""What each policy would keep and free, one row a policy; one is opened to be asked about."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ckpt.phrases import DAY
from ckpt.present import Cell, Column, Row, Tone, size
from ckpt.view import RunView
from monitor.commands import Where, bindings_of
from monitor.planning import known_of
from monitor.screens.base import CommandScreen
from monitor.widgets.row_table import RowTable, Table

if TYPE_CHECKING:
    from ckpt.retention import Kept, Policy, Preview

COLUMNS = (
    Column("what stays besides what is live"),
    Column("keeps", is_right=True, rank=3),
    Column("deletes", is_right=True, rank=1),
    Column("frees", is_right=True, rank=2),
)
ROUND = (1, 2, 5)


class PruneScreen(CommandScreen):
    """Choose a policy; nothing goes before the plan of it was confirmed."""

    where = Where.PRUNE
    most_lines_said = 4
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.PRUNE)]

    def __init__(self, view: RunView, now: float, *, ascii_only: bool = False) -> None:
        super().__init__(ascii_only=ascii_only)
        self.view = view
        self.now = now
        self.previews: dict[str, Preview] = {}

    def compose(self) -> ComposeResult:
        """Show what is known."""
        self._show()
        return super().compose()

    def show_run(self, view: RunView, now: float) -> None:
        """Count anew where the checkpoints changed."""
        is_same = view.slots == self.view.slots and view.journal == self.view.journal
        self.view, self.now = view, now
        if not is_same:
            self._show()
            self.share_window()

    def do_open(self) -> None:
        """Ask about the plan of the policy under the cursor."""
        preview = self.previews.get(self.table.selected_key or "")
        if preview is None:
            return
        if preview.plan.removed:
            from ckpt.present.plans import kept_lines

            stays = kept_lines(preview.kept)
            self.monitor.changes.ask_about(preview.plan, more=[(), *stays] if stays else ())
        else:
            self.say("nothing would go: this policy keeps all there is")

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Say why what stays does."""
        event.stop()
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """Why things stay under the policy that the cursor is on."""
        preview = self.previews.get(self.table.selected_key or "")
        return () if preview is None else (Cell(" "), Cell(reasons(preview.kept), Tone.DIM))

    def path_to_copy(self) -> str:
        """The run's own path."""
        return str(self.view.run)

    def _show(self) -> None:
        from ckpt.retention import preview_prune

        known = known_of(self.view, self.now)
        self.previews = {
            label: preview_prune(known, policy) for label, policy in policies_for(self.view)
        }
        self.table.show(
            Table.of(COLUMNS, [_row(label, each) for label, each in self.previews.items()]),
            title=[Cell(" Prune: what each policy keeps and frees", Tone.ACCENT)],
            note=[Cell("enter shows the plan ", Tone.DIM)],
        )


def policies_for(view: RunView) -> Iterator[tuple[str, "Policy"]]:
    """Yield policies that make sense for a run, those that keep most first."""
    from ckpt.retention import Policy

    yield "all but damaged and incomplete ones", Policy(keep_last=None, is_damaged_too=True)
    yield "what was live within a day, and the last of each slot", Policy(keep_s=DAY)
    yield "the last 3 of each slot", Policy(keep_last=3)
    yield "the 3 with the lowest loss, and the last of each slot", Policy(keep_best=3)
    steps = [each.step for slot in view.slots for each in slot.generations if each.step]
    if steps:
        every = _round(max(steps) / 10)
        label = f"every {every:,} steps, and the last of each slot"
        yield label, Policy(keep_every=every)
    yield "the last of each slot", Policy()
    yield "only what no prune may take", Policy(keep_last=0)


def reasons(kept: "tuple[Kept, ...]") -> str:
    """Say why generations stay: `2 stay: pinned; 1 stays: the last one that is verified`."""
    counts: dict[str, int] = {}
    for each in kept:
        if each.reason != "live":
            counts[each.reason] = counts.get(each.reason, 0) + 1
    told = (
        f"{count:,} {'stays' if count == 1 else 'stay'}: {why}" for why, count in counts.items()
    )
    return "; ".join(told) or "none stays but what is live"


def _row(label: str, preview: "Preview") -> Row:
    going = len(preview.plan.removed)
    kept = sum(each.reason != "live" for each in preview.kept)
    tone = Tone.PLAIN if going else Tone.DIM
    return Row(
        label,
        (
            Cell(label, tone),
            Cell(f"{kept:,}", tone),
            Cell(f"{going:,}" if going else "none", tone),
            Cell(size(preview.plan.frees_bytes) if going else "", tone),
        ),
    )


def _round(steps: float) -> int:
    """Return the next round number: 1, 2, 5, 10, 20, 50 and so on."""
    scale = 1
    while True:
        for digit in ROUND:
            if digit * scale >= steps:
                return digit * scale
        scale *= 10
