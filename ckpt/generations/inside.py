"""A generation that lies among the files of its slot, as KT's shards do: reading and verifying."""

from ckpt.checkpoint import Checkpoint, Depth, Finding, Generation, Report, Tensor, worst_first
from ckpt.errors import NoCheckpoint
from ckpt.formats import format_named
from ckpt.generations.kt_kept import KeptIndices
from ckpt.generations.kt_links import shard_path
from ckpt.generations.kt_slot import kt_slot
from ckpt.generations.payload import look
from ckpt.generations.verified import Payload, with_recorded
from ckpt.operation import Operation
from ckpt.tensorfile import read_header
from ckpt.verify import USUAL, Care, Read, Recorded, verify_read


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


def open_inside(generation: Generation, depth: Depth) -> Read:
    """Read such a generation, ready to have its bytes read.

    Raises:
        NoCheckpoint: it is not there any more.
    """
    slot = kt_slot(generation.path)
    seen = read_inside(generation, depth)
    return Read(
        seen,
        lambda name: str(shard_path(slot, generation.id, name)),
        lambda: True,
        is_whole=False,
    )


def verify_inside(
    generation: Generation, depth: Depth, *, care: Care = USUAL, is_recorded: bool = True
) -> Operation[Report]:
    """Verify such a generation: its format records no hashes, but it may have been sealed.

    With `is_recorded` False nothing is written.

    Raises:
        NoCheckpoint: it is not there any more.
    """
    read = open_inside(generation, depth)
    payload = Payload(kt_slot(generation.path).run_dir, generation.id)

    def checking(recorded: Recorded) -> Operation[Report]:
        return verify_read(read, depth, care, recorded)

    return (yield from with_recorded(checking, payload, depth, is_recorded=is_recorded))
