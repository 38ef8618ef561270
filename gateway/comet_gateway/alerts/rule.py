"""A rule of an alert, and where its notices go. Pure.

    value        the number in a field of the topic's newest matching record is above or below the threshold
    change       that number has risen (above) or fallen (below) by `threshold` percent within `window_s`
    count        more matching records than the threshold within `window_s`
    stale        no matching record for `threshold` seconds
    lag          the lag of a group in records, of one topic or all
    lag_seconds  the age of the oldest record that the group has not committed
    offline      partitions without a leader, of one topic or all
    under_replicated

A record matches if it has the `key`, where one is given, and matches the `filter`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Final, Literal

import msgspec

from comet.errors import MalformedFilter
from comet.filters import Filter, parse
from comet.filters.paths import Part, parse_path
from comet.types import is_internal_topic
from comet_gateway.alerts.targets import split_url
from comet_gateway.http.problems import Problem
from comet_gateway.search.filters import malformed

Kind = Literal["value", "change", "count", "stale", "lag", "lag_seconds", "offline", "under_replicated"]
Operator = Literal["above", "below"]
Severity = Literal["info", "warning", "critical"]

RULES_MAX: Final = 200
CHANNELS_MAX: Final = 5
RECIPIENTS_MAX: Final = 10
NAME_CHARS_MAX: Final = 100
TEXT_CHARS_MAX: Final = 500
DAY_S: Final = 86_400
# By kind, the members that it needs and those that it may have.
_OF_RECORDS: Final = {"key", "filter"}
KINDS: Final[dict[str, tuple[set[str], set[str]]]] = {
    "value": ({"topic", "field"}, _OF_RECORDS),
    "change": ({"topic", "field", "window_s"}, _OF_RECORDS),
    "count": ({"topic", "window_s"}, _OF_RECORDS),
    "stale": ({"topic"}, _OF_RECORDS),
    "lag": ({"group"}, {"topic"}),
    "lag_seconds": ({"group"}, set()),
    "offline": (set(), {"topic"}),
    "under_replicated": (set(), {"topic"}),
}
FOLLOWING: Final = frozenset({"value", "change", "count", "stale"})  # they look at records
BELOW: Final = frozenset({"value", "change"})  # kinds that know `below`
_EMAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=DAY_S)]


class WebhookChannel(msgspec.Struct, frozen=True, tag="webhook", tag_field="type", forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(max_length=2_000)]


class EmailChannel(msgspec.Struct, frozen=True, tag="email", tag_field="type", forbid_unknown_fields=True):
    to: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=320)], ...], msgspec.Meta(max_length=RECIPIENTS_MAX)]


class BrowserChannel(msgspec.Struct, frozen=True, tag="browser", tag_field="type", forbid_unknown_fields=True):
    """All open pages that have the permission to show notifications."""


Channel = WebhookChannel | EmailChannel | BrowserChannel


def label(channel: Channel) -> str:
    """The channel for people, without the path of a URL: it may be a secret."""
    match channel:
        case WebhookChannel(url):
            parts = split_url(url)
            return f"webhook {parts.scheme}://{parts.netloc}"
        case EmailChannel(to):
            return f"e-mail {', '.join(to)}"
    return "browser"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule, as it is stored. `author` and `changed_us` are of its last change."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    kind: Kind
    threshold: float
    topic: _Text = ""
    group: _Text = ""
    field: _Text = ""
    key: _Text = ""
    filter: _Text = ""
    operator: Operator = "above"
    window_s: _Seconds = 0
    for_s: _Seconds = 0
    cool_down_s: _Seconds = 300
    severity: Severity = "warning"
    channels: Annotated[tuple[Channel, ...], msgspec.Meta(max_length=CHANNELS_MAX)] = ()
    enabled: bool = True
    author: _Text = ""
    changed_us: int = 0

    @property
    def follows(self) -> bool:
        """Whether its topic's records are read. The age of a topic is known without them."""
        return self.kind in FOLLOWING and not (self.kind == "stale" and not self.key and not self.filter)

    @property
    def condition(self) -> tuple[object, ...]:
        """What decides: with another one the rule begins again."""
        return (
            self.kind, self.threshold, self.topic, self.group, self.field, self.key, self.filter, self.operator,
            self.window_s, self.for_s, self.enabled,
        )  # fmt: skip

    def parsed(self, now_us: int) -> Filter | None:
        """Its filter; None: it has none. Times ago are before `now_us`. Raises MalformedFilter."""
        return parse(self.filter, now_us=now_us) if self.filter else None

    def path(self) -> tuple[Part, ...]:
        """Of its field. Raises MalformedFilter."""
        return parse_path(self.field)

    def words(self) -> str:
        """Its condition in one line."""
        above = f"{self.operator} {self.threshold:g}"
        match self.kind:
            case "value":
                return f"{self.field} {above}"
            case "change":
                word = "rises" if self.operator == "above" else "falls"
                return f"{self.field} {word} by more than {self.threshold:g} % in {self.window_s} s"
            case "count":
                return f"more than {self.threshold:g} records in {self.window_s} s"
            case "stale":
                return f"no record for {self.threshold:g} s"
            case "lag":
                return f"lag above {self.threshold:g} records"
            case "lag_seconds":
                return f"lag above {self.threshold:g} s"
            case "offline":
                return f"more than {self.threshold:g} partitions offline"
        return f"more than {self.threshold:g} partitions under-replicated"

    def target(self) -> str:
        """The thing that it watches."""
        if self.group:
            return f"group {self.group}" + (f" in {self.topic}" if self.topic else "")
        more = [f"key {self.key}"] if self.key else []
        more += [self.filter] if self.filter else []
        return f"{self.topic or 'all topics'}{': ' if more else ''}{', '.join(more)}"


