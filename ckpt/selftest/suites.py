"""The suites: every action hit at every disk call, and cut off by every power cut of the model.

Each yields its cases one by one, with what is wrong in them. A case is one process that died, or
met an error, at one moment; or one state that a power cut may leave.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ckpt import fs
from ckpt.control import DIRECTORY
from ckpt.lock import own
from ckpt.selftest import deeds
from ckpt.selftest.crashes import (
    CHANGING,
    FAULTS,
    Act,
    At,
    Ended,
    Killed,
    Recorder,
    calls_of,
    hit,
    mode,
)
from ckpt.selftest.oracles import Expected, found_in, judge
from ckpt.selftest.powercut import PowerCuts
from ckpt.selftest.scenarios import Scenario
from ckpt.selftest.tree import Picture, mark, put, take

SUCCESSOR = 9
"""The label of a generation that is saved after another action died."""

SYNCS = frozenset({"fsync", "fsync-directory"})


@dataclass(frozen=True, slots=True)
class Case:
    """One moment that was tried, and the sentences about what went wrong in it."""

    suite: str
    where: str
    wrong: tuple[str, ...] = ()


@dataclass(slots=True)
class Stage:
    """A scenario in one mode, ready to be played again and again in one directory."""

    directory: Path
    scenario: Scenario
    is_exchange: bool
    picture: dict[str, bytes | None] = field(default_factory=dict)
    _judged: dict[tuple[bytes, str, bool], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with mode(is_exchange=self.is_exchange):
            run_dir = self.lay({})
            self.scenario.prepare(run_dir)
        self.picture = take(run_dir)

    @property
    def words(self) -> str:
        """The scenario and its mode, for people."""
        return f"{self.scenario.name} ({'exchange' if self.is_exchange else 'two renames'})"

    @property
    def run_dir(self) -> Path:
        """Where the run lies, always the same."""
        return self.directory / "run"

    def lay(self, picture: Picture) -> Path:
        """Make the run look like a picture, whatever it looked like before."""
        fs.remove_tree(self.run_dir)
        return _bury(put(self.run_dir, picture))

    def fresh(self) -> Path:
        """Make the run as it is before the action."""
        return self.lay(self.picture)

    def hit(self, act: Act, hook: At, recorder: Recorder | None = None) -> Ended:
        """Run an action in the run as it lies there, under a hook; record the calls it lets be."""
        with mode(is_exchange=self.is_exchange):
            return hit(act, self.run_dir, hook, recorder)

    def trace(self, act: Act) -> list[fs.Call]:
        """Run an action in the run as it lies there, and return its calls."""
        with mode(is_exchange=self.is_exchange):
            return calls_of(act, self.run_dir)

    def expected(self, *, is_done: bool) -> Expected:
        """Return what may be so when the action was cut off, or was reported as done."""
        expected = self.scenario.expected
        return expected.only_after() if is_done else expected

    def judged(self, expected: Expected, *, is_live: bool = False) -> tuple[str, ...]:
        """Judge the run as it lies there; one that looks the same was judged before.

        `is_live`: the action met one error and lives on, so that every name must be in its place
        without a recovery.
        """
        key = mark(take(_bury(self.run_dir))), repr(expected), is_live
        if key not in self._judged:
            with mode(is_exchange=self.is_exchange):
                self._judged[key] = tuple(judge(self.run_dir, expected, is_live=is_live))
        return self._judged[key]


def _bury(run_dir: Path) -> Path:
    """Let whoever is named as a holder be dead: it was this process, which goes on living.

    Only where a file system has no locks of its own is a name all that tells who holds one.
    """
    control = run_dir / DIRECTORY
    held = [control / "lock.held"]
    if fs.is_directory(control / "writers"):
        held += [control / "writers" / entry.name for entry in fs.scan(control / "writers")]
    for path in held:
        if fs.identity(path) is not None:
            fs.unlink(path)
            dead = asdict(replace(own("died"), pid=0))
            with fs.NewFile(path) as file:
                file.write(json.dumps(dead).encode())
    return run_dir


def stages(directory: Path, scenario: Scenario, *, can_exchange: bool = True) -> Iterator[Stage]:
    """Yield a scenario in both modes; in one only where it exchanges nothing: they are alike."""
    if not can_exchange:
        yield Stage(directory, scenario, is_exchange=False)
        return
    stage = Stage(directory, scenario, is_exchange=True)
    stage.fresh()
    exchanges = any(call.name == "exchange" for call in stage.trace(scenario.act))
    yield stage
    if exchanges:
        yield Stage(directory, scenario, is_exchange=False)


# ---- crashes ----------------------------------------------------------------------------------


def crashes(
    stage: Stage, *, every: int = 1, offset: int = 0, at_changes_only: bool = False
) -> Iterator[Case]:
    """Kill the action at each call, then the recovery of what it left at every n-th of its own.

    `at_changes_only`: only at calls that change something; a death at another leaves the same.
    """
    stage.fresh()
    only = CHANGING if at_changes_only else None
    total = sum(only is None or call.name in only for call in stage.trace(stage.scenario.act))
    states: dict[bytes, Picture] = {}
    for place in range(1, total + 2):
        stage.fresh()
        ended = stage.hit(stage.scenario.act, At(place, only=only))
        where = f"{stage.words}, {_moment(place, total, ended)}"
        if ended.is_foreign or (place <= total and not isinstance(ended.error, Killed)):
            yield Case("crash", where, (f"did not die, but: {ended.error!r}",))
            continue
        picture: Picture = take(stage.run_dir)
        states.setdefault(mark(picture), picture)
        yield Case("crash", where, stage.judged(stage.expected(is_done=ended.is_done)))
    for number, picture in enumerate(states.values()):
        yield from _crashes_inside_recovery(stage, picture, every, offset + number)


def _crashes_inside_recovery(
    stage: Stage, picture: Picture, every: int, offset: int
) -> Iterator[Case]:
    stage.lay(picture)
    total = sum(call.name in CHANGING for call in stage.trace(deeds.recover))
    for place in range(1 + offset % every, total + 1, every):
        stage.lay(picture)
        ended = stage.hit(deeds.recover, At(place, only=CHANGING))
        where = f"{stage.words}, recovery, {_moment(place, total, ended)}"
        yield Case("recovery-crash", where, stage.judged(stage.scenario.expected))


# ---- faults -----------------------------------------------------------------------------------


def faults(stage: Stage, *, every: int = 1, offset: int = 0) -> Iterator[Case]:
    """Let each call fail in each way: the action may raise what it promises, and loses nothing.

    With `every` each call meets every n-th of the faults, others at the next call.
    """
    stage.fresh()
    calls = stage.trace(stage.scenario.act)
    for place, call in enumerate(calls, start=1):
        possible = [fault for fault in FAULTS if fault.can_hit(call)]
        if stage.scenario.is_broken and call.name not in CHANGING:
            continue  # a payload that cannot be read is rightly passed over for an older one
        for fault in possible[(place + offset) % every :: every]:
            stage.fresh()
            ended = stage.hit(stage.scenario.act, At(place, fault))
            where = f"{stage.words}, {fault.name} at {_moment(place, len(calls), ended)}"
            is_live = not fault.is_lasting and not stage.scenario.is_broken
            wrong = stage.judged(stage.expected(is_done=ended.is_done), is_live=is_live)
            if ended.is_foreign:
                wrong = (f"raised {ended.error!r}, which is no error of ckpt", *wrong)
            yield Case("fault", where, wrong)


# ---- power cuts -------------------------------------------------------------------------------


@dataclass(slots=True)
class Traced:
    """A trace of actions, what may be so when they are cut off, and what must be once reported."""

    stage: Stage
    before: Picture
    calls: Sequence[fs.Call]
    words: str
    expected: Expected
    done: Expected
    _judged: dict[tuple[bytes, bool], tuple[str, ...]] = field(default_factory=dict)

    def cuts(self, without: frozenset[int] = frozenset(), *, seed: int = 0) -> Iterator[Case]:
        """Yield each state that a power cut may leave, once; `without`: fsyncs not made."""
        model = PowerCuts(str(self.stage.run_dir), self.before, self.calls, without)
        seen: set[tuple[bytes, bool]] = set()
        for made, picture in model.states(seed=seed):
            key = mark(picture), made == model.length
            if key in seen:
                continue
            seen.add(key)
            if key not in self._judged:
                self.stage.lay(picture)
                expected = self.done if made == model.length else self.expected
                self._judged[key] = self.stage.judged(expected)
            yield Case("power-cut", f"{self.words}, after {made} calls", self._judged[key])

    def syncs(self) -> Iterator[int]:
        """Yield the places of the fsyncs in the trace."""
        return (at for at, call in enumerate(self.calls) if call.name in SYNCS)

    def needed(self, sync: int, *, seed: int = 0) -> bool:
        """Whether a power cut shows it when that fsync is not made."""
        return any(case.wrong for case in self.cuts(frozenset({sync}), seed=seed))


def traced(stage: Stage) -> Traced:
    """Record an action; the model must agree with the disk on what it did.

    Raises:
        ValueError: it does not, so that nothing can be said of power cuts.
    """
    run_dir = stage.fresh()
    calls = stage.trace(stage.scenario.act)
    after = PowerCuts(str(run_dir), stage.picture, calls).after
    if mark(after) != mark(take(run_dir)):
        raise ValueError(f"{stage.words}: the model of the disk is wrong")
    expected = stage.scenario.expected
    return Traced(stage, stage.picture, calls, stage.words, expected, expected.only_after())


def traced_recoveries(stage: Stage) -> Iterator[Traced]:
    """Record each different recovery: the action dies at a call, then the run is recovered."""
    for calls, words in _deaths(stage):
        expected = stage.scenario.expected
        made = [*calls, *stage.trace(deeds.recover)]
        yield Traced(stage, stage.picture, made, f"{words}, recovered", expected, _stands(stage))


def traced_successors(stage: Stage) -> Iterator[Traced]:
    """Record what follows each different death: another save, and nobody recovered before it."""
    was = stage.scenario.expected
    slot = next(iter(was.after))
    for calls, words in _deaths(stage):
        before = {name: found_in(stage.run_dir).live.get(name) for name in was.after}
        made = [*calls, *stage.trace(lambda run_dir: deeds.save(run_dir, slot, SUCCESSOR))]
        after = before | {slot: SUCCESSOR}
        expected = replace(was, after=after, between=was.after, made=SUCCESSOR)
        done = replace(expected, before=after, between=None)
        yield Traced(stage, stage.picture, made, f"{words}, saved anew", expected, done)


def _deaths(stage: Stage) -> Iterator[tuple[list[fs.Call], str]]:
    """Let the action die at each change; yield the calls up to there where it left another state.

    The run lies then as it was left.
    """
    stage.fresh()
    total = sum(call.name in CHANGING for call in stage.trace(stage.scenario.act))
    seen = set()
    for place in range(2, total + 1):
        stage.fresh()
        recorder = Recorder()
        stage.hit(stage.scenario.act, At(place, only=CHANGING), recorder)
        state = mark(take(stage.run_dir))
        if state not in seen:
            seen.add(state)
            yield recorder.calls, f"{stage.words}, died at change {place} of {total}"


def _stands(stage: Stage) -> Expected:
    """What a recovery left live is what it reported: no power cut may take it back."""
    expected = stage.scenario.expected
    live = found_in(stage.run_dir).live
    is_after = all(live.get(name) == label for name, label in expected.after.items())
    return expected.only_after() if is_after else expected.only_before()


def _moment(place: int, total: int, ended: Ended) -> str:
    call = ended.call
    if call is None:
        return f"after all {total} calls"
    return f"call {place} of {total}: {call.name} {Path(call.path).name}"
