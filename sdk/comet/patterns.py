"""Topic patterns: untrusted regular expressions that are matched against whole topic names.

Python's matcher backtracks, so an expression may take for ever. An expression that is allowed here takes at most a few
million steps on the longest name: at most three repetitions, none inside another, a limited number of ways through its
choices, no look-around, no back-references.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from comet.errors import InvalidArgument

PATTERN_BYTES_MAX: Final = 512
REPETITIONS_MAX: Final = 3
# For each way, every end of every repetition is tried: more repetitions allow fewer ways.
WAYS_MAX: Final = (10_000, 1_000, 100, 10)  # through all choices, by the number of repetitions

_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\(\?|\(|\)|[*+?]|\{\d*,?\d*\}|.", re.DOTALL)


def compiled(pattern: str) -> re.Pattern[str]:
    """Raises InvalidArgument for an invalid pattern, or one that could take too long."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise InvalidArgument(f"a pattern has at most {PATTERN_BYTES_MAX} bytes")
    try:
        expression = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"{pattern!r} is not a valid regular expression: {error}") from error
    problem = _problem(pattern)
    if problem:
        raise InvalidArgument(f"the pattern {pattern!r} could take too long to match: {problem}")
    return expression


def _problem(pattern: str) -> str:
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
            if repetitions > REPETITIONS_MAX:
                return f"it has more than {REPETITIONS_MAX} repetitions"
            if closed and piece != "?":
                return "it repeats a group that holds a repetition or a choice"
            groups = [True] * len(groups)
        closed = False
        if piece == ")" and groups:
            closed = groups.pop()
            if closed and groups:
                groups[-1] = True
        previous = piece
    ways, most = _ways(pattern), WAYS_MAX[repetitions]
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
