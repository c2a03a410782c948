"""AstrAI checkpoints of real tensors: saved so that nothing is lost, loaded so that it is proven.

What is written loads in AstrAI itself, with and without its verification. Saving and publishing,
broadcasting and reading are others' business; this is where they meet.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ckpt import fs, jsontext
from ckpt.checkpoint import NOTHING
from ckpt.errors import DamagedCheckpoint, NoCheckpoint, UnreadableCheckpoint
from ckpt.formats.astrai_listing import CONFIG, META
from ckpt.retention import Policy
from ckpt.torch import extras as extra_files
from ckpt.torch.distributed import from_rank_zero, rank, shared
from ckpt.torch.loading import new_tensors, read_into, targets_of
from ckpt.torch.meta import full_meta
from ckpt.torch.opening import Opened, with_opened
from ckpt.torch.payload import KEEP_LAST, Payload, Place, publish_payload

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: `state_dict` on the CPU, `extras` by key, `meta` and `config` as read.

    `epoch` and `consumed_samples` are 0 for weights without a checkpoint (`is_checkpoint` False).
    `path` is where it lay; `reason` says why that is not the name that was asked for, None when it
    is. `is_verified` says whether the bytes of every file used were compared with recorded hashes.
    """

    state_dict: Mapping[str, torch.Tensor] = field(repr=False)
    epoch: int
    consumed_samples: int
    meta: Mapping[str, Any]
    config: Mapping[str, Any]
    extras: Mapping[str, Any] = field(repr=False)
    path: Path
    is_checkpoint: bool = True
    is_verified: bool = False
    reason: str | None = None


def save(  # noqa: PLR0913 - the parts of a checkpoint, all by name
    path: str | Path,
    state_dict: Mapping[str, torch.Tensor],
    *,
    epoch: int,
    consumed_samples: int,
    extras: Mapping[str, Any] = NOTHING,
    meta: Mapping[str, Any] = NOTHING,
    config: Mapping[str, Any] = NOTHING,
    run_dir: str | Path | None = None,
    keep: Policy | None = KEEP_LAST,
    stats: bool = False,
    broadcast: bool = False,
) -> Path:
    """Save a checkpoint, durable before this returns; one that stood there becomes retired.

    Rank 0 writes; the other ranks return at once, or with `broadcast` when it is done, and then
    with the same error. `extras` are saved by torch.save as `<key>.pt`. `epoch`,
    `consumed_samples` and the time of saving win over those in `meta`, whose other keys are kept;
    its `optimizer_step` is the step. `run_dir` is the run it belongs to, None: the one that the
    path lies in. `keep` says which generations that were saved here before stay (None: all); what
    goes does so only after the new one is durable. With `stats` the manifest says what the
    values of each tensor are like (finite, min, max, mean, norm, zeros): about as long again.

    Raises:
        PublishError: a tensor, key or value cannot be saved, the target is no checkpoint, or the
            disk refused. Whatever stood at the name still stands.
        Busy: somebody else was changing the run all the time.
    """

    def write() -> Path:
        place = Place.of(path, run_dir, keep)
        facts = full_meta(meta, epoch=epoch, consumed_samples=consumed_samples)
        payload = Payload.of(
            state_dict, extras=extras, meta=facts, config=config, with_stats=stats
        )
        return publish_payload(payload, place)

    if broadcast:
        return from_rank_zero(write)
    return write() if rank() == 0 else Path(path).absolute()


def load(
    path: str | Path,
    *,
    broadcast: bool = False,
    verify: bool = True,
    trust: extra_files.Trust = False,
    extras: Collection[str] | None = None,
) -> Loaded:
    """Load a checkpoint; `verify` compares the bytes of all that is used while they are read.

    With `broadcast` rank 0 reads and every rank gets the same; an error there is raised on all.
    Extras are unpickled with weights_only=True, and only those that the manifest lists; `trust`
    names the ones that may be unpickled in full, listed or not (True: all listed). `extras`
    chooses by key, None: all. Where the name is missing or its payload is not whole, the
    generation that should be used instead is loaded and `Loaded.reason` says why.

    Raises:
        NoCheckpoint: neither there; the message says what was looked for.
        DamagedCheckpoint: it is not whole, or bytes are not the recorded ones.
        Untrusted: an extra needs full unpickling.
    """
    loaded = load_any(path, broadcast=broadcast, verify=verify, trust=trust, extras=extras)
    if not loaded.is_checkpoint:
        message = f"{path}: weights without a checkpoint: {META} is not there"
        raise NoCheckpoint(message, path=str(path), hint="load_any() takes weights alone")
    return loaded


def load_any(
    path: str | Path,
    *,
    broadcast: bool = False,
    verify: bool = True,
    trust: extra_files.Trust = False,
    extras: Collection[str] | None = None,
) -> Loaded:
    """Load a checkpoint, or else weights with or without a config; otherwise as `load`.

    Raises:
        NoCheckpoint: neither is there; the message says what was looked for.
        DamagedCheckpoint, Untrusted: as `load`.
    """
    place, chosen = Path(path), _Choice(trust, extras)
    if not broadcast:
        return _read(place, chosen, verify=verify)
    loaded = _spread(lambda: _read(place, chosen, verify=verify))
    assert loaded is not None  # an error has been raised then
    return loaded


