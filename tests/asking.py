"""Ask `ckpt` as a script does: one verb, one JSON document, one exit code."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ckpt.cli import main


@dataclass(frozen=True)
class Answer:
    """What a verb printed and how it ended."""

    exit_code: int
    told: dict[str, Any]

    @property
    def verdict(self) -> str:
        return str(self.told["verdict"])

    @property
    def codes(self) -> list[str]:
        """Codes of the findings but the notes: those say what is not known, not what is wrong."""
        return [each["code"] for each in self.told["findings"] if each["severity"] != "note"]

    @property
    def errors(self) -> list[tuple[str, str | None]]:
        """Code and file of each error."""
        found = [each for each in self.told["findings"] if each["severity"] == "error"]
        return sorted({(each["code"], each["file"]) for each in found})

    @property
    def messages(self) -> list[str]:
        return [each["message"] for each in self.told["findings"] if each["severity"] != "note"]

    @property
    def notes(self) -> list[str]:
        return [each["code"] for each in self.told["findings"] if each["severity"] == "note"]


def ask(verb: str, path: Path, *options: str) -> Answer:
    """Run `ckpt VERB PATH OPTIONS --json`; what it prints must be strict JSON."""
    ended = CliRunner().invoke(main, [verb, str(path), *options, "--json"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not strict JSON")

    return Answer(ended.exit_code, json.loads(ended.stdout, parse_constant=refuse))


def say(verb: str, path: Path, *options: str) -> str:
    """Return all that a verb says to a person: data and narration."""
    ended = CliRunner().invoke(main, [verb, str(path), *options])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.output
