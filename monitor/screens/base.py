"""What all screens share: keys go through the table of commands, and the foot says things."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from ckpt.present import Cell, Tone, visible
from ckpt.view import RunView
from monitor.commands import MOVES, Situation, Where, command_named, key_line
from monitor.screens.progress import work_line
from monitor.widgets.painted import PaintedLines
from monitor.widgets.row_table import RowTable

if TYPE_CHECKING:
    from monitor.app import MonitorApp
    from monitor.widgets.filter_input import FilterInput


LOW = 6  # a window lower than this has one line for the foot
ROOMY = 20  # from this height on a long sentence gets a second line
MOST_LINES_SAID = 5  # of an answer to a key, which stays until the next one
READ_IN_S = 3.0  # what was said stays for so long before progress takes its line


class CommandScreen(Screen[None], inherit_bindings=False):
    """A screen whose keys are `do_NAME` methods, found through `commands.COMMANDS`.

    It has one table and a foot of two lines: what is to be said until the next key, and the keys.
    """

    where: ClassVar[Where]
    most_lines_said: ClassVar[int] = 2
    cancels: bool = False
    """Whether esc cancels what is at work before it does anything else."""
    tells_work: ClassVar[bool] = True
    """Whether the foot tells how far it is."""
    AUTO_FOCUS = None
    ALLOW_SELECT = False

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.ascii_only = ascii_only
        self.table = RowTable(ascii_only=ascii_only, id="table")
        self.foot = PaintedLines(ascii_only=ascii_only, id="foot")
        self._said: Cell | None = None
        self._said_at = self._said_until = 0.0
        self._filter_input: FilterInput | None = None

    def compose(self) -> ComposeResult:
        """Put the table above the foot."""
        yield self.table
        yield self.foot

    @property
    def monitor(self) -> "MonitorApp":
        """The app, by its own type."""
        return cast("MonitorApp", self.app)

    # ---- commands -------------------------------------------------------------------------------

    @property
    def is_filtered(self) -> bool:
        """Whether the table is narrowed, or about to be."""
        return bool(self.table.filter_text) or self._filter_input is not None

    def situation(self) -> Situation:
        """Tell the table of commands what it may need to know."""
        shown = self.monitor.shown
        return Situation(
            self.where,
            self.table.selected_key,
            self.table.row_count,
            is_filtered=self.is_filtered,
            view=shown.view if shown is not None else None,
            is_read_only=self.monitor.options.is_read_only,
            running=self.monitor.changes.title,
            undo_sequence=self.monitor.changes.undo_sequence,
            has_verified=self.monitor.changes.verification is not None,
        )

    def action_command(self, name: str) -> None:
        """Run a command of the table by its name, or say why it cannot act now."""
        command = command_named(name)
        reason = command.why_not(self.situation())
        if reason is not None:
            self.say(f"{command.label}: {reason}")
            return
        if name not in MOVES or time.monotonic() >= self._said_until:
            self._said = None
        act: Callable[[], None] = getattr(self, f"do_{name}")
        act()
        if self.is_current:
            self.share_window()

    def do_down(self) -> None:
        """Move the cursor down."""
        self.table.move(1)

    def do_up(self) -> None:
        """Move the cursor up."""
        self.table.move(-1)

    def do_first(self) -> None:
        """Go to the first row."""
        self.table.move_to_first()

    def do_last(self) -> None:
        """Go to the last row."""
        self.table.move_to_last()

    def do_half_page_down(self) -> None:
        """Move down half a page."""
        self.table.move_half_page(1)

    def do_half_page_up(self) -> None:
        """Move up half a page."""
        self.table.move_half_page(-1)

    def do_back(self) -> None:
        """Show all rows again; leave the screen when they were all shown."""
        if self.is_filtered:
            self.close_filter(keep=False)
        else:
            self.dismiss()

    def do_show_all(self) -> None:
        """Show all rows again."""
        self.close_filter(keep=False)

    def do_filter(self) -> None:
        """Open the line that narrows the table."""
        if self._filter_input is not None:
            return
        from monitor.widgets.filter_input import FilterInput

        self._filter_input = FilterInput(self.table.filter_text, id="filter")
        self.mount(self._filter_input, before=self.foot)
        self._filter_input.focus()
        self.share_window()

    def do_copy_path(self) -> None:
        """Copy what the cursor is on, and show it."""
        text = self.path_to_copy()
        if text is None:
            return
        self.app.copy_to_clipboard(visible(text))
        self.say(f"copied: {text}")

    def do_palette(self) -> None:
        """Find a command by its name."""
        from monitor.screens.palette import PaletteScreen

        palette = PaletteScreen(self.situation(), ascii_only=self.ascii_only)
        self.app.push_screen(palette, self._run_found)

    def do_help(self) -> None:
        """Show all keys."""
        from monitor.screens.help import HelpScreen

        screen = HelpScreen(
            self.where,
            is_read_only=self.monitor.options.is_read_only,
            ascii_only=self.ascii_only,
        )
        self.app.push_screen(screen)

    def do_quit(self) -> None:
        """Leave the app."""
        self.monitor.leave()

    def do_undo(self) -> None:
        """Ask whether to undo what was last done."""
        self.monitor.changes.ask("undo", None, sequence=self.situation().undo_sequence)

    def do_redo(self) -> None:
        """Ask whether to do it again."""
        self.monitor.changes.ask("redo", None)

    def do_recover(self) -> None:
        """Ask whether to end what was cut off."""
        self.monitor.changes.ask("recover", None)

    def do_show_work(self) -> None:
        """Show how far the verification is and what it finds."""
        self.monitor.show_verification()

    def path_to_copy(self) -> str | None:
        """Return the path that `y` copies; None when there is none here."""
        return None

    # ---- the foot -------------------------------------------------------------------------------

    def say(self, text: str, tone: Tone = Tone.ACCENT, *, least_s: float = 0.0) -> None:
        """Say one line at the foot, until the next command; moves leave it there for `least_s`."""
        self._said = Cell(" " + visible(text), tone)
        self._said_at = time.monotonic()
        self._said_until = self._said_at + least_s
        self.share_window()

    def show_run(self, view: RunView, now: float) -> None:
        """Take a newer view of the run, where this screen shows anything of it."""

    def show_work(self) -> None:
        """Paint how far the operation is that is at work, once what was said was read."""
        if self._said is not None and time.monotonic() - self._said_at >= READ_IN_S:
            self._said = None
        self.share_window()

    def line_to_say(self) -> tuple[Cell, ...]:
        """Return what the foot says when nothing else was said."""
        return ()

    def paint_foot(self) -> None:
        """Paint the foot: what is said, and the keys, as many as the height allows."""
        changes = self.monitor.changes
        job, work = changes.job, changes.work
        if self._said is not None:
            said: tuple[Cell, ...] = (self._said,)
        elif self.tells_work and job is not None and work is not None:
            said = work_line(
                changes.title or "",
                job.at,
                self.size.width - 2,
                doing=work.doing,
                can_cancel=self.cancels,
            )
        else:
            said = self.line_to_say()
        keys = key_line(
            self.where, self.size.width, is_read_only=self.monitor.options.is_read_only
        )
        if self.size.height < LOW or self._filter_input is not None:
            self.foot.paint([said if said and self._filter_input is None else keys])
            return
        self.foot.paint([*self._wrapped(said), keys])

    def _wrapped(self, said: tuple[Cell, ...]) -> list[tuple[Cell, ...]]:
        """Break what is said at its words where it is too long and the window is high enough."""
        text = "".join(cell.text for cell in said).strip()
        room = self.size.width - 4
        if self.size.height < ROOMY or cell_len(text) <= room + 2:
            return [said]
        parts = wrapped(text, room)
        most = self.most_lines_said if self._said is None else MOST_LINES_SAID
        if len(parts) > most:
            parts = [*parts[: most - 1], parts[most - 1] + " …"]
        indents = [" ", *["   "] * len(parts)]
        tone = said[-1].tone
        return [(Cell(a + part, tone),) for a, part in zip(indents, parts, strict=False)]

    # ---- sizes and the filter -------------------------------------------------------------------

    def share_window(self) -> None:
        """Give each widget its lines; called whenever the window or what it needs changed."""
        self.paint_foot()
        self.foot.take_lines(self.foot.line_count)

    def on_mount(self) -> None:
        """Paint once, before the first frame."""
        self.share_window()

    def on_resize(self, _event: events.Resize) -> None:
        """Share the lines anew."""
        self.share_window()

    def action_leave_filter(self) -> None:
        """Take the esc of the filter's line."""
        self.close_filter(keep=False)

    def close_filter(self, *, keep: bool) -> None:
        """Close the filter's line; without `keep` every row is shown again."""
        if not keep:
            self.table.narrow("")
        if self._filter_input is not None:
            self._filter_input.remove()
            self._filter_input = None
        self.set_focus(None)
        self.share_window()

    def on_input_changed(self, event: "FilterInput.Changed") -> None:
        """Narrow while typing."""
        event.stop()
        self.table.narrow(event.value)
        self.share_window()

    def on_input_submitted(self, event: "FilterInput.Submitted") -> None:
        """Keep the filter and give the keys back to the table."""
        event.stop()
        self.close_filter(keep=True)

    def on_row_table_opened(self, event: RowTable.Opened) -> None:
        """A click on the row under the cursor opens it."""
        event.stop()
        if self.where in command_named("open").where:
            self.action_command("open")

    def _run_found(self, name: str | None) -> None:
        if name is not None:
            self.action_command(name)


def wrapped(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` terminal cells, at blanks where there are any."""
    parts = []
    while cell_len(text) > width:
        longest = set_cell_size(text, width).rstrip()
        at = text.rfind(" ", 0, len(longest) + 1)
        at = at if at > width // 3 else max(1, len(longest))
        parts.append(text[:at].rstrip())
        text = text[at:].strip()
    return [*parts, text] if text else parts
