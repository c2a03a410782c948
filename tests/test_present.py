"""What a run and a checkpoint read like: words, signs, widths, in every state."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt.checkpoint import (
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Generation,
    Leftover,
    Severity,
    Slot,
    State,
    Tensor,
    Verdict,
    Verified,
)
from ckpt.present import (
    Cell,
    Tone,
    advice_cell,
    age,
    bytes_cell,
    cell_width,
    duration,
    estimate,
    file_rows,
    finding_rows,
    generation_rows,
    header_lines,
    integer,
    iso_time,
    jsonable,
    loss,
    metadata_rows,
    rate,
    shorten,
    size,
    speed,
    status_line,
    task_words,
    tensor_rows,
    to_ascii,
    visible,
)
from ckpt.view import (
    Advice,
    AtRisk,
    Disk,
    Health,
    HealthState,
    RunView,
    Source,
    Warned,
    Watching,
)

NOW = 1_764_590_400.0
RUN = Path("runs/exp1")
STATE_FILE = "runs/exp1/training_state.json"


def generation(step: int, name: str, state: State = State.LIVE, **more: object) -> Generation:
    values: dict[str, object] = {
        "path": RUN / f"step_{step}",
        "step": step,
        "loss": 1.8355,
        "created_at": NOW - 200,
        "size_bytes": 1_234_567_890,
        "complete": True,
        **more,
    }
    return Generation(name, state, "astrai", **values)  # type: ignore[arg-type]  # a table of fields


INTACT = Verified(Verdict.INTACT, Depth.BYTES, NOW - 130)
DAMAGED = Verified(Verdict.DAMAGED, Depth.BYTES, NOW - 130)
FLIPPED = Finding(
    "hash-mismatch",
    Severity.ERROR,
    "model.safetensors: sha256 is 12…, the manifest says 34…",
    "model.safetensors",
    "layers.17.up_proj",
)
SLOT = Slot(
    "step_12000",
    "astrai",
    RUN / "step_12000",
    State.LIVE,
    (
        generation(12_000, "c41d07", verified=INTACT),
        generation(12_000, "a1b2c3", State.RETIRED, loss=1.9104, created_at=NOW - 3720),
    ),
)
HEALTHY = RunView(
    run=RUN,
    step=12_400,
    total_steps=50_000,
    loss=1.8342,
    loss_trend=-0.012,
    eval_loss=1.9012,
    best_loss=1.8201,
    best_step=12_100,
    learning_rate=2e-4,
    grad_norm=0.81,
    steps_per_second=2.31,
    eta_seconds=16_260.0,
    eta_error_seconds=360.0,
    updated_at=NOW - 3,
    seen_at=NOW,
    health=Health(HealthState.TRAINING),
    sources=(Source(STATE_FILE, "training-state", modified_at=NOW - 3, read_at=NOW),),
    values_from={"loss": STATE_FILE},
    task={"task": "sft", "adapter": "lora r16", "dtype": "bf16"},
    watching=Watching("events"),
    slots=(SLOT,),
    newest_verified="step_12000@c41d07",
    at_risk=AtRisk(400, 180.0),
    disk=Disk(50_600_000_000, 1_234_567_890, 41),
)
STALLED = replace(
    HEALTHY, health=Health(HealthState.STALLED, ("no step for 14 min; one took 0.4 s before",))
)


STEP_LINE = (
    " step 12,400 / 50,000  ▓▓▓▓▓░░░░░░░░░░░░░░░░░░░  24.8 %  2.31 step/s  eta 4 h 31 min (±6 min)"
)
SOURCE = "   training_state.json, just now"


def texts(view: RunView, width: int, *, ascii_only: bool = False) -> list[str]:
    lines = header_lines(view, NOW, width, ascii_only=ascii_only)
    return ["".join(cell.text for cell in line) for line in lines]


# ---- the head -------------------------------------------------------------------------------


def test_the_head_at_120_columns() -> None:
    assert texts(HEALTHY, 120) == [
        " runs/exp1 · sft · lora r16 · bf16" + " " * 66 + "● training   events",
        STEP_LINE,
        " loss 1.8342 ↓  eval 1.9012  best 1.8201 @ 12,100  lr 2.0e-4  grad 0.81" + SOURCE,
        " if it died now: 400 steps, 3 min  newest verified: step 12,000  disk: 41 saves left",
    ]


def test_the_head_at_80_columns_keeps_every_fact() -> None:
    assert texts(HEALTHY, 80) == [
        " runs/exp1 · sft · lora r16 · bf16" + " " * 26 + "● training   events",
        " step 12,400 / 50,000  ▓▓░░░░░░░░  24.8 %  2.31 step/s  eta 4 h 31 min (±6 min)",
        " loss 1.8342 ↓  eval 1.9012  best 1.8201 @ 12,100  lr 2.0e-4  grad 0.81",
        " if it died now: 400 steps, 3 min  newest verified: step 12,000",
        " training_state.json, just now  disk: 41 saves left",
    ]


def test_the_head_at_60_columns_in_ascii() -> None:
    assert texts(HEALTHY, 60, ascii_only=True) == [
        " runs/exp1 | sft | lora r16 | bf16      * training   events",
        " step 12,400 / 50,000  24.8 %  2.31 step/s  eta 4 h 31 min",
        " loss 1.8342 v  eval 1.9012  best 1.8201 @ 12,100  lr 2.0e-4",
        " if it died now: 400 steps, 3 min",
    ]


def test_the_head_at_40_columns_keeps_step_loss_and_health() -> None:
    assert texts(STALLED, 40) == [
        " runs/exp1 · sft     ! stalled   events",
        " no step for 14 min; one took 0.4 s …",
        " step 12,400 / 50,000  24.8 %",
        " loss 1.8342 ↓  best 1.8201 @ 12,100",
        " if it died now: 400 steps, 3 min",
    ]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_of_the_head_is_wider_than_the_window_or_ends_inside_a_number(
    ascii_only: bool,
) -> None:
    whole = " ".join(texts(STALLED, 200, ascii_only=ascii_only)).split()
    for width in range(12, 200):
        for line in texts(STALLED, width, ascii_only=ascii_only)[1:]:
            assert cell_width(line) <= width
            assert set(line.split()) <= {*whole, "▓▓▓░░░░░░░░░░░░░", "▓▓░░░░░░░░", "…", "~"} | {
                "###.............", "##........",
            }  # fmt: skip


def test_an_empty_run_says_that_it_waits_and_for_what() -> None:
    view = RunView(
        run=RUN,
        health=Health(HealthState.WAITING, ("nothing in it yet: waiting for a first file",)),
        watching=Watching("polling", "nfs"),
    )
    assert texts(view, 60) == [
        " runs/exp1                        ○ waiting   polling (nfs)",
        " nothing in it yet: waiting for a first file",
        " no step yet",
    ]


def test_a_run_that_went_away_says_so_in_every_width() -> None:
    gone = replace(HEALTHY, is_reachable=False)
    for width in (40, 80, 120):
        assert "! not reachable" in texts(gone, width)[0]
    assert "! not reachable" in status_line(gone, NOW)


def test_a_nan_loss_is_counted_and_never_smoothed_over() -> None:
    view = replace(HEALTHY, loss=math.nan, loss_trend=None, loss_nonfinite=11)
    line = header_lines(view, NOW, 120)[2]
    assert "".join(cell.text for cell in line).startswith(
        " loss NaN  ✗ 11 NaN or inf  eval 1.9012"
    )
    assert Cell("NaN", Tone.BAD) in line


def test_the_best_loss_is_never_called_loss() -> None:
    view = replace(
        HEALTHY, loss=None, eval_loss=None, loss_trend=None, best_step=None, learning_rate=None
    )
    assert texts(view, 120)[2] == " best 1.8201  grad 0.81   training_state.json, just now"
    assert "loss" not in status_line(view, NOW)


@pytest.mark.parametrize(
    ("step", "total", "said"),
    [
        (5, 0, " step 5"),
        (5, None, " step 5"),
        (5, -1, " step 5"),
        (0, 10, " step 0 / 10  ░░░░░░░░░░  0.0 %"),
        (9_999, 10_000, " step 9,999 / 10,000  99.9 %"),
        (99_999, 100_000, " step 99,999 / 100,000  99.9 %"),
        (11, 10, " step 11 / 10  ▓▓▓▓▓▓▓▓▓▓  110.0 %"),
    ],
)
def test_progress_is_said_only_against_a_total_that_makes_sense(
    step: int, total: int | None, said: str
) -> None:
    view = replace(HEALTHY, step=step, total_steps=total, steps_per_second=None, eta_seconds=None)
    assert texts(view, 34)[1] == said


def test_a_source_that_cannot_be_read_says_why_and_how_old_its_values_are() -> None:
    source = Source(STATE_FILE, "training-state", modified_at=NOW - 130, error="half-written")
    view = replace(HEALTHY, sources=(source,))
    assert texts(view, 120)[2].endswith("   training_state.json, 2 min ago ! half-written")


def test_a_trainer_that_writes_only_at_saves_is_said_to() -> None:
    source = Source(STATE_FILE, "trainer-state", NOW - 600, writes_only_at_saves=True)
    view = replace(HEALTHY, sources=(source,), learning_rate=None, grad_norm=None)
    assert texts(view, 120)[2].endswith(
        "   training_state.json, 10 min ago, written at saves only"
    )


@pytest.mark.parametrize(
    ("left", "said", "tone"),
    [
        (0, "! 0 saves left", Tone.BAD),
        (1, "! 1 save left", Tone.WARN),
        (3, "3 saves left", Tone.PLAIN),
    ],
)
def test_a_disk_that_fills_is_a_word_and_a_sign(left: int, said: str, tone: Tone) -> None:
    view = replace(HEALTHY, disk=Disk(1, 1, left))
    assert Cell(said, tone) in header_lines(view, NOW, 120)[3]


def test_nothing_saved_and_nothing_verified_are_said() -> None:
    assert "nothing was saved yet" in texts(replace(HEALTHY, slots=(), at_risk=AtRisk()), 120)[3]
    assert "newest verified: none" in texts(replace(HEALTHY, newest_verified=None), 120)[3]


def test_a_dead_run_says_what_was_lost_and_a_finished_one_nothing() -> None:
    dead = replace(HEALTHY, health=Health(HealthState.DEAD, ("its process is gone",)))
    assert texts(dead, 120)[4].startswith(" lost since the last save: 400 steps, 3 min  newest")
    finished = replace(HEALTHY, health=Health(HealthState.FINISHED))
    assert texts(finished, 120)[3].startswith(" newest verified: step 12,000")


def test_warnings_are_counted_in_the_head() -> None:
    warned = (Warned("a", "one"), Warned("b", "two"))
    assert texts(replace(HEALTHY, warnings=warned), 120)[3].endswith("  ! 2 warnings")


@pytest.mark.parametrize("state", HealthState)
def test_every_health_is_a_word_and_a_sign(state: HealthState) -> None:
    line = texts(replace(HEALTHY, health=Health(state, ("why",))), 80)[0]
    sign, word = line.split()[-3:-1]
    assert word == state.value
    assert sign in {"○", "●", "!", "✗", "✓", "?"}
    assert to_ascii(sign).isascii()


def test_a_hostile_name_stays_one_visible_line() -> None:
    view = replace(HEALTHY, run=Path("runs/\x1b]0;PWNED\x07\n\u202e\udcff" + "n" * 255))
    for width in (40, 80, 300):
        line = texts(view, width)[0]
        assert line.isprintable()
        assert cell_width(line) <= width


# ---- one line -------------------------------------------------------------------------------


def test_a_run_in_one_line() -> None:
    assert status_line(HEALTHY, NOW) == (
        "exp1  ● training  step 12,400/50,000  loss 1.8342 ↓  eta 4 h 31 min  ✓ 12,000"
    )
    assert status_line(replace(STALLED, eta_seconds=None, updated_at=NOW - 840), NOW) == (
        "exp1  ! stalled  step 12,400/50,000  loss 1.8342 ↓  14 min ago  ✓ 12,000"
    )
    assert status_line(HEALTHY, NOW, ascii_only=True).isascii()


def test_advice_names_its_key_to_the_app_only_and_a_warning_stands_in_for_it() -> None:
    assert advice_cell(HEALTHY) is None
    warned = replace(HEALTHY, warnings=(Warned("torn", "half a file"),))
    assert advice_cell(warned) == Cell("! half a file", Tone.WARN)
    advised = replace(warned, advice=Advice("damaged", "step_1 is damaged", "enter"))
    assert advice_cell(advised, with_key=True) == Cell("! step_1 is damaged (enter)", Tone.WARN)
    assert advice_cell(advised) == Cell("! step_1 is damaged", Tone.WARN)


# ---- generations ----------------------------------------------------------------------------


def rows_of(*slots: Slot, ascii_only: bool = False) -> list[tuple[str, list[str]]]:
    view = replace(HEALTHY, slots=slots)
    rows = generation_rows(view, NOW, ascii_only=ascii_only)
    return [(row.key, [cell.text for cell in row.cells]) for row in rows]


def test_a_slot_and_its_retired_generation() -> None:
    assert rows_of(SLOT) == [
        (
            "step_12000@c41d07",
            [
                "step_12000", "12,000", "1.8355", "3 min ago", "1.2 GB", "◆ live",
                "✓ verified 2 min ago",
            ],
        ),
        (
            "step_12000@a1b2c3",
            [
                "├ a1b2c3", "12,000", "1.9104", "1 h 2 min ago", "1.2 GB", "◇ retired",
                "– never read",  # noqa: RUF001 - the sign of a state
            ],
        ),
    ]  # fmt: skip


def test_a_broken_slot_and_a_leftover_are_rows_with_words() -> None:
    gone = Finding("missing-file", Severity.ERROR, "step_9: the name is missing")
    left = Leftover(RUN / ".step_9.tmp-abc", "partial-generation", "its writer died")
    slot = Slot(
        "step_9",
        "astrai",
        RUN / "step_9",
        State.BROKEN,
        (generation(9, "old", State.RETIRED),),
        (left,),
        (gone,),
    )
    rows = rows_of(slot, ascii_only=True)
    assert [key for key, _ in rows] == ["step_9", "step_9@old", "step_9!.step_9.tmp-abc"]
    assert rows[0][1] == ["step_9", "9", "", "", "", "x broken", "x step_9: the name is missing"]
    assert rows[1][1][0] == "| old"
    assert rows[2][1] == [
        "| .step_9.tmp-abc", "", "", "", "", "| partial generation", "its writer died",
    ]  # fmt: skip


def test_a_withdrawn_slot_is_not_called_broken() -> None:
    slot = Slot("step_9", "astrai", RUN / "step_9", State.WITHDRAWN)
    [(key, cells)] = rows_of(slot)
    assert (key, cells[5:]) == ("step_9", ["◇ withdrawn", "withdrawn on purpose"])


@pytest.mark.parametrize(
    ("more", "said", "tone"),
    [
        ({"verified": INTACT}, "✓ verified 2 min ago", Tone.GOOD),
        ({}, "– never read", Tone.DIM),  # noqa: RUF001 - the sign of a state
        ({"complete": None}, "– never read, completeness unproven", Tone.DIM),  # noqa: RUF001 - as above
        ({"complete": False}, "✗ incomplete", Tone.BAD),
        ({"findings": (FLIPPED,)}, "✗ model.safetensors: layers.17.up_proj", Tone.BAD),
        ({"verified": DAMAGED}, "✗ damaged", Tone.BAD),
        (
            {"verified": Verified(Verdict.UNVERIFIABLE, Depth.BYTES, NOW)},
            "? cannot be verified",
            Tone.WARN,
        ),
        (
            {"verified": Verified(Verdict.UNSUPPORTED, Depth.BYTES, NOW)},
            "? unsupported",
            Tone.WARN,
        ),
        (
            {
                "findings": (replace(FLIPPED, code="missing-file", tensor=None),),
                "verified": INTACT,
            },
            "✗ model.safetensors: missing-file",
            Tone.BAD,
        ),
        (
            {"findings": (replace(FLIPPED, severity=Severity.WARNING),), "verified": INTACT},
            "✓ verified 2 min ago",
            Tone.GOOD,
        ),
    ],
)
def test_what_is_known_of_bytes_is_said(more: dict[str, object], said: str, tone: Tone) -> None:
    assert bytes_cell(generation(1, "x", **more), NOW) == Cell(said, tone)


def test_an_unverified_generation_of_another_state_is_pinned_in_words() -> None:
    slot = replace(SLOT, generations=(generation(1, "x", pinned=True),))
    assert rows_of(slot)[0][1][5] == "◆ live, pinned"


# ---- a checkpoint ---------------------------------------------------------------------------


def test_files_say_whether_they_are_listed_and_there() -> None:
    rows = file_rows(
        [
            FileEntry("model.safetensors", 1_200_000, "ab" * 32, True),
            FileEntry("extra.pt", 12, None, False),
            FileEntry("config.json", None, "cd" * 32, True),
            FileEntry("note.txt", 0, None, None),
        ]
    )
    assert [[cell.text for cell in row.cells] for row in rows] == [
        ["model.safetensors", "1.2 MB", "abababababab", "listed"],
        ["extra.pt", "12 B", "–", "! unlisted"],  # noqa: RUF001 - the sign of a state
        ["config.json", "?", "cdcdcdcdcdcd", "✗ missing"],
        ["note.txt", "0 B", "–", "–"],  # noqa: RUF001 - as above
    ]


def test_tensors_in_rows() -> None:
    matrix = Tensor("a", "BF16", (2, 3), 12, "model.safetensors", 0, 12)
    scalar = Tensor("\x1b[31m", "F32", (), 4, "model.safetensors", 12, 16)
    assert [[cell.text for cell in row.cells] for row in tensor_rows([matrix, scalar])] == [
        ["a", "BF16", "2×3", "12 B", "model.safetensors"],  # noqa: RUF001 - a shape
        ["\\x1b[31m", "F32", "scalar", "4 B", "model.safetensors"],
    ]
    assert tensor_rows([matrix], ascii_only=True)[0].cells[2].text == "2x3"


def test_metadata_and_settings_are_flat_and_safe() -> None:
    checkpoint = Checkpoint(
        RUN,
        "astrai",
        "AstrAI",
        metadata={
            "epoch": 0,
            "nested": {"lr": 0.001, "deep": {}},
            "list": [1, math.nan],
            "s": "a\nb",
        },
        settings={"rank": 16},
    )
    assert [[cell.text for cell in row.cells] for row in metadata_rows(checkpoint)] == [
        ["epoch", "0"],
        ["nested.lr", "0.001"],
        ["nested.deep", "{}"],
        ["list", "[1, null]"],
        ["s", "a\\nb"],
        ["settings.rank", "16"],
    ]


def test_findings_in_rows_carry_place_and_hint() -> None:
    hint = replace(FLIPPED, hint="use another generation")
    [row] = finding_rows([hint])
    assert [cell.text for cell in row.cells] == [
        "✗ error",
        "hash-mismatch",
        "model.safetensors: layers.17.up_proj",
        "model.safetensors: sha256 is 12…, the manifest says 34… (use another generation)",
    ]


# ---- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "?"), (0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (999_499, "999 KB"),
        (999_500, "1.0 MB"), (1_234_567_890, "1.2 GB"), (99_950_000, "100 MB"),
    ],
)  # fmt: skip
def test_sizes(value: int | None, said: str) -> None:
    assert size(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "?"), (math.inf, "?"), (-5, "0 s"), (45, "45 s"), (180, "3 min"), (3600, "1 h"),
        (16_260, "4 h 31 min"), (183_600, "2 d 3 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said", "as_duration"),
    [
        (None, "?", "?"), (math.nan, "?", "?"), (45, "45 s", "45 s"), (59.6, "1 min", "1 min"),
        (89, "1 min", "1 min"), (99, "2 min", "1 min"), (3590, "1 h", "59 min"),
        (16_315, "4 h 32 min", "4 h 31 min"), (86_390, "1 d", "23 h 59 min"),
        (185_500, "2 d 4 h", "2 d 3 h"),
    ],
)  # fmt: skip
def test_an_estimate_is_rounded_where_a_duration_is_floored(
    seconds: float | None, said: str, as_duration: str
) -> None:
    assert (estimate(seconds), duration(seconds)) == (said, as_duration)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (None, "?"), (NOW, "just now"), (NOW - 59, "just now"), (NOW - 60, "1 min ago"),
        (NOW - 7320, "2 h 2 min ago"), (NOW + 30, "just now"), (NOW + 7200, "clock ahead 2 h"),
    ],
)  # fmt: skip
def test_ages(at: float | None, said: str) -> None:
    assert age(at, NOW) == said


def test_numbers() -> None:
    assert [integer(None), integer(12_400)] == ["?", "12,400"]
    assert [loss(v) for v in (None, 1.8342, 1.23e-4, math.nan, -math.inf, 0.0)] == [
        "?", "1.8342", "1.230e-04", "NaN", "-inf", "0.0000",
    ]  # fmt: skip
    assert [rate(v) for v in (None, 2e-4, 0.0, math.inf)] == ["?", "2.0e-4", "0", "inf"]
    assert [speed(v) for v in (2.31, 0.08, 250.0, 0.0)] == [
        "2.31 step/s", "12.50 s/step", "250 step/s", "0.00 step/s",
    ]  # fmt: skip


def test_times_carry_their_zone() -> None:
    assert iso_time(NOW) == "2025-12-01T12:00:00+00:00"
    assert iso_time(None) is None
    assert iso_time(1e30) is None


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"task": "sft", "adapter": "lora r16", "dtype": "bf16"}, ("sft", "lora r16", "bf16")),
        (
            {"task": "sft", "train_modules": "lora", "fp16": True, "seed": 0},
            ("sft", "lora", "fp16"),
        ),
        ({"task": "dpo", "lora_rank": 8, "fp16": False}, ("dpo", "lora r8")),
        ({"task": 3, "strategy": " "}, ()),
    ],
)
def test_a_task_in_a_few_words(task: dict[str, object], words: tuple[str, ...]) -> None:
    assert task_words(task) == words


def test_text_from_a_disk_becomes_visible() -> None:
    assert visible("a\n\x1b[31m\x9b\u202e\udcff\U000e0001é日") == (
        "a\\n\\x1b[31m\\x9b\\u202e\\xff\\U000e0001é日"
    )


def test_names_lose_their_middle_by_columns_not_letters() -> None:
    assert shorten("model.safetensors", 9) == "mode…sors"
    assert shorten("日本語日本語日本語", 7) == "日…語"
    assert shorten("abc", 3) == "abc"
    assert [shorten("abcdef", width) for width in (0, 1, 2)] == ["", "…", "a…"]
    assert cell_width("e\u0301日") == 3


def test_json_holds_only_what_strict_json_can() -> None:
    deep: object = "bottom"
    for _ in range(500):
        deep = [deep]
    said = jsonable({"a": math.nan, "b\udcff": (1, RUN, b"\xff"), "deep": deep, 3: True})
    assert said["a"] is None
    assert said["b\\xff"] == [1, "runs/exp1", "\\xff"]
    assert said["3"] is True
    levels, inner = 0, said["deep"]
    while isinstance(inner, list):
        levels, inner = levels + 1, inner[0]
    assert (levels, inner) == (63, "…")
