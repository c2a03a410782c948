"""Values → words: a run and a checkpoint in words, the same for the CLI and the app.

Pure: no I/O, no clock (`now` comes in), no colour codes, no markup. A painter gives each tone its
colour; the text alone says everything. Names are resolved when used: `ckpt show` needs no run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt.phrases import duration, loss
    from ckpt.present.header import (
        HEALTH_SIGNS,
        header_lines,
        health_cell,
        loss_cells,
        percent,
        source_cells,
        source_of,
        speed,
        task_words,
        trend_cell,
    )
    from ckpt.present.line import (
        status_line,
    )
    from ckpt.present.rows import (
        FILE_COLUMNS,
        FINDING_COLUMNS,
        GENERATION_COLUMNS,
        METADATA_COLUMNS,
        TENSOR_COLUMNS,
        advice_cell,
        bytes_cell,
        damage,
        file_rows,
        finding_rows,
        generation_rows,
        metadata_rows,
        slot_rows,
        tensor_rows,
        verdict_cell,
    )
    from ckpt.present.shapes import (
        error_json,
        list_json,
        show_json,
        status_json,
        verify_json,
    )
    from ckpt.present.words import (
        Cell,
        Column,
        Row,
        Tone,
        age,
        cell_width,
        estimate,
        integer,
        iso_time,
        jsonable,
        rate,
        shorten,
        size,
        to_ascii,
        visible,
    )

_HOMES = {
    "Cell": "words",
    "Column": "words",
    "FILE_COLUMNS": "rows",
    "FINDING_COLUMNS": "rows",
    "GENERATION_COLUMNS": "rows",
    "HEALTH_SIGNS": "header",
    "METADATA_COLUMNS": "rows",
    "Row": "words",
    "TENSOR_COLUMNS": "rows",
    "Tone": "words",
    "advice_cell": "rows",
    "age": "words",
    "bytes_cell": "rows",
    "cell_width": "words",
    "damage": "rows",
    "duration": "words",
    "error_json": "shapes",
    "estimate": "words",
    "file_rows": "rows",
    "finding_rows": "rows",
    "generation_rows": "rows",
    "header_lines": "header",
    "health_cell": "header",
    "integer": "words",
    "iso_time": "words",
    "jsonable": "words",
    "list_json": "shapes",
    "loss": "words",
    "loss_cells": "header",
    "metadata_rows": "rows",
    "percent": "header",
    "rate": "words",
    "shorten": "words",
    "show_json": "shapes",
    "size": "words",
    "slot_rows": "rows",
    "source_cells": "header",
    "source_of": "header",
    "speed": "header",
    "status_json": "shapes",
    "status_line": "line",
    "task_words": "header",
    "tensor_rows": "rows",
    "to_ascii": "words",
    "trend_cell": "header",
    "verdict_cell": "rows",
    "verify_json": "shapes",
    "visible": "words",
}

__all__ = [
    "FILE_COLUMNS",
    "FINDING_COLUMNS",
    "GENERATION_COLUMNS",
    "HEALTH_SIGNS",
    "METADATA_COLUMNS",
    "TENSOR_COLUMNS",
    "Cell",
    "Column",
    "Row",
    "Tone",
    "advice_cell",
    "age",
    "bytes_cell",
    "cell_width",
    "damage",
    "duration",
    "error_json",
    "estimate",
    "file_rows",
    "finding_rows",
    "generation_rows",
    "header_lines",
    "health_cell",
    "integer",
    "iso_time",
    "jsonable",
    "list_json",
    "loss",
    "loss_cells",
    "metadata_rows",
    "percent",
    "rate",
    "shorten",
    "show_json",
    "size",
    "slot_rows",
    "source_cells",
    "source_of",
    "speed",
    "status_json",
    "status_line",
    "task_words",
    "tensor_rows",
    "to_ascii",
    "trend_cell",
    "verdict_cell",
    "verify_json",
    "visible",
]


def __getattr__(name: str) -> object:
    """Import the module that holds a name the first time the name is used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ckpt.present' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"ckpt.present.{home}"), name)
    globals()[name] = value
    return value
