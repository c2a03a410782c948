"""Saving while training goes on: a copy into host memory now, the writing in the background.

One save is written at a time. What goes wrong in the background is raised at the next call, and
is said when the interpreter ends: never lost.
"""

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ckpt.checkpoint import NOTHING
from ckpt.errors import CheckpointError
from ckpt.retention import Policy
from ckpt.torch.distributed import rank
from ckpt.torch.meta import full_meta
from ckpt.torch.payload import KEEP_LAST, Payload, Place, check_parts, publish_payload
from ckpt.torch.snapshot import Snapshot

_log = logging.getLogger(__name__)
_unreported: "set[_Write]" = set()


class AsyncSaver:
    """Saves checkpoints of one training run in the background, on rank 0; others do nothing.

        with AsyncSaver() as saver:
            saver.prepare(model.state_dict())
            for step in range(1, 10_001):
                ...
                if step % 1000 == 0:
                    saver.save(run / f"step_{step}", model.state_dict(), epoch=0,
                               consumed_samples=step * batch, meta={"optimizer_step": step})

    A call blocks for the copy into host memory alone, unless the save before it is still being
    written: then it waits for that. The memory, as large as what is saved, is kept and used again.
    An interpreter that ends without `close` finishes what is being written first. `run_dir`,
    `keep` and `stats` are those of `ckpt.torch.save`.
    """

    def __init__(
        self,
        *,
        run_dir: str | Path | None = None,
        keep: Policy | None = KEEP_LAST,
        stats: bool = False,
    ) -> None:
        self._run_dir = run_dir
        self._keep = keep
        self._with_stats = stats
        self._snapshot = Snapshot()
        self._preparing: threading.Thread | None = None
        self._write: _Write | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            _log.error("%s", failure)  # the error of the body is raised

    def prepare(
        self, state_dict: Mapping[str, torch.Tensor], *, extras: Mapping[str, Any] = NOTHING
    ) -> None:
        """Allocate host memory for what will be saved, in the background; returns at once.

        Without it the first save allocates, which takes longer than the copy. `extras` that are
        given after a first optimizer step are of the size that they keep.
        """
        self._join_preparing()
        if rank() == 0:
            tree = {"weights": dict(state_dict), "extras": dict(extras)}
            self._preparing = threading.Thread(
                target=self._prepare, args=(tree,), name="ckpt-prepare"
            )
            self._preparing.start()

    def save(  # noqa: PLR0913 - the parts of a checkpoint, all by name
        self,
        path: str | Path,
        state_dict: Mapping[str, torch.Tensor],
        *,
        epoch: int,
        consumed_samples: int,
        extras: Mapping[str, Any] = NOTHING,
        meta: Mapping[str, Any] = NOTHING,
        config: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Take a copy of a checkpoint and begin to save it, as `ckpt.torch.save` does.

        Raises:
            PublishError: a tensor, key or value cannot be saved; nothing was begun.
            CheckpointError: the save before this one failed; nothing of this one was begun, and
                calling again begins it.
        """
        if rank() != 0:
            return
        place = Place.of(path, self._run_dir, self._keep)
        facts = full_meta(meta, epoch=epoch, consumed_samples=consumed_samples)
        check_parts(state_dict, extras=extras, meta=facts, config=config)
        self.wait()
        self._join_preparing()
        tree = {
            "weights": dict(state_dict),
            "extras": dict(extras),
            "meta": facts,
            "config": dict(config),
        }
        taken = self._snapshot.take(tree)

        def publish() -> Path:
            payload = Payload.of(
                taken["weights"],
                extras=taken["extras"],
                meta=taken["meta"],
                config=taken["config"],
                with_stats=self._with_stats,
            )
            return publish_payload(payload, place)

        self._write = _Write(place.target, publish)

    def wait(self) -> Path | None:
        """Wait for the save that is being written; return where it was published, None without.

        Raises:
            CheckpointError: it failed. It is raised once.
        """
        write = self._write
        if write is None:
            return None
        write.join()  # a Ctrl-C here leaves it to be waited for: it still reads the host memory
        self._write = None
        return write.result()

    def close(self) -> None:
        """Wait for the save that is being written, and free the host memory.

        Raises:
            CheckpointError: it failed.
        """
        self._join_preparing()
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()

    def _prepare(self, tree: Mapping[str, Any]) -> None:
        try:
            self._snapshot.prepare(tree)
        except (MemoryError, RuntimeError) as error:
            _log.warning("host memory for saving is not prepared: %s", error)

    def _join_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None


class _Write:
    """One save in a thread of its own, which the interpreter waits for when it ends."""

    def __init__(self, target: Path, publish: Callable[[], Path]) -> None:
        self.target = target
        self._publish: Callable[[], Path] | None = publish
        self._path: Path | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ckpt-save", daemon=False)
        _unreported.add(self)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def result(self) -> Path | None:
        """Return where it was published, or raise what went wrong."""
        _unreported.discard(self)
        if self._error is not None:
            raise self._error
        return self._path

    def words(self) -> str | None:
        """Say what went wrong, None where nothing did."""
        if self._error is None:
            return None
        is_ours = isinstance(self._error, CheckpointError)
        return str(self._error) if is_ours else f"{self.target}: not saved: {self._error!r}"

    def _run(self) -> None:
        assert self._publish is not None
        try:
            self._path = self._publish()
        except BaseException as error:  # noqa: BLE001 - raised at the next call
            self._error = error
        finally:
            self._publish = None  # what it holds is the size of a model


def _report() -> None:
    """Say what nobody asked for before the interpreter ended."""
    for write in list(_unreported):
        write.join()
        if (words := write.words()) is not None:
            _log.error("%s", words)


atexit.register(_report)
