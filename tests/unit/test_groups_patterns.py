"""Patterns of members: what is allowed, and what could take for ever."""

from __future__ import annotations

import time

import pytest

from comet.errors import InvalidArgument
from comet.patterns import PATTERN_BYTES_MAX, compiled


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "orders"),
        (r"orders\..*", "orders.eu"),
        (r"(eu|us)\.quotes", "us.quotes"),
        (r"(?:eu|us)?quotes", "quotes"),
        (r"[a-z]+-\d{1,3}", "node-42"),
        (r"a[*+?{}()|]*b?", "a"),
        (r"q\*.+?", "q*x"),
    ],
)
def test_usual_patterns_match(pattern: str, name: str) -> None:
    assert compiled(pattern).fullmatch(name)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|a)*b",
        "((a+))*",
        "(a*){1,9}",
        r"(a)\1",
        "(?=a)a",
        "(?P<name>a)(?P=name)",
        ".*.*.*.*x",
        "(",
        "[",
        "a{99999999999}",
        "x" * (PATTERN_BYTES_MAX + 1),
    ],
)
def test_what_is_none_or_could_take_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        compiled(pattern)


def test_the_worst_that_is_allowed_ends() -> None:
    began = time.perf_counter()
    assert compiled("a*a*a*b").fullmatch("a" * 249) is None
    print(f"{(time.perf_counter() - began) * 1000:.0f} ms")
