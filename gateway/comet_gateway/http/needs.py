"""What a user needs at the brokers for each route, as operation, kind and name of a rule, where `user_rules` is set.

A name in braces is a parameter of the path. A route that is made from an act of administration needs nothing here: its
call is made for the user, and brokers decide. Frames of a WebSocket have their needs in `push.needs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from comet.admin.acts import OPERATIONS
from comet.admin.rules import Need
from comet.types import AUDIT_TOPIC
from comet_web.pages import PAGES

ALL: Final = "*"
# A page shows the cluster as a whole.
WHOLE: Final = ("describe topic *", "describe group *", "describe cluster *")
_OF_PAGES: Final = {  # more, by the page's name
    "topic_records": ("read topic {topic}",),
    "topic_keys": ("read topic {topic}",),
    "quotes": ("read topic *",),
    "dead_letters": ("read topic *",),
    "dead_letter_topic": ("read topic {topic}",),
    "alerts": ("read topic *",),
    "schedules": ("read topic *",),
    "schedule": ("read topic {topic}",),
    "audit": (f"read topic {AUDIT_TOPIC}",),
}
_NOTHING: Final[tuple[str, ...]] = ()
_READ: Final = ("read topic {topic}",)
_MEMBER: Final = ("read group {group}",)  # and the topics in the body
_SETTLE: Final = ("read topic {topic}", "write topic {topic}")  # a note is written behind each dead letter
_ALERTS: Final = ("read topic *", "describe group *", "describe cluster *")  # a rule tells what it sees
_CHANGE_ALERTS: Final = ("read topic *", "describe group *", "alter cluster *")
_LEADERS: Final = ("alter cluster *",)

NEEDS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("GET", "/livez"): _NOTHING,
    ("GET", "/readyz"): _NOTHING,
    ("GET", "/docs"): _NOTHING,
    ("GET", "/docs/{file}"): _NOTHING,
    ("GET", "/openapi.json"): _NOTHING,
    ("GET", "/login"): _NOTHING,
    ("POST", "/login"): _NOTHING,
    ("GET", "/login/oidc"): _NOTHING,
    ("GET", "/login/oidc/callback"): _NOTHING,
    ("POST", "/logout"): _NOTHING,
    ("GET", "/metrics"): ("describe cluster *",),
    ("GET", "/about/diagnostics.json"): WHOLE,
    **{
        ("GET", path.replace(":path}", "}")): (*WHOLE, *_OF_PAGES.get(page.name, ()))
        for page in PAGES
        for path in (page.path, page.csv)
        if path
    },
    ("GET", "/palette"): WHOLE,
    ("GET", "/static/{version}/{path}"): _NOTHING,
    ("WS", "/v1/ws"): _NOTHING,
    ("GET", "/v1/ws/schema"): _NOTHING,
    ("GET", "/v1/topics/{topic}/stream"): _READ,
    ("POST", "/v1/topics/{topic}/records"): ("write topic {topic}",),
    ("GET", "/v1/topics/{topic}/records"): _READ,
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): _READ,
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records/{offset}/value"): _READ,
    ("GET", "/v1/topics/{topic}/search"): _READ,
    ("GET", "/v1/topics/{topic}/export"): _READ,
    ("GET", "/v1/kv/{topic}"): _READ,
    ("GET", "/v1/kv-history/{topic}"): _READ,
    ("GET", "/v1/kv/{topic}/{key}"): _READ,
    ("PUT", "/v1/kv/{topic}/{key}"): ("write topic {topic}",),
    ("DELETE", "/v1/kv/{topic}/{key}"): ("read topic {topic}", "write topic {topic}"),  # without a revision, it is read
    **{(route.method, route.path): _NOTHING for _, route in OPERATIONS.values()},
    ("GET", "/v1/topic-settings"): _NOTHING,
    ("GET", "/v1/topics/{topic}/offsets"): ("describe topic {topic}",),
    ("GET", "/v1/groups/{group}/offsets"): ("describe group {group}",),
    ("PUT", "/v1/groups/{group}/offsets"): ("alter group {group}",),  # and the topics in the body
    ("POST", "/v1/groups/{group}/acquire"): _MEMBER,
    ("POST", "/v1/groups/{group}/ack"): _MEMBER,
    ("POST", "/v1/groups/{group}/nack"): _MEMBER,
    ("POST", "/v1/groups/{group}/reject"): _MEMBER,
    ("POST", "/v1/groups/{group}/extend"): _MEMBER,
    ("GET", "/v1/dead-letters"): ("read topic *",),
    ("GET", "/v1/dead-letters/{topic}"): _READ,
    ("POST", "/v1/dead-letters/{topic}/redrive"): _SETTLE,  # and the topics that they came from
    ("POST", "/v1/dead-letters/{topic}/discard"): _SETTLE,
    ("GET", "/v1/alerts"): _ALERTS,
    ("POST", "/v1/alerts"): _CHANGE_ALERTS,
    ("GET", "/v1/alerts/{alert}"): _ALERTS,
    ("PUT", "/v1/alerts/{alert}"): _CHANGE_ALERTS,
    ("DELETE", "/v1/alerts/{alert}"): _CHANGE_ALERTS,
    ("POST", "/v1/alerts/{alert}/mute"): _CHANGE_ALERTS,
    ("POST", "/v1/alerts/{alert}/acknowledge"): _CHANGE_ALERTS,
    ("POST", "/v1/alerts/{alert}/test"): _CHANGE_ALERTS,
    ("GET", "/v1/alert-history"): _ALERTS,
    ("GET", "/v1/schedules/next"): _NOTHING,  # brokers decide about the calendar that it reads
    ("GET", "/v1/leaders"): ("describe topic *", "describe cluster *"),
    ("POST", "/v1/leaders/move"): _LEADERS,
    ("POST", "/v1/leaders/stop"): _LEADERS,
}  # fmt: skip


def needs_of_page(name: str, params: Mapping[str, Any]) -> tuple[Need, ...]:
    return named((*WHOLE, *_OF_PAGES.get(name, ())), params)


def named(needs: Iterable[str], params: Mapping[str, Any]) -> tuple[Need, ...]:
    """The needs with the names that a path has.

    >>> named(["read topic {topic}"], {"topic": "orders"})
    (('read', 'topic', 'orders'),)
    """
    found = []
    for need in needs:
        operation, kind, name = need.split(" ")
        found.append((operation, kind, str(params[name[1:-1]]) if name.startswith("{") else name))
    return tuple(found)
