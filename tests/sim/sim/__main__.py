"""``python -m sim``: run schedules, tell what came of them."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

from sim.bugs import BUGS, present
from sim.run import Result, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--seed", type=int, nargs="+", help="these only")
    parser.add_argument("--trace", action="store_true", help="print the schedule")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="with this bug in the product")
    options = parser.parse_args()
    gc.freeze()  # what was imported stays: no collection need look at it again
    with present(options.bug):
        return run(options)


def run(options: argparse.Namespace) -> int:
    if options.seed is not None:
        failed = False
        for result in (simulate(seed, echo=options.trace) for seed in options.seed):
            print(result.failure or f"seed {result.seed}: all holds; trace {result.trace:08x}, {result.events} events")
            failed = failed or bool(result.failure)
        return int(failed)
    seeds = range(options.first, options.first + options.seeds)
    if options.processes == 1:
        return report(map(simulate, seeds), options)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        return report(pool.imap_unordered(simulate, seeds, chunksize=16), options)


def report(results: Iterable[Result], options: argparse.Namespace) -> int:
    began, told = time.monotonic(), time.monotonic()
    done, failed = 0, 0
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for result in results:
        done += 1
        totals.update(events=result.events, generations=result.generations, steps=result.steps)
        faults += result.faults
        if result.failure:
            failed += 1
            print(result.failure, flush=True)
            if not options.keep_going:
                break
        if time.monotonic() - told > 5:
            told = time.monotonic()
            print(f"{done} of {options.seeds} schedules, {failed} failed", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"schedules            {done}, {failed} failed")
    print(f"events               {totals['events']}")
    print(f"generations formed   {totals['generations']}")
    print(f"steps committed      {totals['steps']}")
    print(f"schedules per second {done / seconds:.1f} ({seconds:.1f} s, {options.processes} processes)")
    print("faults               " + ", ".join(f"{kind} {n}" for kind, n in sorted(faults.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have one order in all runs
        os.execve(sys.executable, [sys.executable, "-m", "sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
