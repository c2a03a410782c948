"""KT checkpoints of tensors filled with one byte, saved and read back whole."""

from collections.abc import Callable
from pathlib import Path

from ckpt.checkpoint import Severity
from ckpt.formats.kt_full import KtFull
from ckpt.formats.kt_write import index_text, write_shard
from ckpt.generations.kt import publish_kt
from ckpt.operation import drive
from ckpt.tensorwriter import Buffer

EXPERTS, INNER, HIDDEN = 2, 3, 4
OLD = "0" * 31 + "a"


def layer_buffers(
    value: int, shape: tuple[int, int, int] = (EXPERTS, INNER, HIDDEN)
) -> list[Buffer]:
    experts, intermediate, hidden = shape
    data = memoryview(bytes([value]) * (experts * intermediate * hidden * 2))
    return [
        ("gate_proj", "BF16", (experts, intermediate, hidden), data),
        ("up_proj", "BF16", (experts, intermediate, hidden), data),
        ("down_proj", "BF16", (experts, hidden, intermediate), data),
    ]


def writer(value: int, layers: tuple[int, ...] = (0, 1)) -> Callable[[Path, str], bytes]:
    def write(directory: Path, generation: str) -> bytes:
        shards = [
            write_shard(directory, generation, each, layer_buffers(value)) for each in layers
        ]
        return index_text(generation, shards)

    return write


def save(run: Path, value: int, layers: tuple[int, ...] = (0, 1)) -> str:
    swapped = drive(publish_kt(run / "checkpoint-6", writer(value, layers), run_dir=run))
    (change,) = swapped.changes
    assert change.after is not None
    return change.after


def live_value(directory: Path) -> int:
    """The byte that every tensor of the live generation is filled with; checks all of it."""
    seen = KtFull().read(directory)
    errors = [each for each in seen.findings if each.severity is Severity.ERROR]
    assert [each.message for each in errors if each.file != "trainer_state.json"] == []
    values = set()
    for entry in seen.files:
        if entry.listed:
            values.update((directory / entry.name).read_bytes()[-EXPERTS * INNER * HIDDEN * 6 :])
    assert len(values) == 1
    return values.pop()
