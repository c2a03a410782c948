"""The one table of commands: keys, label, help, where each works, and why it cannot right now.

Bindings, the key line, the palette, the help screen and the README's table of keys all come from
`COMMANDS`. What a command does is a method `do_NAME` of the screen it works on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from textual.binding import Binding

from ckpt.present import Cell, Tone
from ckpt.view import RunView
from monitor.planning import find_row, nothing_to_verify, refusal, unverifiable


class Where(StrEnum):
    """The screens that have commands."""

    DASHBOARD = "dashboard"
    CHECKPOINT = "checkpoint"
    RUNS = "runs"
    DETAILS = "details"
    HISTORY = "history"
    PRUNE = "policies"
    OPERATION = "verification"
    DIFF = "diff"
    QUESTION = "question"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class Situation:
    """What a command may look at to say whether it can act now.

    `running` names the operation that is at work, None when none is; `has_verified`: there was a
    verification, or is one. `has_other`: there is something to compare the row with.
    `undo_sequence` is the entry of the journal that an undo is meant for.
    """

    where: Where
    selected_key: str | None = None
    row_count: int = 0
    point_count: int = 0
    has_chart: bool = True
    is_filtered: bool = False
    has_runs: bool = False
    view: RunView | None = None
    is_read_only: bool = False
    running: str | None = None
    undo_sequence: int | None = None
    has_verified: bool = False
    tensor_count: int = 0
    has_other: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One thing a user can do. `unavailable` returns why not, None when it can act now.

    `changes`: it changes the run, so not under `--read-only`, and one thing at a time; `works`: it
    only takes long, and is one of these things.
    `keys` are Textual's names, the first is the one to show unless `shown` says otherwise;
    `rank` orders the key line's claims on a narrow screen: the highest goes first, None is never
    on it. `line` is the key line's word where `label` is too long for it.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    where: tuple[Where, ...]
    unavailable: Callable[[Situation], str | None] = lambda _: None
    changes: bool = False
    works: bool = False
    shown: str | None = None
    line: str | None = None
    rank: int | None = None

    @property
    def key(self) -> str:
        """The key as people read it."""
        return self.shown or " ".join(_SPELT.get(key, key) for key in self.keys)

    def why_not(self, situation: Situation) -> str | None:
        """Say why it cannot act now, None when it can."""
        if self.changes and situation.is_read_only:
            return "nothing is changed under --read-only"
        if (self.changes or self.works) and situation.running is not None:
            return f"not while this is at work: {situation.running}"
        return self.unavailable(situation)


_SPELT = {
    "question_mark": "?", "slash": "/", "colon": ":", "plus": "+", "minus": "-",
    "escape": "esc", "equals_sign": "=",
}  # fmt: skip
_ESCAPE = "Cancel what runs, show all rows again, or go back to the screen before"
_TABLES = (
    Where.DASHBOARD,
    Where.CHECKPOINT,
    Where.RUNS,
    Where.DETAILS,
    Where.HISTORY,
    Where.PRUNE,
    Where.OPERATION,
    Where.DIFF,
)
_LISTS = (*_TABLES, Where.HELP, Where.QUESTION)
_RUN = (Where.DASHBOARD, Where.HISTORY)


def _needs_row(situation: Situation) -> str | None:
    if situation.row_count:
        return None
    return "there is no row to act on yet"


def _needs_filter(situation: Situation) -> str | None:
    can_act = situation.is_filtered or situation.has_runs or situation.running is not None
    return None if can_act else "all rows are shown"


def _needs_generation(situation: Situation) -> str | None:
    row = find_row(situation.view, situation.selected_key) if situation.view else None
    return None if row is not None and row[1] is not None else "this row is no generation"


def _needs_verification(situation: Situation) -> str | None:
    return None if situation.has_verified else "nothing was verified yet (v verifies)"


def _needs_payload(situation: Situation) -> str | None:
    return unverifiable(situation.view, situation.selected_key)


def _needs_unverified(situation: Situation) -> str | None:
    return nothing_to_verify(situation.view)


def _needs_tensors(situation: Situation) -> str | None:
    return None if situation.tensor_count else "there is no tensor that can be read"


def _needs_other(situation: Situation) -> str | None:
    reason = _needs_payload(situation)
    if reason is None and not situation.has_other:
        return "there is none before it (m marks one to compare with)"
    return reason


def _needs_plan(command: str) -> Callable[[Situation], str | None]:
    return lambda situation: refusal(
        command, situation.view, situation.selected_key, sequence=situation.undo_sequence
    )


def _needs_points(situation: Situation) -> str | None:
    if not situation.has_chart:
        return "the window is too small for the chart"
    if situation.point_count == 0:
        return "there is no point on the chart yet"
    return None


COMMANDS: tuple[Command, ...] = (
    Command(
        "open", ("enter",), "open", "Open what the cursor is on",
        (Where.DASHBOARD, Where.RUNS, Where.PRUNE, Where.OPERATION), _needs_row, rank=2,
    ),
    Command(
        "verify", ("v",), "verify",
        "Read a generation and compare all of it with what is recorded; its row says how far",
        (Where.DASHBOARD, Where.CHECKPOINT), _needs_payload, works=True, rank=3,
    ),
    Command(
        "verify_all", ("V",), "verify all",
        "Verify every generation that was not verified as it is now, newest first",
        (Where.DASHBOARD,), _needs_unverified, works=True, rank=13,
    ),
    Command(
        "show_work", ("w",), "findings",
        "How far a verification is, what it finds, how it ended; again: go back, let it go on",
        (Where.DASHBOARD, Where.CHECKPOINT, Where.OPERATION), _needs_verification, rank=8,
    ),
    Command(
        "roll_back", ("r",), "roll back",
        "Make a retired generation live again; on an older checkpoint: send the run back to it",
        (Where.DASHBOARD,), _needs_plan("roll_back"), changes=True, rank=3,
    ),
    Command(
        "undo", ("z",), "undo", "Undo what was last done to the checkpoints",
        _RUN, _needs_plan("undo"), changes=True, rank=4,
    ),
    Command(
        "redo", ("Z",), "redo", "Do again what was undone",
        _RUN, _needs_plan("redo"), changes=True, rank=15,
    ),
    Command(
        "recover", ("R",), "recover",
        "End what was cut off: broken names get the best that is left, leftovers go",
        _RUN, _needs_plan("recover"), changes=True, rank=16,
    ),
    Command(
        "pin", ("p",), "pin", "Keep a generation from every prune; again: let it go",
        (Where.DASHBOARD,), _needs_generation, changes=True, rank=12,
    ),
    Command(
        "prune", ("P",), "prune", "See what each policy keeps and frees, then choose one",
        (Where.DASHBOARD,), _needs_plan("prune"), changes=True, rank=18,
    ),
    Command(
        "guard", ("K",), "guard",
        "Keep what a trainer that deletes its own checkpoints publishes; again: stop it",
        (Where.DASHBOARD,), changes=True, rank=19,
    ),
    Command(
        "history", ("h",), "history", "What was done to the checkpoints, newest first",
        (Where.DASHBOARD,), rank=6,
    ),
    Command(
        "next_pane", ("tab",), "next pane",
        "Next pane; on the dashboard: more chart, more table",
        (Where.DASHBOARD, Where.CHECKPOINT, Where.DIFF), line="pane", rank=7,
    ),
    Command(
        "previous_pane", ("shift+tab",), "previous pane", "The pane before",
        (Where.DASHBOARD, Where.CHECKPOINT, Where.DIFF),
    ),
    Command(
        "details", ("i",), "details", "Sources, reasons and every warning in full",
        (Where.DASHBOARD,), rank=7,
    ),
    Command(
        "diff", ("d",), "diff",
        "What changed since the generation before it, or from the marked one: a bar per tensor",
        (Where.DASHBOARD, Where.CHECKPOINT), _needs_other, works=True, rank=9,
    ),
    Command(
        "mark", ("m",), "mark", "Mark a generation to compare others with; again: let it go",
        (Where.DASHBOARD,), _needs_payload, rank=20,
    ),
    Command(
        "measure", ("t",), "statistics",
        "Read all tensors: finite, min, max, mean, norm and zeros of each, as they come",
        (Where.CHECKPOINT,), _needs_tensors, works=True, line="stats", rank=4,
    ),
    Command(
        "order", ("o",), "order",
        "Order the tensors by name, size, or what their statistics say; again: the next order",
        (Where.CHECKPOINT,), _needs_tensors, rank=5,
    ),
    Command(
        "filter", ("slash",), "filter", "Show only the rows that hold a text",
        _TABLES, rank=5,
    ),
    Command(
        "copy_path", ("y",), "copy path",
        "Copy the path (OSC 52), and show it as text",
        _TABLES, _needs_row, line="copy", rank=10,
    ),
    Command(
        "pause", ("space",), "pause", "Let the screen stand still; reading goes on",
        (Where.DASHBOARD,), rank=11,
    ),
    Command(
        "smooth", ("e",), "smoothing", "Change how strongly the curve is smoothed",
        (Where.DASHBOARD,), _needs_points, line="smooth", rank=13,
    ),
    Command(
        "log_axis", ("L",), "log axis", "Linear or logarithmic loss axis",
        (Where.DASHBOARD,), _needs_points, line="log", rank=14,
    ),
    Command(
        "zoom_in", ("plus", "equals_sign"), "zoom in", "Show a shorter stretch of the curve",
        (Where.DASHBOARD,), _needs_points, shown="+", line="zoom", rank=17,
    ),
    Command(
        "zoom_out", ("minus",), "zoom out", "Show a longer stretch of the curve",
        (Where.DASHBOARD,), _needs_points,
    ),
    Command(
        "zoom_all", ("0",), "zoom to all", "Show the whole curve",
        (Where.DASHBOARD,), _needs_points,
    ),
    Command(
        "cursor_left", ("left",), "chart cursor left",
        "Move left; select the nearest generation",
        (Where.DASHBOARD,), _needs_points, shown="←",
    ),
    Command(
        "cursor_right", ("right",), "chart cursor right",
        "Move right; select the nearest generation",
        (Where.DASHBOARD,), _needs_points, shown="→",
    ),
    Command("down", ("j", "down"), "down", "Move down", _LISTS, shown="j ↓"),
    Command("up", ("k", "up"), "up", "Move up", _LISTS, shown="k ↑"),
    Command("first", ("g", "home"), "first row", "Go to the first row", _LISTS, shown="g"),
    Command("last", ("G", "end"), "last row", "Go to the last row", _LISTS, shown="G"),
    Command(
        "half_page_down", ("ctrl+d", "pagedown"), "half a page down", "Move down half a page",
        _LISTS, shown="ctrl+d",
    ),
    Command(
        "half_page_up", ("ctrl+u", "pageup"), "half a page up", "Move up half a page",
        _LISTS, shown="ctrl+u",
    ),
    Command(
        "palette", ("colon", "ctrl+p"), "palette", "Find any of these commands by its name",
        _TABLES, rank=8,
    ),
    Command(
        "show_all", ("escape",), "all rows", _ESCAPE, (Where.DASHBOARD,), _needs_filter,
    ),
    Command(
        "back", ("escape",), "back", _ESCAPE,
        (
            Where.CHECKPOINT, Where.DETAILS, Where.HISTORY, Where.PRUNE, Where.OPERATION,
            Where.DIFF, Where.HELP,
        ), rank=2,
    ),
    Command(
        "confirm", ("y",), "yes", "In a question: do it", (Where.QUESTION,), rank=2,
    ),
    Command(
        "decline", ("n", "escape"), "no", "In a question: leave all as it is",
        (Where.QUESTION,), rank=1,
    ),
    Command(
        "other_button", ("tab", "shift+tab", "left", "right"), "other button",
        "In a question: go to the other button", (Where.QUESTION,),
        shown="tab ← →", line="other button", rank=4,
    ),
    Command(
        "press", ("enter",), "press", "In a question: press the button that is marked",
        (Where.QUESTION,), rank=3,
    ),
    Command("help", ("question_mark",), "help", "Show all keys", _TABLES, rank=1),
    Command(
        "quit", ("q", "ctrl+c"), "quit", "Leave; the trainer goes on", _LISTS, shown="q", rank=0
    ),
)  # fmt: skip


MOVES = frozenset({"down", "up", "first", "last", "half_page_down", "half_page_up"})
"""The commands that only move a cursor or a text, and come many at a time from a key held down."""


def commands_of(where: Where) -> tuple[Command, ...]:
    """Return the commands of a screen, in the table's order."""
    return tuple(command for command in COMMANDS if where in command.where)


