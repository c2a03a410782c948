"""Properties that hold for any input: nothing raises, nothing is invented, nothing is lost.

A short profile of what `python tests/fuzz` does at length; pickles have theirs in test_pickles.
"""

import json
import math
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from following import STATE, Follower
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from ckpt import jsontext, reflog
from ckpt.errors import DuplicateKey, TornRead
from ckpt.formats.ferrotensor_state import FIELDS, TrainingState, parse_state
from ckpt.formats.ferrotensor_write import state_text
from ckpt.formats.kt_index import parse_text
from ckpt.manifest import Listed, build, is_safe_name, read_manifest
from ckpt.tensorfile import DTYPE_BITS, read_header
from ckpt.tensorwriter import write_tensors

SHORT = settings(max_examples=80, deadline=None, derandomize=True)
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@contextmanager
def directory() -> Iterator[Path]:
    """A fresh directory for one example; a fixture would be shared by all of them."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


# ---- headers ----------------------------------------------------------------------------------

EXTENTS = st.sampled_from([0, 1, 2, 3, 8, 2**16, 2**32, 2**63, 2**64])
NAMES = st.sampled_from(["a", "b", "w.x", "é", "", "\ud800", "\0", "__metadata"])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of weights that is nearly right: one or two things may be wrong with it."""
    header: dict[str, Any] = {}
    at = 0
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        dtype = draw(st.sampled_from([*DTYPE_BITS, "I4"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=3) | st.lists(EXTENTS, max_size=3))
        size = math.prod(shape) * DTYPE_BITS.get(dtype, 4) // 8
        size = size if size < 10_000 else 4
        begin, end = at + draw(off), at + size + draw(off)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        at = max(0, end)
        if draw(rarely):
            header[name][draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = draw(JSON)
    if draw(st.booleans()):
        header["__metadata__"] = draw(st.dictionaries(st.text(max_size=3), st.text(), max_size=2))
        if draw(rarely):
            header["__metadata__"] = draw(JSON)
    text = json.dumps(header, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    text = (
        draw(st.sampled_from([b"", b" ", b"\n", b"\t"]))
        + text
        + draw(st.sampled_from([b"", b"  "]))
    )
    return struct.pack("<Q", len(text)) + text + b"\1" * max(0, at + draw(off))


off = st.sampled_from([0] * 30 + [-1, 1, 4])
rarely = st.sampled_from([False] * 15 + [True])


@settings(SHORT, max_examples=250)
@given(files())
def test_a_header_is_refused_exactly_where_the_library_refuses_it(content: bytes) -> None:
    with directory() as path:
        (path / "w").write_bytes(content)
        try:
            with safe_open(path / "w", "np") as opened:
                expected = sorted(opened.keys())
        except SafetensorError:
            expected = None
        header = read_header(path / "w", "w")
    found = None if header.findings else sorted(tensor.name for tensor in header.tensors)
    assert found == expected


@SHORT
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=9)),
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.text(
        st.characters(codec="utf-8"), max_size=3), max_size=2),
)  # fmt: skip
def test_what_is_written_is_read_with_every_name_and_byte(
    tensors: dict[str, bytes], metadata: dict[str, str]
) -> None:
    tensors.pop("__metadata__", None)
    buffers = [(name, "U8", (len(data),), memoryview(data)) for name, data in tensors.items()]
    with directory() as path:
        write_tensors(path / "w", buffers, metadata)
        header = read_header(path / "w", "w")
        content = (path / "w").read_bytes()
    assert header.findings == ()
    assert {each.name: content[each.start : each.end] for each in header.tensors} == tensors
    assert dict(header.metadata or {}) == metadata


# ---- manifests and indices --------------------------------------------------------------------

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
PLAIN_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6).filter(is_safe_name)


@SHORT
@given(
    st.dictionaries(PLAIN_NAMES, st.tuples(st.integers(0, 2**63), DIGESTS), max_size=4),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=4, unique=True),
)
def test_a_manifest_that_is_built_is_read_as_what_it_was_built_of(
    files: dict[str, tuple[int, str]], tensors: list[str]
) -> None:
    listed = {name: Listed(*entry) for name, entry in files.items()}
    found = read_manifest(build(listed, tensors, meta={"optimizer_step": 5}), required=())
    assert (dict(found.files), found.tensors) == (listed, tuple(sorted(tensors)))
    assert (found.optimizer_step, found.findings) == (5, ())


