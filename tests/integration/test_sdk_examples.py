"""Every example in the docstrings of the SDK runs, against a broker of its own, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest

import comet
import comet.sync
import comet.testing

MODULES = [
    "comet._admin",
    "comet._client",
    "comet._consumer",
    "comet._delivery",
    "comet._producer",
    "comet._record",
    "comet._route",
    "comet._routing",
    "comet._run",
    "comet.app",
    "comet.errors",
    "comet.sync",
    "comet.testing",
    "comet.types",
]


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found: list[doctest.DocTest] = []
    for name in MODULES:
        module: ModuleType = importlib.import_module(name)
        found.extend(test for test in finder.find(module, name) if test.examples)
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    with comet.testing.broker(["quotes"]) as broker:

        def run(function: Callable[[str], Awaitable[None]]) -> None:
            # On the loop that the broker runs on: gRPC wants one loop per process.
            comet.sync.call(_await(function(broker.address)))

        example.globs.update(comet=comet, address=broker.address, run=run)
        problems: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(example, out=problems.append)
    assert not runner.failures, "".join(problems)


async def _await(work: Awaitable[None]) -> None:
    await work


@pytest.mark.parametrize("name", [name for name in comet.__all__ if inspect.isclass(getattr(comet, name))])
def test_every_public_class_and_method_is_documented(name: str) -> None:
    cls: Any = getattr(comet, name)
    assert cls.__doc__, name
    for method, function in vars(cls).items():
        if not method.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            assert function.__doc__ or method in {"values", "keys", "offsets", "headers"}, f"{name}.{method}"


@pytest.mark.parametrize("cls", [comet.Producer, comet.Consumer, comet.Admin, comet.App, comet.Record])
def test_every_method_of_the_main_classes_has_an_example(cls: Any) -> None:
    assert ">>>" in (cls.__doc__ or "")
    without = [
        name
        for name, function in vars(cls).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and name not in {"close", "start", "stop", "run", "serve"}  # shown by the example of the class
        and ">>>" not in (function.__doc__ or "")
    ]
    assert not without
