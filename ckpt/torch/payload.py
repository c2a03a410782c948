"""One checkpoint on its way to the disk: checked as a whole first, then written and published."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from ckpt import jsontext
from ckpt.errors import PublishError
from ckpt.formats.astrai_listing import CONFIG, META, WEIGHTS
from ckpt.formats.astrai_write import check_extras, write_checkpoint
from ckpt.generations import Staging, publish
from ckpt.generations.find import home_of, slot_name
from ckpt.onepass import write_hashed
from ckpt.operation import drive
from ckpt.retention import Policy, retain
from ckpt.tensorwriter import Packed, write_tensors
from ckpt.torch.extras import write_extra
from ckpt.torch.tensors import check_state_dict, pack

KEEP_LAST = Policy(keep_last=1)


@dataclass(frozen=True, slots=True)
class Payload:
    """Everything of a checkpoint, in the form in which it is written; nothing is copied.

    `with_stats`: the manifest says what the values of each tensor are like.
    """

    weights: Packed
    extras: Mapping[str, Any]
    meta: Mapping[str, Any]
    config: Mapping[str, Any]
    with_stats: bool = False

    @classmethod
    def of(
        cls,
        state_dict: Mapping[str, torch.Tensor],
        *,
        extras: Mapping[str, Any],
        meta: Mapping[str, Any],
        config: Mapping[str, Any],
        with_stats: bool = False,
    ) -> Self:
        """Check every part, so that hardly anything is refused once writing has begun.

        Raises:
            PublishError: a tensor, a key or a value cannot be saved; the message names it.
        """
        check_parts(state_dict, extras=extras, meta=meta, config=config)
        return cls(pack(state_dict), extras, dict(meta), dict(config), with_stats)


def check_parts(
    state_dict: Mapping[str, torch.Tensor],
    *,
    extras: Mapping[str, Any],
    meta: Mapping[str, Any],
    config: Mapping[str, Any],
) -> None:
    """Refuse a tensor, a key or a value that cannot be saved, by name; nothing is copied.

    Raises:
        PublishError: as said.
    """
    check_state_dict(state_dict)
    check_extras(extras)
    for name, value in ((META, meta), (CONFIG, config)):
        check_json(name, value)


def check_json(name: str, value: Mapping[str, Any]) -> None:
    """Refuse what JSON has no word for, by its key; a number that is not finite becomes null.

    Raises:
        PublishError: a value is of a type that JSON does not have.
    """
    for key, item in value.items():
        try:
            jsontext.dumps({key: jsontext.without_nonfinite(item)}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise PublishError(f"{name}: {key!r:.80} cannot be written: {error}") from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint is published: the path, the run that it belongs to, and what stays there.

    `run_dir` None: the run that the path lies in, else the directory around it. `keep` says which
    generations that are not live stay after a save, None: all.
    """

    target: Path
    run_dir: Path | None = None
    keep: Policy | None = None

    @classmethod
    def of(cls, path: str | Path, run_dir: str | Path | None, keep: Policy | None) -> Self:
        """Return the place that a caller names, whatever directory is current when it is used.

        Raises:
            NoSuchRun: the path does not lie in that run.
        """
        target = Path(path).absolute()
        run = None if run_dir is None else Path(run_dir).absolute()
        if run is not None:
            slot_name(run, target)
        return cls(target, run, keep)


def publish_payload(payload: Payload, place: Place) -> Path:
    """Write a payload into staging and publish it; durable when this returns.

    What the policy lets go goes after that. A failure of that is a warning: the save is done.

    Raises:
        PublishError: the target is no checkpoint, or the disk refused.
        Busy: somebody else held the run's lock all the time.
    """
    extras = {key: partial(write_extra, key, value) for key, value in payload.extras.items()}

    def write(staging: Staging) -> None:
        write_checkpoint(
            staging.path,
            payload.meta,
            payload.config,
            payload.weights.buffers,
            origin=staging.origin,
            tied=payload.weights.tied,
            extras=extras,
            stats=payload.with_stats,
        )

    published = drive(publish(place.target, write, run_dir=place.run_dir))
    if place.keep is not None:
        slot = published.changes[0].slot
        retain(place.run_dir or home_of(place.target), place.keep, slot=slot)
    return published.path


def publish_model(target: Path, weights: Packed, config: Mapping[str, Any]) -> Path:
    """Write weights and a config, and nothing else, and publish them as `target`.

    Raises:
        PublishError, Busy: as `publish_payload`.
    """
    text = jsontext.dumps(jsontext.without_nonfinite(config), indent=2).encode()

    def write(staging: Staging) -> None:
        write_tensors(staging.path / WEIGHTS, weights.buffers, weights.tied or None)
        write_hashed(staging.path / CONFIG, lambda sink: sink.write(text))

    return drive(publish(target.absolute(), write)).path