@SHORT
@given(st.dictionaries(st.text(max_size=4) | st.just("files"), JSON, max_size=4), JSON)
def test_no_name_of_a_manifest_leads_out_of_its_directory(
    value: dict[str, Any], files: Any
) -> None:
    whole = {"format_version": 1, "tensors": [], **value, "files": value.get("files", files)}
    for name in read_manifest(json.dumps(whole).encode(), required=()).files:
        assert os.path.basename(name) == name
        assert name not in ("", ".", "..")


INDEX = {"dtype": "BF16", "format": "kt_full_experts", "generation": "0" * 32, "version": 1}
SHARD = st.fixed_dictionaries(
    {}, optional={"file": JSON | st.just("../x"), "shapes": JSON, "size_bytes": JSON}
)


@SHORT
@given(
    st.dictionaries(st.text("0123456789", min_size=1, max_size=3) | st.text(max_size=3), SHARD),
    st.dictionaries(st.sampled_from([*INDEX, "layers"]), JSON, max_size=2),
)
def test_an_index_of_anything_gives_shards_inside_the_directory_or_findings(
    layers: dict[str, Any], changes: dict[str, Any]
) -> None:
    index = parse_text(json.dumps({**INDEX, "layers": layers, **changes}).encode())
    for shard in index.shards:
        assert shard.file is None or is_safe_name(shard.file)
    assert index.findings or index.shards


# ---- states -----------------------------------------------------------------------------------

WHOLE = st.integers(0, 2**64 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
STATES = st.builds(
    TrainingState,
    step=WHOLE, total_steps=WHOLE, best_loss=st.none() | FINITE, lr=FINITE, epoch=WHOLE,
    batch_size=WHOLE, grad_accum_steps=WHOLE, sequence_length=WHOLE, fp16=st.booleans(),
    train_modules=WORDS, task=WORDS, model_path=WORDS, dataset_path=WORDS, seed=WHOLE,
)  # fmt: skip


@SHORT
@given(STATES)
def test_a_state_that_is_written_is_read_as_it_was(state: TrainingState) -> None:
    text = state_text(state, {}, file="training_state.json")
    parsed = parse_state(text, "training_state.json")
    assert (parsed.state, parsed.findings) == (state, ())


@SHORT
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.integers(0, 400))
def test_a_state_of_anything_is_read_or_says_why_not(changes: dict[str, Any], cut: int) -> None:
    text = json.dumps({**STATE, **changes}).encode()
    parsed = parse_state(text, "s")
    assert parsed.state is not None or parsed.findings
    if parsed.state is not None:
        assert 0 <= parsed.state.step < 2**64
    try:
        torn = parse_state(text[:cut], "s")
    except TornRead:
        return
    assert cut >= len(text)
    assert torn == parsed


# ---- lines ------------------------------------------------------------------------------------

LOSSES, ENDS = st.floats(width=32) | st.none(), st.sampled_from(["\n", "\r\n"])
ROWS = st.lists(st.tuples(st.integers(0, 50), LOSSES, ENDS), min_size=1, max_size=12)


@settings(SHORT, max_examples=60)
@given(ROWS, st.lists(st.integers(1, 40), max_size=12), st.booleans())
def test_rows_that_come_in_pieces_are_those_that_come_at_once(
    found: list[tuple[int, float | None, str]], pieces: list[int], has_end: bool
) -> None:
    text = "".join(
        json.dumps({"step": step, "loss": loss}) + end for step, loss, end in found
    ).encode()
    text = text if has_end else text.rstrip(b"\r\n")
    with directory() as path:
        at_once, in_pieces = path / "a", path / "b"
        for run in (at_once, in_pieces):
            run.mkdir()
        (at_once / "metrics.jsonl").write_bytes(text)
        told = Follower(at_once).look().series
        follower = Follower(in_pieces)
        rest = text
        for size in [*pieces, len(text)]:
            with (in_pieces / "metrics.jsonl").open("ab") as file:
                file.write(rest[:size])
            rest = rest[size:]
            follower.look_at("metrics.jsonl")
        grown = follower.look().series
    assert repr(listed(grown)) == repr(listed(told))  # NaN is not itself


