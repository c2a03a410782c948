"""What a plan will do, what a run's journal tells, what holds: in words, for the CLI and the app.

Pure, like all of `present`. Ids are shortened nowhere: they are what `--to` and `pin` take.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpt.checkpoint import Generation
from ckpt.phrases import duration
from ckpt.present.rows import bytes_cell
from ckpt.present.words import Cell, Column, Row, Tone, age, cell_width, integer, size, visible
from ckpt.reflog import Change, Entry, Journal, Outcome

if TYPE_CHECKING:
    from ckpt.generations import Plan
    from ckpt.retention import Kept
    from ckpt.selftest import SelfTest

Line = tuple[Cell, ...]

LOG_COLUMNS = (
    Column("#", is_right=True, rank=2),
    Column("when", rank=3),
    Column("what"),
    Column("slot", rank=1),
    Column("from", rank=5),
    Column("to", rank=4),
    Column("outcome"),
    Column("by", rank=6),
)
PROMISE_COLUMNS = (
    Column("promise"),
    Column("holds"),
    Column("cases", is_right=True, rank=2),
    Column("detail", rank=1),
)
LABEL_WIDTH = 13
NONE = "\N{EN DASH}"
UNTOLD = Journal()
NO_CHANGE = Change("", None, None)


# ---- plans ------------------------------------------------------------------------------------


def plan_lines(
    plan: "Plan", now: float, *, journal: Journal = UNTOLD, most: int | None = None
) -> tuple[Line, ...]:
    """Say what a plan will do, the most important first; warnings come last.

    `journal` tells what an undo takes back. Of the plan's changes, and of what it deletes, at most
    `most` are told one by one.
    """
    told = [*_change_lines(plan, now)]
    return (
        (Cell(plan_title(plan), Tone.ACCENT), *_taken_back(plan, journal, now)),
        *told[:most],
        *_more(told, most),
        *_cost_lines(plan),
        *((Cell(f"  ! {visible(warning)}", Tone.WARN),) for warning in plan.warnings),
    )


def kept_lines(kept: Sequence["Kept"], *, most: int = 6) -> tuple[Line, ...]:
    """Say of a prune what stays and why: a line for each reason, which names at most `most`."""
    by_reason: dict[str, list[str]] = {}
    for each in kept:
        by_reason.setdefault(each.reason, []).append(f"{each.slot}@{each.generation.id}")
    return tuple(
        _line("stays", f"{len(named):,}", visible(reason), Cell(_listed(named, most), Tone.DIM))
        for reason, named in by_reason.items()
    )


def _listed(named: Sequence[str], most: int) -> str:
    more = f" and {len(named) - most:,} more" if len(named) > most else ""
    return visible(", ".join(named[:most]) + more)


def plan_title(plan: "Plan") -> str:
    """Name a plan in a few words: `roll back step_1000`."""
    slots = list(dict.fromkeys(change.slot for change in plan.changes))
    which = visible(slots[0]) if len(slots) == 1 else f"{len(slots):,} slots"
    match plan.verb:
        case "rollback":
            return f"roll back {which}"
        case "withdraw":
            step = plan.target.step if plan.target else None
            return f"send the run back to step {integer(step)}: withdraw {which}"
        case "undo" | "redo":
            return f"{plan.verb} #{plan.undoes}: {which}"
        case verb:
            return visible(verb) if not slots else f"{visible(verb)} {which}"


def done_line(plan: "Plan") -> str:
    """Say what is live once a plan was carried out."""
    told = [_now(change) for change in plan.changes[:3]]
    more = len(plan.changes) - len(told)
    return "; ".join([*told, f"{more:,} more"] if more else told)


def _taken_back(plan: "Plan", journal: Journal, now: float) -> Line:
    """Name the entry that an undo takes back, or the undo that a redo does."""
    for entry in journal.entries:
        if entry.sequence == plan.undoes:
            return (Cell(f"  ({_verb(entry)}, {age(entry.at, now)})", Tone.DIM),)
    return ()


def _change_lines(plan: "Plan", now: float) -> Iterator[Line]:
    if plan.verb == "prune":
        yield from _removal_lines(plan, now)
        return
    width = max((cell_width(visible(change.slot)) for change in plan.changes), default=0)
    for change in plan.changes:
        slot = visible(change.slot)
        slot += " " * (width - cell_width(slot))
        target = plan.target if plan.target and plan.target.id == change.after else None
        if change.after is not None:
            facts = _facts(target, now) if target else ()
            yield _line("becomes live", slot, visible(change.after), *facts)
        if change.before is not None:
            role = "is retired" if change.after is not None else "is withdrawn"
            yield _line(role, slot, visible(change.before))
    if plan.verb == "withdraw" and plan.target is not None:
        path = plan.target.path
        name = path.relative_to(plan.run_dir) if path.is_relative_to(plan.run_dir) else path
        facts = _facts(plan.target, now)
        yield _line("stays newest", visible(str(name)), visible(plan.target.id), *facts)


def _removal_lines(plan: "Plan", now: float) -> Iterator[Line]:
    for change, gone in zip(plan.changes, plan.removed, strict=True):
        yield _line("is deleted", visible(change.slot), visible(gone.id), *_facts(gone, now))


def _cost_lines(plan: "Plan") -> Iterator[Line]:
    given_up = []
    if plan.steps_given_up:
        plural = "" if plan.steps_given_up == 1 else "s"
        given_up.append(f"{integer(plan.steps_given_up)} step{plural}")
    if plan.seconds_given_up and plan.seconds_given_up >= 1:
        given_up.append(f"{duration(plan.seconds_given_up)} of training")
    if given_up:
        yield _line("given up", ", ".join(given_up))
    if plan.frees_bytes:
        yield _line("freed", size(plan.frees_bytes))
    if not (plan.changes or plan.removed or plan.warnings):
        yield _line("nothing to do")


def _facts(generation: Generation, now: float) -> tuple[str | Cell, ...]:
    facts = []
    if generation.step is not None:
        facts.append(f"step {integer(generation.step)}")
    if generation.created_at is not None:
        facts.append(f"saved {age(generation.created_at, now)}")
    if generation.size_bytes is not None:
        facts.append(size(generation.size_bytes))
    return " · ".join(facts), bytes_cell(generation, now)


def _line(label: str, *parts: str | Cell) -> Line:
    cells: list[Cell] = [Cell(f"  {label:<{LABEL_WIDTH}}", Tone.DIM)]
    for part in parts:
        cell = Cell(part) if isinstance(part, str) else part
        if cell.text:
            cells += [Cell("  "), cell]
    return tuple(cells)


def _more(told: list[Line], most: int | None) -> Iterator[Line]:
    if most is not None and len(told) > most:
        yield _line(f"… {len(told) - most:,} more")


def _now(change: Change) -> str:
    slot = visible(change.slot)
    if change.after is None:
        return f"{slot} is withdrawn"
    return f"{slot}: {visible(change.after)} is live"


# ---- the journal ------------------------------------------------------------------------------


def log_rows(journal: Journal, now: float) -> tuple[Row, ...]:
    """One row per change of each entry, the newest entry first; cells as LOG_COLUMNS."""
    return tuple(row for entry in reversed(journal.entries) for row in _entry_rows(entry, now))


def _entry_rows(entry: Entry, now: float) -> Iterator[Row]:
    outcome = _outcome(entry)
    tone = Tone.DIM if entry.undone_by is not None else Tone.PLAIN
    for place, change in enumerate(entry.changes or (NO_CHANGE,)):
        is_first = place == 0
        texts = (
            str(entry.sequence) if is_first else "",
            age(entry.at, now) if is_first else "",
            _verb(entry) if is_first else "",
            visible(change.slot),
            visible(change.before or NONE),
            visible(change.after or NONE),
        )
        by = visible(entry.by) if is_first else ""
        yield Row(
            f"{entry.sequence}:{change.slot}",
            (
                *(Cell(text, tone) for text in texts),
                outcome if is_first else Cell(""),
                Cell(by, Tone.DIM),
            ),
        )


def _verb(entry: Entry) -> str:
    taken_back = f" of #{entry.undoes}" if entry.undoes is not None else ""
    return visible(entry.verb) + taken_back


def _outcome(entry: Entry) -> Cell:
    if entry.outcome is None:
        return Cell("✗ interrupted", Tone.BAD)
    if entry.outcome is Outcome.ABORTED:
        return Cell("not done", Tone.WARN)
    if entry.undone_by is not None:
        return Cell(f"undone by #{entry.undone_by}", Tone.DIM)
    return Cell("done", Tone.GOOD)


# ---- promises ---------------------------------------------------------------------------------


def promise_rows(result: "SelfTest") -> tuple[Row, ...]:
    """One row per promise of a self-test; cells as PROMISE_COLUMNS."""
    return tuple(
        Row(
            promise.code,
            (
                Cell(promise.code),
                _HOLDS[promise.holds],
                Cell(integer(promise.cases)),
                Cell(visible(promise.detail), Tone.BAD if promise.holds is False else Tone.DIM),
            ),
        )
        for promise in result.promises
    )


_HOLDS = {
    True: Cell("✓ holds", Tone.GOOD),
    False: Cell("✗ broken", Tone.BAD),
    None: Cell("· not here", Tone.DIM),
}
