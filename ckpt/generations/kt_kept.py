"""What the kept indices of a run tell of the generations among a slot's shards.

By names alone a generation counts as whole when it has the layers of the live one; its own index,
where it was kept, says which layers it had.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import State
from ckpt.formats.base import InnerGeneration
from ckpt.formats.kt_full import KtFull
from ckpt.formats.kt_index import Index, generation_of
from ckpt.generations.kt_slot import kept_indices, kept_root, kt_slot
from ckpt.generations.payload import Payload


class KeptIndices:
    """The kept indices of one run, read when they may have changed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[Path, tuple[fs.Identity, dict[str, Index]]] = {}

    def tell(self, payload: Payload) -> Payload:
        """Return a payload with what its kept indices say; any but KT's comes back as it is."""
        if payload.format is None or payload.format.name != KtFull.name or payload.glance is None:
            return payload
        kept = self._of(payload.path)
        told = {
            each.id: _told(each, kept[each.id])
            for each in payload.inside.generations
            if each.id in kept and each.state is not State.LIVE
        }
        if not told:
            return payload
        inside = replace(
            payload.inside,
            generations=tuple(told.get(each.id, each) for each in payload.inside.generations),
            leftovers=tuple(
                each
                for each in payload.inside.leftovers
                if each.kind != "partial-generation" or generation_of(each.path.name) not in told
            ),
        )
        findings = tuple(
            each
            for each in payload.glance.findings
            if each.code != "partial-generation" or generation_of(each.file or "") not in told
        )
        return replace(payload, inside=inside, glance=replace(payload.glance, findings=findings))

    def _of(self, path: Path) -> Mapping[str, Index]:
        try:
            if fs.identity(kept_root(self._run_dir)) is None:
                return {}
            slot = kt_slot(path, self._run_dir)
            found = fs.identity(slot.kept)
            if found is None:
                return {}
            known = self._known.get(slot.kept)
            if known is None or known[0] != found:
                known = found, dict(kept_indices(slot))
                self._known[slot.kept] = known
            return known[1]
        except OSError:
            return {}


def _told(generation: InnerGeneration, index: Index) -> InnerGeneration:
    """A generation as its own index has it; retired even where a shard is gone: say so then."""
    is_whole = index.is_usable and not list(_missing(generation, index))
    return replace(generation, state=State.RETIRED, complete=is_whole)


def _missing(generation: InnerGeneration, index: Index) -> Iterator[str]:
    sizes = {entry.name: entry.size_bytes for entry in generation.files}
    for shard in index.shards:
        if shard.file is None or sizes.get(shard.file) != shard.size_bytes:
            yield shard.file or f"layer {shard.layer}"
