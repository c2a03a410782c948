"""What carries a plan out, and the words for it: on the button, while it works, how it ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt.present import Cell, Tone, integer, size, visible
from monitor.feed import sentence

if TYPE_CHECKING:
    from ckpt.generations import Plan
    from ckpt.operation import Operation
    from ckpt.present.plans import Line
    from ckpt.reflog import Journal
    from monitor.job import Ended

FEW = 10
_DEEDS = {"rollback": "roll back", "withdraw": "withdrawal"}
_FINAL: "dict[str, Line]" = {
    "prune": (Cell("  ! what is deleted cannot be brought back", Tone.WARN),),
    "recover": (Cell("  what is not whole and nobody writes any more is removed", Tone.DIM),),
}
_SIGNS = {Tone.GOOD: "✓", Tone.WARN: "?", Tone.BAD: "✗"}
BUTTONS = {
    "rollback": "Roll back",
    "withdraw": "Send back",
    "undo": "Undo",
    "redo": "Redo",
    "recover": "Recover",
    "prune": "Delete",
}
"""What the button that confirms a plan says, by the plan's verb."""


@dataclass(frozen=True, slots=True)
class Work:
    """An operation and its words; `told` makes those of its result, `tone` says how good it is.

    `is_changing`: it changes the run from its first step on. `doing` is what takes its time, empty
    where the title says so; `cancelled` is what is said of it then. `about` is the object that a
    screen follows while it works.
    """

    title: str
    operation: "Operation[Any]"
    told: Callable[[Any], str]
    is_changing: bool = False
    doing: str = "verifying"
    tone: Callable[[Any], Tone] = lambda _: Tone.GOOD
    cancelled: str = "cancelled, nothing was changed"
    about: object = None


def question_of(plan: "Plan", journal: "Journal") -> str:
    """Ask whether to carry a plan out: `Undo #9, the rollback of step_1000?`."""
    from ckpt.present.plans import plan_title

    title = plan_title(plan)
    if plan.verb == "prune":
        title = f"delete {_generations(len(plan.removed))} of {title.removeprefix('prune ')}"
    entries = {entry.sequence: entry for entry in journal.entries}
    entry = entries.get(plan.undoes or 0)
    if plan.verb == "redo" and entry is not None:  # it takes an undo back
        entry = entries.get(entry.undoes or 0)
    if entry is not None:
        slots = title.rpartition(": ")[2]
        deed = _DEEDS.get(entry.verb, visible(entry.verb))
        title = f"{plan.verb} #{entry.sequence}, the {deed} of {slots}"
    return f"{title[:1].upper()}{title[1:]}?"


def lines_of(plan: "Plan", now: float) -> tuple["Line", ...]:
    """Say what a plan will do; one of many changes says what it costs first, then each of them."""
    from ckpt.present.plans import plan_lines

    final = [_FINAL[plan.verb]] if plan.verb in _FINAL and (plan.warnings or plan.removed) else []
    lines = [*plan_lines(plan, now, most=FEW)[1:], *final]
    in_full = [*plan_lines(plan, now)[1:], *final]
    if len(lines) == len(in_full):
        return tuple(lines)
    return (*lines, (), (Cell("  in full", Tone.DIM),), *in_full)


def work_of(plan: "Plan") -> Work:
    """Return what carries out a plan; nothing is begun yet."""
    from ckpt.generations import carry_out, recover
    from ckpt.present.plans import done_line, plan_title
    from ckpt.retention import prune

    title = plan_title(plan)
    if plan.verb == "recover":
        recovering = recover(plan.run_dir)
        return Work(title, recovering, lambda told: _recovered(plan, told), is_changing=True)
    if plan.verb == "prune":
        told = f"{_generations(len(plan.removed))} deleted"
        return Work(title, prune(plan), lambda freed: f"{told}, {size(freed)} freed")
    again = "Z redoes it" if plan.verb == "undo" else "z undoes it"
    done = done_line(plan)
    if plan.verb == "withdraw" and plan.target is not None:
        slots = title.rpartition("withdraw ")[2]
        done = f"step {integer(plan.target.step)} is the newest again: {slots} withdrawn"
    return Work(title, carry_out(plan), lambda _: f"{done} ({again})")


def ending(work: Work, ended: "Ended[Any]") -> tuple[str, Tone]:
    """Say how an operation ended; empty where a screen shows it anyway."""
    if ended.error is not None:
        return f"✗ {sentence(ended.error)}", Tone.BAD
    if ended.is_cancelled:
        return f"{work.title}: {work.cancelled}", Tone.WARN
    tone, told = work.tone(ended.result), work.told(ended.result)
    return f"{_SIGNS[tone]} {told}" if told else "", tone


def _generations(count: int) -> str:
    return f"{count:,} generation{'' if count == 1 else 's'}"


def _recovered(plan: "Plan", told: Sequence[str]) -> str:
    """Say what is live again in few words, and all else that was done as it was told."""
    from ckpt.present.plans import done_line

    expected = tuple(f"{change.slot}: " for change in plan.changes)
    is_as_planned = [each.startswith(expected) and "left alone" not in each for each in told]
    rest = [each for each, is_so in zip(told, is_as_planned, strict=True) if not is_so]
    if any(is_as_planned):
        return "; ".join([done_line(plan), *rest])
    return "; ".join(rest) or "nothing was left to do"
