"""Painting on a stream: locales, colours, widths, tables, the line of progress."""

import io

import pytest

from ckpt.present import Cell, Column, Row, Tone
from ckpt.terminal import ProgressLine, Terminal, is_ascii_only


class Screen(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8", *, is_terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", newline="")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


UTF8 = {"LANG": "en_US.UTF-8", "TERM": "xterm-256color", "COLUMNS": "40"}
COLUMNS = (Column("slot"), Column("step", is_right=True, rank=1), Column("bytes", rank=2))


@pytest.mark.parametrize(
    ("encoding", "environment", "expected"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, False),
        ("utf-8", {}, False),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ("utf-8", {"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ("utf-8", {"LC_ALL": "POSIX"}, True),
        ("utf-8", {"LC_ALL": "", "LANG": "de_DE.UTF-8"}, False),
        ("ascii", {"LANG": "en_US.UTF-8"}, True),
        ("iso8859-1", {"LANG": "de_DE"}, True),
        (None, {}, True),
    ],
)
def test_signs_are_ascii_where_the_locale_is_no_utf8(
    encoding: str | None, environment: dict[str, str], expected: bool
) -> None:
    assert is_ascii_only(encoding, environment) is expected


@pytest.mark.parametrize(
    ("is_terminal", "more", "expected"),
    [
        (True, {}, "\x1b[32m✓ verified\x1b[0m\n"),
        (True, {"NO_COLOR": "1"}, "✓ verified\n"),
        (True, {"NO_COLOR": ""}, "\x1b[32m✓ verified\x1b[0m\n"),
        (True, {"TERM": "dumb"}, "✓ verified\n"),
        (False, {}, "✓ verified\n"),
        (False, {"LC_ALL": "C"}, "+ verified\n"),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(
    is_terminal: bool, more: dict[str, str], expected: str
) -> None:
    screen = Screen(is_terminal=is_terminal)
    Terminal.of(screen, {**UTF8, **more}).line(Cell("✓ verified", Tone.GOOD))
    assert screen.text() == expected


def test_no_locale_raises_whatever_the_text_holds() -> None:
    for encoding in ("ascii", "iso8859-1", "cp437"):
        screen = Screen(encoding, is_terminal=False)
        Terminal.of(screen, {}).line("é 日 ✓ … \U0001f680")
        assert screen.text() == "\\xe9 \\u65e5 + ~ \\U0001f680\n"


def test_a_closed_stdout_takes_everything_in_silence() -> None:
    terminal = Terminal.of(None, {})
    terminal.line("gone")
    terminal.table(COLUMNS, [Row("a", (Cell("a"), Cell("1"), Cell("x")))])
    terminal.flush()
    assert terminal.width is None


def row(name: str, step: str, said: str) -> Row:
    return Row(name, (Cell(name), Cell(step), Cell(said, Tone.DIM)))


def test_a_pipe_gets_whole_names() -> None:
    screen = Screen(is_terminal=False)
    name = "n" * 255
    Terminal.of(screen, UTF8).table(COLUMNS, [row(name, "1,000", "never read")])
    assert screen.text().split("\n") == [
        " slot" + " " * 251 + "   step  bytes",
        " " + name + "  1,000  never read",
        "",
    ]


def test_a_terminal_gets_one_row_per_name_shortened_in_its_middle() -> None:
    screen = Screen()
    terminal = Terminal.of(screen, {**UTF8, "NO_COLOR": "1"})
    terminal.table(COLUMNS, [row("a" * 30 + "b" * 30, "12,000", "ok"), row("short", "1", "ok")])
    lines = screen.text().split("\n")
    assert lines == [
        " slot" + " " * 24 + "step  bytes",
        " aaaaaaaaaaaa…bbbbbbbbbbb  12,000  ok",
        " short                          1  ok",
        "",
    ]


def test_a_narrow_terminal_loses_columns_and_never_digits() -> None:
    screen = Screen()
    terminal = Terminal.of(screen, {**UTF8, "NO_COLOR": "1", "COLUMNS": "18"})
    terminal.table(COLUMNS, [row("epoch_0_step_9", "123,456", "never read")])
    assert screen.text().split("\n")[1] == " epoc…p_9  123,456"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("40", " epoch_0_step_9  never read  more"),
        ("27", " epoch_0_step_9  never read"),
        ("20", " epoch_0_step_9"),
        ("11", " epoch…ep_9"),
    ],
)
def test_a_name_stays_readable_while_another_column_can_go(columns: str, expected: str) -> None:
    screen = Screen()
    terminal = Terminal.of(screen, {**UTF8, "NO_COLOR": "1", "COLUMNS": columns})
    told = (Column("name", least=14), Column("what", rank=1, least=10), Column("more", rank=2))
    terminal.table(told, [row("epoch_0_step_9", "never read", "more")])
    assert screen.text().split("\n")[1] == expected


def test_progress_overwrites_itself_and_goes_away() -> None:
    screen = Screen()
    times = iter([0.0, 0.1, 0.3, 9.0])
    line = ProgressLine(Terminal.of(screen, UTF8), lambda: next(times))
    line.show("one thing")
    line.show("too soon")
    line.show("two")
    line.clear()
    line.show("three")
    assert screen.text() == "\rone thing\rtwo      \r   \r\rthree"


def test_progress_is_silent_where_no_terminal_is() -> None:
    screen = Screen(is_terminal=False)
    line = ProgressLine(Terminal.of(screen, UTF8))
    line.show("one")
    line.clear()
    assert screen.text() == ""
