"""Parses and checks a subscribe frame or an SSE query: to SubscribeRequest, Joined or Played. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import comet
from comet import patterns
from comet.errors import CometError
from comet.filters import Filter
from comet.types import AtTime, Earliest, Position, check_topic_name
from comet_gateway.http.problems import Problem
from comet_gateway.http.query_params import parse_position
from comet_gateway.push import frames
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import Cursor
from comet_gateway.records.record_json import Values
from comet_gateway.search.filters import filter_of

TOPICS_MAX = 100
GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:/-]{0,248}")


@dataclass(frozen=True, slots=True)
class Joined:
    """A request to join a group."""

    topics: tuple[str, ...]
    group: frames.GroupTerms
    options: comet.GroupOptions | comet.ShareOptions
    values: Values
    permits: int | None


@dataclass(frozen=True, slots=True)
class Played:
    """A request for a replay."""

    topic: str
    partitions: frozenset[int] | None
    start: Position
    end: Position
    cursor: Cursor | None  # of an interrupted replay: instead of `start`
    values: Values
    speed: float
    paused: bool
    filter: Filter | None = None  # others are passed over


def _position(name: str, given: str | int, now_us: int) -> Position:
    """Parses a position. Raises Problem."""
    try:
        return parse_position(name, given, now_us)
    except CometError as error:
        raise Problem("INVALID_ARGUMENT", error.message) from None


def names(topics: Iterable[str]) -> tuple[str, ...]:
    """Topic names without duplicates. Raises Problem."""
    try:
        found = tuple(dict.fromkeys(check_topic_name(name) for name in topics))
    except CometError as error:
        raise Problem("INVALID_ARGUMENT", error.message) from None
    if len(found) > TOPICS_MAX:
        raise Problem("INVALID_ARGUMENT", f"{len(found)} topics; at most {TOPICS_MAX} in one subscription")
    return found


def window(
    topic: str,
    given: frames.Window,
    *,
    now_us: int,
    span_ms_max: int,
    partitions: Iterable[int] | None = None,
    cursor: str | None = None,
    values: Values = Values.AUTO,
    filter: str = "",  # noqa: A002
) -> Played:
    """Parses a replay. Raises Problem."""
    start, end = _position("start", given.start, now_us), _position("end", given.end, now_us)
    if isinstance(end, Earliest):
        raise Problem("INVALID_ARGUMENT", "the replay ends where the topic begins")
    if isinstance(start, AtTime):
        until_us = end.timestamp_us if isinstance(end, AtTime) else now_us
        if until_us < start.timestamp_us:
            raise Problem("INVALID_ARGUMENT", "the replay ends before it begins")
        check_span(start.timestamp_us, until_us, span_ms_max)
    return Played(
        topic=names([topic])[0],
        partitions=None if partitions is None else frozenset(partitions),
        start=start,
        end=end,
        cursor=None if cursor is None else Cursor.parse(cursor),
        values=values,
        speed=given.speed,
        paused=given.paused,
        filter=filter_of([filter] if filter else []),
    )


def check_span(from_us: int, to_us: int, span_ms_max: int) -> None:
    """Checks the span of a replay. Raises Problem."""
    if to_us - from_us > span_ms_max * 1000:
        raise Problem(
            "INVALID_ARGUMENT",
            f"the window has {(to_us - from_us) // 1000} ms; one replay has at most {span_ms_max} ms",
            more={"replay_ms_max": str(span_ms_max)},
        )


def follow(
    *,
    topics: Iterable[str] = (),
    pattern: str = "",
    start: str | int = "latest",
    cursors: Mapping[str, str] | None = None,
    partitions: Iterable[int] | None = None,
    values: Values = Values.AUTO,
    policy: Policy = Policy.BLOCK,
    buffer: int = 10_000,
    interval_ms: int = 250,
    snapshot: bool = False,
    permits: int | None = None,
    filter: str = "",  # noqa: A002 - the name of the option everywhere
    now_us: int,
) -> SubscribeRequest:
    """Parses a subscription. Raises Problem."""
    chosen = _chosen(topics, pattern)
    known = {name: Cursor.parse(text) for name, text in (cursors or {}).items()}
    if not pattern and (strange := known.keys() - set(chosen)):
        raise Problem("INVALID_ARGUMENT", f"cursors of topics that are not subscribed: {sorted(strange)[:5]}")
    return SubscribeRequest(
        topics=chosen,
        pattern=pattern,
        partitions=None if partitions is None else frozenset(partitions),
        start=_position("start", start, now_us),
        cursors=known,
        values=values,
        policy=policy,
        buffer=buffer,
        interval_ms=interval_ms,
        snapshot=snapshot,
        permits=permits,
        filter=filter_of([filter] if filter else []),
    )


def join(
    group: frames.GroupTerms, *, topics: Iterable[str], pattern: str, start: str | int, values: Values,
    permits: int | None, now_us: int, filter: str = "",  # noqa: A002
) -> Joined:  # fmt: skip
    """Parses the membership of a group. Raises Problem."""
    filter_of([filter] if filter else [])
    if not GROUP_NAME.fullmatch(group.name):
        raise Problem("INVALID_ARGUMENT", f"{group.name[:100]!r} is not a valid group name")
    if group.kind == "share" and (group.auto or permits is not None):
        raise Problem("INVALID_ARGUMENT", "a share group takes `in_flight`, but not `auto` or `permits`")
    chosen, at = _chosen(topics, pattern), _position("start", start, now_us)
    try:
        options = _options(group, at, pattern, filter)
    except CometError as error:
        raise Problem("INVALID_ARGUMENT", error.message) from None
    return Joined(chosen, group, options, values, permits)


def _options(
    group: frames.GroupTerms, start: Position, pattern: str, chosen: str
) -> comet.GroupOptions | comet.ShareOptions:
    """The member's options, which check themselves."""
    if group.kind == "consumer":
        return comet.GroupOptions(
            start=start, pattern=pattern, auto_commit=group.auto, assignment=group.assignment, rack=group.rack,
            filter=chosen,
        )  # fmt: skip
    return comet.ShareOptions(
        start=start, pattern=pattern, in_flight=group.in_flight, lock_ms=group.lock_ms,
        deliveries_max=group.deliveries_max, dead_letter=group.dead_letter, by_key=group.by_key,
        filter=chosen,
    )  # fmt: skip


