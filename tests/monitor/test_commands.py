"""The one table of commands, and everything that is made from it."""

from pathlib import Path

import pytest
import views

from monitor.commands import (
    COMMANDS,
    Situation,
    Where,
    bindings_of,
    command_named,
    commands_of,
    key_line,
    keys_markdown,
)

LATER_KEYS = set("sSl")


NOT_REACHABLE = "the run's directory is not reachable"


def on(key: str) -> Situation:
    return Situation(Where.DASHBOARD, key, view=views.healthy())


def text_of(where: Where, width: int) -> str:
    return "".join(cell.text for cell in key_line(where, width))


def test_names_are_unique() -> None:
    names = [command.name for command in COMMANDS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("where", Where)
def test_no_key_does_two_things_on_one_screen(where: Where) -> None:
    keys = [key for command in commands_of(where) for key in command.keys]
    assert sorted(set(keys)) == sorted(keys)


def test_keys_of_work_to_come_do_not_exist() -> None:
    assert LATER_KEYS & {key for command in COMMANDS for key in command.keys} == set()


@pytest.mark.parametrize("where", Where)
def test_every_key_is_bound(where: Where) -> None:
    bound = {binding.key: binding.action for binding in bindings_of(where)}
    for command in commands_of(where):
        for key in command.keys:
            assert bound[key] == f"command('{command.name}')"


@pytest.mark.parametrize("where", Where)
@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_the_key_line_fits_and_keeps_the_way_out(where: Where, width: int) -> None:
    text = text_of(where, width)
    assert len(text) <= width
    assert text.endswith("q quit")


def test_the_key_line_of_the_dashboard_at_80_columns() -> None:
    assert text_of(Where.DASHBOARD, 80) == (
        " enter open  v verify  r roll back  z undo  h history  / filter  ? help  q quit"
    )


@pytest.mark.parametrize(
    ("name", "situation", "reason"),
    [
        ("open", Situation(Where.DASHBOARD), "there is no row to act on yet"),
        ("open", Situation(Where.DASHBOARD, row_count=1), None),
        ("smooth", Situation(Where.DASHBOARD), "there is no point on the chart yet"),
        (
            "smooth",
            Situation(Where.DASHBOARD, point_count=5, has_chart=False),
            "the window is too small for the chart",
        ),
        ("smooth", Situation(Where.DASHBOARD, point_count=5), None),
        ("show_all", Situation(Where.DASHBOARD), "all rows are shown"),
        ("show_all", Situation(Where.DASHBOARD, is_filtered=True), None),
        ("show_all", Situation(Where.DASHBOARD, running="undo #3"), None),
        ("quit", Situation(Where.DASHBOARD), None),
        ("undo", Situation(Where.DASHBOARD), "the checkpoints were not looked at yet"),
        ("undo", Situation(Where.HISTORY, view=views.healthy()), None),
        (
            "undo",
            Situation(Where.HISTORY, view=views.healthy(), is_read_only=True),
            "nothing is changed under --read-only",
        ),
        (
            "undo",
            Situation(Where.HISTORY, view=views.healthy(), running="roll back step_1"),
            "not while this is at work: roll back step_1",
        ),
        (
            "redo",
            Situation(Where.DASHBOARD, view=views.healthy()),
            "nothing to redo: nothing was undone, or the run went on since",
        ),
        ("undo", Situation(Where.DASHBOARD, view=views.gone()), NOT_REACHABLE),
        ("recover", Situation(Where.DASHBOARD, view=views.healthy()), "nothing here was cut off"),
        ("verify", on("step_12000@c41d07"), None),
        ("verify", on("step_11000!.step_11000.tmp-1"), "this is no generation of the run"),
        (
            "verify",
            Situation(Where.DASHBOARD, view=views.gone()),
            "this is no generation of the run",
        ),
        (
            "verify",
            Situation(Where.DASHBOARD, "step_11000@live", view=views.healthy(), running="undo #3"),
            "not while this is at work: undo #3",
        ),
        ("verify_all", Situation(Where.DASHBOARD, view=views.healthy()), None),
        ("verify_all", Situation(Where.DASHBOARD, view=views.healthy(), is_read_only=True), None),
        ("verify_all", Situation(Where.DASHBOARD, view=views.gone()), NOT_REACHABLE),
        ("roll_back", on("step_12000@c41d07"), None),
        ("roll_back", on("step_12000@a1b2c3"), None),
        ("roll_back", on("step_11000@live"), None),
        ("pin", on("step_11000@live"), None),
        ("pin", on("step_11000!.step_11000.tmp-1"), "this row is no generation"),
        ("pin", Situation(Where.DASHBOARD), "this row is no generation"),
    ],
)
def test_a_command_that_cannot_act_says_why(
    name: str, situation: Situation, reason: str | None
) -> None:
    assert command_named(name).why_not(situation) == reason


def test_the_markdown_table_names_every_command_once() -> None:
    lines = keys_markdown().splitlines()
    assert lines[:2] == ["| key | does |", "|---|---|"]
    assert len(lines) == len(set(lines))
    for command in COMMANDS:
        assert f"| `{command.key}` | {command.help} |" in lines
    assert "| `q` | Leave; the trainer goes on |" in lines


def test_the_readme_has_the_table_of_keys() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("<!-- keys: made from monitor/commands.py, held by a test -->")
    table, _, _ = rest.partition("<!-- /keys -->")
    assert table.strip() == keys_markdown().strip()
