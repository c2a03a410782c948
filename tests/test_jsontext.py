"""JSON as trainers write it in, strict JSON out."""

import math

import pytest

from ckpt import jsontext
from ckpt.errors import DuplicateKey, TornRead


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\xef\xbb\xbf{\r\n"a": 1}\r\n', {"a": 1}),
        (b'{"best": Infinity, "b": -Infinity}', {"best": math.inf, "b": -math.inf}),
        (b'{"a": {"b": 1}, "c": {"b": 2}}', {"a": {"b": 1}, "c": {"b": 2}}),
        (b'{"seed": 18446744073709551615}', {"seed": 18446744073709551615}),
    ],
)
def test_what_trainers_write_is_read(data: bytes, value: object) -> None:
    assert jsontext.parse(data, path="f") == value


def test_a_bare_nan_is_read_as_one() -> None:
    assert math.isnan(jsontext.parse(b"NaN", path="f"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "f: the file is empty, expected JSON"),
        (b" \n", "f: the file is empty, expected JSON"),
        (b'{"a": ', "f: not JSON at line 1 column 7"),
        (b"\xff\xfe{}", "f: not JSON: byte 0 (0xff) is no UTF-8"),
        (b"[" * 200_000, "f: not JSON: nested too deeply"),
        (b"1" * 5000, "f: not JSON that can be read: a number of more than 4,300 digits"),
        (b"{}{}", "f: not JSON at line 1 column 3"),
        (b"\x00\x00", "f: not JSON"),
    ],
)
def test_what_does_not_parse_may_be_half_written(data: bytes, says: str) -> None:
    with pytest.raises(TornRead) as caught:
        jsontext.parse(data, path="f")
    assert caught.value.message.startswith(says)


@pytest.mark.parametrize("data", [b'{"a":1,"a":1}', b'[{"b":{"a":1,"c":2,"a":3}}]'])
def test_a_key_given_twice_is_named_at_every_depth(data: bytes) -> None:
    with pytest.raises(DuplicateKey, match="f: duplicate key 'a'"):
        jsontext.parse(data, path="f")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": {"x": 1, "y": [2]}, "b": {"x": 1}}',
        b'{"a:b": {"x": "1:2"}, "c": {}}',
        b'{"a": {"x": {"y": 1}}, "b": [{"z": 1}], "c": 3}',
        b"[1, 2]",
    ],
)
def test_a_table_is_read_as_any_other_text(data: bytes) -> None:
    assert jsontext.parse_table(data, path="f") == jsontext.parse(data, path="f")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": {"x": 1}, "a": {"x": 2}}',
        b'{"a" : 3, "a": {"x": 2}}',
        b'{"a": {"x": 1, "x" : 2}}',
        b'{"a": [{"x": 1, "x": 2}]}',
        b'{"a": {"x": {"y": 1, "y": 2}}}',
        b'{"\\u0061": {"x": 1}, "a": {"x": 2}}',
    ],
)
def test_no_twin_hides_in_a_table(data: bytes) -> None:
    with pytest.raises(DuplicateKey):
        jsontext.parse_table(data, path="f")


def test_only_strict_json_goes_out() -> None:
    assert jsontext.dumps({"b": 1, "a": "é"}) == '{"b": 1, "a": "é"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsontext.dumps({"a": math.nan})
    assert jsontext.finite_or_none(math.nan) is None
    assert jsontext.finite_or_none(-math.inf) is None
    assert jsontext.finite_or_none(0.5) == 0.5


@pytest.mark.parametrize(
    ("head", "members"),
    [
        (b'{"a": 1, "b": [1, {"c": 2}], "d": [3, 4', {"a": 1, "b": [1, {"c": 2}]}),
        (b'{"a": 1, "b": 12', {"a": 1}),
        (b'\xef\xbb\xbf {"a": "x"}', {"a": "x"}),
        (b'{"a": 1, "caf\xc3', {"a": 1}),
        (b'{"a": 1; "b": 2}', {}),
        (b'{"a" 1}', {}),
        (b"{}", {}),
        (b"[1, 2]", {}),
        (b"", {}),
    ],
)
def test_the_head_of_an_object_gives_its_complete_members(head: bytes, members: object) -> None:
    assert jsontext.leading_members(head) == members


@pytest.mark.parametrize(
    ("value", "is_from_0", "is_from_1"),
    [
        (0, True, False), (1, True, True), (-1, False, False), (True, False, False),
        (1.0, False, False), ("1", False, False), (None, False, False), (10**30, True, True),
    ],
)  # fmt: skip
def test_a_whole_number_is_an_integer_and_nothing_like_one(
    value: object, is_from_0: bool, is_from_1: bool
) -> None:
    assert (jsontext.is_whole(value), jsontext.is_whole(value, least=1)) == (is_from_0, is_from_1)
