"""Statistics of a checkpoint's tensors, in constant memory however large they are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Finding, Tensor, TensorStats
from ckpt.operation import Found, Operation, Progress
from ckpt.tensors.payload import (
    Payload,
    Place,
    Stretch,
    by_file,
    changed,
    cut,
    flaw,
    has_changed,
    jobs_of,
    moved,
    not_decoded,
    unreadable,
)
from ckpt.tensors.values import stats_finding

if TYPE_CHECKING:
    from ckpt.numbers.decoding import Scratch
    from ckpt.numbers.sums import Sums
    from ckpt.tensors.working import Workers


def stats(
    checkpoint: Checkpoint,
    tensors: Iterable[Tensor] | None = None,
    *,
    places: Sequence[Place] = (),
) -> Operation[Mapping[Tensor, TensorStats]]:
    """Read tensors of a checkpoint, by default all, and tell what their values are like.

    `places` are the directories that its files lie in; by default what its path says. Nothing is
    raised for what cannot be read: such a tensor's statistics say why. What is not finite is also
    yielded as it is found.
    """
    from ckpt.tensors.working import Workers

    chosen = tuple(checkpoint.tensors if tensors is None else tensors)
    reading = _Reading(sum(tensor.size_bytes for tensor in chosen))
    told: set[Finding] = set()
    with Payload(checkpoint, places) as payload, Workers() as workers:
        for file, inside in by_file(chosen).items():
            yield from _of_file(payload, file, inside, workers, reading)
            for tensor in inside:
                finding = stats_finding(tensor, reading.found[tensor])
                if finding is not None and finding not in told:
                    told.add(finding)
                    yield Found(finding)
    return {tensor: reading.found[tensor] for tensor in chosen}


@dataclass(slots=True)
class _Reading:
    """How far a reading is, and what it has found."""

    total_bytes: int
    done_bytes: int = 0
    found: dict[Tensor, TensorStats] = field(default_factory=dict)

    def give_up(self, tensors: Iterable[Tensor], problem: Finding) -> None:
        """Nothing can be said of these."""
        for tensor in tensors:
            self.found[tensor] = TensorStats(problem=problem)


def _of_file(
    payload: Payload, name: str, tensors: Sequence[Tensor], workers: "Workers", reading: _Reading
) -> Operation[None]:
    try:
        file = payload.open(name)
    except OSError as error:
        reading.give_up(tensors, unreadable(error, name))
        return
    with file:
        try:
            gone = moved(file, tensors, name)
        except OSError as error:
            reading.give_up(tensors, unreadable(error, name))
            return
        reading.give_up(gone, changed(name))
        yield from _measure_all(
            file, [each for each in tensors if each not in gone], workers, reading
        )
        if has_changed(file):
            reading.give_up(tensors, changed(name))


def _measure_all(
    file: fs.File, tensors: Sequence[Tensor], workers: "Workers", reading: _Reading
) -> Operation[None]:
    from ckpt.numbers.decoding import is_decoded
    from ckpt.numbers.sums import Sums

    sums: dict[Tensor, Sums] = {}
    for tensor in tensors:
        problem = flaw(tensor, file)
        if problem is None and not is_decoded(tensor.dtype):
            problem = not_decoded(tensor)
        if problem is None:
            sums[tensor] = Sums()
        else:
            reading.give_up([tensor], problem)

    def measure(job: Sequence[Stretch], scratch: "Scratch") -> "list[Sums | Finding]":
        return [_measure(file, stretch, scratch) for stretch in job]

    for job, results in workers.each(jobs_of(sums), measure):
        for stretch, result in zip(job, results, strict=True):
            if isinstance(result, Finding):
                reading.give_up([stretch.tensor], result)
            else:
                sums[stretch.tensor].join(result)
            reading.done_bytes += stretch.end - stretch.start
        yield Progress(reading.done_bytes, reading.total_bytes, job[-1].tensor.name)
    for tensor, each in sums.items():
        reading.found.setdefault(tensor, each.stats())


def _measure(file: fs.File, stretch: Stretch, scratch: "Scratch") -> "Sums | Finding":
    """Read one stretch, block by block."""
    from ckpt.numbers.decoding import block_bytes, decode
    from ckpt.numbers.sums import Sums

    sums = Sums()
    tensor = stretch.tensor
    memory = scratch.raw.data
    step = block_bytes(tensor.dtype)
    try:
        for start in range(stretch.start, stretch.end, step):
            size = min(step, stretch.end - start)
            if file.read_into([memory[:size]], start) < size:
                return cut(tensor)
            sums.take(decode(tensor.dtype, scratch.raw[:size], scratch.words), scratch)
    except OSError as error:
        return unreadable(error, tensor.file)
    return sums
