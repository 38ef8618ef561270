"""How the code is kept: short modules, nothing left for later, no test that sleeps."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator

import pytest

from tests.tidy.tree import ROOT, Source, files, sources, sources_of_tests, tree

MODULE_LINES_MAX = 800
# Put together here, so that this file does not find itself.
LEFT_FOR_LATER = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]
MACHINE_PATHS = ["/wo" + "rk/", "/tmp/ve" + "nv"]


def test_no_module_is_too_long() -> None:
    lengths = {str(source): source.text.count("\n") for source in (*sources(), *sources_of_tests())}
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX}


def test_every_module_says_what_it_is() -> None:
    silent = [str(source) for source in sources() if not ast.get_docstring(tree(source))]
    assert not silent
    # An empty package file says enough about a folder of tests.
    assert not [str(source) for source in sources_of_tests() if source.text and not ast.get_docstring(tree(source))]


@pytest.mark.parametrize("word", LEFT_FOR_LATER + MACHINE_PATHS)
def test_nothing_is_left_for_later_or_tied_to_one_machine(word: str) -> None:
    texts = [
        path
        for kind in ("*.py", "*.proto", "*.md", "*.toml", "Makefile", "Dockerfile", "*.yaml")
        for path in files(kind)
    ]
    assert not [str(path.relative_to(ROOT)) for path in texts if word in path.read_text()]


def test_libraries_do_not_print() -> None:
    """The command line, and the end of a program, write to the terminal; everything else logs, raises or returns."""
    speaks = ("comet.cli", "comet_bench", "comet_broker.__main__", "comet_demo", "comet.processes.program")
    offences = [
        f"{source}:{call.lineno}"
        for source in sources()
        if not source.within(*speaks)
        for call in _calls(source)
        if _name(call) == "print"
    ]
    assert not offences


def test_no_test_sleeps() -> None:
    """Real time passes in tests.waiting alone. That a sleep runs on the simulated loop is checked when it runs, by
    the conftest; here go the tests of real processes, and the programs that they start."""
    offences = [
        f"{source}:{call.lineno} {_name(call)}"
        for source in sources_of_tests()
        for call in _calls(source)
        if _name(call) == "time.sleep" or (_name(call) == "asyncio.sleep" and _real(source) and not _zero(call))
    ]
    assert not offences


async def test_a_test_that_sleeps_in_real_time_fails() -> None:
    with pytest.raises(AssertionError, match="slept in real time"):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


def test_no_test_patches_what_it_tests() -> None:
    patching = "unittest." + "mock"
    offences = [str(source) for source in sources_of_tests() if patching in source.text]
    assert not offences, "give the code under test another Clock, Files, Worker or Channel instead"


REAL = ("bench", "browser", "integration", "market", "robustness", "spark")  # folders without a simulated loop


def _real(source: Source) -> bool:
    return source.within(*(f"tests.{folder}" for folder in REAL))


def _zero(call: ast.Call) -> bool:
    """asyncio.sleep(0) only lets others have their turn."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _calls(source: Source) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(source)) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)
