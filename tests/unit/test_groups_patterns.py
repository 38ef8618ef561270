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
        (r"(?:quotes|trades|orders)\.(?:eu|us|asia)\..*-.*", "trades.eu.x-1"),
        (r"(?:eu|us|asia)\..*-.*\..*", "asia.a-b.c"),
        ("|".join(f"topic-{number}" for number in range(40)), "topic-39"),
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
        ".*.*.*x",
        "a*a*a*[bc]",
        "a*a*a*\\\\.*",
        "(",
        "[",
        "a{99999999999}",
        "(?:aa|a)" * 14 + "b",
        "(?:a(?:a|)|a)" * 8 + "b",
        "(?:aa|a)" * 2 + "a*a*b",
        "x" * (PATTERN_BYTES_MAX + 1),
    ],
)
def test_what_is_none_or_could_take_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:aa|a)" * 9 + "[bc]",
        "(?:aa|a)" * 4 + "a*[bc]",
        "a*a*[bc]",
        "a*?a*?[bc].*",
        "(?:a|aa|aaa)a*a*[bc]",
        "(?:a|aa|aaa).*a*[bc].*",
        "a{0,200}a{0,200}[bc]",
    ],
)
def test_the_worst_that_is_allowed_takes_milliseconds(pattern: str) -> None:
    expression = compiled(pattern)
    times = []
    for _ in range(5):
        began = time.thread_time()
        assert expression.fullmatch("a" * 249) is None
        times.append(time.thread_time() - began)
    assert min(times) < 0.015  # 3 ms; the expressions that are refused above took 17 to 75


def test_a_rest_at_the_end_is_free() -> None:
    assert compiled(r"(?:eu|us|asia)\..*-.*\..*").fullmatch("eu.a-b.c")
