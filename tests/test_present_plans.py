"""Plans and the journal in words: every line written out."""

from dataclasses import replace
from pathlib import Path

import pytest

from ckpt.checkpoint import Depth, Generation, State, Verdict, Verified
from ckpt.generations import Plan
from ckpt.present.plans import done_line, kept_lines, log_rows, plan_lines
from ckpt.present.words import Tone
from ckpt.reflog import Change, Entry, Journal, Outcome
from ckpt.retention import Kept

NOW = 1_764_590_400.0
OLD, NEW = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
NONE = "\N{EN DASH}"
VERIFIED = "✓ verified 2 min ago"
NEVER_READ = f"{NONE} never read"
TARGET = Generation(
    OLD,
    State.RETIRED,
    "astrai",
    Path("run/.step_8.retired-a"),
    step=800,
    created_at=NOW - 7200,
    size_bytes=1_200_000_000,
    complete=True,
)
PLAN = Plan("rollback", Path("run"), (Change("step_8", NEW, OLD),), target=TARGET)
WITHDRAWN = tuple(Change(f"step_{n}", f"{n:012x}", None) for n in (11, 10, 9))

TABLE = [
    (
        replace(
            PLAN,
            steps_given_up=400,
            seconds_given_up=3600.0,
            warnings=("the trainer wrote 3 s ago and may save again: stop it first",),
        ),
        [
            "roll back step_8",
            f"  becomes live   step_8  {OLD}  step 800 · saved 2 h ago · 1.2 GB  {NEVER_READ}",
            f"  is retired     step_8  {NEW}",
            "  given up       400 steps, 1 h of training",
            "  ! the trainer wrote 3 s ago and may save again: stop it first",
        ],
    ),
    (
        replace(
            PLAN,
            target=replace(TARGET, verified=Verified(Verdict.INTACT, Depth.BYTES, NOW - 120)),
            steps_given_up=0,
            seconds_given_up=0.2,
        ),
        [
            "roll back step_8",
            f"  becomes live   step_8  {OLD}  step 800 · saved 2 h ago · 1.2 GB  {VERIFIED}",
            f"  is retired     step_8  {NEW}",
        ],
    ),
    (
        replace(PLAN, changes=(Change("step_8", None, OLD),), target=Generation(
            OLD, State.SEALED, "astrai", Path("run/.step_8.tmp-a"))),
        [
            "roll back step_8",
            f"  becomes live   step_8  {OLD}  {NEVER_READ}, completeness unproven",
        ],
    ),
    (
        Plan("withdraw", Path("run"), WITHDRAWN, steps_given_up=1,
             target=replace(TARGET, path=Path("run/sub/step_8"))),
        [
            "send the run back to step 800: withdraw 3 slots",
            "  is withdrawn   step_11  00000000000b",
            "  is withdrawn   step_10  00000000000a",
            "  is withdrawn   step_9   000000000009",
            f"  stays newest   sub/step_8  {OLD}  step 800 · saved 2 h ago · 1.2 GB  {NEVER_READ}",
            "  given up       1 step",
        ],
    ),
    (
        Plan("undo", Path("run"), (Change("step_8", NEW, None),), undoes=3),
        ["undo #3: step_8  (publish, 5 min ago)", f"  is withdrawn   step_8  {NEW}"],
    ),
    (
        Plan("prune", Path("run"), (Change("step_8", OLD, None),), removed=(TARGET,),
             frees_bytes=1_200_000_000),
        [
            "prune step_8",
            f"  is deleted     step_8  {OLD}  step 800 · saved 2 h ago · 1.2 GB  {NEVER_READ}",
            "  freed          1.2 GB",
        ],
    ),
    (Plan("prune", Path("run")), ["prune", "  nothing to do"]),
    (
        Plan("recover", Path("run"), warnings=("publish 3 was cut off",)),
        ["recover", "  ! publish 3 was cut off"],
    ),
    (
        Plan("undo", Path("run"), (Change("a\x1b\n\u202e", "\x07", None),), undoes=9),
        ["undo #9: a\\x1b\\n\\u202e", "  is withdrawn   a\\x1b\\n\\u202e  \\x07"],
    ),
]  # fmt: skip


