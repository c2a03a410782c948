"""A generation that lies among the files of its slot, as KT's shards do: reading and verifying."""

import time

from ckpt.checkpoint import Checkpoint, Depth, Finding, Generation, Report, Tensor, worst_first
from ckpt.errors import NoCheckpoint
from ckpt.formats import format_named
from ckpt.generations.kt_kept import KeptIndices
from ckpt.generations.kt_links import shard_path
from ckpt.generations.kt_slot import kt_slot
from ckpt.generations.payload import look
from ckpt.operation import Found, Operation
from ckpt.tensorfile import read_header
from ckpt.verify import verdict_of


def read_inside(generation: Generation, depth: Depth) -> Checkpoint:
    """Read names, sizes and at `HEADERS` or deeper the headers of such a generation.

    Raises:
        NoCheckpoint: it is not there any more.
    """
    path = generation.path
    format_ = format_named(generation.format)
    slot = kt_slot(path)
    seen = KeptIndices(slot.run_dir).tell(look(path))
    inside = seen.inside.generations
    found = next((each for each in inside if each.id == generation.id), None)
    if format_ is None or found is None:
        raise NoCheckpoint(
            f"{path}: generation {generation.id}: not there any more", path=str(path)
        )
    tensors: list[Tensor] = []
    findings: list[Finding] = []
    if depth is not Depth.NAMES:
        for entry in found.files:
            header = read_header(shard_path(slot, found.id, entry.name), entry.name)
            tensors += header.tensors
            findings += header.findings
    return Checkpoint(
        path,
        format_.name,
        format_.label,
        step=generation.step,
        complete=found.complete,
        files=found.files,
        tensors=tuple(tensors),
        metadata={"generation": found.id, "layers": list(found.layers)},
        findings=worst_first(findings),
        generation=found.id,
    )


def verify_inside(generation: Generation, depth: Depth) -> Operation[Report]:
    """Verify such a generation as deep as can be: its format records no hashes.

    Raises:
        NoCheckpoint: it is not there any more.
    """
    started = time.monotonic()
    seen = read_inside(generation, depth)
    for finding in seen.findings:
        yield Found(finding)
    verdict = verdict_of(seen.findings, is_all_compared=False)
    seconds = time.monotonic() - started
    return Report(seen.path, seen.format, depth, verdict, seen.findings, 0, seconds)
