"""One checkpoint on its way to the disk: checked as a whole first, then written and published."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import torch

from ckpt import fs, jsontext
from ckpt.errors import PublishError
from ckpt.formats.astrai_listing import CONFIG, META, WEIGHTS
from ckpt.generations import Staging, publish
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Listed, build
from ckpt.operation import drive
from ckpt.tensorwriter import write_tensors
from ckpt.torch import extras as extra_files
from ckpt.torch.tensors import Packed, pack

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, slots=True)
class Payload:
    """Everything of a checkpoint, in the form in which it is written; nothing is copied."""

    weights: Packed
    extras: Mapping[str, Any]
    meta: Mapping[str, Any]
    config: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        state_dict: Mapping[str, torch.Tensor],
        *,
        extras: Mapping[str, Any],
        meta: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> Self:
        """Check every part, so that nothing is refused once writing has begun.

        Raises:
            PublishError: a tensor, a key or a value cannot be saved; the message names it.
        """
        extra_files.check_keys(extras)
        for name, value in ((META, meta), (CONFIG, config)):
            check_json(name, value)
        return cls(pack(state_dict), extras, dict(meta), dict(config))


def check_json(name: str, value: Mapping[str, Any]) -> None:
    """Refuse what strict JSON has no word for, by its key.

    Raises:
        PublishError: a value is not finite, or of a type that JSON does not have.
    """
    for key, item in value.items():
        if not isinstance(key, str):
            raise PublishError(f"{name}: expected keys of text, found {key!r:.60}")
        try:
            jsontext.dumps(item).encode()
        except (TypeError, ValueError, RecursionError) as error:
            message = f"{name}: {key!r} cannot be written: {error}"
            raise PublishError(message, hint="give None for a number that is not finite") from None


def publish_payload(target: Path, payload: Payload, *, run_dir: Path | None) -> Path:
    """Write a payload into staging and publish it as `target`; durable when this returns.

    Raises:
        PublishError: the target is no checkpoint, or the disk refused.
        Busy: somebody else held the run's lock all the time.
    """
    done = publish(target.absolute(), lambda staging: _fill(staging, payload), run_dir=run_dir)
    return drive(done).path


def publish_model(target: Path, weights: Packed, config: Mapping[str, Any]) -> Path:
    """Write weights and a config, and nothing else, and publish them as `target`.

    Raises:
        PublishError, Busy: as `publish_payload`.
    """

    def write(staging: Staging) -> None:
        write_tensors(staging.path / WEIGHTS, weights.buffers, weights.tied or None)
        fs.write_new(staging.path / CONFIG, jsontext.dumps(config, indent=2).encode())

    return drive(publish(target, write)).path


# ---- private ----------------------------------------------------------------------------------


def _fill(place: Staging, payload: Payload) -> None:
    staging, origin = place.path, place.origin
    tied = payload.weights.tied
    written = write_tensors(staging / WEIGHTS, payload.weights.buffers, tied or None)
    listed = {WEIGHTS: Listed(written.size_bytes, written.sha256)}
    for key, value in payload.extras.items():
        name = f"{key}{extra_files.SUFFIX}"
        with fs.NewFile(staging / name) as file:
            sink = _Sink(file)
            extra_files.write_extra(key, value, cast("BinaryIO", sink))
            file.sync()
        listed[name] = Listed(sink.size_bytes, sink.digest.hexdigest())
    for name, value in ((META, payload.meta), (CONFIG, payload.config)):
        data = jsontext.dumps(value, indent=2).encode()
        fs.write_new(staging / name, data)
        listed[name] = Listed(len(data), hashlib.sha256(data).hexdigest())
    extension = {"v": 1, **asdict(origin)}
    names = [buffer[0] for buffer in payload.weights.buffers]
    manifest = build(listed, names, meta=payload.meta, extension=extension)
    fs.replace_bytes(staging / MANIFEST, manifest)


class _Sink(io.RawIOBase):
    def __init__(self, file: fs.NewFile) -> None:
        super().__init__()
        self._file = file
        self.size_bytes = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.digest.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes
