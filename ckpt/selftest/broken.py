"""Deliberately broken variants of the protocol: a suite that does not notice them is worthless."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ckpt import fs
from ckpt.selftest.probes import Promise
from ckpt.selftest.scenarios import OVER
from ckpt.selftest.suites import Case, Stage, Traced, faults, traced
from ckpt.selftest.tree import put, take

DROPPED = (("fsync", "the weights", "model.safetensors"), ("fsync-directory", "the run", "run"))


def try_broken(directory: Path) -> Iterator[Promise]:
    """Let the suite judge protocols that lose data; it must find each of them out."""
    fs.make_directory(directory)
    stage = Stage(directory, OVER, is_exchange=False)
    yield _dropped_fsync(traced(stage))
    yield _deleting_clean_up(directory)


def _dropped_fsync(trace: Traced) -> Promise:
    """Take the fsync of a payload, then the first one of the run's names, as not made."""
    cases = 0
    for kind, words, name in DROPPED:
        places = [at for at in trace.syncs() if _is(trace.calls[at], kind, name)]
        tried, is_noticed = _until_noticed(trace.cuts(frozenset(places)))
        cases += tried
        if not is_noticed:
            detail = f"an fsync of {words} was left out, and no power cut showed it"
            return Promise("notices-dropped-fsync", holds=False, cases=cases, detail=detail)
    detail = "the suite finds a protocol out that leaves an fsync out"
    return Promise("notices-dropped-fsync", holds=True, cases=cases, detail=detail)


def _until_noticed(cases: Iterator[Case]) -> tuple[int, bool]:
    """Count the cases up to the first in which something is wrong."""
    tried = 0
    for case in cases:
        tried += 1
        if case.wrong:
            return tried, True
    return tried, False


def _is(call: fs.Call, kind: str, name: str) -> bool:
    return call.name == kind and Path(call.path).name == name


def _deleting_clean_up(directory: Path) -> Promise:
    stage = Stage(directory, replace(OVER, act=_save_and_clean_up), is_exchange=False)
    tried, is_noticed = _until_noticed(faults(stage, every=2))
    detail = "the suite finds a clean-up out that deletes"
    if not is_noticed:
        detail = "a clean-up deleted the last checkpoint, and no error showed it"
    return Promise("notices-deleting-clean-up", is_noticed, tried, detail)


def _save_and_clean_up(run_dir: Path) -> None:
    """Swap by two renames, and on any error remove what lies beside the name, old and new."""
    target, staging = run_dir / "step_1", run_dir / ".step_1.tmp-ab12cd34"
    retired = run_dir / ".step_1.retired-ab12cd34"
    made = take(target)
    try:
        put(staging, made)
        fs.rename(target, retired)
        fs.sync_directory(run_dir)
        fs.rename(staging, target)
        fs.sync_directory(run_dir)
    except OSError:
        fs.remove_tree(staging)
        fs.remove_tree(retired)
        raise
