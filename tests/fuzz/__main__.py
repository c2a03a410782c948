"""python tests/fuzz [--inputs N] [--seed S] [--only AT] [PARSER…]: hurt inputs, 100,000 a parser.

Every parser is asked in a process of its own, whose memory is bounded. An exception that is not
one of ckpt's, an input that takes more than a second, and one that needs more memory than ten
times its size and 64 MB is a failure; the line that is printed names the input for ever.
"""

import argparse
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent)]

LIMIT_S = 1.0
SPARE_BYTES, TIMES = 64 << 20, 10
BATCH = 5_000
MOST_SHOWN = 5


class TooLong(BaseException):
    """An input took more than its second of the processor's time."""


def main() -> int:
    """Fuzz each parser that is named, or all; 1 where anything failed."""
    asked = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    asked.add_argument("parsers", nargs="*", metavar="PARSER")
    asked.add_argument("--inputs", type=int, default=100_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--only", type=int, help="ask one input of one parser, and show it")
    asked.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    told = asked.parse_args()
    if told.batch is not None:
        return batch(told.parsers[0], told.seed, told.batch, told.inputs)
    from parsers import PARSERS

    unknown = sorted(set(told.parsers) - PARSERS.keys())
    if unknown:
        asked.error(f"no parser {unknown[0]!r}; there are {', '.join(PARSERS)}")
    if told.only is not None:
        return batch(told.parsers[0], told.seed, told.only, 1, is_shown=True)
    names = told.parsers or PARSERS
    return max([fuzz(name, told.seed, told.inputs // PARSERS[name].share) for name in names])


def fuzz(name: str, seed: int, inputs: int) -> int:
    """Ask one parser, in processes of a few thousand inputs each; print what came of it."""
    started, counts, failures = time.monotonic(), dict.fromkeys(COUNTED, 0), []
    for begin in range(0, inputs, BATCH):
        count = min(BATCH, inputs - begin)
        command = [sys.executable, str(HERE), name, "--seed", str(seed), "--batch", str(begin)]
        done = subprocess.run(
            [*command, "--inputs", str(count)], stdout=subprocess.PIPE, text=True, check=False
        )
        for line in done.stdout.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "count":
                for key, value in zip(COUNTED, map(int, rest.split()), strict=True):
                    counts[key] = (max if key in LARGEST else int.__add__)(counts[key], value)
            else:
                failures.append(line)
        if done.returncode not in (0, 1):
            failures.append(f"died with {done.returncode} among {begin}..{begin + count}")
    took = time.monotonic() - started
    print(
        f"{'FAIL' if failures else 'ok  '} {name}: {counts['inputs']:,} inputs,"
        f" {counts['read']:,} read, {counts['refused']:,} refused, {len(failures)} failures,"
        f" slowest {counts['slowest_us'] / 1e3:.1f} ms, largest {counts['largest']:,} bytes,"
        f" memory +{counts['memory_kb'] / 1024:.1f} MB, {took:.0f} s",
        flush=True,
    )
    for line in failures[:MOST_SHOWN]:
        print(f"     {line}", flush=True)
    return 1 if failures or counts["inputs"] != inputs else 0


COUNTED = ("inputs", "read", "refused", "slowest_us", "largest", "memory_kb")
LARGEST = ("slowest_us", "largest", "memory_kb")


def batch(name: str, seed: int, begin: int, count: int, *, is_shown: bool = False) -> int:
    """Ask some inputs in this process; print each failure and, at the end, the counts."""
    from parsers import PARSERS

    from ckpt.errors import CheckpointError

    parser = PARSERS[name]
    samples = parser.samples()
    assert samples, f"{name}: no sample"
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as top:
        path = Path(top) / "run" / (parser.file or "input")
        path.parent.mkdir(parents=True)
        for other, content in parser.beside().items():
            (path.parent / other).write_bytes(content)
        signal.signal(signal.SIGPROF, _too_long)
        for sample in samples[:20]:  # so that no import or cache counts as an input's memory
            path.write_bytes(sample)
            with suppress(CheckpointError):
                parser.ask(path, sample)
        gc.collect()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held = _address_space()
        read = refused = slowest = largest = failed = 0
        for at in range(begin, begin + count):
            data = parser.make(random.Random(f"{name}:{seed}:{at}"), samples)
            largest = max(largest, len(data))
            if is_shown:
                print(repr(data))
            if parser.file is not None:
                path.write_bytes(data)
            limit = held + SPARE_BYTES + TIMES * largest
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            started = time.process_time()
            try:
                signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
                parser.ask(path, data)
                signal.setitimer(signal.ITIMER_PROF, 0)
                read += 1
            except CheckpointError:
                signal.setitimer(signal.ITIMER_PROF, 0)
                refused += 1
            except BaseException as error:
                signal.setitimer(signal.ITIMER_PROF, 0)
                if isinstance(error, KeyboardInterrupt):
                    raise
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                print(f"input {at}: {type(error).__name__}: {error!s:.120} at {place}", flush=True)
                failed += 1
                if is_shown:
                    traceback.print_exc()
            slowest = max(slowest, int(1e6 * (time.process_time() - started)))
        more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    print("count", count, read, refused, slowest, largest, more_kb, flush=True)
    if more_kb * 1024 > SPARE_BYTES + TIMES * largest:
        print(f"memory grew by {more_kb:,} kB among {begin}..{begin + count}", flush=True)
        failed += 1
    return 1 if failed else 0


def _too_long(_signal: int, _frame: object) -> None:
    raise TooLong(f"more than {LIMIT_S} s")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
