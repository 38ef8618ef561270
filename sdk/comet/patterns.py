"""Topic patterns: untrusted regular expressions that are matched against whole topic names.

Python's matcher backtracks, so an expression may take for ever. An expression that is allowed here has a limited number
of repetitions, none inside another, a limited number of ways through its choices, no look-around, no back-references.
A topic pattern takes at most three milliseconds on the longest name: one with three repetitions would take seventy.
A `.*` at its end is not counted, since it takes the rest of any name at once.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from comet.errors import InvalidArgument

PATTERN_BYTES_MAX: Final = 512
# Ways through all choices, by the number of repetitions. For each way, every end of every repetition is tried: more
# repetitions allow fewer ways, and the last number is that of the most repetitions.
WAYS_MAX: Final = (1_000, 30, 3)
_ANYTHING: Final = ".*"

_LITERAL: Final = re.compile(r"(?:[A-Za-z0-9_-](?![*+?{]))*")
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\(\?|\(|\)|[*+?]|\{\d*,?\d*\}|.", re.DOTALL)


def compiled(pattern: str) -> re.Pattern[str]:
    """A topic pattern. Raises InvalidArgument for an invalid one, or one that could take too long."""
    check(without_rest(pattern), WAYS_MAX)
    return re.compile(pattern, re.ASCII)


def literal_start(pattern: str) -> str:
    """The text with which every match of the regular expression begins.

    >>> literal_start("orders-[0-9]+"), literal_start("orders*"), literal_start("orders|invoices")
    ('orders-', 'order', '')
    """
    if "|" in pattern:
        return ""
    literal = _LITERAL.match(pattern)
    assert literal is not None
    return literal.group()


def without_rest(pattern: str) -> str:
    """The pattern without a `.*` at its end."""
    return pattern.removesuffix(_ANYTHING) if not pattern.endswith("\\" + _ANYTHING) else pattern


def check(pattern: str, ways_max: Sequence[int]) -> None:
    """Raises InvalidArgument for an invalid expression, or one with more repetitions or ways than `ways_max` allows."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise InvalidArgument(f"a pattern has at most {PATTERN_BYTES_MAX} bytes")
    try:
        re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"{pattern!r} is not a valid regular expression: {error}") from error
    problem = _problem(pattern, ways_max)
    if problem:
        raise InvalidArgument(f"the pattern {pattern!r} could take too long to match: {problem}")


def _problem(pattern: str, ways_max: Sequence[int]) -> str:
    """Why a pattern is refused; empty if it is not."""
    repetitions = 0
    groups: list[bool] = []  # of each open group: whether a repetition or a choice is in it
    closed = False  # the last piece closed a group with a repetition or choice
    previous = ""
    for piece in _PIECE.findall(pattern):
        repeats = piece[0] in "*+?" or (piece[0] == "{" and piece != "{")
        if piece == "(?":
            return "it uses an extension other than (?:...)"
        if piece[0] == "\\" and piece[1].isdigit():
            return "it has a back-reference to a group"
        if piece[0] == "(":
            groups.append(False)
        elif piece == "|" and groups:
            groups[-1] = True
        elif repeats and not (piece == "?" and previous[:1] in set("*+?{")):  # a ? that makes the repetition lazy
            repetitions += 1
            if repetitions >= len(ways_max):
                return f"it has more than {len(ways_max) - 1} repetitions"
            if closed and piece != "?":
                return "it repeats a group that holds a repetition or a choice"
            groups = [True] * len(groups)
        closed = False
        if piece == ")" and groups:
            closed = groups.pop()
            if closed and groups:
                groups[-1] = True
        previous = piece
    ways, most = _ways(pattern), ways_max[repetitions]
    if ways > most:
        return f"its choices allow {ways} ways; with {repetitions} repetitions at most {most}"
    return ""


def _ways(pattern: str) -> int:
    """The largest number of ways through all choices."""
    ways, choices = 1, [1]  # of the whole, and of each open group
    for piece in _PIECE.findall(pattern):
        if piece[0] == "(":
            choices.append(1)
        elif piece == "|":
            choices[-1] += 1
        elif piece == ")" and len(choices) > 1:
            ways *= choices.pop()
    return ways * choices[0]
