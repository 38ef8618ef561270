"""`python -m tests.sim`: simulate one seed or many, with the code as it is or with a planted bug.

    python -m tests.sim --seeds 1000            so many seeds from --seed on; ends with what they exercised
    python -m tests.sim --seed 123 -v           one seed, told in full
    python -m tests.sim --mutant NAME           a planted bug: succeeds when the checker finds it
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

from tests.sim.mutants import MUTANTS, hunt
from tests.sim.scenario import Result, Totals, simulate

TOTALS_FROM_SEEDS = 100  # fewer may leave something unexercised by chance


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the first seed; alone: only this one")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--mutant", help="plant this bug; 'list' names them")
    parser.add_argument("--history", type=Path, help="write the history of the last run here, as JSON Lines")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args(arguments)
    if options.mutant == "list":
        for name, mutant in MUTANTS.items():
            print(f"{name:34} {mutant.why}")
        return 0
    first = options.seed or 0
    count = options.seeds or (1 if options.seed is not None else 50)
    if options.mutant:
        return _mutant(options.mutant, options.seeds)
    return _seeds(range(first, first + count), verbose=options.verbose, history=options.history)


def _seeds(seeds: range, *, verbose: bool, history: Path | None) -> int:
    began = time.perf_counter()
    totals, failed = Totals(), 0
    for seed in seeds:
        result = simulate(seed)
        totals.add(result)
        failed += not result.ok
        if not result.ok or verbose:
            _tell(result, verbose=verbose)
        if history is not None:
            result.history.write(history)
    seconds = time.perf_counter() - began
    if len(seeds) > 1:
        print(f"{len(seeds)} seeds, {failed} failed, {seconds:.1f} s, {len(seeds) / seconds:.2f} seeds/s")
        print("checked " + ", ".join(f"{name} {count}" for name, count in totals.checked.items()))
        print("faults  " + ", ".join(f"{name} {count}" for name, count in sorted(totals.faults.items())))
    missing = totals.missing() if len(seeds) >= TOTALS_FROM_SEEDS else []
    if missing:
        print("never exercised: " + ", ".join(missing))
    return 1 if failed or missing else 0


def _tell(result: Result, *, verbose: bool) -> None:
    print(f"---- seed {result.seed}: {'ok' if result.ok else 'FAILED'} in {result.seconds:.2f} s")
    if verbose:
        print("\n".join(result.log))
        print(", ".join(f"{name}: {count}" for name, count in result.history.counts().items()))
    for line in result.verdict.lines():
        if verbose or "VIOLATED" in line or line.startswith("    "):
            print(line)
    if result.error:
        print(f"the run broke: {result.error}")
    if not result.ok:
        print(f"replay: {result.replay()}")


def _mutant(name: str, seeds: int | None) -> int:
    mutant = MUTANTS[name]
    caught = hunt(mutant, seeds or mutant.seeds)
    if caught is None:
        print(f"{name}: NOT caught by {seeds or mutant.seeds} seeds")
        return 1
    _tell(caught, verbose=False)
    print(f"{name}: caught by seed {caught.seed}")
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Nothing depends on it as far as we know; this makes sure that nothing can.
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
