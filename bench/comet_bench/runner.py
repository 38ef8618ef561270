"""Runs subjects one after the other, each repeated, and combines the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comet_bench.processes import Broker, given_broker, own_broker
from comet_bench.report import Result, combine
from comet_bench.subjects import SUBJECTS, Bench, Sizes, Subject

Progress = Callable[[str, int, Result | None], None]  # subject, run, result (None: the run starts)


def run_subjects(
    names: Sequence[str], sizes: Sizes, *, address: str | None, folder: Path | None, progress: Progress
) -> dict[str, Result]:
    """Results by name. With an address, that broker is measured, without its memory and CPU."""
    results = {}
    for name in names:
        runs = _run_subject(name, SUBJECTS[name], sizes, address, folder, progress)
        if runs:
            results[name] = combine(runs)
    return results


def _run_subject(
    name: str, subject: Subject, sizes: Sizes, address: str | None, folder: Path | None, progress: Progress
) -> list[Result]:
    runs = []
    with _surroundings(subject, sizes, address, folder) as bench:
        for number in range(1, sizes.runs + 1):
            progress(name, number, None)
            run = subject.run(bench)
            if bench.broker is not None:
                bench.drop_topics()
            progress(name, number, run)
            if run:
                runs.append(run)
    return runs


@contextmanager
def _surroundings(subject: Subject, sizes: Sizes, address: str | None, folder: Path | None) -> Iterator[Bench]:
    if not subject.needs_broker:
        yield Bench(sizes, folder)
        return
    with _broker(address, folder) as broker:
        yield Bench(sizes, folder, broker)


@contextmanager
def _broker(address: str | None, folder: Path | None) -> Iterator[Broker]:
    with given_broker(address) if address is not None else own_broker(folder) as broker:
        yield broker
