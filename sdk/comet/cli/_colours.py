"""Colours of states on a terminal; none in a pipe, with NO_COLOR, or where TERM is dumb."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, TextIO

GOOD: Final = "green"
WARNING: Final = "yellow"
BAD: Final = "red"
QUIET: Final = "dim"

_CODES: Final = {GOOD: "32", WARNING: "33", BAD: "31", QUIET: "2"}
# Words of states. The worst one in a text decides.
_WORDS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    (
        BAD,
        frozenset({"offline", "conflict", "failed", "fail", "stopped", "lost", "error", "never", "refuses", "below"})
        | {"silent", "forbidden", "unavailable"},
    ),
    (WARNING, frozenset({"warn", "rebalancing", "under-replicated", "pending", "draining", "loading"})),
    (GOOD, frozenset({"ok", "stable", "running", "redriven"})),
    (QUIET, frozenset({"empty", "discarded", "-"})),
)
STATE_COLUMNS: Final = frozenset({"state", "status", "drained in"})
_WORD: Final = re.compile(r"[a-z][a-z-]*|-")


def colour_of(state: str) -> str:
    """The colour of a state; empty for one without.

    >>> colour_of("ok"), colour_of("2 under-replicated; 1 offline"), colour_of("3m 20s")
    ('green', 'red', '')
    """
    words = set(_WORD.findall(state.lower()))
    return next((colour for colour, known in _WORDS if not known.isdisjoint(words)), "")


def shows_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colours may be written to a stream."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour, if the stream shows colours."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and shows_colours(stream) else text
