"""What a tab may ask for on its live socket, and what becomes of nonsense."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from comet_gateway.config import Limits
from comet_gateway.dashboard.channel_session import UNREAD_MAX, ChannelSession
from comet_gateway.dashboard.channels import Channel
from comet_gateway.dashboard.live_session import (
    GARBAGE_MAX,
    ID_MAX,
    Begin,
    CloseLive,
    Leave,
    LiveSession,
    Pass,
    Refuse,
    WatchPage,
)
from comet_gateway.dashboard.page_request import Addresses
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem
from comet_gateway.push.close_codes import Close
from comet_web.document import Document
from comet_web.pages import Page


async def _tail(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    for _ in params:
        yield {}


def _page(path: str, **settings: Any) -> Page:
    return Page(path, path, "", "nothing", lambda _, request: Document(request.now_us, ""), **settings)


PAGES = (_page("/topics", main="topics"), _page("/topics/{topic}"), _page("/about", role=3))
CHANNELS = {"tail": Channel(Role.VIEWER, _tail), "write": Channel(Role.OPERATOR, _tail)}


def session(role: Role = Role.VIEWER, **limits: int) -> LiveSession:
    return LiveSession(replace(Limits(), **limits), Addresses(PAGES), CHANNELS, Principal("anna", role), is_open=False)


def code(actions: list[Any]) -> str:
    (action,) = actions
    assert isinstance(action, Refuse), action
    return action.problem.code


def say(one: LiveSession, **frame: Any) -> list[Any]:
    return list(one.take(json.dumps(frame)))


def test_a_page_is_asked_for_by_its_address() -> None:
    (watch,) = say(session(), id=1, watch="/topics/a%2Eb?sort=-in&range=1h")
    assert isinstance(watch, WatchPage)
    assert (watch.id, watch.page.path, watch.request.params) == (1, "/topics/{topic}", {"topic": "a.b"})
    assert (watch.request.path, watch.request.query) == ("/topics/a.b", {"sort": "-in", "range": "1h"})
    assert (watch.request.principal, watch.request.role, watch.request.open) == ("anna", 1, False)


def test_another_page_under_an_id_takes_the_place_of_the_one_before() -> None:
    one = session()
    say(one, id=1, watch="/topics")
    leave, watch = say(one, id=1, watch="/topics?page=2")
    assert leave == Leave(1)
    assert isinstance(watch, WatchPage)
    assert say(one, id=1, unwatch=True) == [Leave(1)]
    assert say(one, id=1, unwatch=True) == []


def test_a_channel_is_opened_spoken_to_and_closed() -> None:
    one = session()
    assert say(one, id=7, open="tail", params={"topic": "quotes"}) == [Begin(7, CHANNELS["tail"], {"topic": "quotes"})]
    assert say(one, id=7, say={"pause": True}) == [Pass(7, {"pause": True})]
    assert say(one, id=7, close=True) == [Leave(7)]
    assert code(say(one, id=7, say={})) == "SUBSCRIPTION_NOT_FOUND"
    assert code(say(one, id=8, open="tail", params=[])) == "NOT_FOUND"
    assert code(say(one, id=8, open="nothing")) == "NOT_FOUND"


def test_roles_are_asked_for() -> None:
    assert code(say(session(), id=1, watch="/about")) == "FORBIDDEN"
    assert code(say(session(), id=1, open="write")) == "FORBIDDEN"
    assert isinstance(say(session(Role.ADMIN), id=1, watch="/about")[0], WatchPage)


def test_so_much_may_be_open_at_once() -> None:
    one = session(watches_max=3)
    for number in (1, 2, 3):
        say(one, id=number, watch="/topics")
    assert code(say(one, id=4, watch="/topics")) == "TOO_MANY_SUBSCRIPTIONS"
    assert len(say(one, id=3, open="tail")) == 2  # in place of the page
    one.ended(1)  # by itself
    assert isinstance(say(one, id=4, watch="/topics")[0], WatchPage)


@pytest.mark.parametrize("text", [
    "", "x", "[]", "1", '{"id": 1', "[" * 100_000, '{"id":"1","watch":"/topics"}', '{"watch":"/topics"}',
    '{"id":0,"watch":"/"}', '{"id":true,"watch":"/topics"}', '{"id":1.5,"watch":"/"}',
    f'{{"id":{ID_MAX + 1},"watch":"/"}}', '{"id":1}', '{"id":1,"watch":7}', '{"id":1,"unwatch":false}',
    '{"id":1,"say":[]}',
])  # fmt: skip
def test_nonsense_is_refused_and_too_much_of_it_ends_the_connection(text: str) -> None:
    one = session()
    for _ in range(GARBAGE_MAX):
        assert code(list(one.take(text))) == "MALFORMED_FRAME"
    assert one.take(text) == [CloseLive(Close.GARBAGE)]


def test_what_is_too_large_or_binary_ends_the_connection() -> None:
    assert session(frame_bytes_max=100).take("x" * 101) == [CloseLive(Close.TOO_LARGE)]
    assert session().take_binary() == [CloseLive(Close.BINARY)]


def test_a_query_that_is_too_long_is_no_reason_to_end() -> None:
    assert code(say(session(), id=1, watch="/topics?" + "a" * 5_000)) == "VALIDATION"
    assert code(say(session(), id=1, watch="/nowhere")) == "NOT_FOUND"


@given(some.recursive(
    some.one_of(some.none(), some.booleans(), some.integers(), some.floats(allow_nan=False), some.text(max_size=9)),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(
        some.sampled_from(["id", "watch", "unwatch", "open", "say", "close", "params", "x"]), inner, max_size=4
    ),
))  # fmt: skip
def test_no_frame_breaks_it(frame: Any) -> None:
    for action in session().take(json.dumps(frame)):
        assert isinstance(action, WatchPage | Begin | Pass | Leave | Refuse | CloseLive)


async def test_a_seat_holds_what_was_said_until_the_channel_listens() -> None:
    session = ChannelSession(None, Principal("anna", Role.VIEWER))  # type: ignore[arg-type] # it asks no sources
    for number in range(UNREAD_MAX):
        session.deliver({"n": number})
    with pytest.raises(Problem, match="unread messages"):
        session.deliver({})
    assert await session.receive() == {"n": 0}
    assert [one["n"] for one in session.received()] == list(range(1, UNREAD_MAX))
    assert session.received() == []
