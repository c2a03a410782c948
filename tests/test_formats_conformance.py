"""What every format must do, run over a clean sample of each and over its damage."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import SAMPLES, Sample

from ckpt import fs
from ckpt.checkpoint import Depth, Finding, Report, Severity, Verdict
from ckpt.errors import CheckpointError, NoCheckpoint, TornRead
from ckpt.formats import FORMATS, format_of, inspect
from ckpt.operation import drive
from ckpt.verify import verify

NAMES = [f"{place}-{sample.format}" for place, sample in enumerate(SAMPLES)]
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)


def errors(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]


def each_file(sample: Sample, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Make the sample anew for every file of it: (checkpoint, that file)."""
    for place in range(len(files_of(sample.make(tmp_path)))):
        parent = tmp_path / str(place)
        parent.mkdir()
        path = sample.make(parent)
        yield path, files_of(path)[place]


def is_noticed(checkpoint: Path, depth: Depth) -> bool:
    """Whether damage is noticed at that depth, as a finding or as an error of our own."""
    try:
        if depth is Depth.BYTES:
            return drive(verify(checkpoint, depth)).verdict is Verdict.DAMAGED
        return bool(errors(inspect(checkpoint, depth).findings))
    except CheckpointError:
        return True


def header_size(path: Path) -> int:
    return 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]


def test_every_format_has_a_sample() -> None:
    assert {sample.format for sample in SAMPLES} == {each.name for each in FORMATS}


