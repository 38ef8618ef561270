"""What the navigation lists. A page says by `nav` which entry it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """`letter` after g goes there from the keyboard."""

    name: str
    label: str
    href: str
    letter: str
    minor: bool = False  # at the foot


NAV: Final[tuple[Entry, ...]] = (
    Entry("overview", "Overview", "/", "o"),
    Entry("topics", "Topics", "/topics", "t"),
    Entry("groups", "Groups", "/groups", "c"),
    Entry("dead-letters", "Dead letters", "/dead-letters", "d"),
    Entry("brokers", "Brokers", "/brokers", "b"),
    Entry("quotes", "Quotes", "/quotes", "q"),
    Entry("api", "API", "/docs", "i", minor=True),
    Entry("about", "About", "/about", "a", minor=True),
)
