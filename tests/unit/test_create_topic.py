"""What a broker says to `create_topic` before the cluster knows it, and where there are too few brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from comet.errors import InvalidArgument, Unavailable
from comet.v1 import admin_pb2 as admin
from comet_broker.admin.service import AdminService


def control(registered: set[int]) -> AdminService:
    env: Any = SimpleNamespace(me=1, config=SimpleNamespace(default_replicas=1))
    view: Any = SimpleNamespace(state=SimpleNamespace(topics={}, brokers=registered))
    parts: Any = dict.fromkeys(("store", "peers", "topics", "rates", "resume", "groups_reading"))
    return AdminService(env, view=view, **parts)


async def test_a_broker_that_is_not_registered_yet_says_to_try_again() -> None:
    for registered in (set(), {2}):
        with pytest.raises(Unavailable, match="try again"):
            await control(registered).create_topic(admin.CreateTopicRequest(name="t"))


async def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="3 replicas need as many brokers, and 2 are alive"):
        await control({1, 2}).create_topic(admin.CreateTopicRequest(name="t", replicas=3))
