"""What a WebSocket's session makes of frames, in any order; and that its frames are what their schema says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import comet
from comet.types import AtTime, Earliest, Latest
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.channels import Channel
from comet_gateway.dashboard.sources import Sources
from comet_gateway.dashboard.subscriptions import PageSubscription, SubscribableDashboard
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import KINDS
from comet_gateway.push import frames
from comet_gateway.push.close_codes import AGAIN, Close
from comet_gateway.push.dashboard_port import DashboardRequest
from comet_gateway.push.parse_subscribe import Joined, Played
from comet_gateway.push.session import (
    GARBAGE_MAX,
    PERMITS_MAX,
    Acknowledge,
    Action,
    CloseConnection,
    Commit,
    Drop,
    Grant,
    Leave,
    Open,
    PassControl,
    PushSession,
    SendFrame,
    Steer,
    Write,
)
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.record_json import Values
from comet_web.document import Document
from comet_web.pages import Page

NOW_US = 1_700_000_000_000_000
LIMITS = Limits(subscriptions_max=3, frame_bytes_max=10_000)
SCHEMA = frames.schema()
CLIENT = jsonschema_rs.validator_for({**SCHEMA, "anyOf": [{"$ref": "#/$defs/ClientFrame"}]})
SERVER = jsonschema_rs.validator_for({**SCHEMA, "anyOf": [{"$ref": "#/$defs/ServerFrame"}]})


async def _tail(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    for _ in params:
        yield {}


def _page(path: str, **settings: Any) -> Page:
    return Page(path, path, "", "nothing", lambda _, request: Document(request.now_us, ""), **settings)


PAGES = (_page("/topics", main="topics"), _page("/topics/{topic}"), _page("/about", role=3))
CHANNELS = {"tail": Channel(Role.VIEWER, _tail), "write": Channel(Role.OPERATOR, _tail)}


def dashboard(*, shown: bool = True) -> SubscribableDashboard:
    sources = SimpleNamespace(config=GatewayConfig(dashboard=shown), part=lambda _: SimpleNamespace(pages=None))
    return SubscribableDashboard(cast(Sources, sources), is_open=False, pages=PAGES, channels=CHANNELS)


def session_of(role: Role = Role.OPERATOR, **limits: int) -> PushSession:
    return PushSession(replace(LIMITS, **limits), Principal("anna", role), dashboard())


def take(session: PushSession, **members: Any) -> Action:
    text = json.dumps(members)
    assert CLIENT.is_valid(json.loads(text)), text
    (action,) = session.take(text, now_us=NOW_US)
    if isinstance(action, SendFrame):
        assert SERVER.is_valid(json.loads(frames.encode(action.frame)))
    return action


def refused(action: Action) -> frames.Error:
    assert isinstance(action, SendFrame) and isinstance(action.frame, frames.Error), action
    assert action.frame.problem["code"] in KINDS
    return action.frame


def code(action: Action) -> str:
    return str(refused(action).problem["code"])


def subscribe(session: PushSession, id_: str = "a", **members: Any) -> Action:
    return take(session, **({"type": "subscribe", "id": id_, "topic": "quotes"} | members))


def open_session(**members: Any) -> PushSession:
    session = session_of()
    action = subscribe(session, **members)
    assert isinstance(action, Open), action
    return session


# ---- asking


def test_what_is_asked_for_is_what_the_hub_is_told() -> None:
    action = subscribe(
        session_of(), start="-15m", partitions=[1, 0], policy="conflate", interval_ms=100, snapshot="latest",
        permits=10, values="text", topic=None, topics=["a", "b", "a"],
    )  # fmt: skip
    assert isinstance(action, Open) and action.id == "a"
    assert action.request == SubscribeRequest(
        topics=("a", "b"), partitions=frozenset({0, 1}), start=AtTime(NOW_US - 900_000_000), values=Values.TEXT,
        policy=Policy.CONFLATE, interval_ms=100, snapshot=True, permits=10,
    )  # fmt: skip


def test_a_cursor_goes_with_its_topic() -> None:
    text = f"c1.{'0' * 32}.1-17-3.0-1042-3"
    action = subscribe(session_of(), cursor=text)
    assert isinstance(action, Open) and isinstance(action.request, SubscribeRequest)
    assert str(action.request.cursors["quotes"]) == text
    again = subscribe(session_of(), topic=None, topics=["quotes", "b"], cursors={"quotes": text})
    assert isinstance(again, Open) and isinstance(again.request, SubscribeRequest)
    assert again.request.cursors == action.request.cursors


def test_a_group_and_a_replay_are_asked_for() -> None:
    joined = subscribe(session_of(), group="engine", permits=5, start="earliest")
    assert isinstance(joined, Open)
    assert joined.request == Joined(
        ("quotes",),
        frames.GroupTerms("engine"),
        comet.GroupOptions(start=Earliest(), auto_commit=False),
        Values.AUTO,
        5,
    )
    by_rack = subscribe(session_of(), group={"name": "engine", "assignment": "rack", "rack": "a", "auto": True})
    assert isinstance(by_rack, Open) and isinstance(by_rack.request, Joined)
    assert by_rack.request.options == comet.GroupOptions(start=Latest(), assignment="rack", rack="a")
    error = refused(subscribe(session_of(), group={"name": "engine", "assignment": "rack"}))
    assert 'give rack="..."' in error.problem["detail"]
    played = subscribe(session_of(), replay={"from": "-1h", "speed": 10, "paused": True}, partitions=[2])
    assert isinstance(played, Open)
    assert played.request == Played(
        "quotes", frozenset({2}), AtTime(NOW_US - 3_600_000_000), Latest(), None, Values.AUTO, 10, paused=True
    )


@pytest.mark.parametrize(
    "members",
    [
        {"topic": None},
        {"pattern": "q.*"},
        {"topics": ["a"]},
        {"topic": "../.."},
        {"topic": None, "pattern": "("},
        {"start": "yesterday"},
        {"start": "9" * 5_000},
        {"cursor": "c1.nonsense"},
        {"cursors": {"other": f"c1.{'0' * 32}"}},
        {"topic": None, "topics": ["a", "b"], "cursor": f"c1.{'0' * 32}"},
        {"replay": {}, "group": "g"},
        {"replay": {}, "policy": "conflate"},
        {"replay": {}, "permits": 1},
        {"replay": {"to": "earliest"}},
        {"replay": {"from": "-1h", "to": "-2h"}},
        {"replay": {"from": "-2d"}},
        {"group": "g", "snapshot": "latest"},
        {"group": "g", "partitions": [1]},
        {"group": {"name": "-"}},
        {"group": {"name": "g", "kind": "share", "auto": True}},
        {"group": {"name": "g", "kind": "share"}, "permits": 3},
        {"group": {"name": "g", "kind": "share", "dead_letter": "../"}},
    ],
)
def test_what_makes_no_sense_is_refused_and_takes_no_id(members: dict[str, Any]) -> None:
    session = session_of()
    error = refused(subscribe(session, **members))
    assert (error.id, error.of) == ("a", "subscribe")
    assert error.problem["code"] in {"INVALID_ARGUMENT", "MALFORMED_CURSOR"}
    assert isinstance(subscribe(session), Open)


# ---- order


def test_an_id_is_taken_until_the_end_of_its_subscription_was_said() -> None:
    session = open_session()
    assert code(subscribe(session)) == "SUBSCRIPTION_EXISTS"
    assert take(session, type="unsubscribe", id="a") == Drop("a")
    assert code(subscribe(session)) == "SUBSCRIPTION_EXISTS"
    assert code(take(session, type="unsubscribe", id="a")) == "SUBSCRIPTION_NOT_FOUND"
    assert session.ended("a") and not session.ended("a")
    assert isinstance(subscribe(session), Open)


def test_there_are_only_so_many_subscriptions() -> None:
    session = session_of()
    for number in range(3):
        assert isinstance(subscribe(session, str(number)), Open)
    assert code(subscribe(session, "3")) == "TOO_MANY_SUBSCRIPTIONS"
    session.ended("1")
    assert isinstance(subscribe(session, "3"), Open)


@pytest.mark.parametrize(
    "members",
    [
        {"type": "unsubscribe"},
        {"type": "permit", "count": 1},
        {"type": "ack", "cursor": "c"},
        {"type": "ack", "records": [{"partition": 0, "offset": "1"}]},
        {"type": "nack", "records": [{"partition": 0, "offset": 1}]},
        {"type": "extend", "records": [{"partition": 0, "offset": 1}]},
        {"type": "reject", "records": [{"partition": 0, "offset": 1}]},
        {"type": "replay", "action": "pause"},
        {"type": "control", "params": {"rows": False}},
    ],
)
def test_what_is_about_no_subscription_is_refused(members: dict[str, Any]) -> None:
    error = refused(take(open_session(), id="other", **members))
    assert (error.id, error.of, error.problem["code"]) == ("other", members["type"], "SUBSCRIPTION_NOT_FOUND")


CONSUMER, SHARED = {"group": "g"}, {"group": {"name": "g", "kind": "share"}}
PAGE: dict[str, Any] = {"topic": None, "page": "/topics"}
TAIL: dict[str, Any] = {"topic": None, "channel": "tail", "params": {"topic": "quotes"}}
RECORDS = [{"partition": 0, "offset": "1"}]


@pytest.mark.parametrize(
    ("asked", "members", "action"),
    [
        ({"permits": 1}, {"type": "permit", "count": 7}, Grant("a", 7)),
        ({"permits": 0, **CONSUMER}, {"type": "permit", "count": 7}, Grant("a", 7)),
        ({}, {"type": "permit", "count": 7}, None),
        ({"replay": {}}, {"type": "permit", "count": 7}, None),
        ({"replay": {}}, {"type": "replay", "action": "pause"}, Steer),
        ({"replay": {}}, {"type": "replay", "action": "speed", "speed": 2.5}, Steer),
        ({"replay": {}}, {"type": "replay", "action": "speed"}, None),
        ({"replay": {}}, {"type": "replay", "action": "pause", "speed": 1}, None),
        ({}, {"type": "replay", "action": "pause"}, None),
        (CONSUMER, {"type": "ack", "cursor": "c"}, Commit("a", "c")),
        (CONSUMER, {"type": "ack", "records": RECORDS}, None),
        (CONSUMER, {"type": "nack", "records": RECORDS}, None),
        (SHARED, {"type": "ack", "records": RECORDS}, Acknowledge),
        (SHARED, {"type": "nack", "records": RECORDS, "delay_ms": 5}, Acknowledge),
        (SHARED, {"type": "reject", "records": RECORDS, "reason": "no"}, Acknowledge),
        (SHARED, {"type": "extend", "records": RECORDS}, Acknowledge),
        (SHARED, {"type": "ack", "cursor": "c"}, None),
        (SHARED, {"type": "ack", "cursor": "c", "records": RECORDS}, None),
        (SHARED, {"type": "ack"}, None),
        ({}, {"type": "ack", "cursor": "c"}, None),
        ({}, {"type": "control", "params": {}}, None),
        (PAGE, {"type": "control", "params": {}}, None),
        (PAGE, {"type": "permit", "count": 7}, None),
        (PAGE, {"type": "ack", "cursor": "c"}, None),
        (PAGE, {"type": "unsubscribe"}, [Leave("a"), SendFrame(frames.EndFrame("a", "unsubscribed"))]),
        (TAIL, {"type": "control", "params": {"rows": False}}, PassControl),
        (TAIL, {"type": "replay", "action": "pause"}, None),
        (TAIL, {"type": "unsubscribe"}, [Leave("a"), SendFrame(frames.EndFrame("a", "unsubscribed"))]),
    ],
)
def test_each_kind_of_subscription_takes_what_fits_it(
    asked: dict[str, Any], members: dict[str, Any], action: Any
) -> None:
    session = open_session(**asked)
    if isinstance(action, list):
        assert session.take(json.dumps({"id": "a", **members}), now_us=NOW_US) == action
        return
    found = take(session, id="a", **members)
    if action is None:
        assert code(found) == "INVALID_ARGUMENT"
    elif isinstance(action, type):
        assert isinstance(found, action)
    else:
        assert found == action


def test_permits_do_not_overflow() -> None:
    session = open_session(permits=1)
    session._open["a"].permitted = PERMITS_MAX - 10
    assert take(session, type="permit", id="a", count=10) == Grant("a", 10)
    assert code(take(session, type="permit", id="a", count=1)) == "INVALID_ARGUMENT"


# ---- pages and channels of the dashboard


def page_of(action: Action) -> tuple[Page, Any]:
    """The page that is subscribed to, and its request."""
    assert isinstance(action, Open) and isinstance(action.request, DashboardRequest), action
    opened = action.request.open(action.id)
    assert isinstance(opened, PageSubscription)
    return opened._page, opened._request


def test_a_page_is_asked_for_by_its_address() -> None:
    action = subscribe(session_of(Role.VIEWER), topic=None, page="/topics/a%2Eb?sort=-in&range=1h")
    page, request = page_of(action)
    assert (page.path, request.params) == ("/topics/{topic}", {"topic": "a.b"})
    assert (request.path, request.query) == ("/topics/a.b", {"sort": "-in", "range": "1h"})
    assert (request.principal, request.role, request.open) == ("anna", 1, False)


def test_a_page_is_for_those_who_may_see_it() -> None:
    for role in (Role.ANYONE, Role.VIEWER, Role.OPERATOR):
        assert code(subscribe(session_of(role), topic=None, page="/about")) == "FORBIDDEN"
    assert isinstance(subscribe(session_of(Role.ADMIN), topic=None, page="/about"), Open)
    assert code(subscribe(session_of(Role.ANYONE), topic=None, page="/topics")) == "FORBIDDEN"
    assert code(subscribe(session_of(Role.VIEWER), topic=None, channel="write")) == "FORBIDDEN"
    assert code(subscribe(session_of(Role.ANYONE), **TAIL)) == "FORBIDDEN"
    assert isinstance(subscribe(session_of(Role.VIEWER), **TAIL), Open)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"page": "/nowhere"}, "NOT_FOUND"),
        ({"page": "nowhere"}, "NOT_FOUND"),
        ({"page": "//evil.example/topics"}, "NOT_FOUND"),
        ({"page": "/topics/../about"}, "NOT_FOUND"),
        ({"page": "/topics?" + "a" * 5_000}, "VALIDATION"),
        ({"page": "/topics?" + "&".join(f"a{n}=1" for n in range(40))}, "VALIDATION"),
        ({"channel": "nothing"}, "NOT_FOUND"),
        ({"page": "/topics", "channel": "tail"}, "INVALID_ARGUMENT"),
        ({"page": "/topics", "topic": "quotes"}, "INVALID_ARGUMENT"),
        ({"page": "/topics", "params": {}}, "INVALID_ARGUMENT"),
        ({"page": "/topics", "group": "g"}, "INVALID_ARGUMENT"),
        ({"page": "/topics", "permits": 1}, "INVALID_ARGUMENT"),
        ({"channel": "tail", "replay": {}}, "INVALID_ARGUMENT"),
        ({"channel": "tail", "cursor": "c"}, "INVALID_ARGUMENT"),
        ({"topic": "quotes", "params": {}}, "INVALID_ARGUMENT"),
        ({"params": {}}, "INVALID_ARGUMENT"),
    ],
)
def test_a_wrong_page_or_channel_is_refused_and_its_id_stays_free(members: dict[str, Any], expected: str) -> None:
    session = session_of()
    error = refused(take(session, type="subscribe", id="a", **members))
    assert (error.problem["code"], error.id, error.of) == (expected, "a", "subscribe")
    assert session.subscriptions == 0


def test_params_are_small_in_a_frame_of_any_size() -> None:
    session = session_of(frame_bytes_max=1 << 20)
    assert isinstance(subscribe(session, "t", **TAIL), Open)
    assert isinstance(take(session, type="control", id="t", params={"text": "x" * 60_000}), PassControl)
    large = {"text": "x" * 70_000}
    assert code(take(session, type="control", id="t", params=large)) == "INVALID_ARGUMENT"
    assert code(take(session, type="subscribe", id="u", channel="tail", params=large)) == "INVALID_ARGUMENT"
    assert session.subscriptions == 1


def test_a_gateway_without_dashboard_has_no_pages() -> None:
    session = PushSession(LIMITS, Principal("anna", Role.ADMIN), dashboard(shown=False))
    assert code(subscribe(session, topic=None, page="/topics")) == "NOT_FOUND"
    assert code(subscribe(session, **TAIL)) == "NOT_FOUND"


def test_there_are_only_so_many_pages_and_channels_and_one_that_was_left_makes_room_at_once() -> None:
    session = session_of(watches_max=2)
    assert isinstance(subscribe(session, "1", **PAGE), Open)
    assert isinstance(subscribe(session, "2", **TAIL), Open)
    error = refused(subscribe(session, "3", **PAGE))
    assert (error.problem["code"], error.problem["watches_max"]) == ("TOO_MANY_SUBSCRIPTIONS", 2)
    assert isinstance(subscribe(session, "3"), Open)  # a topic
    session.take('{"type":"unsubscribe","id":"1"}', now_us=NOW_US)
    assert isinstance(subscribe(session, "1", **TAIL), Open)
    session.ended("2")
    assert isinstance(subscribe(session, "2", **PAGE), Open)


# ---- writing, and who may


def test_records_are_written_one_or_many() -> None:
    session = session_of()
    one = take(session, type="produce", id="r1", topic="quotes", record={"value": {"bid": 1}, "key": "EURUSD"})
    assert isinstance(one, Write) and one.frame.record is not None
    many = take(
        session, type="produce", id="r2", topic="quotes", records=[{"text": "a"}, {"tombstone": True}], acks="all"
    )
    assert isinstance(many, Write) and many.frame.acks == "all"
    assert code(take(session, type="produce", id="r3", topic="quotes")) == "INVALID_ARGUMENT"


def test_who_may_only_read_neither_writes_nor_joins() -> None:
    session = session_of(Role.VIEWER)
    assert code(take(session, type="produce", id="r", topic="quotes", record={"text": "a"})) == "FORBIDDEN"
    assert code(subscribe(session, group="g")) == "FORBIDDEN"
    assert isinstance(subscribe(session), Open)


def test_a_ping_is_answered() -> None:
    session = session_of()
    assert take(session, type="ping", id="x") == SendFrame(frames.Pong("x"))
    assert take(session, type="ping") == SendFrame(frames.Pong(None))


# ---- what ends a connection


def test_a_frame_that_makes_no_sense_is_answered_with_what_can_be_said_of_it() -> None:
    session = open_session()
    (action,) = session.take('{"type":"permit","id":"a","count":"many"}', now_us=NOW_US)
    error = refused(action)
    assert (error.problem["code"], error.id, error.of) == ("MALFORMED_FRAME", "a", "permit")
    for text in (
        "",
        "no JSON",
        "[]",
        "1",
        '{"type":"odd"}',
        '{"type":5,"id":[]}',
        "[" * 9_999,
        '{"type":"ping","odd":1}',
    ):
        (action,) = session.take(text, now_us=NOW_US)
        assert code(action) == "MALFORMED_FRAME"
    assert session.subscriptions == 1


def test_too_much_garbage_ends_the_connection() -> None:
    session = open_session()
    for _ in range(GARBAGE_MAX):
        assert code(session.take("odd", now_us=NOW_US)[0]) == "MALFORMED_FRAME"
    assert session.take("odd", now_us=NOW_US) == [CloseConnection(Close.GARBAGE)]
    assert session.take('{"type":"ping"}', now_us=NOW_US) == []


def test_binary_and_oversized_frames_end_the_connection() -> None:
    assert open_session().take_binary() == [CloseConnection(Close.BINARY)]
    session = open_session()
    assert session.take(" " * 10_001, now_us=NOW_US) == [CloseConnection(Close.TOO_LARGE)]
    assert session.take_binary() == [] and session.subscriptions == 0


def test_close_codes_say_whether_to_come_back() -> None:
    assert {close.value.code for close in Close if close.value.again} == set(AGAIN) == {1001, 1012}
    assert all(close.value.code in range(1000, 1016) or 4000 <= close.value.code < 5000 for close in Close)


ids = st.sampled_from(["a", "b", "c", "d", "e"])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("subscribe"),
            ids,
            st.sampled_from(
                [{}, {"permits": 3}, {"group": "g"}, {"replay": {}}, {"page": "/topics"}, {"channel": "tail"}]
            ),
        ),
        st.tuples(st.just("control"), ids, st.just({"params": {}})),
        st.tuples(st.just("unsubscribe"), ids, st.just({})),
        st.tuples(st.just("permit"), ids, st.just({"count": 2})),
        st.tuples(st.just("ended"), ids, st.just({})),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_the_order_a_dumb_model_agrees(said: list[tuple[str, str, dict[str, Any]]]) -> None:
    session = session_of(watches_max=2)
    model: dict[str, tuple[dict[str, Any], bool]] = {}  # id -> as asked for, is closing
    for what, id_, members in said:
        if what == "ended":
            assert session.ended(id_) == (model.pop(id_, None) is not None)
            continue
        shown = what == "subscribe" and _is_shown(members)
        extra = {"topic": "quotes"} if what == "subscribe" and not shown else {}
        actions = session.take(json.dumps({"type": what, "id": id_, **extra, **members}), now_us=NOW_US)
        known = id_ in model and not model[id_][1]
        if what == "subscribe":
            room = not shown or sum(_is_shown(asked) for asked, _ in model.values()) < 2
            fine = id_ not in model and len(model) < LIMITS.subscriptions_max and room
            assert isinstance(actions[0], Open) == fine
            if fine:
                model[id_] = members, False
        elif what == "unsubscribe":
            at_once = known and _is_shown(model[id_][0])
            assert isinstance(actions[0], Leave) == at_once
            assert isinstance(actions[0], Drop) == (known and not at_once)
            if at_once:
                assert actions[1:] == [SendFrame(frames.EndFrame(id_, "unsubscribed"))]
                del model[id_]
            elif known:
                model[id_] = model[id_][0], True
        elif what == "control":
            assert isinstance(actions[0], PassControl) == (known and "channel" in model[id_][0])
        else:
            assert isinstance(actions[0], Grant) == (known and "permits" in model[id_][0])
        if not isinstance(actions[0], Open | Drop | Leave | Grant | PassControl):
            refused(actions[0])
    assert session.subscriptions == len(model)


def _is_shown(members: dict[str, Any]) -> bool:
    return "page" in members or "channel" in members


# ---- the schema


def test_the_schema_is_one() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    text = json.dumps(SCHEMA)
    for kind in ("subscribe", "produce", "control", "welcome", "records", "page", "delta", "event", "goaway"):
        assert f'"{kind}"' in text
    assert not CLIENT.is_valid({"type": "ping", "odd": 1})
    assert not SERVER.is_valid({"type": "ping"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_nothing_that_is_json_upsets_a_session(content: Any) -> None:
    session = session_of()
    for said in (
        content,
        {"type": "subscribe", "id": content},
        {"type": content},
        {"type": "ack", "id": "a", "records": content},
        {"type": "subscribe", "id": "a", "page": content, "channel": content},
        {"type": "control", "id": "a", "params": content},
    ):
        text = json.dumps(said)
        if len(text) <= LIMITS.frame_bytes_max:
            for action in session.take(text, now_us=NOW_US):
                assert isinstance(action, SendFrame)
                assert SERVER.is_valid(json.loads(frames.encode(action.frame)))
                if isinstance(action.frame, frames.Error) and action.frame.problem["code"] == "MALFORMED_FRAME":
                    assert not CLIENT.is_valid(json.loads(text)), text
