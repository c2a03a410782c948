"""Pictures of small tables, written out: what an eye must see of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.decimate import Decimation
from ckpt.series import Series
from monitor.widgets.chart_axes import StepAxis, ValueAxis, step_axis, value_axis
from monitor.widgets.chart_canvas import ASCII, BLOCK, BRAILLE, Glyphs
from monitor.widgets.chart_picture import draw
from monitor.widgets.chart_plot import Look, Mark, Scene

NAN, INF = math.nan, math.inf
RAW = Look(weight=0.0)
FALL = [(0, step, 4.0 - step * 0.25) for step in range(13)]
RESUMED = [(0, step, 3 - step / 10) for step in range(11)] + [
    (1, step, 2.4 - step / 10) for step in range(5, 16)
]


def curve(points: list[tuple[int, int, float]]) -> Decimation:
    series = Series()
    for segment, step, value in points:
        series.append(segment, step, 0.0, value)
    decimation = Decimation(series)
    decimation.extend(len(series))
    return decimation


def values(*numbers: float) -> Decimation:
    return curve([(0, step, value) for step, value in enumerate(numbers)])


def picture(scene: Scene, width: int, height: int, glyphs: Glyphs) -> list[str]:
    return [line.text.rstrip() for line in draw(scene, width, height, glyphs).lines]


def kinds(scene: Scene, width: int, height: int, glyphs: Glyphs) -> list[str]:
    return [line.kinds.rstrip() for line in draw(scene, width, height, glyphs).lines]


def test_a_falling_curve_in_ascii() -> None:
    assert picture(Scene(curve(FALL), look=RAW), 40, 8, ASCII) == [
        " loss  _",
        "     4 +''..",
        "       |    ''..",
        "     3 +        ''....",
        "     2 +              ''..",
        "       |                  ''..",
        "     1 +                      ''.",
        "       ++0--------+5--------+10-------+-",
    ]


def test_a_falling_curve_in_braille_with_its_steps_below() -> None:
    assert picture(Scene(curve(FALL), look=RAW), 40, 10, BRAILLE) == [
        " loss  ▁",
        "     4 ┤⠉⠢⢄",
        "       │   ⠉⠒⢄⣀",
        "     3 ┤       ⠑⠒⢄⣀",
        "       │           ⠑⠢⣀",
        "     2 ┤              ⠉⠢⠤⡀",
        "       │                 ⠈⠑⠤⣀",
        "     1 ┤                     ⠑⠒⢄⡀",
        "       └┬─────────┬─────────┬─────────┬─",
        "        0         5        10        15",
    ]


def test_a_falling_curve_in_blocks() -> None:
    assert picture(Scene(curve(FALL), look=RAW), 40, 8, BLOCK) == [
        " loss  ▁",
        "     4 ┤▀▀▄▄",
        "       │    ▀▀▄▄",
        "     3 ┤        ▀▀▄▄▄▄",
        "     2 ┤              ▀▀▄▄",
        "       │                  ▀▀▄▄",
        "     1 ┤                      ▀▀▄",
        "       └┬0────────┬5────────┬10───────┬─",
    ]


def test_nan_and_inf_are_marked_at_their_steps_and_break_the_line() -> None:
    scene = Scene(values(3.0, 2.5, NAN, INF, 2.0, 1.5), look=RAW)
    assert picture(scene, 40, 8, ASCII) == [
        " loss  _                      x NaN/inf",
        "   3.0 +'.      x   x",
        "   2.5 +  ''.",
        "       |",
        "   2.0 +                .",
        "       |                 '..",
        "   1.5 +                    '",
        "       ++0--+1--+2--+3--+4--+5--+6--+7--",
    ]


def test_a_curve_of_nan_alone_is_marks_without_a_scale() -> None:
    assert picture(Scene(values(NAN, NAN)), 40, 8, ASCII) == [
        " loss  _ ema 0.3              x NaN/inf",
        "       |x               x",
        *["       |"] * 5,
        "       ++0--------------+1--------------",
    ]


def test_a_log_axis_says_where_values_that_it_cannot_show_are() -> None:
    scene = Scene(values(1000.0, 100.0, 10.0, 1.0, 0.1, 0.0, -1.0), look=Look(0.0, is_log=True))
    assert picture(scene, 60, 10, ASCII) == [
        " loss  _ y log | values <= 0 are at the bottom of a log axis",
        "       |'.",
        "   100 +  ''.",
        "       |     '..",
        "       |        '.",
        "       |          '.",
        "     1 +            '.",
        "       |              ''.........",
        "       ++-------+-------+-------+-------+-------+-------+---",
        "        0       2       4       6       8      10      12",
    ]


def test_a_log_axis_for_no_value_above_zero_stays_linear_and_says_so() -> None:
    scene = Scene(values(-1000.0, -2.0), look=Look(0.0, is_log=True))
    assert picture(scene, 60, 8, ASCII)[0] == " loss  _ no value above 0: not a log axis"


def test_an_overtaken_tail_is_dotted_and_the_surviving_line_is_whole() -> None:
    scene = Scene(curve(RESUMED), look=RAW)
    assert picture(scene, 50, 10, ASCII) == [
        " loss  _                        dotted: overtaken",
        "     3 +''....",
        "       |      '''..",
        "       |         '. ' ' . .",
        "     2 +          :...      '",
        "       |              ''''....",
        "       |                      ''....",
        "     1 +                            '''",
        "       ++---------+---------+---------+---------+-",
        "        0         5        10        15        20",
    ]
    assert kinds(scene, 50, 10, ASCII)[2:5] == [
        "       f      cccco",
        "       f         cc o o o o",
        " fffff f          cccc      o",
    ]


def test_an_overtaken_tail_is_dotted_in_braille() -> None:
    assert picture(Scene(curve(RESUMED), look=RAW), 50, 10, BRAILLE)[:6] == [
        " loss  ▁                        dotted: overtaken",
        "     3 ┤⠉⠑⠒⠢⠤⡀",
        "       │     ⠈⠉⠑⢢ ⠄⡄⡀",
        "       │         ⢣   ⠃⠂⠆⠄⡄⡀⡀",
        "     2 ┤         ⠈⠦⢄⣀⡀     ⠁⠁",
        "       │             ⠈⠉⠑⠒⠢⠤⡀",
    ]


def test_generations_stand_on_the_curve_and_the_cursor_reads_it() -> None:
    marks = [Mark("a", 2), Mark("b", 5, is_live=False), Mark("c", 9, is_selected=True)]
    scene = Scene(curve(FALL), marks=marks, look=Look(0.0, cursor=9))
    assert picture(scene, 60, 8, ASCII) == [
        " loss  _ step 9: 1.7500             * checkpoint  o retired",
        "     4 +'''....",
        "       |       '*''....",
        "     3 +               ''''.o......",
        "     2 +                           ''''....",
        "       |                                   '*''....",
        "     1 +                                           ''''..",
        "       ++0------+2------+4------+6------+8--^---+10-----+12-",
    ]
    drawn = kinds(scene, 60, 8, ASCII)
    assert (drawn[2][16], drawn[3][28], drawn[5][44], drawn[7][44]) == ("l", "d", "s", "x")


def test_crowded_generations_leave_the_curve_visible_and_the_selected_one_stays() -> None:
    marks = [Mark(str(step), step, is_selected=step == 6) for step in range(13)]
    text = "".join(picture(Scene(curve(FALL), marks=marks, look=RAW), 40, 8, ASCII)[1:])
    assert 3 <= text.count("*") <= 8
    selected = kinds(Scene(curve(FALL), marks=marks, look=RAW), 40, 8, ASCII)
    assert "".join(selected).count("s") == 1


def test_a_retired_generation_stands_above_the_live_one_of_its_step() -> None:
    marks = [Mark("live", 5), Mark("old", 5, is_live=False), Mark("older", 5, is_live=False)]
    lines = picture(Scene(curve(FALL), marks=marks, look=RAW), 60, 8, ASCII)
    assert lines[2:4] == [
        "       |       ''''....     o",
        "     3 +               ''''.*......",
    ]


def test_a_retired_generation_in_the_top_line_stands_below_the_live_one() -> None:
    marks = [Mark("live", 0), Mark("old", 0, is_live=False)]
    lines = picture(Scene(curve(FALL), marks=marks, look=RAW), 60, 8, ASCII)
    assert (lines[1][8], lines[2][8]) == ("*", "o")


def test_steps_of_millions_are_spelt_out() -> None:
    scene = Scene(curve([(0, 0, 3.0), (0, 2_000_000, 2.0)]), look=RAW)
    assert picture(scene, 60, 10, ASCII)[-1] == (
        "        0          1,000,000      2,000,000      3,000,000"
    )


def test_evaluations_are_points_of_their_own() -> None:
    scene = Scene(None, curve([(0, 0, 3.0), (0, 10, 2.0)]))
    assert picture(scene, 40, 8, ASCII) == [
        " loss  _                         + eval",
        "   3.0 ++",
        "       |",
        "   2.5 +",
        "       |",
        "       |",
        "   2.0 +                    +",
        "       ++0--------+5--------+10-------+-",
    ]


def test_one_point_and_a_constant_have_a_scale() -> None:
    one = picture(Scene(values(2.0), look=RAW), 40, 8, ASCII)
    assert one[4] == "   2.0 +'"
    flat = picture(Scene(curve([(0, step, 2.0) for step in (7, 8, 9)]), look=RAW), 40, 8, ASCII)
    assert flat[4] == "   2.0 +" + "'" * 17


def test_a_run_without_a_loss_says_so() -> None:
    assert picture(Scene(None), 40, 4, ASCII) == [" no loss recorded yet", "", "", ""]


@pytest.mark.parametrize("size", [(19, 8), (80, 3), (17, 1)])
def test_a_place_too_small_for_a_chart_gets_the_newest_value(size: tuple[int, int]) -> None:
    assert picture(Scene(curve(FALL)), *size, BRAILLE)[0] == " loss 1.0000 @ 12"


def test_light_smoothing_keeps_a_spike_in_sight() -> None:
    numbers = [1.0] * 200
    numbers[100] = 9.0
    scene = Scene(values(*numbers))
    text, letters = picture(scene, 80, 12, ASCII), kinds(scene, 80, 12, ASCII)
    spike = [(row, line.index("r")) for row, line in enumerate(letters) if "r" in line]
    assert [row for row, _ in spike] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert text[1][spike[0][1]] == ":"


def test_the_step_axis_doubles_and_nothing_else_moves() -> None:
    axes = [step_axis(0, last, 64) for last in (0, 1, 3, 63, 64, 127, 128)]
    assert axes == [
        StepAxis(0, 0, 5, 64),
        StepAxis(0, 0, 5, 64),
        StepAxis(0, 0, 4, 64),
        StepAxis(0, 0, 0, 64),
        StepAxis(0, 1, 0, 64),
        StepAxis(0, 1, 0, 64),
        StepAxis(0, 2, 0, 64),
    ]


def test_zoom_halves_the_stretch_and_moves_by_halves() -> None:
    assert step_axis(0, 1000, 64, zoom=2) == StepAxis(
        first=192, bits=2, stretch=0, dots=64, zoom=2
    )
    assert step_axis(0, 1001, 64, zoom=2) == step_axis(0, 1000, 64, zoom=2)
    assert step_axis(0, 1000, 64, zoom=2, anchor=0).first == 0
    assert step_axis(0, 1000, 64, zoom=99).zoom == 9


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.7, 3.1, ["2.0", "2.5", "3.0"]),
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1.2e-9, 5.6e-9, ["1e-9", "2e-9", "3e-9", "4e-9", "5e-9", "6e-9"]),
        (5.0, 123_456_789.0, ["0", "5e7", "1.0e8"]),
    ],
)
def test_ticks_of_values_are_round(low: float, high: float, labels: list[str]) -> None:
    assert [label for _, label in value_axis(low, high, 12).ticks] == labels


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.7, 3.1, ["2.0", "2.5", "3.0"]),
        (0.3, 40.0, ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]),
        (1e-5, 1e3, ["1e-5", "0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
    ],
)
def test_ticks_of_a_log_axis_are_round(low: float, high: float, labels: list[str]) -> None:
    assert [label for _, label in value_axis(low, high, 16, is_log=True).ticks] == labels


ANY_VALUE = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
ANY_POINTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 500) | st.integers(0, 1 << 47), ANY_VALUE),
    max_size=30,
)
LOOKS = st.builds(
    Look,
    weight=st.sampled_from([0.0, 0.3, 0.9]),
    is_log=st.booleans(),
    zoom=st.integers(0, 60),
    cursor=st.none() | st.integers(0, 600),
)


@given(
    ANY_POINTS,
    ANY_POINTS,
    LOOKS,
    st.tuples(st.integers(0, 70), st.integers(0, 14)),
    st.sampled_from([ASCII, BLOCK, BRAILLE]),
)
def test_no_series_and_no_size_breaks_the_picture(
    points: list[tuple[int, int, float]],
    evaluations: list[tuple[int, int, float]],
    look: Look,
    size: tuple[int, int],
    glyphs: Glyphs,
) -> None:
    width, height = size
    marks = [Mark(str(step), step, is_selected=step == 7) for _, step, _ in points]
    scene = Scene(curve(sorted(points)), curve(evaluations), marks=marks, look=look)
    lines = draw(scene, width, height, glyphs).lines
    assert len(lines) == height
    assert {len(line.text) for line in lines} <= {width}
    assert {len(line.kinds) for line in lines} <= {width}
    assert glyphs is not ASCII or all(line.text.isascii() for line in lines)


@pytest.mark.parametrize(("value", "dot"), [(1e81, 7), (-1e81, 0), (1e-226, 7), (0.0, 0)])
def test_a_value_far_outside_the_axis_is_put_at_its_edge(value: float, dot: int) -> None:
    assert ValueAxis(0.0, 1e-226, ()).dot(value, 8) == dot