@each_sample
def test_a_clean_sample_is_its_formats_and_has_no_fault(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    claimed_by = format_of(path)
    assert claimed_by is not None
    assert claimed_by.name == sample.format
    assert {finding.severity for finding in inspect(path).findings} <= {Severity.NOTE}
    report = drive(verify(path, Depth.BYTES))
    assert report.verdict is (Verdict.INTACT if sample.hashed else Verdict.UNVERIFIABLE)


@each_sample
def test_a_lesser_depth_never_pretends(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    for depth in (Depth.NAMES, Depth.HEADERS):
        report = drive(verify(path, depth))
        assert report.verdict is Verdict.UNVERIFIABLE
        assert errors(report.findings) == []


@each_sample
def test_reading_opens_headers_and_json_and_no_payload(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    allowed = {
        str(file): header_size(file) if file.suffix == ".safetensors" else file.stat().st_size
        for file in files_of(path)
    }
    asked: dict[str, int] = {}

    def count(call: fs.Call) -> None:
        if call.name == "read":
            asked[call.path] = asked.get(call.path, 0) + call.size_bytes

    with fs.hooked(count):
        inspect(path)
        format_of(path).glance(path)
    weights = {name: size for name, size in asked.items() if name.endswith(".safetensors")}
    assert bool(weights) is any(name.endswith(".safetensors") for name in allowed)
    assert {name: size for name, size in weights.items() if size > 2 * allowed[name]} == {}
    assert not any(name.endswith((".pt", ".pth", ".bin")) for name in asked)


@each_sample
def test_a_glance_agrees_with_a_reading(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    glance, checkpoint = format_of(path).glance(path), inspect(path)
    assert (glance.step, glance.epoch, glance.complete, glance.generation) == (
        checkpoint.step,
        checkpoint.epoch,
        checkpoint.complete,
        checkpoint.generation,
    )
    assert glance.size_bytes == checkpoint.size_bytes
    assert glance.tensor_count in (None, len(checkpoint.tensors))


@each_sample
def test_a_missing_file_is_noticed_by_its_name(sample: Sample, tmp_path: Path) -> None:
    for path, victim in each_file(sample, tmp_path):
        victim.unlink()
        if victim.name in sample.optional:
            assert drive(verify(path)).verdict is Verdict.UNVERIFIABLE
        else:
            assert is_noticed(path, Depth.NAMES), victim.name


@each_sample
def test_a_file_cut_by_a_byte_is_noticed(sample: Sample, tmp_path: Path) -> None:
    for path, victim in each_file(sample, tmp_path):
        victim.write_bytes(victim.read_bytes().rstrip()[:-1])
        assert is_noticed(path, Depth.HEADERS), victim.name


@each_sample
def test_an_emptied_file_is_noticed(sample: Sample, tmp_path: Path) -> None:
    for path, victim in each_file(sample, tmp_path):
        victim.write_bytes(b"")
        assert is_noticed(path, Depth.HEADERS), victim.name


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.hashed], ids=[s.format for s in SAMPLES if s.hashed]
)
def test_a_flipped_byte_of_a_hashed_file_is_noticed_by_its_name(
    sample: Sample, tmp_path: Path
) -> None:
    flipped = 0
    for path, victim in each_file(sample, tmp_path):
        hashed = {entry.name for entry in inspect(path).files if entry.sha256}
        if victim.name not in hashed:
            continue
        content = bytearray(victim.read_bytes())
        content[-1] ^= 1
        victim.write_bytes(content)
        report: Report = drive(verify(path))
        assert report.verdict is Verdict.DAMAGED
        assert victim.name in {finding.file for finding in errors(report.findings)}
        flipped += 1
    assert flipped >= 3


@each_sample
def test_a_flipped_bit_of_a_header_is_noticed(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    for victim in files_of(path):
        if victim.suffix != ".safetensors":
            continue
        content = victim.read_bytes()
        for at in (0, 3, 7, *range(8, header_size(victim), 23)):
            flipped = bytearray(content)
            flipped[at] ^= 0x80  # no header text is UTF-8 then
            victim.write_bytes(flipped)
            assert is_noticed(path, Depth.HEADERS), (victim.name, at)
        victim.write_bytes(content)
    assert errors(inspect(path).findings) == []


@each_sample
def test_half_a_json_is_a_finding_or_a_torn_read(sample: Sample, tmp_path: Path) -> None:
    for path, victim in each_file(sample, tmp_path):
        if victim.suffix != ".json":
            continue
        content = victim.read_bytes()
        for part in (
            b"",
            b"{",
            content[: len(content) // 2],
            b"[" * 100_000,
            b"null",
            b"3",
            b"[]",
        ):
            victim.write_bytes(part)
            try:
                found = errors(inspect(path).findings)
            except (TornRead, NoCheckpoint):
                continue
            assert found, (victim.name, part[:10])


EVIL = ("../evil.safetensors", "/etc/hostname", "a/b.safetensors", "..", ".", "", "x\0y")


def replace_name(value: object, old: str, new: str) -> object:
    """Replace a file name wherever it stands in a JSON value, as a key or as a value."""
    if isinstance(value, dict):
        return {new if key == old else key: replace_name(v, old, new) for key, v in value.items()}
    if isinstance(value, list):
        return [replace_name(item, old, new) for item in value]
    return new if value == old else value


LISTS = [
    (0, "manifest.json", "model.safetensors"),
    (2, "kt_full_experts.index.json", None),
    (4, "kt_adapter_manifest.json", "fused_expert_lora.safetensors"),
    (8, "model.safetensors.index.json", "model-00001-of-00002.safetensors"),
]


@pytest.mark.parametrize("evil", EVIL, ids=ascii)
@pytest.mark.parametrize(("place", "listing", "name"), LISTS, ids=[row[1] for row in LISTS])
def test_a_name_that_leaves_the_directory_is_a_finding_and_is_never_opened(
    tmp_path: Path, place: int, listing: str, name: str | None, evil: str
) -> None:
    path = SAMPLES[place].make(tmp_path)
    content = json.loads((path / listing).read_text())
    if name is None:
        name = content["layers"]["0"]["file"]
    (path / listing).write_text(json.dumps(replace_name(content, name, evil)))
    (tmp_path / "evil.safetensors").write_bytes(b"outside")
    touched: list[str] = []
    with fs.hooked(lambda call: touched.append(call.path)):
        codes = {finding.code for finding in drive(verify(path)).findings}
    assert "bad-entry-name" in codes
    inside = (str(path), "/proc/self/fd/")
    assert touched
    assert [name for name in touched if not name.startswith(inside) or "/../" in name] == []
    assert [name for name in touched if "evil" in name or "b.safetensors" in name] == []


@each_sample
def test_a_path_that_is_not_there_is_no_checkpoint(sample: Sample, tmp_path: Path) -> None:
    path = sample.make(tmp_path)
    gone = path.with_name("gone-" + path.name)
    with pytest.raises(CheckpointError) as caught:
        inspect(gone)
    assert str(gone) in caught.value.message
