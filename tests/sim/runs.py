"""Many seeds of a scenario, one after the other or in several processes, and what they came to.

What a run leaves behind is one heap of cycles: the garbage collector is off while it lasts and clears it up between
two, so that memory stays what one run needs.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.sim import (
    calendar_scenario,
    cluster,
    cluster_faults,
    compaction_scenario,
    expiry_scenario,
    group_scenario,
    nemesis,
    scenario,
    schedule_scenario,
    store_scenario,
)
from tests.sim.result import Result, Totals

Simulate = Callable[..., Result]

SCENARIOS: Final[dict[str, Simulate]] = {
    "cluster": cluster.simulate,
    "requests": cluster.simulate_requests,
    "registers": cluster.simulate_registers,
    "crowds": cluster.simulate_crowds,
    "groups": group_scenario.simulate,
    "passing": group_scenario.simulate_passing,
    "store": store_scenario.simulate,
    "compaction": compaction_scenario.simulate,
    "expiry": expiry_scenario.simulate,
    "schedules": schedule_scenario.simulate,
    "calendars": calendar_scenario.simulate,
    "broker": scenario.simulate,
}
FAULTS: Final = {
    "cluster": (*cluster_faults.DRAWN, "moved"),
    "requests": (*cluster_faults.DRAWN, "moved"),
    "registers": cluster.FAULTS_OF_REGISTERS,
    "crowds": (*cluster_faults.DRAWN, "moved", "crowd", "crowd forgot"),
    "groups": (*group_scenario.FAULTS, *cluster_faults.APART, *group_scenario.MEMBER_FAULTS),
    "passing": (*group_scenario.FAULTS, *cluster_faults.APART, *group_scenario.MEMBER_FAULTS, "group deleted"),
    "store": store_scenario.FAULTS,
    "compaction": compaction_scenario.FAULTS,
    "expiry": compaction_scenario.FAULTS,
    "schedules": (*schedule_scenario.FAULTS, schedule_scenario.JUMP),
    "calendars": (*schedule_scenario.FAULTS, schedule_scenario.JUMP),
    "broker": (*nemesis.FAULTS, "metered", "vandal"),
}


@dataclass(slots=True)
class Report:
    """What is left of a run when it is over: little enough to send to another process."""

    seed: int
    ok: bool
    lines: list[str]
    cpu_s: float
    simulated_s: float
    totals: Totals = field(default_factory=Totals)


def run_one(name: str, seed: int, profile: Any = None) -> Result:
    """One seed of a scenario. Brokers log nothing meanwhile: a simulated day of trouble fills a disk."""
    collecting, logged = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        return SCENARIOS[name](seed, profile)
    finally:
        logging.disable(logged)
        if collecting:
            gc.enable()


def tell(result: Result, *, verbose: bool) -> list[str]:
    lines = [f"---- {result.scenario} seed {result.seed}: {'ok' if result.ok else 'FAILED'} in {result.seconds:.2f} s"]
    if verbose:
        lines += result.log
        lines.append(", ".join(f"{name}: {count}" for name, count in result.history.counts().items()))
    lines += [line for line in result.verdict.lines() if verbose or "VIOLATED" in line or line.startswith("    ")]
    if result.error:
        lines.append(f"the run broke: {result.error}")
    if not result.ok:
        lines.append(f"replay: {result.replay()}")
    return lines


def _report(task: tuple[str, int, bool]) -> Report:
    name, seed, verbose = task
    began = time.process_time()
    result = run_one(name, seed)
    totals = Totals()
    totals.add(result)
    lines = tell(result, verbose=verbose) if verbose or not result.ok else []
    ok, simulated_s = result.ok, result.simulated_s
    del result
    gc.collect()
    return Report(seed, ok, lines, time.process_time() - began, simulated_s, totals)


def run_many(name: str, seeds: Iterable[int], *, jobs: int = 1, verbose: bool = False) -> Iterator[Report]:
    """Reports in the order of the seeds."""
    tasks = [(name, seed, verbose) for seed in seeds]
    gc.collect()
    gc.freeze()  # what all runs share need not be looked at after each
    if jobs == 1:
        yield from map(_report, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_report, tasks)
