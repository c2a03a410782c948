"""Comparing by recorded chunks, on all cores: what is hurt, what is proven, who is stopped."""

import errno
import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ckpt import fs
from ckpt.checkpoint import Damage, Depth, Report, Severity, Tensor, Verdict
from ckpt.errors import NoCheckpoint
from ckpt.operation import Found, Progress, drive
from ckpt.verify import Care, ahead, comparing, crew, tally, verify
from ckpt.verify.damage import in_words, joined, located

HEADER, EACH, CHUNK = 1024, 64, 128
NAMES = [f"layers.{at}.up" for at in range(10)]
SIZE = HEADER + EACH * len(NAMES)


def model_bytes() -> bytearray:
    """Ten tensors of 64 bytes each behind a header of 1,024 bytes: two of them in every chunk."""
    fields = {
        name: {"dtype": "F32", "shape": [16], "data_offsets": [EACH * at, EACH * at + EACH]}
        for at, name in enumerate(NAMES)
    }
    text = json.dumps(fields).encode().ljust(HEADER - 8)
    return bytearray(struct.pack("<Q", len(text)) + text + bytes(range(256)) * 2 + bytes(128))


def put_chunked(directory: Path, model: bytes, chunk_bytes: int = CHUNK) -> Path:
    """An AstrAI directory whose manifest records chunk hashes of every file."""
    files = {
        "config.json": b"{}",
        "meta.json": b'{"epoch": 0, "optimizer_step": 7}',
        "model.safetensors": bytes(model),
    }
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    chunks = {
        name: [
            blake3(data[at : at + chunk_bytes]).hexdigest()
            for at in range(0, len(data), chunk_bytes)
        ]
        for name, data in files.items()
    }
    manifest = {
        "format_version": 1, "created_at": None, "optimizer_step": 7, "policy_version": None,
        "tensors": sorted(NAMES), "files": listed,
        "ckpt": {"v": 1, "generation": "00112233aabb", "parent": None, "slot": directory.name,
                 "chunk_bytes": chunk_bytes, "chunks": chunks},
    }  # fmt: skip
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def change_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((path / "manifest.json").read_bytes())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path, *places: int) -> None:
    model = path / "model.safetensors"
    content = bytearray(model.read_bytes())
    for place in places:
        content[place] ^= 1
    model.write_bytes(content)


def told(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in report.findings]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return put_chunked(tmp_path / "step_7", model_bytes())


