"""The entries of the navigation. A page names its entry by `nav`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from comet_web.page_request import ADMIN, VIEWER


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. Its keyboard shortcut is g, then `key`."""

    name: str
    label: str
    href: str
    key: str
    minor: bool = False  # at the foot
    role: int = VIEWER  # required to see it


NAV: Final[tuple[Entry, ...]] = (
    Entry("overview", "Overview", "/", "o"),
    Entry("topics", "Topics", "/topics", "t"),
    Entry("groups", "Groups", "/groups", "c"),
    Entry("dead-letters", "Dead letters", "/dead-letters", "d"),
    Entry("alerts", "Alerts", "/alerts", "e"),
    Entry("schedules", "Schedules", "/schedules", "s"),
    Entry("brokers", "Brokers", "/brokers", "b"),
    Entry("quotes", "Quotes", "/quotes", "q"),
    Entry("access", "Access", "/access", "r", role=ADMIN),
    Entry("audit", "Audit log", "/audit", "l", role=ADMIN),
    Entry("api", "API", "/docs", "i", minor=True),
    Entry("about", "About", "/about", "a", minor=True),
)
