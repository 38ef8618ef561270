"""Every public name of the SDK is explained by an example that runs."""

from __future__ import annotations

import doctest
import inspect
import sys

import pytest

import comet

NAMES: list[str] = getattr(comet, "__all__", [])
PUBLIC = sorted(name for name in NAMES if not name.startswith("__"))
RUNS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Plain values, whose meaning stands where they are made.
VALUES = (str, int, float, tuple)


def _examples(name: str) -> list[doctest.DocTest]:
    thing = getattr(comet, name)
    module = sys.modules[thing.__module__] if hasattr(thing, "__module__") else comet
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=False)
    return finder.find(thing, name=f"comet.{name}", module=module, globs={"comet": comet, name: thing})


def test_everything_public_exists() -> None:
    assert PUBLIC
    assert not [name for name in PUBLIC if not hasattr(comet, name)]
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_runs(name: str) -> None:
    thing = getattr(comet, name)
    if inspect.ismodule(thing) or isinstance(thing, VALUES):
        return
    assert vars(thing).get("__doc__"), f"comet.{name} has no docstring of its own"
    if isinstance(thing, type) and issubclass(thing, comet.CometError) and thing is not comet.CometError:
        return  # they are raised, not made: the example is at the root of the tree
    found = _examples(name)
    assert any(test.examples for test in found), f"comet.{name} has no example in its docstring"
    runner = doctest.DocTestRunner(optionflags=RUNS)
    failures: list[str] = []
    for test in found:
        runner.run(test, out=failures.append)
    assert not runner.failures, "".join(failures)