@pytest.fixture(params=["one thread", "threads", "ahead"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in the caller's thread, in several with a few chunks a time, in two for one file."""
    if request.param == "one thread":
        return
    monkeypatch.setattr(crew, "ALONE_BYTES", 0)
    monkeypatch.setattr(crew, "_cores", lambda: 4 if request.param == "threads" else 64)
    monkeypatch.setattr(comparing, "STRETCH_BYTES", 2 * CHUNK)
    if request.param == "ahead":
        monkeypatch.setattr(crew, "BLOCK_BYTES", 48)
        monkeypatch.setattr(ahead, "BUFFER_BYTES", 100)


# ---- what is hurt -----------------------------------------------------------------------------


@pytest.mark.usefixtures("cores")
def test_an_intact_one_is_read_once_and_by_chunks_alone(good: Path) -> None:
    change_manifest(good, lambda it: it["files"]["model.safetensors"].update(sha256="0" * 64))
    report = drive(verify(good))
    assert (report.verdict, told(report), report.damage) == (Verdict.INTACT, [], ())
    assert report.bytes_read == SIZE + 2 + 33


@pytest.mark.usefixtures("cores")
def test_the_hash_of_the_whole_file_is_compared_when_asked_for(good: Path) -> None:
    assert drive(verify(good, care=Care(with_sha256=True))).verdict is Verdict.INTACT
    found = hashlib.sha256(model_bytes()).hexdigest()
    change_manifest(good, lambda it: it["files"]["model.safetensors"].update(sha256="0" * 64))
    report = drive(verify(good, care=Care(with_sha256=True)))
    words = f"model.safetensors: sha256 is {found[:12]}…, recorded is 000000000000…"
    assert (report.verdict, told(report)) == (Verdict.DAMAGED, [("hash-mismatch", words)])


HURT = [
    (
        [HEADER + 3 * EACH + 5],
        (
            "bytes 1,152 to 1,279: layers.2.up, layers.3.up, 2 of 10 tensors; "
            "the other 8 are proven good"
        ),
        Damage("model.safetensors", ((1152, 1280),), ("layers.2.up", "layers.3.up"), 10, 8),
    ),
    (
        [SIZE - 1, HEADER],
        (
            "bytes 1,024 to 1,151 and 1 more place: layers.0.up, layers.1.up, layers.8.up "
            "and 1 more, 4 of 10 tensors; the other 6 are proven good"
        ),
        Damage(
            "model.safetensors",
            ((1024, 1152), (1536, 1664)),
            ("layers.0.up", "layers.1.up", "layers.8.up", "layers.9.up"),
            10,
            6,
        ),
    ),
    (
        list(range(HEADER, SIZE, CHUNK)),
        "bytes 1,024 to 1,663: layers.0.up, layers.1.up, layers.2.up and 7 more, 10 of 10 tensors",
        Damage("model.safetensors", ((1024, 1664),), tuple(NAMES), 10, 0),
    ),
]


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(("places", "words", "damage"), HURT)
@pytest.mark.parametrize("care", [Care(), Care(with_sha256=True)], ids=["chunks", "sha256 too"])
def test_damage_names_the_tensors_it_hurts_and_how_many_are_proven_good(
    good: Path, places: list[int], words: str, damage: Damage, care: Care
) -> None:
    flip(good, *places)
    report = drive(verify(good, care=care))
    message = f"model.safetensors: not what was recorded: {words}"
    assert (report.verdict, told(report)) == (Verdict.DAMAGED, [("hash-mismatch", message)])
    assert report.damage == (damage,)


def test_the_only_tensor_hurt_is_that_of_the_finding(tmp_path: Path) -> None:
    path = put_chunked(tmp_path / "step_7", model_bytes(), EACH)
    flip(path, HEADER + 3 * EACH)
    report = drive(verify(path))
    assert [finding.tensor for finding in report.findings] == ["layers.3.up"]
    assert "layers.3.up, 1 of 10 tensors; the other 9 are proven good" in told(report)[0][1]


def test_where_the_header_is_hurt_no_tensor_is_proven_good(good: Path) -> None:
    model = good / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[HEADER - 1 : HEADER] = b"\n"  # a blank behind the last brace
    model.write_bytes(content)
    report = drive(verify(good))
    assert told(report) == [
        (
            "hash-mismatch",
            (
                "model.safetensors: not what was recorded: bytes 896 to 1,023: "
                "the header lies there, so that no tensor is proven good"
            ),
        )
    ]
    assert report.damage == (Damage("model.safetensors", ((896, 1024),), (), 10, 0),)


def test_a_file_without_tensors_tells_its_bytes(good: Path) -> None:
    (good / "meta.json").write_text('{"epoch": 1, "optimizer_step": 7}')
    words = "meta.json: not what was recorded: bytes 0 to 32"
    assert told(drive(verify(good))) == [("hash-mismatch", words)]


def test_without_chunk_hashes_the_whole_file_is_hurt_and_nothing_is_proven(good: Path) -> None:
    change_manifest(good, lambda it: it.pop("ckpt"))
    flip(good, HEADER)
    report = drive(verify(good))
    assert report.damage == (
        Damage("model.safetensors", ((0, SIZE),), (), 10, 0, is_located=False),
    )


def test_all_files_that_are_hurt_are_told_in_their_order(good: Path) -> None:
    flip(good, HEADER)
    (good / "meta.json").write_text('{"epoch": 1, "optimizer_step": 7}')
    (good / "config.json").write_text("[]")
    report = drive(verify(good))
    files = [finding.file for finding in report.findings if finding.code == "hash-mismatch"]
    assert files == ["config.json", "meta.json", "model.safetensors"]
    assert [damage.file for damage in report.damage] == files


# ---- records that are wrong themselves --------------------------------------------------------


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("care", [Care(), Care(with_sha256=True)], ids=["chunks", "sha256 too"])
def test_chunk_hashes_of_another_file_are_no_damage_where_the_whole_hash_fits(
    good: Path, care: Care
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["ckpt"]["chunks"]["model.safetensors"][2] = "0" * 64

    change_manifest(good, change)
    report = drive(verify(good, care=care))
    assert (report.verdict, [each.code for each in report.findings], report.damage) == (
        Verdict.INTACT,
        ["stale-chunks"],
        (),
    )
    assert report.findings[0].severity is Severity.WARNING


@pytest.mark.parametrize("hashes", [["0" * 64], ["no hash"] * 13, ["0" * 64] * 14])
def test_chunk_hashes_that_cannot_be_those_of_the_file_are_not_used(
    good: Path, hashes: list[str]
) -> None:
    change_manifest(good, lambda it: it["ckpt"]["chunks"].update({"model.safetensors": hashes}))
    report = drive(verify(good))
    assert (report.verdict, [each.code for each in report.findings]) == (
        Verdict.INTACT,
        ["stale-chunks"],
    )
    flip(good, HEADER)
    assert drive(verify(good)).verdict is Verdict.DAMAGED


def test_upper_case_chunk_hashes_are_the_same_hashes(good: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for name, hashes in manifest["ckpt"]["chunks"].items():
            manifest["ckpt"]["chunks"][name] = [each.upper() for each in hashes]

    change_manifest(good, change)
    assert told(drive(verify(good))) == []


def test_chunks_of_any_size_are_compared(tmp_path: Path) -> None:
    for size in (1, 127, SIZE - 1, SIZE, SIZE + 1, 1 << 62):
        path = put_chunked(tmp_path / str(size), model_bytes(), size)
        assert told(drive(verify(path))) == []
        flip(path, SIZE - 1)
        assert [each.code for each in drive(verify(path)).findings] == ["hash-mismatch"]


# ---- what happens while it is read ------------------------------------------------------------


def at_read(act: Callable[[fs.Call], object], *, number: int = 1) -> Callable[[fs.Call], None]:
    """A hook that acts at one of the reads of the model's content, in whichever thread."""
    seen = []

    def hook(call: fs.Call) -> None:
        if call.name == "read" and "/proc/" in call.path and call.path.endswith("safetensors"):
            seen.append(call)
            if len(seen) == number:
                act(call)

    return hook


@pytest.mark.usefixtures("cores")
def test_a_file_cut_while_it_is_read_is_said_so(good: Path) -> None:
    hook = at_read(lambda _: os.truncate(good / "model.safetensors", 10))
    with fs.hooked(hook):
        report = drive(verify(good))
    assert [each.code for each in report.findings] == ["changed-while-reading"]
    assert "cut from 1664 to 10 bytes while it was read" in report.findings[0].message
    assert (report.verdict, report.damage) == (Verdict.DAMAGED, ())


@pytest.mark.usefixtures("cores")
def test_a_file_replaced_while_it_is_read_is_said_so(good: Path) -> None:
    def act(_: fs.Call) -> None:
        (good / "new").write_bytes(model_bytes())
        os.replace(good / "new", good / "model.safetensors")

    with fs.hooked(at_read(act)):
        report = drive(verify(good))
    assert told(report) == [
        ("changed-while-reading", "model.safetensors: replaced or removed while it was read")
    ]


@pytest.mark.usefixtures("cores")
def test_a_bad_place_on_the_disk_hurts_the_tensors_there_and_no_others(good: Path) -> None:
    def refuse(call: fs.Call) -> None:
        raise OSError(errno.EIO, "Input/output error", call.path)

    with fs.hooked(at_read(refuse, number=13)):
        report = drive(verify(good))
    [finding] = report.findings
    assert (finding.code, report.verdict) == ("unreadable-file", Verdict.DAMAGED)
    assert "cannot be read: Input/output error" in finding.message
    [damage] = report.damage
    (((start, end),), hurt) = damage.ranges, damage.tensors
    assert end - start == CHUNK
    assert damage.proven_count == (10 - len(hurt) if start >= HEADER else 0)


@pytest.mark.usefixtures("cores")
def test_what_interrupts_a_reading_is_raised_and_leaves_no_thread(good: Path) -> None:
    def interrupt(_: fs.Call) -> None:
        raise KeyboardInterrupt

    with fs.hooked(at_read(interrupt, number=3)), pytest.raises(KeyboardInterrupt):
        drive(verify(good))
    assert workers() == []


@pytest.mark.parametrize("most", [0, 1])
@pytest.mark.usefixtures("cores")
def test_where_no_thread_can_be_started_the_others_do_it(
    good: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) >= most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert drive(verify(good)).verdict is Verdict.INTACT
    flip(good, HEADER)
    assert drive(verify(good)).verdict is Verdict.DAMAGED
    assert workers() == []


def test_closing_leaves_no_thread_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "ALONE_BYTES", 0)
    path = put_chunked(tmp_path / "step_7", model_bytes() + bytes(8 << 20), 1 << 16)
    operation = verify(path)
    seen = next(event for event in operation if isinstance(event, Progress))
    assert seen.total is not None
    operation.close()
    assert workers() == []
    assert [fd for fd in os.listdir("/proc/self/fd") if "step_7" in target(fd)] == []


def target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ckpt-verify"]


def test_a_slow_disk_gives_signs_of_life(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "ALONE_BYTES", 0)
    monkeypatch.setattr(crew, "TELL_EVERY_S", 0.001)
    monkeypatch.setattr(tally, "TELL_EVERY_S", 0.0)
    is_alive = threading.Event()
    with fs.hooked(at_read(lambda _: is_alive.wait(20))):

        def on_event(event: object) -> None:
            if isinstance(event, Progress) and event.done > 0:
                is_alive.set()

        assert drive(verify(good), on_event).verdict is Verdict.INTACT
    assert is_alive.is_set()


@pytest.mark.usefixtures("cores")
def test_findings_are_told_as_they_come_and_all_are_in_the_report(good: Path) -> None:
    flip(good, HEADER)
    (good / "meta.json").write_text('{"epoch": 1, "optimizer_step": 7}')
    seen = []
    report = drive(
        verify(good), lambda event: isinstance(event, Found) and seen.append(event.finding)
    )
    assert len(seen) == len(report.findings) == 2
    assert set(seen) == set(report.findings)


@pytest.mark.usefixtures("cores")
def test_what_was_read_is_dropped_from_the_cache_on_request(good: Path) -> None:
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        drive(verify(good))
    assert [call for call in calls if call.name == "advise"] == []
    with fs.hooked(calls.append):
        assert drive(verify(good, care=Care(is_polite=True))).verdict is Verdict.INTACT
    assert {Path(call.path).name for call in calls if call.name == "advise"} == {
        "config.json",
        "meta.json",
        "model.safetensors",
    }


@pytest.mark.usefixtures("cores")
def test_a_fault_at_any_call_hides_no_byte(good: Path) -> None:
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        whole = drive(verify(good))
    for at in range(len(calls)):
        seen: list[fs.Call] = []

        def fail(call: fs.Call, at: int = at, seen: list[fs.Call] = seen) -> None:
            seen.append(call)
            if len(seen) == at + 1:
                raise OSError(errno.EIO, "Input/output error", call.path)

        try:
            with fs.hooked(fail):
                report = drive(verify(good))
        except NoCheckpoint:
            continue
        if report.verdict is Verdict.INTACT:
            assert (report.bytes_read, report.findings) == (whole.bytes_read, ()), calls[at]


def test_headers_alone_read_no_content(good: Path) -> None:
    flip(good, HEADER)
    report = drive(verify(good, Depth.HEADERS))
    assert (report.verdict, report.bytes_read, report.damage) == (Verdict.UNVERIFIABLE, 0, ())


# ---- from ranges to tensors -------------------------------------------------------------------


def tensor(name: str, start: int, end: int) -> Tensor:
    return Tensor(name, "U8", (end - start,), end - start, "m", start, end)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], ()),
        ([(5, 9), (0, 5)], ((0, 9),)),
        ([(5, 9), (0, 4)], ((0, 4), (5, 9))),
        ([(0, 9), (2, 3)], ((0, 9),)),
    ],
)
def test_ranges_that_touch_are_one(
    ranges: list[tuple[int, int]], expected: tuple[tuple[int, int], ...]
) -> None:
    assert joined(ranges) == expected


