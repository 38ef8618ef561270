"""The table of all pages: path, template, facts and view. The gateway serves each as HTML and updates it.

A page's `view` is pure; `facts` names its loader (`dashboard.facts.LOADERS`). The same view gives the first content,
the updates over the WebSocket, and the CSV of the page's main table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from comet_web.document import Document
from comet_web.page_request import ADMIN, VIEWER, PageRequest
from comet_web.views import (
    about,
    access,
    alerts,
    audit,
    broker,
    brokers,
    dead_letter_topic,
    dead_letters,
    group,
    groups,
    overview,
    quotes,
    records,
    schedule,
    schedules,
    topic,
    topic_config,
    topic_consumers,
    topic_keys,
    topics,
)

View = Callable[[Any, PageRequest], Document]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `path` has {name} for a parameter, {name:path} if it may hold slashes; `interval_s` is the time between
    two updates, 0: no updates."""

    name: str
    path: str
    template: str
    facts: str
    view: View
    nav: str = ""  # its entry of the navigation
    interval_s: float = 1.0
    main: str = ""  # id of its main table, with filter, paging and CSV
    role: int = VIEWER  # required to view it
    personal: bool = False  # it shows the user, so it is not shared between users

    @property
    def csv(self) -> str:
        """The path of its main table as CSV; empty: no table. Not inside a parameter: a topic may be called a.csv."""
        if not self.main:
            return ""
        return f"{self.path}/{self.main}.csv" if self.path.endswith("}") else f"{self.path}.csv"


PAGES: Final[tuple[Page, ...]] = (
    Page("overview", "/", "overview.html", "health", overview.view, nav="overview"),
    Page("topics", "/topics", "topics.html", "cluster", topics.view, nav="topics", main="topics"),
    Page("topic", "/topics/{topic}", "topic_partitions.html", "topic", topic.view, nav="topics", main="partitions"),
    Page(
        "topic_records",
        "/topics/{topic}/records",
        "topic_records.html",
        "topic_records",
        records.view,
        nav="topics",
    ),
    Page("topic_keys", "/topics/{topic}/keys", "topic_keys.html", "topic_keys", topic_keys.view, nav="topics"),
    Page(
        "topic_config",
        "/topics/{topic}/config",
        "topic_config.html",
        "topic",
        topic_config.view,
        nav="topics",
        interval_s=0,
        main="settings",
    ),
    Page(
        "topic_consumers",
        "/topics/{topic}/consumers",
        "topic_consumers.html",
        "topic_consumers",
        topic_consumers.view,
        nav="topics",
        interval_s=2,
        main="consumers",
    ),
    Page("brokers", "/brokers", "brokers.html", "health", brokers.view, nav="brokers", interval_s=2, main="brokers"),
    Page("broker", "/brokers/{broker}", "broker.html", "broker", broker.view, nav="brokers", interval_s=2, main="logs"),
    Page("quotes", "/quotes", "quotes.html", "quotes", quotes.view, nav="quotes", interval_s=0.25, main="watchlist"),
    Page("groups", "/groups", "groups.html", "cluster", groups.view, nav="groups", interval_s=2, main="groups"),
    Page("group", "/groups/{group}", "group.html", "group", group.view, nav="groups", interval_s=2, main="partitions"),
    Page(
        "dead_letters",
        "/dead-letters",
        "dead_letters.html",
        "dead_letters",
        dead_letters.view,
        nav="dead-letters",
        interval_s=2,
        main="causes",
    ),
    Page(
        "dead_letter_topic",
        "/dead-letters/{topic}",
        "dead_letter_topic.html",
        "dead_letter_topic",
        dead_letter_topic.view,
        nav="dead-letters",
        interval_s=2,
        main="dead_letters",
    ),
    Page("alerts", "/alerts", "alerts.html", "alerts", alerts.view, nav="alerts", main="alerts"),
    Page("schedules", "/schedules", "schedules.html", "schedules", schedules.view, nav="schedules"),
    Page("schedule", "/schedules/{topic}/{schedule}", "schedule.html", "schedule", schedule.view, nav="schedules"),
    Page(
        "access", "/access", "access.html", "access", access.view, nav="access", interval_s=2, main="rules", role=ADMIN
    ),
    Page("audit", "/audit", "audit.html", "audit", audit.view, nav="audit", main="events", role=ADMIN),
    Page(
        "about", "/about", "about.html", "about", about.view, nav="about", interval_s=0, main="settings", personal=True
    ),
)
