"""`python -m tests.sim`: simulate one seed or many, with the code as it is or with a planted bug.

    python -m tests.sim                          a cluster, so many seeds from --seed on; ends with what they exercised
    python -m tests.sim broker                   a single broker
    python -m tests.sim requests                 a cluster, also under requests with idempotency keys
    python -m tests.sim registers                a cluster, also under clients that compare-and-set single keys
    python -m tests.sim crowds                   a cluster, also under more producers than a partition remembers
    python -m tests.sim schedules                a cluster that fires schedules, whose clocks are set
    python -m tests.sim passing                  groups, one of which empties again and again
    python -m tests.sim --seed 123 -v            one seed, told in full
    python -m tests.sim --mutant NAME            a planted bug: succeeds when the checker finds it
    python -m tests.sim --mutant all             every planted bug: which seed finds it, and after how long
    python -m tests.sim --mutant list

Exit code 1 when a promise was broken, a run broke, or many runs left something unexercised.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.sim.hunting import ALL_MUTANTS, hunt, hunt_all, order
from tests.sim.result import Totals
from tests.sim.runs import FAULTS, SCENARIOS, run_many, run_one, tell

TOTALS_FROM_SEEDS = 200  # fewer may leave something unexercised by chance


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("scenario", nargs="?", default="cluster", choices=sorted(SCENARIOS))
    parser.add_argument("--seed", type=int, help="the first seed; alone: only this one")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; one for each processor")
    parser.add_argument("--mutant", help="plant this bug; 'all': each of them; 'list' names them")
    parser.add_argument("--history", type=Path, help="write the history of one seed here, as JSON Lines")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args(arguments)
    if options.mutant == "list":
        for name, mutant in ALL_MUTANTS.items():
            print(f"{mutant.scenario:8} {name:34} {mutant.why}")
        return 0
    if options.mutant == "all":
        return _all_mutants(options.seed, options.seeds, options.jobs)
    if options.mutant:
        return _mutant(options.mutant, options.seed, options.seeds)
    if options.seed is not None and options.seeds is None:
        result = run_one(options.scenario, options.seed)
        print("\n".join(tell(result, verbose=options.verbose)))
        if options.history is not None:
            result.history.write(options.history)
        return 0 if result.ok else 1
    first = options.seed or 0
    return _seeds(options.scenario, range(first, first + (options.seeds or 50)), options.jobs, options.verbose)


def _seeds(scenario: str, seeds: range, jobs: int, verbose: bool) -> int:
    began = time.perf_counter()
    totals, failed, cpu_s, simulated_s = Totals(), 0, 0.0, 0.0
    for report in run_many(scenario, seeds, jobs=jobs, verbose=verbose):
        totals.merge(report.totals)
        failed += not report.ok
        cpu_s += report.cpu_s
        simulated_s += report.simulated_s
        if report.lines:
            print("\n".join(report.lines), flush=True)
    seconds = time.perf_counter() - began
    count = len(seeds)
    print(
        f"{count} seeds, {failed} failed, {seconds:.1f} s, {count / seconds:.2f} seeds/s; "
        f"each {simulated_s / count:.0f} simulated s, {cpu_s / count:.2f} s of processor"
    )
    print("checked " + ", ".join(f"{name} {number}" for name, number in totals.checked.items()))
    print("faults  " + ", ".join(f"{name} {number}" for name, number in sorted(totals.faults.items())))
    missing = totals.missing(FAULTS[scenario]) if count >= TOTALS_FROM_SEEDS else []
    if missing:
        print("never exercised: " + ", ".join(missing))
    return 1 if failed or missing else 0


def _mutant(name: str, first: int | None, seeds: int | None) -> int:
    mutant = ALL_MUTANTS[name]
    tried = order(mutant, first, seeds)
    caught = hunt(mutant, tried)
    if caught is None:
        print(f"{name}: NOT caught by {len(tried)} seeds")
        return 1
    print("\n".join(tell(caught, verbose=False)))
    print(f"{name}: caught by seed {caught.seed}")
    return 0


def _all_mutants(first: int | None, seeds: int | None, jobs: int) -> int:
    missed = []
    for done in hunt_all(first, seeds, jobs=jobs):
        print(done.line(), flush=True)
        if done.seed is None:
            missed.append(done.name)
    print(f"{len(ALL_MUTANTS)} planted bugs, {len(missed)} not found" + "".join(f"\n    {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Nothing depends on it as far as we know; this makes sure that nothing can.
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
