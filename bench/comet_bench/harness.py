"""Runs subjects, and the suites that they belong to. Subjects that are compared with each other are measured in turn,
in the same surroundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from comet_bench.report import Result, combine

Progress = Callable[[str, int, Result | None], None]  # subject, run, result (None: the run starts)


class Measured(Protocol):
    """The surroundings that a subject measures in."""

    @property
    def sizes(self) -> Any:
        """Has `runs`: the number of runs of a subject without a comparison."""


B = TypeVar("B", bound=Measured)
Report = Callable[[int, int, Callable[[], Result]], Result]  # which of the names, which run, the run
Subject = Callable[[B, Report], list[list[Result]]]
Subjects = Mapping[tuple[str, ...], Subject[B]]  # by the names of what it measures


class RunSuite(Protocol):
    def __call__(
        self, names: Sequence[str], sizes: Any, *, address: str | None, folder: Path | None, progress: Progress
    ) -> dict[str, Result]: ...


@dataclass(frozen=True, slots=True)
class Suite:
    """The benchmarks of one `comet bench NAME`. The sizes of a run are a dataclass with `runs`, and with `pairs` for
    subjects that are compared."""

    about: Mapping[str, str]  # of each benchmark, by name
    full: Any
    quick: Any
    run: RunSuite
    compared: frozenset[str] = frozenset()
    without_broker: frozenset[str] = frozenset()  # the same over every transport
    starts_brokers: bool = False  # of its own, always
    undivided: bool = False  # all of it runs, or none
    facts: Callable[[Any], Mapping[str, Any]] = lambda _sizes: {}  # beside those of the machine

    def sizes(self, *, quick: bool, runs: int | None) -> Any:
        sizes = self.quick if quick else self.full
        return sizes if runs is None else self.with_runs(sizes, runs)

    @staticmethod
    def with_runs(sizes: Any, runs: int) -> Any:
        """The same loads, as many times."""
        return replace(sizes, **{name: runs for name in ("runs", "pairs") if hasattr(sizes, name)})

    def runs_of(self, name: str, sizes: Any) -> int:
        return int(sizes.pairs if name in self.compared and hasattr(sizes, "pairs") else sizes.runs)


def alone(subject: Callable[[B], Result]) -> Subject[B]:
    """A subject without a comparison. A run without a result, which could not be measured, does not count."""

    def run(bench: B, report: Report) -> list[list[Result]]:
        runs = [report(0, number, lambda: subject(bench)) for number in range(1, bench.sizes.runs + 1)]
        return [[found for found in runs if found]]

    return run


def compared(subjects: Subjects[B]) -> frozenset[str]:
    """The names of subjects that are compared."""
    return frozenset(name for together in subjects if len(together) > 1 for name in together)


def run_compared(
    subjects: Subjects[B],
    names: Sequence[str],
    surroundings: Callable[[str], AbstractContextManager[B]],
    progress: Progress,
) -> dict[str, Result]:
    """Results by name; those that are compared with each other come together. `surroundings` are made for each, by the
    name of the first of them."""
    results: dict[str, Result] = {}
    for together, subject in subjects.items():
        if not set(together) & set(names):
            continue

        def report(which: int, number: int, run: Callable[[], Result], together: tuple[str, ...] = together) -> Result:
            progress(together[which], number, None)
            result = run()
            progress(together[which], number, result)
            return result

        with surroundings(together[0]) as bench:
            runs = subject(bench, report)
        results |= {name: combine(found) for name, found in zip(together, runs, strict=True) if found}
    return results
