"""What came of one run, and of many."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.checker import Verdict
from tests.sim.history import History


@dataclass(slots=True)
class Result:
    seed: int
    profile: object
    verdict: Verdict
    history: History
    log: list[str]
    seconds: float  # of real time
    error: str = ""  # the run itself broke
    scenario: str = "broker"
    simulated_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.error and self.verdict.ok

    def replay(self) -> str:
        return (
            f"make sim SCENARIO={self.scenario} SEED={self.seed}   or   "
            f"python -m tests.sim {self.scenario} --seed {self.seed} -v"
        )


@dataclass(slots=True)
class Totals:
    """What many runs saw together: the guard against a simulation that tests nothing."""

    checked: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        for name, finding in result.verdict.findings.items():
            self.checked[name] = self.checked.get(name, 0) + finding.checked
        for name, count in result.history.counts().items():
            self.counts[name] = self.counts.get(name, 0) + count
        for name, count in result.history.faults.items():
            self.faults[name] = self.faults.get(name, 0) + count

    def merge(self, other: Totals) -> None:
        for mine, theirs in ((self.checked, other.checked), (self.counts, other.counts), (self.faults, other.faults)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count

    def missing(self, faults: tuple[str, ...]) -> list[str]:
        """Invariants and faults that no run has exercised."""
        unchecked = [name for name, count in self.checked.items() if not count]
        return unchecked + [name for name in faults if not self.faults.get(name)]
