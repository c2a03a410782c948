"""Reading a file into memory piece by piece: each byte where it belongs, each wrong one found."""

import hashlib
import random
from pathlib import Path

import pytest

from ckpt import fs

pytest.importorskip("torch")
from blake3 import blake3

from ckpt.torch import filling
from ckpt.torch.filling import Recorded, Segment, fill

pytestmark = pytest.mark.torch
SIZES = (13, 0, 1, 7, 64, 0, 3, 500, 1, 1, 0, 129)
CHUNK_BYTES = 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred bytes cross many blocks."""
    monkeypatch.setattr(filling, "BLOCK_BYTES", 16)


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    content = random.Random(5).randbytes(sum(SIZES))
    (tmp_path / "file").write_bytes(content)
    return content


def recorded(data: bytes, kind: str) -> Recorded:
    if kind == "nothing":
        return Recorded()
    sha256 = hashlib.sha256(data).hexdigest()
    if kind == "sha256":
        return Recorded(sha256)
    starts = range(0, len(data), CHUNK_BYTES)
    chunks = [blake3(data[at : at + CHUNK_BYTES]).hexdigest() for at in starts]
    return Recorded(sha256, CHUNK_BYTES, chunks)


class Placed:
    """Segments of the sizes above, each in memory of its own, every third behind a function."""

    def __init__(self) -> None:
        self.memory = [bytearray(size) for size in SIZES]
        self.segments = []
        at = 0
        for place, memory in enumerate(self.memory):
            target = self.sender(memory) if place % 3 == 2 else memoryview(memory)
            self.segments.append(Segment(str(place), at, at + len(memory), target))
            at += len(memory)

    @staticmethod
    def sender(memory: bytearray) -> filling.Place:
        def send(offset: int, data: memoryview) -> None:
            memory[offset : offset + data.nbytes] = data

        return send

    @property
    def content(self) -> bytes:
        return b"".join(self.memory)


@pytest.mark.parametrize("kind", ["nothing", "sha256", "chunks"])
def test_every_byte_lands_where_it_belongs(tmp_path: Path, data: bytes, kind: str) -> None:
    placed = Placed()
    with fs.File(tmp_path / "file") as file:
        assert fill(file, placed.segments, recorded(data, kind)) == ()
    assert placed.content == data


@pytest.mark.parametrize("at", [0, 49, 50, 333, 718])
def test_a_wrong_byte_is_found_in_its_chunk(tmp_path: Path, data: bytes, at: int) -> None:
    wrong = bytearray(data)
    wrong[at] ^= 4
    (tmp_path / "file").write_bytes(wrong)
    with fs.File(tmp_path / "file") as file:
        (found,) = fill(file, Placed().segments, recorded(data, "chunks"))
        (whole,) = fill(file, Placed().segments, recorded(data, "sha256"))
    start = at // CHUNK_BYTES * CHUNK_BYTES
    assert (found.start, found.end) == (start, min(start + CHUNK_BYTES, 719))
    assert (whole.start, whole.end) == (0, 719)


def test_a_chunk_hash_too_few_or_too_many_is_a_mismatch(tmp_path: Path, data: bytes) -> None:
    full = recorded(data, "chunks")
    for chunks in (full.chunks[:-1], [*full.chunks, "00"]):
        with fs.File(tmp_path / "file") as file:
            (found,) = fill(file, Placed().segments, Recorded(None, CHUNK_BYTES, chunks))
        assert found.message == f"{len(chunks)} chunk hashes are recorded, 15 expected"


@pytest.mark.parametrize("kind", ["nothing", "sha256", "chunks"])
def test_a_file_cut_while_it_is_read_is_said(tmp_path: Path, data: bytes, kind: str) -> None:
    with fs.File(tmp_path / "file") as file:
        (tmp_path / "file").write_bytes(data[:333])
        with pytest.raises(EOFError, match=r"ends at byte 333: cut while it was read"):
            fill(file, Placed().segments, recorded(data, kind))
