"""How far logs reach, as a coordinator asks their leaders, which may answer with an unexpected error."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from comet.errors import CometError, Unavailable
from comet.v1 import coordination_pb2 as pb
from comet_broker.coordination.logs import Logs
from comet_broker.core.cluster import PartitionId, PartitionState
from comet_broker.tasks import Tasks

TOPIC = "ab" * 16
TPS: list[PartitionId] = [(TOPIC, 0), (TOPIC, 1)]


class Cluster:
    """What Logs need of a broker, with a leader elsewhere that answers when it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[int] = []  # how many partitions, in each call
        self.code = 0
        self.broken: Exception | None = None
        self.tasks = Tasks()
        parts: Any = SimpleNamespace(
            topics=SimpleNamespace(by_name={}, state_of=lambda *_: PartitionState(2, 1, (2,), {2: 20})),
            view=SimpleNamespace(address_of=lambda _: "there"),
            peers=self,
            answer=None,  # no partition is led here
        )
        env: Any = SimpleNamespace(me=1, tasks=self.tasks)
        self.logs = Logs(env, **vars(parts))

    async def call(self, _: str, __: str, request: Message, *___: object) -> pb.PartitionEndsResponse:
        assert isinstance(request, pb.PartitionEndsRequest)
        self.asked.append(len(request.queries))
        await self.may_answer.wait()
        if self.broken is not None:
            raise self.broken
        end = pb.PartitionEnd(code=self.code, high_watermark=0 if self.code else 10)
        return pb.PartitionEndsResponse(ends=[end] * len(request.queries))

    async def learn(self, tp: PartitionId) -> CometError | None:
        """Why an offset of 5 cannot be committed."""
        await self.logs.learn([("t", tp, 5)])
        return self.logs.refusal(tp, 5)


@pytest.mark.parametrize("way", ["a code of a later version", "an unexpected error"])
async def test_whoever_asks_is_answered_whatever_becomes_of_the_call(way: str) -> None:
    cluster = Cluster()
    cluster.may_answer.clear()
    if way == "a code of a later version":
        cluster.code = 9_999
    else:
        cluster.broken = RuntimeError("an unexpected error")
    asking = [asyncio.create_task(cluster.learn(tp)) for tp in TPS]  # the second one waits behind the first
    await asyncio.sleep(0)
    cluster.may_answer.set()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    cluster.code, cluster.broken = 0, None
    assert await cluster.learn(TPS[0]) is None, "the next one asks as ever"
    await cluster.tasks.close()


async def test_who_comes_while_a_leader_is_asked_shares_the_next_call() -> None:
    cluster = Cluster()
    cluster.may_answer.clear()
    asking = [asyncio.create_task(cluster.learn(tp)) for tp in [*TPS, TPS[1]]]
    await asyncio.sleep(0)
    cluster.may_answer.set()
    assert await asyncio.gather(*asking) == [None, None, None]
    assert len(cluster.asked) <= 2
    await cluster.tasks.close()
