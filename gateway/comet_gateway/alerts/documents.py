"""Models of alerts: rules with their states, and the history of events and deliveries."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import ConfigDict, Field

from comet_gateway.alerts.journal import Delivered, HistoryEntry, RuleState
from comet_gateway.alerts.rule import (
    CHANNELS_MAX,
    DAY_S,
    NAME_CHARS_MAX,
    RECIPIENTS_MAX,
    TEXT_CHARS_MAX,
    Kind,
    Operator,
    Rule,
    Severity,
    WebhookChannel,
    label,
)
from comet_gateway.alerts.targets import URL_CHARS_MAX
from comet_gateway.schemas.common import Int64, Model
from comet_gateway.schemas.lists import Strict

MUTE_S_MAX: Final = 30 * DAY_S
THRESHOLD_MAX: Final = 1e15

Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
Seconds = Annotated[int, Field(ge=0, le=DAY_S)]
_EXAMPLE: Final[dict[str, Any]] = {
    "name": "ACME above 150",
    "kind": "value",
    "topic": "quotes",
    "key": "ACME",
    "field": "price",
    "threshold": 150,
    "channels": [{"type": "webhook", "url": "https://hooks.example.com/comet"}],
}


class Webhook(Strict):
    type: Literal["webhook"]
    url: str = Field(
        max_length=URL_CHARS_MAX,
        description="A public address, or one in the gateway's `alert_networks`. Viewers get it without its path.",
        examples=["https://hooks.example.com/comet"],
    )


class Email(Strict):
    type: Literal["email"]
    to: Annotated[list[Annotated[str, Field(max_length=320)]], Field(min_length=1, max_length=RECIPIENTS_MAX)] = Field(
        examples=[["ops@example.com"]]
    )


class BrowserPages(Strict):
    """Open pages of the dashboard that may show notifications."""

    type: Literal["browser"]


AlertChannel = Annotated[Webhook | Email | BrowserPages, Field(discriminator="type")]


class AlertRule(Strict):
    """A rule. Which members a kind needs is in the document "Alerts"; others are refused."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: str = Field(min_length=1, max_length=NAME_CHARS_MAX)
    kind: Kind
    threshold: float = Field(
        ge=-THRESHOLD_MAX,
        le=THRESHOLD_MAX,
        description="With `value` a number, `change` percent, `stale` and `lag_seconds` seconds, else a count.",
    )
    topic: Text = ""
    group: Text = ""
    field: Text = Field("", description="The path of a number in the record's JSON.", examples=["price"])
    key: Text = Field("", description="Only records with this key.")
    filter: Text = Field("", description="Only records that match, as in a search.", examples=["side=buy && size>100"])
    operator: Operator = "above"
    window_s: Seconds = Field(0, description="Of `change` and `count`.")
    for_s: Seconds = Field(0, description="Time that the condition must hold before the alert fires.")
    cool_down_s: Seconds = Field(300, description="Time between two notices of firing, at least.")
    severity: Severity = "warning"
    channels: list[AlertChannel] = Field([], max_length=CHANNELS_MAX)
    enabled: bool = True

    def rule(self, id_: str, author: str, now_us: int) -> Rule:
        """As it is stored. Raises msgspec.ValidationError."""
        given = {**self.model_dump(), "id": id_, "author": author[:TEXT_CHARS_MAX], "changed_us": now_us}
        return msgspec.convert(given, Rule)


class Alert(Model):
    """A rule and its state."""

    id: str = Field(examples=["3fa1c2d4e5b6"])
    rule: AlertRule
    state: Literal["ok", "pending", "firing", "resolved"]
    since_us: Int64
    value: float | None = Field(description="What was seen when the state changed.")
    text: str = Field(description="The same in words.")
    problem: str = Field(description="Why the rule cannot be evaluated; empty: it is.")
    muted_until_us: Int64 | None
    muted_by: str
    acknowledged_by: str = Field(description="Of the present firing.")
    author: str
    changed_us: Int64


class AlertList(Model):
    items: list[Alert]


class Mute(Strict):
    seconds: int = Field(ge=0, le=MUTE_S_MAX, description="0 ends the mute.", examples=[3600])


class AlertEvent(Model):
    time_us: Int64
    id: str
    name: str
    severity: str
    event: str = Field(description="firing, resolved, muted, unmuted, acknowledged, stored or deleted.")
    text: str


class AlertDelivery(Model):
    """The end of a delivery to one channel."""

    time_us: Int64
    notice: str = Field(description="Its id, as receivers get it.")
    name: str
    to: str
    outcome: Literal["delivered", "failed", "dropped"]
    attempts: int
    error: str


class AlertTest(Model):
    deliveries: list[AlertDelivery]


class AlertHistory(Model):
    events: list[AlertEvent] = Field(description="Newest first.")
    deliveries: list[AlertDelivery] = Field(description="Newest first.")


def alert_document(known: RuleState, now_us: int, *, whole: bool) -> Alert:
    """`whole`: with the URLs of webhooks."""
    rule = known.rule
    given: dict[str, Any] = msgspec.to_builtins(rule)
    changed_us, author, id_ = given.pop("changed_us"), given.pop("author"), given.pop("id")
    given["channels"] = [
        {"type": "webhook", "url": f"{label(channel).removeprefix('webhook ')}/…"}
        if isinstance(channel, WebhookChannel) and not whole
        else {**one, **({"to": list(one["to"])} if "to" in one else {})}
        for channel, one in zip(rule.channels, given["channels"], strict=True)
    ]
    acknowledged = known.state == "firing" and known.acknowledged == known.number
    return Alert(
        id=id_,
        rule=AlertRule(**given),
        state=known.state,
        since_us=known.since_us,
        value=known.value,
        text=known.text,
        problem=known.problem,
        muted_until_us=known.muted_until_us if known.is_muted(now_us) else None,
        muted_by=known.muted_by if known.is_muted(now_us) else "",
        acknowledged_by=known.acknowledged_by if acknowledged else "",
        author=author,
        changed_us=changed_us,
    )


def delivery_document(one: Delivered) -> AlertDelivery:
    return AlertDelivery(
        time_us=one.time_us,
        notice=one.notice,
        name=one.name,
        to=one.to,
        outcome=one.outcome,
        attempts=one.attempts,
        error=one.error,
    )


def event_document(one: HistoryEntry) -> AlertEvent:
    return AlertEvent(**msgspec.to_builtins(one))
