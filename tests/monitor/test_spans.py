"""A partial repaint sends what changed, and the terminal ends as Textual would leave it."""

import pyte
from rich.console import Console
from rich.segment import Segment
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from monitor.spans import SpansUpdate, exact

WIDTH = 20


def update_of(lines: list[str], cuts: list[int], spans: list[tuple[int, int, int]]) -> ChopsUpdate:
    """An update of lines whose widgets end at `cuts`."""
    starts = [0, *cuts[:-1]]
    chops = [
        {start: Strip([Segment(line[start:end])]) for start, end in zip(starts, cuts, strict=True)}
        for line in lines
    ]
    return ChopsUpdate(chops, spans, [cuts for _ in lines])


def screen_after(before: list[str], sent: str) -> list[str]:
    screen = pyte.Screen(WIDTH, len(before))
    stream = pyte.Stream(screen)
    stream.feed("\r\n".join(before))
    stream.feed(sent)
    return [line.rstrip() for line in screen.display]


OLD = ["aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb"]
NEW = ["aaaaaaaaaaXXaaaaaYaa", "bbbbbbbbZbbbbbbbbbbb"]
SPANS = [(0, 10, 12), (0, 17, 18), (1, 8, 9)]


def test_the_terminal_shows_the_new_lines() -> None:
    for cuts in ([20], [9, 20], [11, 20], [5, 10, 15, 20]):
        sent = SpansUpdate.of(update_of(NEW, cuts, SPANS)).render_segments(Console())
        assert screen_after(OLD, sent) == NEW


def test_nothing_is_sent_beside_the_spans() -> None:
    update = update_of(NEW, [20], SPANS)
    sent = SpansUpdate.of(update).render_segments(Console(color_system=None))
    assert sent == "\x1b[1;11HXX\x1b[1;18HY\x1b[2;9HZ"
    assert len(update.render_segments(Console(color_system=None))) > 2 * len(sent)


def test_a_place_that_no_widget_painted_is_left_alone() -> None:
    update = ChopsUpdate([{0: None, 10: Strip([Segment("new")])}], [(0, 0, 20)], [[10, 20]])
    sent = SpansUpdate.of(update).render_segments(Console())
    assert screen_after(["old old old old"], sent) == ["old old olnewld"]


def test_only_partial_updates_are_changed() -> None:
    whole = LayoutUpdate([], Region(0, 0, 1, 1))
    assert exact(whole) is whole
    assert exact(None) is None
    assert isinstance(exact(update_of(NEW, [20], SPANS)), SpansUpdate)
