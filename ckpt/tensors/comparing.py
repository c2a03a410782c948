"""Two open files side by side: how far the values of the tensors that they share moved.

Imports numpy, as `decoding` does.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ckpt import fs
from ckpt.checkpoint import Finding, Tensor
from ckpt.numbers.decoding import Raw, Scratch, block_bytes, decode, is_decoded
from ckpt.tensors.deltas import Delta, are_same
from ckpt.tensors.pairing import Pair
from ckpt.tensors.payload import JOB_BYTES, changed, cut, flaw, has_changed, unreadable
from ckpt.tensors.working import Workers

_MOST_BLOCKS = 32


class Span(NamedTuple):
    """Blocks of a pair, from `first` to before `end`.

    `is_again`: they are known to be the same on both sides, and only their norm is wanted.
    """

    pair: Pair
    first: int
    end: int
    is_again: bool = False

    @property
    def size_bytes(self) -> int:
        """How many bytes the two sides have."""
        sides = (self.pair.a, self.pair.b)
        return sum(_place(each, self.end - 1)[1] - _place(each, self.first)[0] for each in sides)


@dataclass(slots=True)
class Comparison:
    """Two open files, and what is known of the tensors that they share.

    `problems` says why nothing can be told of a pair; its delta then means nothing.
    """

    a: fs.File
    b: fs.File
    deltas: dict[Pair, Delta] = field(default_factory=dict)
    problems: dict[Pair, Finding] = field(default_factory=dict)
    _same: list[Span] = field(default_factory=list)

    def admit(self, pair: Pair, gone_a: Collection[Tensor], gone_b: Collection[Tensor]) -> None:
        """Take a pair that will be read, unless a file has no such values where they should be."""
        self.deltas[pair] = Delta()
        problem = flaw(pair.a, self.a) or flaw(pair.b, self.b)
        if pair.a in gone_a or pair.b in gone_b:
            problem = changed(pair.a.file if pair.a in gone_a else pair.b.file)
        if problem is not None:
            self.problems[pair] = problem

    def read(self, workers: Workers) -> Iterator[tuple[str, int]]:
        """Read every pair; yield the name of one and how many bytes more have been compared.

        Of a tensor with the same values in places the norm is read at last, when it is known that
        it is wanted: most tensors either move everywhere or not at all.
        """
        whole = (_whole(each) for each in self.deltas if each not in self.problems)
        for job in self._measured(whole, workers):
            yield job[-1].pair.name, sum(span.size_bytes for span in job)
        again = (
            span._replace(is_again=True)
            for span in self._same
            if self.deltas[span.pair].is_different and span.pair not in self.problems
        )
        for job in self._measured(again, workers):
            yield job[-1].pair.name, 0
        for file, names in (
            (self.a, {each: each.a.file for each in self.deltas}),
            (self.b, {each: each.b.file for each in self.deltas}),
        ):
            if has_changed(file):
                self.problems |= {each: changed(name) for each, name in names.items()}

    def _measured(self, spans: Iterable[Span], workers: Workers) -> Iterator[tuple[Span, ...]]:
        """Measure spans, and yield each job whose results are known of."""
        for job, results in workers.each(_jobs(spans), self._measure_all):
            for span, result in zip(job, results, strict=True):
                if isinstance(result, Finding):
                    self.problems.setdefault(span.pair, result)
                    continue
                self.deltas[span.pair].join(result)
                if not result.is_different and not span.is_again:
                    self._same.append(span)
            yield job

    def _measure_all(self, job: Sequence[Span], scratch: Scratch) -> list[Delta | Finding]:
        measure = (self._norm if span.is_again else self._compare for span in job)
        results: list[Delta | Finding] = []
        for span, read in zip(job, measure, strict=True):
            try:
                results.append(read(span, scratch))
            except _NotReadError as error:
                results.append(error.finding)
        return results

    def _compare(self, span: Span, scratch: Scratch) -> Delta:
        """Compare blocks; those that are the same count when others of the span are not."""
        delta = Delta()
        dtype_a, dtype_b = _read_as(span.pair.a.dtype), _read_as(span.pair.b.dtype)
        same = []
        for block in range(span.first, span.end):
            a = _fill(self.a, span.pair.a, block, scratch)
            b = _fill(self.b, span.pair.b, block, scratch.beside)
            if dtype_a == dtype_b and are_same(a, b):
                same.append(block)
            elif is_decoded(dtype_a):
                values = decode(dtype_a, a, scratch.words)
                delta.take(values, decode(dtype_b, b, scratch.beside.words), scratch)
            else:
                delta.is_different = True
        if delta.is_different and is_decoded(dtype_a):
            self._take_same(span, same, delta, scratch)
        return delta

    def _norm(self, span: Span, scratch: Scratch) -> Delta:
        delta = Delta()
        if is_decoded(span.pair.a.dtype):
            self._take_same(span, range(span.first, span.end), delta, scratch)
        return delta

    def _take_same(
        self, span: Span, blocks: Iterable[int], delta: Delta, scratch: Scratch
    ) -> None:
        tensor = span.pair.a
        for block in blocks:
            raw = _fill(self.a, tensor, block, scratch)
            delta.take_same(decode(_read_as(tensor.dtype), raw, scratch.words), scratch)


class _NotReadError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _fill(file: fs.File, tensor: Tensor, block: int, scratch: Scratch) -> Raw:
    """Read a block of a tensor."""
    start, end = _place(tensor, block)
    try:
        count = file.read_into([scratch.raw.data[: end - start]], start)
    except OSError as error:
        raise _NotReadError(unreadable(error, tensor.file)) from error
    if count < end - start:
        raise _NotReadError(cut(tensor))
    return scratch.raw[:count]


def _place(tensor: Tensor, block: int) -> tuple[int, int]:
    step = block_bytes(_read_as(tensor.dtype))
    start = tensor.start + block * step
    return start, min(start + step, tensor.end)


def _read_as(dtype: str) -> str:
    """A complex number moves as its parts do."""
    return "F32" if dtype == "C64" else dtype


def _whole(pair: Pair) -> Span:
    return Span(pair, 0, -(-pair.a.size_bytes // block_bytes(_read_as(pair.a.dtype))))


def _jobs(spans: Iterable[Span]) -> Iterator[tuple[Span, ...]]:
    """Cut spans into jobs of about equal size, as `payload.jobs_of` does."""
    job: list[Span] = []
    size = 0
    for span in spans:
        for first in range(span.first, span.end, _MOST_BLOCKS):
            part = span._replace(first=first, end=min(first + _MOST_BLOCKS, span.end))
            job.append(part)
            size += part.size_bytes
            if size >= JOB_BYTES:
                yield tuple(job)
                job, size = [], 0
    if job:
        yield tuple(job)
