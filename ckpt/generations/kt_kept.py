"""What the kept indices of a run tell of the generations among a slot's shards.

By names alone a generation counts as whole when it has the layers of the live one; its own index,
where it was kept, says which layers it had.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import FileEntry, State
from ckpt.formats.base import InnerGeneration
from ckpt.formats.kt_full import KtFull
from ckpt.formats.kt_index import Index, generation_of
from ckpt.generations.kt_links import linked
from ckpt.generations.kt_slot import kept_indices, kept_root, kt_slot
from ckpt.generations.payload import Payload


class KeptIndices:
    """The kept indices of one run, read when they may have changed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[Path, tuple[fs.Identity, dict[str, _Kept]]] = {}

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
        among = {payload.id, *(each.id for each in payload.inside.generations)}
        gone = {name: each for name, each in kept.items() if each.links and name not in among}
        told |= {name: _told(_of_links(name, each), each) for name, each in gone.items()}
        if not told:
            return payload
        inside = replace(
            payload.inside,
            generations=(
                *(told.get(each.id, each) for each in payload.inside.generations),
                *(told[name] for name in gone),
            ),
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

    def _of(self, path: Path) -> "Mapping[str, _Kept]":
        try:
            if fs.identity(kept_root(self._run_dir)) is None:
                return {}
            slot = kt_slot(path, self._run_dir)
            found = fs.identity(slot.kept)
            if found is None:
                return {}
            known = self._known.get(slot.kept)
            if known is None or known[0] != found:
                kept = kept_indices(slot)
                known = found, {name: _Kept(index, linked(slot, name)) for name, index in kept}
                self._known[slot.kept] = known
            return known[1]
        except OSError:
            return {}


@dataclass(frozen=True, slots=True)
class _Kept:
    """A kept index, and the sizes of those of its shards that links are kept of."""

    index: Index
    links: Mapping[str, int]


def _of_links(generation: str, kept: _Kept) -> InnerGeneration:
    """A generation whose shards its trainer removed, as the links that are kept of it tell."""
    files = tuple(FileEntry(name, size) for name, size in sorted(kept.links.items()))
    layers = tuple(shard.layer for shard in kept.index.shards)
    return InnerGeneration(generation, State.RETIRED, files, layers, None)


def _told(generation: InnerGeneration, kept: _Kept) -> InnerGeneration:
    """A generation as its own index has it; retired even where a shard is gone: say so then."""
    sizes = dict(kept.links) | {entry.name: entry.size_bytes for entry in generation.files}
    is_whole = kept.index.is_usable and all(
        shard.file is not None and sizes.get(shard.file) == shard.size_bytes
        for shard in kept.index.shards
    )
    return replace(generation, state=State.RETIRED, complete=is_whole)