def listed(series: Any) -> dict[str, list[tuple[int, float]]]:
    return {
        name: [(point.step, point.value) for point in points] for name, points in series.items()
    }


# ---- the journal ------------------------------------------------------------------------------

IDS = st.none() | st.text("abcdef", min_size=1, max_size=3)
CHANGES = st.builds(reflog.Change, st.sampled_from(["step_1", "a/step_2", "\udcff"]), IDS, IDS)
VERBS = st.sampled_from(["publish", "rollback", "withdraw", "undo", "redo", "prune", "else"])
DEEDS = st.lists(
    st.tuples(VERBS, st.lists(CHANGES, max_size=2), st.sampled_from([*reflog.Outcome, None])),
    min_size=1, max_size=6,
)  # fmt: skip


def put_journal(run: Path, deeds: list[Any]) -> bytes:
    for verb, changes, outcome in deeds:
        undoes = reflog.last_sequence(run) if verb in ("undo", "redo") else None
        number = reflog.intend(run, verb, changes, undoes=undoes or None)
        if outcome is not None:
            reflog.conclude(run, number, outcome)
    return reflog.reflog_path(run).read_bytes()


@settings(SHORT, max_examples=50)
@given(DEEDS, st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([1, 4, 16, 32, 128]))
def test_a_damaged_journal_loses_the_damaged_line_and_invents_none(
    deeds: list[Any], line: int, byte: int, flip: int
) -> None:
    with directory() as run:
        text = put_journal(run, deeds)
        whole = {entry.sequence: entry for entry in reflog.read(run).entries}
        assert len(whole) == len(deeds)
        lines = text.splitlines(keepends=True)
        hurt = line % len(lines)
        at = byte % (len(lines[hurt]) - 1)
        flipped = bytes([lines[hurt][at] ^ flip])
        lines[hurt] = lines[hurt][:at] + flipped + lines[hurt][at + 1 :]
        reflog.reflog_path(run).write_bytes(b"".join(lines))
        journal = reflog.read(run)
        lost = whole.keys() - {entry.sequence for entry in journal.entries}
        assert journal.findings
        assert len(lost) <= 1
        for entry in journal.entries:
            was = whole[entry.sequence]
            assert (entry.verb, entry.changes) == (was.verb, was.changes)
        reflog.intend(run, "publish", [])
        assert reflog.read(run).last_sequence > max(journal.last_sequence, 0)


@settings(SHORT, max_examples=50)
@given(DEEDS, st.lists(st.integers(1, 300), max_size=5))
def test_a_journal_that_grows_in_pieces_is_the_one_that_was_read_at_once(
    deeds: list[Any], pieces: list[int]
) -> None:
    with directory() as run:
        text = put_journal(run, deeds)
        whole = reflog.read(run)
        path = reflog.reflog_path(run)
        path.write_bytes(b"")
        reader = reflog.JournalReader(run)
        for size in [*pieces, len(text)]:
            with path.open("ab") as file:
                file.write(text[:size])
            text = text[size:]
            reader.read()
        assert reader.read() == whole


@SHORT
@given(st.lists(JSON, max_size=4), st.binary(max_size=30))
def test_a_journal_of_anything_is_read_into_entries_or_findings(
    values: list[Any], tail: bytes
) -> None:
    with directory() as run:
        (run / ".ckpt").mkdir()
        entries = [{"sequence": each, "at": each, "verb": "publish", "changes": each, "by": ""}
                   for each in values]  # fmt: skip
        text = b"".join(reflog._line(each) for each in strict(entries))
        reflog.reflog_path(run).write_bytes(text + tail)
        journal = reflog.read(run)
        assert journal.entries == ()
        assert bool(journal.findings) is bool(text + tail.strip(b"\n"))


def strict(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that strict JSON can hold, which is all that a journal's lines can be."""
    texts = [(each, json.dumps(each)) for each in entries]
    return [each for each, text in texts if "NaN" not in text and "Infinity" not in text]


# ---- json -------------------------------------------------------------------------------------


@SHORT
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_value_or_one_of_two_errors(data: bytes) -> None:
    for parse in (jsontext.parse, jsontext.parse_table):
        message = "x: "
        try:
            parse(data, path="x")
        except (TornRead, DuplicateKey) as refused:
            message = refused.message
        assert message.startswith("x: ")
