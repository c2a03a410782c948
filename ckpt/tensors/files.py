"""Files of two checkpoints that hold no tensors we can read: whether their bytes are the same.

An optimizer's pickle is compared and never loaded. Imports numpy, as `decoding` does.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Finding
from ckpt.numbers.decoding import Scratch
from ckpt.tensors.deltas import are_same
from ckpt.tensors.payload import JOB_BYTES, Payload, changed, has_changed, unreadable
from ckpt.tensors.working import Workers


@dataclass(slots=True)
class OtherFiles:
    """The files without tensors, by name, and what is known of them.

    `differing` has the sizes on both sides of each that differs, None where it is not there.
    """

    sizes: dict[str, tuple[int | None, int | None]]
    differing: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    problems: dict[str, Finding] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """How much there is to read."""
        return sum(2 * (size or 0) for size, other in self.sizes.values() if size == other)

    def read(self, a: Payload, b: Payload, workers: Workers) -> Iterator[tuple[str, int]]:
        """Compare each file; yield its name and how many bytes more have been compared."""
        for name, (size, size_after) in self.sizes.items():
            if size is None or size != size_after:
                self.differing[name] = size, size_after
                continue
            for compared in self._compare(name, size, (a, b), workers):
                yield name, 2 * compared

    def _compare(
        self, name: str, size: int, payloads: tuple[Payload, Payload], workers: Workers
    ) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(payload.open(name)) for payload in payloads]
            except OSError as error:
                self.problems[name] = unreadable(error, name)
                return

            def compare(start: int, scratch: Scratch) -> bool | Finding:
                return _are_same(files, start, min(start + JOB_BYTES, size), scratch)

            for start, result in workers.each(range(0, size, JOB_BYTES), compare):
                if isinstance(result, Finding):
                    self.problems[name] = result
                elif not result:
                    self.differing[name] = size, size
                yield min(JOB_BYTES, size - start)
            if any(map(has_changed, files)):
                self.problems[name] = changed(name)


def other_files(a: Checkpoint, b: Checkpoint, known: Collection[str]) -> OtherFiles:
    """Return the files of either checkpoint that are not `known` for their tensors."""
    before, after = (
        {entry.name: entry.size_bytes for entry in each.files if entry.size_bytes is not None}
        for each in (a, b)
    )
    names = [name for name in dict.fromkeys((*before, *after)) if name not in known]
    return OtherFiles({name: (before.get(name), after.get(name)) for name in names})


def _are_same(files: list[fs.File], start: int, end: int, scratch: Scratch) -> bool | Finding:
    step = scratch.raw.size
    memories = (scratch.raw, scratch.beside.raw)
    for at in range(start, end, step):
        size = min(step, end - at)
        for file, memory in zip(files, memories, strict=True):
            try:
                count = file.read_into([memory.data[:size]], at)
            except OSError as error:
                return unreadable(error, file.path.rpartition("/")[2])
            if count < size:
                return changed(file.path.rpartition("/")[2])
        if not are_same(memories[0][:size], memories[1][:size]):
            return False
    return True
