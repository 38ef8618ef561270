"""The pytest plugin: the fixture `comet`, a simulated cluster, and the mark that says which.

A coroutine test that takes the fixture runs on virtual time, whether pytest-asyncio or anyio are there or not. Its
other fixtures are those of pytest; asynchronous ones run on the loop of their own plugin, in real time.

Nothing of Comet is imported until a test takes the fixture.
"""

from __future__ import annotations

import inspect
import shlex
import zlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from comet_testing.cluster import Cluster

_MARK = "comet(brokers=3, seed=None, **settings): the cluster of the fixture `comet`; settings are those of its brokers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("comet").addoption(
        "--comet-seed", type=int, default=None, metavar="SEED", help="the seed of clusters of the fixture `comet`"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


@pytest.fixture(name="comet")
def _comet(request: pytest.FixtureRequest) -> Cluster:
    """A simulated cluster of three brokers; the mark `comet` may say otherwise."""
    from comet.testing import cluster

    mark = request.node.get_closest_marker("comet")
    chosen: dict[str, Any] = {} if mark is None else dict(mark.kwargs)
    given = request.config.getoption("--comet-seed")
    chosen["seed"] = _seed(request.node.nodeid, chosen.get("seed")) if given is None else given
    if not inspect.iscoroutinefunction(_function(request.node)):
        pytest.fail("the fixture `comet` is for coroutine tests: write `async def`", pytrace=False)
    return cluster(**chosen)


def _seed(nodeid: str, chosen: int | None) -> int:
    """Without one in the mark, a test has one of its own, which stays."""
    return zlib.crc32(nodeid.encode()) if chosen is None else chosen


def _function(item: pytest.Function) -> Any:
    """The test, without what other plugins have put around it."""
    return inspect.unwrap(item.obj, stop=inspect.iscoroutinefunction)


def _cluster(item: pytest.Item) -> Cluster | None:
    found: Cluster | None = getattr(item, "funcargs", {}).get("comet")
    return found if type(found).__module__ == "comet_testing.cluster" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    cluster = _cluster(pyfuncitem)
    if cluster is None:
        return None
    from comet.testing import run

    function = _function(pyfuncitem)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def main() -> None:
        async with cluster:
            await function(**arguments)

    run(main())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = _cluster(item)
    if cluster is not None and call.when == "call" and report.failed:
        command = f"pytest {shlex.quote(item.nodeid)} --comet-seed={cluster.seed}"
        report.sections.append(("comet", f"seed {cluster.seed}; the same run again: {command}"))
    return report
