"""The transport of the streams of all processes that a benchmark starts, and rows that are measured over both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.settings.client import TRANSPORT_VARIABLE, TRANSPORTS, Transport
from comet_bench.harness import Suite
from comet_bench.report import Result, combine

BOTH: Final = "both"
PAIR: Final[tuple[Transport, ...]] = ("grpc", "wire")  # also the ends of the names of results
LIMIT: Final = "limit_"

Show = Callable[[int, str, int, Result | None], None]  # number of runs, name, run, result (None: the run starts)


def run_suite(
    suite: Suite, names: Sequence[str], sizes: Any, transport: str | None, *, show: Show, **where: Any
) -> dict[str, Result]:
    """Results by name; over the transport of the environment if none is given. `where` are the address and the folder
    of brokers, as for Suite.run."""
    if transport == BOTH:
        return _run_over_both(suite, names, sizes, show=show, **where)
    with over(_checked(transport)) if transport is not None else nullcontext():
        return _run(suite, names, sizes, show=show, **where)


def _checked(name: str) -> Transport:
    for known in TRANSPORTS:
        if name == known:
            return known
    raise InvalidArgument(f"the transport is one of {', '.join(TRANSPORTS)} and {BOTH}, not {name!r}")


@contextmanager
def over(transport: Transport) -> Iterator[None]:
    """Processes started within the block use this transport."""
    before = os.environ.get(TRANSPORT_VARIABLE)
    os.environ[TRANSPORT_VARIABLE] = transport
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRANSPORT_VARIABLE]
        else:
            os.environ[TRANSPORT_VARIABLE] = before


def broker_settings() -> Mapping[str, str]:
    """Settings of the brokers of a cluster: they replicate over the wire unless they have none."""
    return {"wire": "no"} if os.environ.get(TRANSPORT_VARIABLE) == "grpc" else {}


def _run(suite: Suite, names: Sequence[str], sizes: Any, *, show: Show, **where: Any) -> dict[str, Result]:
    def progress(name: str, run: int, found: Result | None) -> None:
        show(suite.runs_of(name, sizes), name, run, found)

    return suite.run(names, sizes, progress=progress, **where)


def _run_over_both(suite: Suite, names: Sequence[str], sizes: Any, *, show: Show, **where: Any) -> dict[str, Result]:
    """Results as NAME_grpc and NAME_wire. The transports take turns, round by round, each time with a fresh broker.
    Rows without a broker are measured as ever; a limit that is measured beside each of the two keeps its name."""
    results: dict[str, Result] = {}
    for chosen in [names] if suite.undivided else [[name] for name in names]:
        if chosen[0] in suite.without_broker:
            results |= _run(suite, chosen, sizes, show=show, **where)
        elif not {_name(chosen[0], transport) for transport in PAIR} & results.keys():  # not with a compared row
            runs = _rounds(suite, chosen, sizes, show=show, **where)
            results |= {name: combine(found) for name, found in runs.items()}
    return results


def _rounds(suite: Suite, names: Sequence[str], sizes: Any, *, show: Show, **where: Any) -> dict[str, list[Result]]:
    runs: dict[str, list[Result]] = {}
    rounds = suite.runs_of(names[0], sizes)
    for number, transport in product(range(1, rounds + 1), PAIR):

        def progress(name: str, _run: int, found: Result | None, at: tuple[int, str] = (number, transport)) -> None:
            show(rounds, _name(name, at[1]), at[0], found)

        with over(transport):
            results = suite.run(names, suite.with_runs(sizes, 1), progress=progress, **where)
        for name, found in results.items():
            run = {field: value for field, value in found.items() if field != "runs"}
            runs.setdefault(_name(name, transport), []).append(run)
    return runs


def _name(row: str, transport: str) -> str:
    return row if row.startswith(LIMIT) else f"{row}_{transport}"
