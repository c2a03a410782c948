"""`run.json`: how a training script that uses `ckpt.record` was started, and by which process.

A process is itself only on its own host, in the same boot and with the same start time: a number
that was given to another process, or that lives on another host, says nothing.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.errors import CheckpointError
from ckpt.progress.base import number
from ckpt.progress.whole_file import WholeFile
from ckpt.run import ProcessSeen, RunEvent, RunProcess, Source, SourceRead, TaskRead, Warned

NAME, KIND, SCHEMA = "run.json", "run-record", "ckpt.run/1"


class RunRecord:
    """Reads the record of one run and asks after its process."""

    has_more = False
    backlog_bytes = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: WholeFile[Mapping[str, Any]] = WholeFile(path, self._parse)
        self._record: Mapping[str, Any] = {}
        self._source = Source(str(path), KIND)
        self._process: RunProcess | None = None
        self._is_foreign = False

    @property
    def retry_at(self) -> float | None:
        """When to read again though nothing may have changed."""
        return self._file.retry_at

    @property
    def started_at(self) -> float | None:
        """When the newest process of the run began, epoch seconds."""
        return number(self._record.get("started_at"))

    def read(self, now: float) -> Iterator[RunEvent]:
        """Yield what the record says when it changed, and what became of the process."""
        reading = self._file.look(now)
        if reading is not None and reading.value is None:
            path, error = str(self.path), reading.error or "unreadable"
            foreign = (Warned("foreign-record", error, path),) if self._is_foreign else ()
            self._source = Source(
                path, KIND, error=error, error_since=reading.error_since, warnings=foreign
            )
            yield SourceRead(self._source)
        elif reading is not None and reading.value is not None and reading.identity is not None:
            self._record = reading.value
            yield SourceRead(Source(str(self.path), KIND, reading.identity.modified_at, now))
            config = self._record.get("config")
            if isinstance(config, dict):
                yield TaskRead(config)
        process = self._look_after(now)
        if process is not None and process != self._process:
            self._process = process
            yield ProcessSeen(process)

    def _parse(self, data: bytes) -> Mapping[str, Any]:
        value = jsontext.parse(data, path=str(self.path))
        self._is_foreign = False
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            self._is_foreign = True
            raise CheckpointError(f"{self.path}: not a record of a run, expected schema {SCHEMA}")
        return value

    def _look_after(self, now: float) -> RunProcess | None:
        pid, host = self._record.get("pid"), self._record.get("host")
        if type(pid) is not int or pid <= 0:
            return None
        name = host if isinstance(host, str) else None
        is_alive = self._is_alive(pid) if name == os.uname().nodename else None
        seen = RunProcess(pid, name, self.started_at, is_alive)
        if is_alive is not False:
            return seen
        before = self._process
        was_gone = before is not None and before.pid == pid and before.is_alive is False
        return replace(seen, gone_at=before.gone_at if before and was_gone else now)

    def _is_alive(self, pid: int) -> bool:
        boot = self._record.get("boot_id")
        if isinstance(boot, str) and fs.boot_id() not in (None, boot):
            return False
        if not fs.is_process_alive(pid):
            return False
        ticks = self._record.get("process_start_ticks")
        return type(ticks) is not int or fs.process_start_ticks(pid) in (None, ticks)