@pytest.mark.parametrize(
    ("ranges", "hurt", "proven"),
    [
        ([(10, 11)], ("a",), 2),
        ([(19, 20)], ("a",), 2),
        ([(19, 21)], ("a", "b"), 1),
        ([(20, 30)], ("b",), 2),
        ([(30, 40)], (), 3),
        ([(9, 10)], (), 0),
        ([(9, 11)], ("a",), 0),
        ([(10, 12), (29, 40)], ("a", "b"), 1),
    ],
)
def test_a_tensor_is_hurt_when_one_of_its_bytes_is(
    ranges: list[tuple[int, int]], hurt: tuple[str, ...], proven: int
) -> None:
    tensors = [tensor("a", 10, 20), tensor("empty", 20, 20), tensor("b", 20, 30)]
    assert located("m", ranges, tensors) == Damage("m", joined(ranges), hurt, 3, proven)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Damage("m", ((0, 1024),)), "bytes 0 to 1,023"),
        (
            Damage("m", ((64, 128),), ("layers.17.mlp.up_proj",), 2, 1),
            "bytes 64 to 127: layers.17.mlp.up_proj, 1 of 2 tensors; the other 1 is proven good",
        ),
        (
            Damage("m", ((64, 128),), (), 2, 2),
            "bytes 64 to 127: no tensor lies there; all 2 are proven good",
        ),
        (Damage("m", ((0, 9),), ("a",), 1, 0), "bytes 0 to 8: a, 1 of 1 tensor"),
    ],
)
def test_damage_in_words(damage: Damage, words: str) -> None:
    assert in_words(damage) == words
