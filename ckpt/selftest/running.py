"""The portable crash suite on one's own file system: all its cases, and the promises that hold.

Works in a fresh directory inside the given one and removes it, however it ends.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ckpt import fs
from ckpt.errors import CheckpointError, PublishError
from ckpt.operation import Note, Operation
from ckpt.selftest.broken import try_broken
from ckpt.selftest.probes import Promise, probe_all
from ckpt.selftest.scenarios import SCENARIOS, Scenario
from ckpt.selftest.suites import Case, crashes, faults, stages, traced

RECOVERY_CRASHES, FAULTS = 6, 20
"""One of so many is tried at each place, another one at the next."""

_SUITES = {
    "crash": ("survives-crashes", "nothing is lost when the process dies at any disk call"),
    "recovery-crash": ("survives-crashes-in-recovery", "nor when it dies again while it recovers"),
    "fault": ("survives-errors", "nothing is lost when any disk call fails"),
    "power-cut": ("survives-power-cuts", "what was reported durable is, in a model of power cuts"),
}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What the suite found in a directory: how many cases it tried, and what holds there."""

    path: Path
    cases: int
    seconds: float
    promises: tuple[Promise, ...]

    @property
    def holds(self) -> bool:
        """Whether no promise is broken; what is merely reported breaks none."""
        return all(promise.holds is not False for promise in self.promises)


def run(directory: Path) -> Operation[SelfTest]:
    """Run the suite in a directory; nothing is left in it.

    Raises:
        PublishError: nothing can be written there.
    """
    started = time.monotonic()
    place = directory / f".ckpt-selftest-{os.urandom(4).hex()}"
    try:
        fs.make_directory(place)
    except OSError as error:
        message = f"{directory}: cannot be tested: {(error.strerror or str(error)).lower()}"
        hint = "name a directory that can be written to"
        raise PublishError(message, path=str(directory), hint=hint) from error
    try:
        promises = yield from _run(place)
    finally:
        _remove(place)
    cases = sum(promise.cases for promise in promises)
    return SelfTest(directory, cases, time.monotonic() - started, promises)


def _remove(place: Path) -> None:
    """Remove the suite's directory; a second Ctrl-C meanwhile does not leave half of it."""
    try:
        fs.remove_tree(place)
    except BaseException:
        with suppress(OSError):
            fs.remove_tree(place)
        raise


def _run(place: Path) -> Operation[tuple[Promise, ...]]:
    yield Note("asking the file system")
    fs.make_directory(place / "probes")
    probed = tuple(probe_all(place / "probes"))
    can_exchange = any(each.code == "exchange" and each.holds for each in probed)
    tally = _Tally()
    for scenario in SCENARIOS:
        for case in _cases(place, scenario, can_exchange=can_exchange):
            tally.take(case)
        yield Note(f"{scenario.name}: {tally.count} cases so far")
    yield Note("trying protocols that are broken on purpose")
    try:
        broken = tuple(try_broken(place / "broken"))
    except CheckpointError as error:
        broken = (Promise("notices-broken-protocols", False, 1, f"cannot be tried: {error}"),)
    return (*tally.promises(), *broken, *probed)


def _cases(place: Path, scenario: Scenario, *, can_exchange: bool) -> Iterator[Case]:
    number = SCENARIOS.index(scenario)
    try:
        for stage in stages(place, scenario, can_exchange=can_exchange):
            yield from crashes(stage, every=RECOVERY_CRASHES, offset=number, at_changes_only=True)
            yield from faults(stage, every=FAULTS, offset=number)
            yield from traced(stage).cuts()
    except (CheckpointError, OSError) as error:
        yield Case("crash", scenario.name, (f"does not work here at all: {error}",))


@dataclass(slots=True)
class _Tally:
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUITES, 0))
    wrong: dict[str, list[Case]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def take(self, case: Case) -> None:
        self.counts[case.suite] += 1
        if case.wrong:
            self.wrong.setdefault(case.suite, []).append(case)

    def promises(self) -> Iterator[Promise]:
        for suite, (code, claim) in _SUITES.items():
            wrong = self.wrong.get(suite, [])
            told = (
                f"{len(wrong)} went wrong; {wrong[0].where}: {wrong[0].wrong[0]}" if wrong else ""
            )
            yield Promise(code, not wrong, self.counts[suite], told or claim)
