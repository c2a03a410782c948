"""Reported faults of terminals and of text on them.

What goes over a real terminal (signals, hang-ups, sizes, pipes) is in monitor/test_pty; here are
texts that a toolkit would take for markup, and a terminal that can show little.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import views
from asking import say
from following import STATE
from samples import floats
from screens import running, send, text_of, until
from trees import put_checkpoint

from ckpt.checkpoint import Finding, Severity
from ckpt.health import Health, HealthState
from ckpt.tensorwriter import write_tensors
from ckpt.view import Advice, Warned

ROOT = Path(__file__).parents[2]
MARKUP = ["[/]", "[bold]x[/]", "[@click=app.quit]x", "[#ff0000]x", "\\[x]", "[link=x]y",
          "[red", "x]", "[/data/x]", "[[x]]", "{x}", "&amp;"]  # fmt: skip
PLACES = ("run", "slot", "advice")


async def test_a073_text_like_markup_is_shown_letter_for_letter_on_the_dashboard() -> None:
    view = views.healthy()
    async with running(view, (120, 40)) as (app, pilot):
        for text in MARKUP:
            changed = replace(
                view,
                run=Path(f"runs/run{text}"),
                slots=(replace(view.slots[0], name=f"slot{text}"), *view.slots[1:]),
                advice=Advice("x", f"advice{text}"),
                health=Health(HealthState.TRAINING, (f"reason{text}",)),
                task={"model_path": f"model{text}"},
                warnings=(Warned("x", f"warning{text}", None),),
            )
            await send(app, pilot, changed)
            shown = "\n".join(text_of(app))
            assert [what for what in PLACES if f"{what}{text}" not in shown] == []


async def test_a073_text_like_markup_is_shown_letter_for_letter_of_a_checkpoint(
    tmp_path: Path,
) -> None:
    run = put_checkpoint(tmp_path / "step_5", 5)
    names = {text: text.replace("/", "\N{DIVISION SLASH}") for text in MARKUP}
    for name in names.values():
        (run / f"file{name}").write_text("x")
    (run / "model.safetensors").unlink()
    tensors = [floats(f"tensor{text}", 1, 2) for text in MARKUP]
    write_tensors(run / "model.safetensors", tensors, {"key": "value"})
    meta = json.loads((run / "meta.json").read_text())
    notes = {f"note{place}": f"meta{text}" for place, text in enumerate(MARKUP)}
    (run / "meta.json").write_text(json.dumps({**meta, **notes}))
    wanted = {f"file{name}" for name in names.values()}
    wanted |= {f"{what}{text}" for what in ("tensor", "meta") for text in MARKUP}
    async with running(views.healthy(), (120, 60)) as (app, pilot):
        app.open_checkpoint(run)
        await until(pilot, lambda: "step_5" in "\n".join(text_of(app)))
        seen: set[str] = set()
        for _ in range(6):
            await pilot.press("tab")
            await pilot.pause()
            seen |= {each for each in wanted if each in "\n".join(text_of(app))}
        assert wanted - seen == set()


@pytest.mark.parametrize("total", [0, 10, 41, 42])
def test_a041_a_total_that_is_passed_leaves_no_time_and_none_is_a_bare_step(
    tmp_path: Path, total: int
) -> None:
    state = {**STATE, "total_steps": total}
    (tmp_path / "training_state.json").write_text(json.dumps(state))
    shown = say("status", tmp_path)
    assert "step 42" in shown
    assert "left" not in shown
    assert ("%" in shown) is (total > 0)


ENVIRONMENTS = {
    "A080 C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "A080 POSIX": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "A080 Latin-1": {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("verb", ["status", "list"])
def test_a080_a_terminal_without_utf8_gets_ascii_alone_whatever_the_names(
    tmp_path: Path, environment: dict[str, str], verb: str
) -> None:
    run = tmp_path / "lauf-日本"
    put_checkpoint(run / "größe_step_5", 5)
    (run / "training_state.json").write_text(json.dumps({**STATE, "model_path": "/modell/ü😀"}))
    done = subprocess.run(
        [sys.executable, "-m", "ckpt", verb, os.fsencode(run)],
        capture_output=True, cwd=ROOT, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1)
    assert done.stdout.isascii()
    assert done.stderr.isascii()
    assert b"Traceback" not in done.stderr
    assert b"step_5" in done.stdout


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_a082_states_are_words_where_there_is_no_colour(tmp_path: Path, name: str) -> None:
    put_checkpoint(tmp_path / "step_4", 4)
    damaged = put_checkpoint(tmp_path / "step_5", 5)
    os.truncate(damaged / "model.safetensors", 20)
    put_checkpoint(tmp_path / ".step_4.retired-abcdefgh", 4, 9.0)
    done = subprocess.run(
        [sys.executable, "-m", "ckpt", "list", tmp_path],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, name: "dumb" if name == "TERM" else "1"},
    )  # fmt: skip
    assert "\x1b" not in done.stdout
    for word in ("live", "retired", "size-mismatch"):
        assert word in done.stdout


def test_a075_an_error_text_with_colours_is_cleaned_like_any_other() -> None:
    from ckpt.present import finding_rows

    text = "Weights only load failed. \x1b[1mdo those steps only if\x1b[0m you trust"
    [row] = finding_rows([Finding("x", Severity.ERROR, text)])
    assert [cell.text for cell in row.cells if "\x1b" in cell.text] == []
    assert any(r"\x1b[1mdo those" in cell.text for cell in row.cells)
