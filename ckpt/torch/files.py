"""Models and single files, without a checkpoint around them: weights, config, JSON, torch files.

Each can be read on rank 0 for every rank.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ckpt import fs, jsontext
from ckpt.checkpoint import NOTHING, first_error
from ckpt.errors import DamagedCheckpoint, NoCheckpoint, UnreadableCheckpoint
from ckpt.formats.astrai_listing import CONFIG, INDEX
from ckpt.tensorfile import header_of
from ckpt.torch.distributed import from_rank_zero, shared_tensors
from ckpt.torch.extras import read_pickle
from ckpt.torch.loading import new_tensors, tensors_of_file
from ckpt.torch.opening import with_opened
from ckpt.torch.payload import check_json, publish_model
from ckpt.torch.tensors import pack

_MAX_JSON_BYTES = 256 << 20


def save_model(
    path: str | Path,
    state_dict: Mapping[str, torch.Tensor],
    *,
    config: Mapping[str, Any] = NOTHING,
) -> Path:
    """Save weights and a config without a checkpoint around them, durable before this returns.

    Raises:
        PublishError: a tensor or value cannot be saved, the name is taken, or the disk refused.
    """
    check_json(CONFIG, config)
    return publish_model(Path(path).absolute(), pack(state_dict), dict(config))


def load_model_config(path: str | Path, *, broadcast: bool = False) -> dict[str, Any]:
    """Load the config.json of a model's or checkpoint's directory.

    Raises:
        NoCheckpoint: it is not there.
        DamagedCheckpoint: it holds no object.
        TornRead, DuplicateKey: it is no JSON.
    """
    value = load_json(Path(path) / CONFIG, broadcast=broadcast)
    if not isinstance(value, dict):
        message = f"{Path(path) / CONFIG}: expected an object, found {value!r:.40}"
        raise DamagedCheckpoint(message, path=str(path))
    return value


def load_model_weights(path: str | Path, *, broadcast: bool = False) -> dict[str, torch.Tensor]:
    """Load the weights of a directory: one file, or the shards that its index names.

    Where a manifest lists them, their bytes are compared.

    Raises:
        NoCheckpoint: no weights there; the message says what was looked for.
        DamagedCheckpoint: they are not whole, or index and shards do not fit.
    """

    def read() -> dict[str, torch.Tensor]:
        return with_opened(Path(path), lambda opened: new_tensors(opened, verify=True))

    return shared_tensors(read, broadcast=broadcast)


def load_safetensors(path: str | Path, *, broadcast: bool = False) -> dict[str, torch.Tensor]:
    """Load one safetensors file; nothing is recorded that its bytes could be compared with.

    Raises:
        NoCheckpoint: it is not there.
        DamagedCheckpoint: it is no sound safetensors file; the message says where.
    """
    return shared_tensors(lambda: _read_file(Path(path)), broadcast=broadcast)


def load_state_dict(path: str | Path, *, broadcast: bool = False) -> dict[str, torch.Tensor]:
    """Load tensors by name from a safetensors file, an index of shards, or a directory of either.

    With `broadcast` rank 0 reads: names, shapes and dtypes go first, then tensor by tensor to
    every rank; an error on rank 0 is raised on all.

    Raises:
        NoCheckpoint, DamagedCheckpoint: as `load_model_weights` and `load_safetensors`.
    """
    place = Path(path)

    def read() -> dict[str, torch.Tensor]:
        if fs.is_directory(place):
            return load_model_weights(place)
        return load_model_weights(place.parent) if place.name == INDEX else _read_file(place)

    return shared_tensors(read, broadcast=broadcast)


def load_json(path: str | Path, *, broadcast: bool = False) -> Any:
    """Load a JSON file.

    Raises:
        NoCheckpoint: it is not there.
        TornRead, DuplicateKey: it is no JSON, or holds a key twice.
    """
    place = Path(path)

    def read() -> Any:
        try:
            return jsontext.parse(fs.read_small(place, _MAX_JSON_BYTES), path=str(place))
        except OSError as error:
            raise _cannot_read(place, error) from error

    return from_rank_zero(read) if broadcast else read()


def load_torch(path: str | Path, *, broadcast: bool = False, trust: bool = False) -> Any:
    """Load what torch.save wrote, onto the CPU; `trust` lets the file run code, as pickles can.

    Raises:
        NoCheckpoint: it is not there.
        Untrusted: it holds more than tensors and plain values.
        DamagedCheckpoint: it cannot be loaded.
    """
    place = Path(path)

    def read() -> Any:
        try:
            with fs.File(place) as file:
                return read_pickle(file, str(place), is_trusted=trust)
        except OSError as error:
            raise _cannot_read(place, error) from error

    return from_rank_zero(read) if broadcast else read()


# ---- private ----------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        with fs.File(path) as file:
            header = header_of(file, path.name)
            wrong = first_error(header.findings)
            if wrong is not None:
                raise DamagedCheckpoint(f"{path}: {wrong.message}", path=str(path))
            return tensors_of_file(file, header, path)
    except OSError as error:
        raise _cannot_read(path, error) from error


def _cannot_read(path: Path, error: OSError) -> UnreadableCheckpoint:
    kind = NoCheckpoint if isinstance(error, FileNotFoundError) else UnreadableCheckpoint
    return kind(f"{path}: cannot be read: {error.strerror or error}", path=str(path))