def find(
    path: str | Path,
    *,
    broadcast: bool = False,
    verify: bool = True,
    trust: extra_files.Trust = False,
    extras: Collection[str] | None = None,
) -> Loaded | None:
    """Load as `load_any` does, or return None where nothing is that could be loaded.

    Raises:
        DamagedCheckpoint, Untrusted: as `load`.
    """
    place, chosen = Path(path), _Choice(trust, extras)

    def read() -> Loaded | None:
        try:
            return _read(place, chosen, verify=verify)
        except NoCheckpoint:
            return None

    return _spread(read) if broadcast else read()


def load_into(
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    path: str | Path,
    *,
    verify: bool = True,
    trust: extra_files.Trust = False,
    extras: Collection[str] | None = None,
) -> Loaded:
    """Load weights straight into a model, or a state dict, that exists; return what else is there.

    Names, shapes and dtypes of everything are compared before the first byte is read, and then
    nothing has been changed. A failure after that (bytes that are not the recorded ones, a disk
    that fails) leaves the model half old and half new: the error says so and names the tensors,
    and the model must be loaded anew. `Loaded.state_dict` holds the model's own tensors.

    Raises:
        DoesNotFit: names, shapes or dtypes differ; the model is as it was.
        NoCheckpoint, Untrusted: as `load`; the model is as it was.
        DamagedCheckpoint: not whole (the model is as it was), or damaged bytes (it is not).
    """
    targets = targets_of(model)
    chosen = _Choice(trust, extras)

    def read(opened: Opened) -> Loaded:
        rest = _rest(opened, chosen, verify=verify)
        read_into(targets, opened, verify=verify)
        return replace(rest, state_dict=targets)

    return with_opened(Path(path), read)


# ---- private ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which extras are wanted, and which may run code."""

    trust: extra_files.Trust
    wanted: Collection[str] | None


def _read(path: Path, chosen: _Choice, *, verify: bool) -> Loaded:
    def read(opened: Opened) -> Loaded:
        rest = _rest(opened, chosen, verify=verify)
        return replace(rest, state_dict=new_tensors(opened, verify=verify))

    return with_opened(path, read)


def _rest(opened: Opened, chosen: _Choice, *, verify: bool) -> Loaded:
    """Read all but the weights: what is refused there is refused before the long part."""
    meta = _object(opened, META, verify=verify) if opened.is_checkpoint else {}
    config = _object(opened, CONFIG, verify=verify)
    has_hashes = opened.manifest is not None
    if verify and opened.is_checkpoint and not has_hashes:
        _log.warning("%s: no manifest.json: nothing to verify the bytes with", opened.path)
    return Loaded(
        {},
        _count(opened, meta, "epoch"),
        _count(opened, meta, "consumed_samples"),
        meta,
        config,
        _extras(opened, chosen, verify=verify) if opened.is_checkpoint else {},
        opened.path,
        is_checkpoint=opened.is_checkpoint,
        is_verified=verify and has_hashes,
        reason=opened.reason,
    )


def _object(opened: Opened, name: str, *, verify: bool) -> dict[str, Any]:
    value, data = opened.json(name)
    expected = opened.recorded(name).sha256 if verify else None
    found = sha256(data).hexdigest()
    if expected is not None and found != expected:
        told = f"sha256 is {found[:12]}…, recorded is {expected[:12]}…"
        raise DamagedCheckpoint(f"{opened.path}: {name}: {told}", path=str(opened.path))
    return value


def _count(opened: Opened, meta: Mapping[str, Any], name: str) -> int:
    if not opened.is_checkpoint:
        return 0
    value = meta.get(name)
    if jsontext.is_whole(value):
        return value
    message = f"{opened.path}: {META}: {name}: expected a whole number, found {value!r:.60}"
    raise DamagedCheckpoint(message, path=str(opened.path))


def _extras(opened: Opened, chosen: _Choice, *, verify: bool) -> dict[str, Any]:
    read = {}
    suffix = extra_files.SUFFIX
    there = sorted(
        entry.name for entry in opened.seen.files
        if entry.name.endswith(suffix) and entry.size_bytes is not None
    )  # fmt: skip
    keys = [name.removesuffix(suffix) for name in there]
    if absent := sorted(set(chosen.wanted or ()) - set(keys)):
        message = f"{opened.path}: {absent[0]}{suffix}: not there; extras there: {keys}"
        raise UnreadableCheckpoint(message, path=str(opened.path))
    for key, name in zip(keys, there, strict=True):
        if chosen.wanted is not None and key not in chosen.wanted:
            continue
        is_listed = opened.manifest is None or name in opened.manifest.files
        is_trusted = extra_files.is_trusted(key, chosen.trust, is_listed=is_listed)
        if not is_listed and not is_trusted:
            _log.warning("%s: %s: not loaded: the manifest does not list it", opened.path, name)
            continue
        recorded = opened.recorded(name) if verify else extra_files.NOTHING_RECORDED
        where = f"{opened.path}: {name}"
        with fs.File(opened.directory.inside(name)) as file:
            read[key] = extra_files.read_pickle(
                file, where, recorded=recorded, is_trusted=is_trusted
            )
    return read


def _spread(read: Callable[[], Loaded | None]) -> Loaded | None:
    """Read on rank 0 and hand it to every rank: first what it is, then tensor by tensor."""

    def read_apart() -> tuple[Loaded | None, Mapping[str, torch.Tensor]]:
        loaded = read()
        if loaded is None:
            return None, {}
        return replace(loaded, state_dict={}), loaded.state_dict

    loaded, tensors = shared(read_apart)
    return None if loaded is None else replace(loaded, state_dict=tensors)
