"""Every public name of the SDK is explained by an example, and every example runs.

An example can use `comet`, the names of its own module, and a broker that has an empty topic "quotes":

    run(example)    runs the function `example(address)`, async or not, against a new broker
    address         that of a new broker
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pytest

import comet
from tests.tidy.tree import sources

PUBLIC = sorted(name for name in comet.__all__ if not name.startswith("__"))
WITH_EXAMPLES = [source.name for source in sources() if source.within("comet") and ">>> " in source.text]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
TOPICS = ["quotes"]
ADDRESS = re.compile(r"[(=]address\b")


def test_everything_public_exists() -> None:
    assert not [name for name in PUBLIC if not hasattr(comet, name)]
    assert len(comet.__all__) == len(set(comet.__all__))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    thing = getattr(comet, name)
    if inspect.ismodule(thing):
        return
    text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert text, f"comet.{name} has no docstring of its own"
    assert _is_one_of_many_errors(thing) or _has_example(text), f"comet.{name} has no example in its docstring"


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    found = doctest.DocTestFinder().find(import_module(name), name)
    failures: list[str] = []
    for example in found:
        if example.examples:
            _run(example, failures)
    assert not failures, "".join(failures)


def _is_one_of_many_errors(thing: object) -> bool:
    """They are raised by Comet, not made by its users: the example stands at the root of the tree."""
    return isinstance(thing, type) and issubclass(thing, comet.CometError) and thing is not comet.CometError


def _has_example(text: str) -> bool:
    return bool(doctest.DocTestParser().get_examples(text))


def _run(example: doctest.DocTest, failures: list[str]) -> None:
    example.globs.update(comet=comet, run=_run_with_broker)
    with ExitStack() as stack:
        if any(ADDRESS.search(step.source) and "def " not in step.source for step in example.examples):
            example.globs["address"] = stack.enter_context(comet.testing.broker(TOPICS)).address
        doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=failures.append)


def _run_with_broker(example: Callable[[str], Coroutine[Any, Any, None] | None]) -> None:
    if not inspect.iscoroutinefunction(example):
        with comet.testing.broker(TOPICS) as broker:
            example(broker.address)
        return

    async def main() -> None:
        async with comet.testing.broker(TOPICS) as broker:
            await example(broker.address)

    comet.run(main())
