"""A question about a plan: what will be done, in full, and two buttons, of which Cancel is marked.

What was not meant confirms nothing: a paste does not, nor do keys that come faster than fingers.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen

from ckpt.present import Cell, Tone, shorten
from monitor.commands import MOVES, Where, bindings_of, commands_of, key_line
from monitor.screens.base import wrapped
from monitor.widgets.painted import PaintedLines
from monitor.widgets.scrolled_lines import ScrolledLines

if TYPE_CHECKING:
    from monitor.app import MonitorApp

OPENING_S = 0.4  # nobody has read the question sooner
BURST_S = 0.1  # two keys closer than that came out of a paste, or together over a slow link
QUIET_S = 1.0  # after such keys it must have been quiet for so long
ROOMY = 12  # from this height on there are blank lines around the buttons
_COMMANDS = {key: each for each in commands_of(Where.QUESTION) for key in each.keys}
TOO_FAST = Cell(" that came too fast to be meant: press it again", Tone.WARN)


class ConfirmScreen(Screen[bool], inherit_bindings=False):
    """A question and lines of cells about it; dismissed with whether to do it.

    `verb` is what the button that does it says.
    """

    where = Where.QUESTION
    AUTO_FOCUS = None
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(Where.QUESTION)]

    def __init__(
        self,
        question: str,
        lines: Sequence[Sequence[Cell]],
        verb: str,
        *,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self.head = PaintedLines(ascii_only=ascii_only, id="question")
        self.body = ScrolledLines(ascii_only=ascii_only, id="plan")
        self.foot = PaintedLines(ascii_only=ascii_only, id="foot")
        self.body.show(lines)
        self._question = question
        self._buttons = ("Cancel", verb)
        self._marked = 0
        self._key_at = -math.inf
        self._deaf_until = math.inf
        self._was_too_fast = False

    def compose(self) -> ComposeResult:
        """Put the question above the plan and the buttons below it."""
        yield self.head
        yield self.body
        yield self.foot

    def on_mount(self) -> None:
        """Listen once the question has been on the screen for a moment."""
        self._paint()
        self.call_after_refresh(self._listen)

    def on_resize(self, _event: events.Resize) -> None:
        """Share the lines anew."""
        self._paint()

    # ---- keys -----------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Take note of when keys come; it runs before what the key does."""
        command = _COMMANDS.get(event.key)
        is_move = command is not None and command.name in MOVES
        is_burst = event.time - self._key_at < BURST_S
        if command is None or (is_burst and not is_move):
            self._deaf_until = max(self._deaf_until, event.time + QUIET_S)
        self._key_at = event.time

    def action_command(self, name: str) -> None:
        """Do what a key of the table of commands means here."""
        self._was_too_fast = False
        act: Callable[[], None] = getattr(self, f"do_{name}")
        act()
        self._paint()

    def do_confirm(self) -> None:
        """Do it, if that was meant."""
        if self._key_at < self._deaf_until:
            self._was_too_fast = True
            return
        self.dismiss(True)

    def do_decline(self) -> None:
        """Leave all as it is."""
        self.dismiss(False)

    def do_other_button(self) -> None:
        """Mark the other button."""
        self._marked = 1 - self._marked

    def do_press(self) -> None:
        """Press the button that is marked."""
        if self._marked:
            self.do_confirm()
        else:
            self.do_decline()

    def do_quit(self) -> None:
        """Leave the app, and all as it is."""
        self.dismiss(False)
        cast("MonitorApp", self.app).leave()

    def do_down(self) -> None:
        """Scroll down."""
        self.body.scroll(1)

    def do_up(self) -> None:
        """Scroll up."""
        self.body.scroll(-1)

    def do_first(self) -> None:
        """Scroll to the beginning."""
        self.body.scroll_to_first()

    def do_last(self) -> None:
        """Scroll to the end."""
        self.body.scroll_to_last()

    def do_half_page_down(self) -> None:
        """Scroll down half a page."""
        self.body.scroll_page(1)

    def do_half_page_up(self) -> None:
        """Scroll up half a page."""
        self.body.scroll_page(-1)

    def on_click(self, event: events.Click) -> None:
        """Press the button that was clicked."""
        if event.screen_y != self.foot.region.y + self._button_line:
            return
        self._key_at = event.time
        start = 1
        for at, text in enumerate(self._button_texts()):
            if start <= event.screen_x < start + cell_len(text):
                self._marked = at
                self.action_command("press")
            start += cell_len(text) + 2

    def _listen(self) -> None:
        self._deaf_until = time.monotonic() + OPENING_S

    # ---- painting -------------------------------------------------------------------------------

    @property
    def _button_line(self) -> int:
        return 1 if self.size.height >= ROOMY else 0

    def _paint(self) -> None:
        width, height = self.size
        most = min(3, max(1, height // 5))
        parts = wrapped(shorten(self._question, max(1, width - 6) * most), max(1, width - 2))
        rule = [(Cell("─" * width, Tone.DIM),)] if height >= ROOMY else []
        self.head.paint([*((Cell(f" {part}", Tone.ACCENT),) for part in parts[:most]), *rule])
        buttons = [Cell(" ")]
        for at, text in enumerate(self._button_texts()):
            buttons.append(Cell(text, Tone.ACCENT if at == self._marked else Tone.DIM))
            buttons.append(Cell("  "))
        said = (TOO_FAST,) if self._was_too_fast else key_line(self.where, width)
        blank: list[tuple[Cell, ...]] = [()] if height >= ROOMY else []
        self.foot.paint([*blank, tuple(buttons), *blank, said])
        self.head.take_lines(self.head.line_count)
        self.foot.take_lines(self.foot.line_count)
        room = max(1, height - self.head.line_count - self.foot.line_count)
        self.body.take_lines(min(room, self.body.wanted_height(width)))

    def _button_texts(self) -> list[str]:
        return [
            f"[{'▸' if at == self._marked else ' '} {name} ]"
            for at, name in enumerate(self._buttons)
        ]
