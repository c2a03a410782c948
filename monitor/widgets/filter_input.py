"""One line to type a filter into: no blinking cursor, no control character from a paste."""

from textual.binding import Binding
from textual.widgets import Input


class FilterInput(Input):
    """Textual's input, quiet: it holds printable text only and costs no bytes while it waits."""

    BINDINGS = [Binding("escape", "screen.leave_filter", show=False)]  # noqa: RUF012 - Textual's way

    def __init__(self, value: str = "", *, placeholder: str = "", id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(
            value, placeholder=placeholder, id=id, compact=True, select_on_focus=False
        )
        self.cursor_blink = False

    def validate_value(self, value: str) -> str:
        """Drop what is no printable character: a paste can hold anything."""
        return "".join(char for char in value if char.isprintable())
