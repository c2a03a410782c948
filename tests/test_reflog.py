"""The journal: what it tells after undo and redo, and what damage to it changes."""

from pathlib import Path

import pytest

from ckpt import fs
from ckpt.control import DIRECTORY
from ckpt.reflog import (
    Change,
    JournalReader,
    Outcome,
    conclude,
    cut_torn_tail,
    intend,
    read,
    reflog_path,
)

DONE, ABORTED = Outcome.DONE, Outcome.ABORTED


def note(
    run: Path,
    verb: str,
    *changes: tuple[str, str | None, str | None],
    undoes: int | None = None,
    outcome: Outcome | None = DONE,
) -> int:
    number = intend(run, verb, [Change(*each) for each in changes], undoes=undoes)
    if outcome is not None:
        conclude(run, number, outcome)
    return number


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    journal = read(tmp_path)
    assert (journal.entries, journal.last_sequence, journal.is_torn) == ((), 0, False)


def test_what_was_meant_and_done_is_read_back(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    note(tmp_path, "publish", ("last", "aa", "bb"), outcome=ABORTED)
    note(tmp_path, "withdraw", ("s1", "cc", None), ("s2", "dd", None), outcome=None)
    journal = read(tmp_path)
    assert [(e.sequence, e.verb, e.outcome) for e in journal.entries] == [
        (1, "publish", DONE),
        (2, "publish", ABORTED),
        (3, "withdraw", None),
    ]
    assert [entry.sequence for entry in journal.pending] == [3]
    assert journal.of_slot("last").lived == {"aa": 1}
    assert journal.of_slot("s1").pending == Change("s1", "cc", None)
    assert journal.of_slot("never seen").lived == {}
    assert f"publish (pid {__import__('os').getpid()} on " in journal.entries[0].by


def test_undo_walks_back_and_redo_forward(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    note(tmp_path, "publish", ("last", "aa", "bb"))
    note(tmp_path, "rollback", ("last", "bb", "aa"))

    def targets() -> tuple[int | None, int | None]:
        journal = read(tmp_path)
        undo, redo = journal.undo_target, journal.redo_target
        return undo.sequence if undo else None, redo.sequence if redo else None

    assert targets() == (3, None)
    note(tmp_path, "undo", ("last", "aa", "bb"), undoes=3)
    assert targets() == (2, 4)
    note(tmp_path, "undo", ("last", "bb", "aa"), undoes=2)
    assert targets() == (1, 5)
    note(tmp_path, "redo", ("last", "aa", "bb"), undoes=5)
    assert targets() == (2, 4)
    note(tmp_path, "redo", ("last", "bb", "aa"), undoes=4)
    assert targets() == (3, None)
    assert [entry.undone_by for entry in read(tmp_path).entries] == [
        None, None, None, 7, 6, None, None,
    ]  # fmt: skip


def test_a_save_ends_what_could_be_redone(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    note(tmp_path, "undo", ("last", "aa", None), undoes=1)
    note(tmp_path, "publish", ("last", None, "bb"))
    assert read(tmp_path).redo_target is None


def test_an_undo_that_failed_took_nothing_back(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    note(tmp_path, "undo", ("last", "aa", None), undoes=1, outcome=ABORTED)
    target = read(tmp_path).undo_target
    assert target is not None
    assert target.sequence == 1


def test_the_undo_window_is_twenty_entries(tmp_path: Path) -> None:
    note(tmp_path, "rollback", ("last", "bb", "aa"))
    for _ in range(19):
        note(tmp_path, "publish", ("last", "aa", "xx"))
        note(tmp_path, "prune", ("last", "yy", None))
    assert read(tmp_path).in_undo_window == {"aa", "bb"}
    note(tmp_path, "publish", ("last", "aa", "xx"))
    assert read(tmp_path).in_undo_window == frozenset()


def test_going_back_and_forth_for_ever_stays_possible(tmp_path: Path) -> None:
    note(tmp_path, "rollback", ("last", "bb", "aa"))
    undoes = 1
    for _ in range(25):
        undoes = note(tmp_path, "undo", ("last", "aa", "bb"), undoes=1)
        note(tmp_path, "redo", ("last", "bb", "aa"), undoes=undoes)
    target = read(tmp_path).undo_target
    assert target is not None
    assert target.sequence == 1


def test_saves_alone_keep_nothing_in_the_undo_window(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    note(tmp_path, "publish", ("last", "aa", "bb"))
    assert read(tmp_path).in_undo_window == frozenset()


def test_a_slot_whose_last_change_took_its_name_is_withdrawn(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("s", None, "aa"))
    note(tmp_path, "withdraw", ("s", "aa", None))
    assert read(tmp_path).of_slot("s").is_withdrawn
    note(tmp_path, "publish", ("s", None, "bb"))
    assert not read(tmp_path).of_slot("s").is_withdrawn
    assert read(tmp_path).of_slot("s").lived == {"aa": 1, "bb": 3}


@pytest.mark.parametrize("cut", [2, 3, 20, 60])
def test_a_torn_tail_is_told_and_cut_and_written_over(tmp_path: Path, cut: int) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    path = reflog_path(tmp_path)
    whole = path.read_bytes()
    note(tmp_path, "rollback", ("last", "aa", "bb"), outcome=None)
    path.write_bytes(path.read_bytes()[:-cut])
    journal = read(tmp_path)
    assert journal.is_torn
    assert [entry.sequence for entry in journal.entries] == [1]
    assert [finding.code for finding in journal.findings] == ["torn-reflog"]
    assert note(tmp_path, "publish", ("last", "aa", "cc")) == 2
    assert [entry.changes[0].after for entry in read(tmp_path).entries] == ["aa", "cc"]
    path.write_bytes(whole + b"half a li")
    cut_torn_tail(tmp_path, read(tmp_path))
    assert path.read_bytes() == whole


def test_a_line_that_lost_only_its_end_counts(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"), outcome=None)
    path = reflog_path(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert note(tmp_path, "publish", ("last", "aa", "bb")) == 2
    journal = read(tmp_path)
    assert [entry.changes[0].after for entry in journal.entries] == ["aa", "bb"]
    assert journal.findings == ()


def test_a_flipped_byte_costs_its_line_and_no_other(tmp_path: Path) -> None:
    for value in ("aa", "bb", "cc"):
        note(tmp_path, "publish", ("last", None, value))
    path = reflog_path(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"bb", b"bc")
    path.write_bytes(b"".join(lines))
    journal = read(tmp_path)
    assert [entry.changes[0].after for entry in journal.entries] == ["aa", "cc"]
    assert [finding.message for finding in journal.findings] == [
        "reflog: damaged lines passed over: 1"
    ]
    assert not journal.is_torn


def test_a_doubled_line_counts_once(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    path = reflog_path(tmp_path)
    path.write_bytes(path.read_bytes() * 2)
    assert [entry.sequence for entry in read(tmp_path).entries] == [1]


def test_a_name_that_is_no_utf8_is_read_back(tmp_path: Path) -> None:
    name = b"step_\xff\n".decode("utf-8", errors="surrogateescape")
    note(tmp_path, "publish", (name, None, "aa"))
    assert read(tmp_path).entries[0].changes[0].slot == name


def test_numbers_go_on_behind_a_long_journal(tmp_path: Path) -> None:
    for number in range(400):
        note(tmp_path, "publish", (f"slot_{number}_{'x' * 100}", None, f"id{number}"))
    assert reflog_path(tmp_path).stat().st_size > 65536
    assert note(tmp_path, "publish", ("last", None, "aa")) == 401


def test_a_reader_reads_only_what_changed(tmp_path: Path) -> None:
    note(tmp_path, "publish", ("last", None, "aa"))
    reader = JournalReader(tmp_path)
    first = reader.read()
    calls: list[str] = []
    with fs.hooked(lambda call: calls.append(call.name)):
        assert reader.read() is first
    assert calls == ["stat"]
    note(tmp_path, "publish", ("last", "aa", "bb"))
    assert reader.read().last_sequence == 2


def test_a_journal_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY / "reflog").mkdir(parents=True)
    (finding,) = JournalReader(tmp_path).read().findings
    assert (finding.code, finding.severity.value) == ("unreadable-file", "warning")