def of_frame(frame: frames.Subscribe, *, now_us: int, span_ms_max: int) -> SubscribeRequest | Joined | Played:
    """Parses a subscribe frame. Raises Problem."""
    if sum(one is not None for one in (frame.topic, frame.topics, frame.pattern)) != 1:
        raise Problem("INVALID_ARGUMENT", "give one of `topic`, `topics`, `pattern`, `page` and `channel`")
    if frame.params is not None:
        raise Problem("INVALID_ARGUMENT", "`params` go with a `channel` only")
    topics = [frame.topic] if frame.topic is not None else frame.topics or []
    if frame.cursor is not None and (frame.topic is None or frame.cursors is not None):
        raise Problem("INVALID_ARGUMENT", "`cursor` goes with `topic` only; use `cursors` for several topics")
    if frame.replay is not None:
        _only(
            frame,
            "replay",
            {"start", "cursors", "policy", "buffer", "interval_ms", "snapshot", "permits", "group"},
        )
        if frame.topic is None:
            raise Problem("INVALID_ARGUMENT", "a replay needs one `topic`")
        return window(
            frame.topic, frame.replay, now_us=now_us, span_ms_max=span_ms_max, partitions=frame.partitions,
            cursor=frame.cursor, values=frame.values, filter=frame.filter,
        )  # fmt: skip
    if frame.group is not None:
        _only(frame, "group", {"cursor", "cursors", "policy", "buffer", "interval_ms", "snapshot", "partitions"})
        return join(
            frames.GroupTerms(frame.group) if isinstance(frame.group, str) else frame.group,
            topics=topics, pattern=frame.pattern or "", start=frame.start, values=frame.values,
            permits=frame.permits, now_us=now_us, filter=frame.filter,
        )  # fmt: skip
    return follow(
        topics=topics,
        pattern=frame.pattern or "",
        start=frame.start,
        cursors=frame.cursors if frame.cursor is None else {topics[0]: frame.cursor},
        partitions=frame.partitions,
        values=frame.values,
        policy=frame.policy,
        buffer=frame.buffer,
        interval_ms=frame.interval_ms,
        snapshot=frame.snapshot == "latest",
        permits=frame.permits,
        filter=frame.filter,
        now_us=now_us,
    )


def check_dashboard(frame: frames.Subscribe) -> None:
    """Checks that a subscribe frame for a page or channel has no members of other kinds. Raises Problem."""
    what, own = ("page", {"id", "page"}) if frame.page is not None else ("channel", {"id", "channel", "params"})
    _only(frame, what, set(frame.__struct_fields__) - own)


def _chosen(topics: Iterable[str], pattern: str) -> tuple[str, ...]:
    chosen = names(topics)
    if bool(chosen) == bool(pattern):
        raise Problem("INVALID_ARGUMENT", "give topics, or a pattern of topic names")
    if pattern:
        try:
            patterns.compiled(pattern)
        except CometError as error:
            raise Problem("INVALID_ARGUMENT", error.message) from None
    return chosen


_DEFAULTS = frames.Subscribe(id="x")


def _only(frame: frames.Subscribe, what: str, foreign: set[str]) -> None:
    found = sorted(name for name in foreign if getattr(frame, name) != getattr(_DEFAULTS, name))
    if found:
        raise Problem("INVALID_ARGUMENT", f"{', '.join(found)}: not allowed with `{what}`")