def command_named(name: str) -> Command:
    """Return a command by its name."""
    return next(command for command in COMMANDS if command.name == name)


def bindings_of(where: Where) -> list[Binding]:
    """Make Textual's bindings for a screen: every key runs `action_command(NAME)`."""
    return [
        Binding(key, f"command('{command.name}')", command.label, show=False)
        for command in commands_of(where)
        for key in command.keys
    ]


@lru_cache(maxsize=16)  # asked for at every update
def key_line(where: Where, width: int, *, is_read_only: bool = False) -> tuple[Cell, ...]:
    """Make the line of keys of a screen, dropping those with the highest rank until it fits.

    With `is_read_only` the keys that change the run are grey: pressed, they only say why not.
    """
    ranked = [command for command in commands_of(where) if command.rank is not None]
    while ranked and _line_width(ranked) > width:
        ranked.remove(max(ranked, key=lambda command: command.rank or 0))
    return tuple(_line_cells(ranked, is_read_only=is_read_only))


def keys_markdown() -> str:
    """Make the README's table of keys."""
    rows = dict.fromkeys(f"| `{command.key}` | {command.help} |" for command in COMMANDS)
    return "\n".join(["| key | does |", "|---|---|", *rows]) + "\n"


def _line_cells(commands: Sequence[Command], *, is_read_only: bool = False) -> Iterator[Cell]:
    yield Cell(" ")
    for place, command in enumerate(commands):
        tone = Tone.DIM if is_read_only and command.changes else Tone.ACCENT
        yield Cell(("  " if place else "") + command.key.split(" ")[0], tone)
        yield Cell(f" {command.line or command.label}", Tone.DIM)


def _line_width(commands: Sequence[Command]) -> int:
    return sum(len(cell.text) for cell in _line_cells(commands))
