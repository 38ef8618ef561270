"""Pages of lists: whatever there is, whatever is asked for, each of it is on one page, in order, and no page is empty
but the only one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import comet
from comet.v1 import admin_pb2 as admin_pb
from comet_broker.admin.service import AdminService
from comet_gateway.routes.brokers import list_brokers
from comet_gateway.routes.groups import list_groups

NAMES = st.lists(st.text("abAB_.-1", min_size=1, max_size=5), unique=True, max_size=30)
PARTS = st.text("abAB", max_size=2)
LIMITS = st.integers(1, 8)
Page = tuple[list[str], str | None, int]  # names, what to go on after, total


async def _all(page: Callable[[str], Awaitable[Page]], limit: int) -> tuple[list[str], set[int]]:
    found: list[str] = []
    totals: set[int] = set()
    after: str | None = ""
    while after is not None:
        names, after, total = await page(after)
        assert len(names) == limit or after is None
        assert names or (after is None and not found)
        found += names
        totals.add(total)
    return found, totals


@given(NAMES, PARTS, LIMITS)
def test_of_groups(names: list[str], part: str, limit: int) -> None:
    groups = [comet.GroupSummary(name, "share", "empty", 0, 1, 1, ()) for name in sorted(names)]

    async def listed() -> list[comet.GroupSummary]:
        return groups

    admin: Any = SimpleNamespace(list_groups=listed)

    async def page(after: str) -> Page:
        found = await list_groups(admin, limit=limit, after=after, filter=part)
        return [group.name for group in found.items], found.next, found.total

    wanted = sorted(name for name in names if part.casefold() in name.casefold())
    assert asyncio.run(_all(page, limit)) == (wanted, {len(wanted)})


@given(st.sets(st.integers(1, 2**31 - 1), max_size=20), LIMITS)
def test_of_brokers(ids: set[int], limit: int) -> None:
    brokers = tuple(comet.BrokerInfo(one, "host", 1, "1") for one in sorted(ids))

    async def described() -> comet.ClusterInfo:
        return comet.ClusterInfo("c", 0, brokers, 0, 0)

    admin: Any = SimpleNamespace(describe_cluster=described)

    async def page(after: str) -> Page:
        found = await list_brokers(admin, limit=limit, after=after)
        return [str(broker.id) for broker in found.items], found.next, found.total

    assert asyncio.run(_all(page, limit)) == ([str(one) for one in sorted(ids)], {len(ids)})


@given(NAMES, PARTS, LIMITS)
def test_of_topics(names: list[str], part: str, limit: int) -> None:
    """Those are made by the broker."""

    def info(name: str, _: object) -> comet.TopicInfo:
        return comet.TopicInfo(name, bytes(16), (), comet.TopicConfig(), 0)

    state = SimpleNamespace(topics={name: SimpleNamespace(value=None) for name in names})
    view: Any = SimpleNamespace(state=state)
    topics: Any = SimpleNamespace(info=info, moves=0)
    unused: Any = None
    parts: Any = dict.fromkeys(("store", "peers", "rates", "resume", "groups_reading"))
    control = AdminService(unused, view=view, topics=topics, **parts)

    async def page(after: str) -> Page:
        request = admin_pb.ListTopicsRequest(page_token=after, page_size=limit, filter=part)
        found = await control.list_topics(request)
        return [topic.name for topic in found.topics], found.next_page_token or None, found.total

    wanted = sorted(name for name in names if part.casefold() in name.casefold())
    assert asyncio.run(_all(page, limit)) == (wanted, {len(wanted)})