def entry(sequence: int, verb: str = "publish", **values: object) -> Entry:
    changes = (Change("step_8", OLD, NEW),)
    told = Entry(sequence, NOW - 300, verb, changes, "save (pid 7 on node1)")
    return replace(told, **values)  # type: ignore[arg-type]  # any field of an entry


JOURNAL = Journal(entries=(entry(3, outcome=Outcome.DONE),))


@pytest.mark.parametrize(("plan", "lines"), TABLE)
def test_a_plan_says_what_it_will_do(plan: Plan, lines: list[str]) -> None:
    told = plan_lines(plan, NOW, journal=JOURNAL)
    assert ["".join(cell.text for cell in line) for line in told] == lines


def test_of_many_changes_only_so_many_are_told_one_by_one() -> None:
    plan = Plan("withdraw", Path("run"), WITHDRAWN, target=TARGET, warnings=("w",))
    told = plan_lines(plan, NOW, most=2)
    assert ["".join(cell.text for cell in line).strip() for line in told] == [
        "send the run back to step 800: withdraw 3 slots",
        "is withdrawn   step_11  00000000000b",
        "is withdrawn   step_10  00000000000a",
        "… 2 more",
        "! w",
    ]


def test_warnings_and_what_is_not_known_stand_out() -> None:
    [*_, warning] = plan_lines(replace(PLAN, warnings=("w",)), NOW)
    assert warning[0].tone is Tone.WARN


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ((Change("step_8", NEW, OLD),), f"step_8: {OLD} is live"),
        (WITHDRAWN[:2], "step_11 is withdrawn; step_10 is withdrawn"),
        (
            (*WITHDRAWN, *WITHDRAWN),
            "step_11 is withdrawn; step_10 is withdrawn; step_9 is withdrawn; 3 more",
        ),
    ],
)
def test_what_was_done_is_said_in_one_line(changes: tuple[Change, ...], told: str) -> None:
    assert done_line(Plan("undo", Path("run"), changes)) == told


def test_what_stays_is_told_by_its_reason() -> None:
    kept = [Kept(f"step_{n}", TARGET, "pinned") for n in range(8)] + [Kept("a\n", TARGET, "live")]
    told = ["".join(cell.text for cell in line) for line in kept_lines(kept, most=2)]
    assert told == [
        f"  stays          8  pinned  step_0@{OLD}, step_1@{OLD} and 6 more",
        f"  stays          1  live  a\\n@{OLD}",
    ]


def test_the_journal_is_told_from_its_end() -> None:
    journal = Journal(
        entries=(
            entry(1, outcome=Outcome.DONE),
            entry(2, "rollback", outcome=Outcome.DONE, undone_by=3),
            entry(3, "undo", outcome=Outcome.DONE, undoes=2),
            entry(4, "withdraw", outcome=Outcome.ABORTED, changes=WITHDRAWN[:2]),
            entry(5, "prune", changes=()),
        )
    )
    rows = log_rows(journal, NOW)
    assert [row.key for row in rows] == [
        "5:", "4:step_11", "4:step_10", "3:step_8", "2:step_8", "1:step_8",
    ]  # fmt: skip
    by = "save (pid 7 on node1)"
    ago = "5 min ago"
    assert [tuple(cell.text for cell in row.cells) for row in rows] == [
        ("5", ago, "prune", "", NONE, NONE, "✗ interrupted", by),
        ("4", ago, "withdraw", "step_11", "00000000000b", NONE, "not done", by),
        ("", "", "", "step_10", "00000000000a", NONE, "", ""),
        ("3", ago, "undo of #2", "step_8", OLD, NEW, "done", by),
        ("2", ago, "rollback", "step_8", OLD, NEW, "undone by #3", by),
        ("1", ago, "publish", "step_8", OLD, NEW, "done", by),
    ]
    assert rows[0].cells[6].tone is Tone.BAD