def check(rule: Rule) -> None:
    """Raises Problem (VALIDATION, MALFORMED_FILTER) with the member and what to do."""
    needed, more = KINDS[rule.kind]
    for name in ("topic", "group", "field", "key", "filter", "window_s"):
        given = bool(getattr(rule, name))
        if given and name not in needed | more:
            raise Problem("VALIDATION", f"{name}: a rule of the kind {rule.kind} has none; leave it out")
        if not given and name in needed:
            raise Problem("VALIDATION", f"{name}: a rule of the kind {rule.kind} needs it")
    if not rule.name.isprintable() or not rule.name.strip():
        raise Problem("VALIDATION", "name: use printable characters")
    if not math.isfinite(rule.threshold):
        raise Problem("VALIDATION", "threshold: give a finite number")
    if rule.kind != "value" and rule.threshold < 0:
        raise Problem("VALIDATION", f"threshold: give 0 or more for a rule of the kind {rule.kind}")
    if rule.operator == "below" and rule.kind not in BELOW:
        raise Problem("VALIDATION", f"operator: a rule of the kind {rule.kind} has only above")
    if is_internal_topic(rule.topic) and rule.kind in FOLLOWING:
        raise Problem("VALIDATION", f"topic: {rule.topic} is internal; name a topic of your own")
    for member in ("filter", "field"):
        try:
            _ = rule.parsed(0) if member == "filter" else rule.field and rule.path()
        except MalformedFilter as error:
            raise malformed(member, getattr(rule, member), error) from None
    for channel in rule.channels:
        _check_channel(channel)


def _check_channel(channel: Channel) -> None:
    match channel:
        case WebhookChannel(url):
            split_url(url)
        case EmailChannel(to):
            if not to:
                raise Problem("VALIDATION", "channels: an e-mail needs a recipient in `to`")
            for one in to:
                if not _EMAIL.fullmatch(one):
                    raise Problem("VALIDATION", f"channels: {one!r} is not an e-mail address such as ops@example.com")
