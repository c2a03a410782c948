"""A directory of KT shards: its files, its index, and the generations that lie side by side in it.

Told by names and sizes alone; no shard is opened.
"""

from collections.abc import Iterator
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import FileEntry, Finding, Leftover, Severity, State
from ckpt.errors import DuplicateKey, TornRead
from ckpt.formats.base import InnerGeneration
from ckpt.formats.directory import Listing, list_files, sentence_of
from ckpt.formats.kt_index import (
    INDEX_NAME,
    Index,
    group_shards,
    is_temporary,
    parse_text,
    shard_name,
)
from ckpt.formats.trainer import is_trainers

_SHOWN_LAYERS = 6
_MAX_JSON_BYTES = 64 << 20


def list_shards(path: Path) -> Listing:
    """List the directory of a checkpoint, or what of it belongs to an index file.

    An index in a run's own directory has thousands of neighbours; they are not looked at.

    Raises:
        NoCheckpoint: nothing is there.
        UnreadableCheckpoint: it may not be listed.
    """
    if path.name == INDEX_NAME:
        return list_files(path.parent, only=_belongs_to_index)
    return list_files(path)


def _belongs_to_index(name: str) -> bool:
    return is_ours(name) or is_temporary(name) or is_trainers(name)


def is_ours(name: str) -> bool:
    """Whether a name is the index's or a shard's."""
    return name == INDEX_NAME or shard_name(name) is not None


def read_index(listing: Listing) -> Index:
    """Read the index; one that is not there is a finding.

    Raises:
        TornRead: it does not parse.
    """
    told = tuple(finding for finding in listing.findings if finding.file == INDEX_NAME)
    if any(finding.severity is Severity.ERROR for finding in told):
        return Index(findings=told)
    if INDEX_NAME not in listing.sizes:
        message = f"{INDEX_NAME}: not there; shards without it cannot be loaded"
        hint = "an index can be made anew from the shards' names and metadata"
        return Index(
            findings=(Finding("missing-file", Severity.ERROR, message, INDEX_NAME, hint=hint),)
        )
    try:
        return parse_text(fs.read_small(listing.directory / INDEX_NAME, _MAX_JSON_BYTES))
    except DuplicateKey as twice:
        return Index(
            findings=(Finding("duplicate-key", Severity.ERROR, twice.message, INDEX_NAME),)
        )
    except TornRead as torn:
        raise TornRead(torn.message, path=torn.path, finding_code="bad-index") from None
    except OSError as error:
        code = "permission-denied" if isinstance(error, PermissionError) else "bad-index"
        finding = Finding(code, Severity.ERROR, f"{INDEX_NAME}: {sentence_of(error)}", INDEX_NAME)
        return Index(findings=(finding,))


def share_of(generation: InnerGeneration, wanted: int) -> str:
    """Say how much of a partial generation is there; `wanted` 0: how many belong is not known."""
    count = len(generation.layers)
    of = f"{count} of {wanted} layers" if wanted else f"{count} layers"
    shown = ", ".join(str(layer) for layer in generation.layers[:_SHOWN_LAYERS])
    more = ", …" if count > _SHOWN_LAYERS else ""
    return f"{of} ({shown}{more}), a save that was cut off"


def generations_in(listing: Listing, index: Index) -> tuple[InnerGeneration, ...]:
    """Group the shards by generation: live (named by the index) first, then by hex.

    A retired one has every layer of the index; without an index, every layer that any has.
    """
    groups = group_shards((*listing.sizes, *listing.links))
    named = index.file_names
    live = {
        generation for generation, layers in groups.items() if named.intersection(layers.values())
    }
    wanted = {shard.layer for shard in index.shards}
    expected = wanted or {layer for layers in groups.values() for layer in layers}
    found = []
    for generation, layers in groups.items():
        files = tuple(
            FileEntry(name, listing.sizes.get(name), listed=name in named)
            for name in layers.values()
        )
        is_whole = expected <= layers.keys() and all(entry.size_bytes for entry in files)
        if generation in live:
            state: State | None = State.LIVE
        else:
            state = State.RETIRED if is_whole else None
        complete = None if is_whole and not wanted else is_whole
        found.append(InnerGeneration(generation, state, files, tuple(layers), complete))
    return tuple(sorted(found, key=lambda each: (each.state is not State.LIVE, each.id)))


def leftovers_in(listing: Listing, generations: tuple[InnerGeneration, ...]) -> Iterator[Leftover]:
    """Yield what a killed save left: partial generations and temporary files."""
    wanted = max((len(each.layers) for each in generations if each.state), default=0)
    for generation in generations:
        if generation.state is None:
            path = listing.directory / generation.files[0].name
            reason = f"generation {generation.id}: {share_of(generation, wanted)}"
            yield Leftover(path, "partial-generation", reason)
    for name in sorted(listing.sizes):
        if is_temporary(name):
            is_trash = ".trash-" in name
            kind = "trash" if is_trash else "temporary-file"
            cut_off = "a save was cut off while it wrote this file"
            reason = "being deleted" if is_trash else cut_off
            yield Leftover(listing.directory / name, kind, reason)
