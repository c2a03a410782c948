"""python tests/bench [--quick] [NAME…]: run the benches and print each figure beside its bar."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def main(arguments: list[str]) -> int:
    quick = "--quick" in arguments
    wanted = [argument for argument in arguments if not argument.startswith("--")]
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    missed = 0
    for name in wanted or names:
        print(f"# {name}", flush=True)
        for row in importlib.import_module(f"bench_{name}").run(quick):
            base = "" if row.baseline is None else f" vs {row.baseline:.5g}"
            verdict = "ok  " if row.holds else "MISS"
            missed += not row.holds
            print(
                f"{verdict} {row.name}: {row.ours:.5g}{base} {row.unit}"
                f" -> {row.ratio:.4g} (bar {row.bar:g}) {row.note}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
