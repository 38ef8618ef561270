"""Calls between brokers that share a connection."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from comet.errors import Timeout, Unavailable
from comet.v1 import admin_pb2 as admin
from comet.wire.transport import Stream
from comet_broker.cluster.peers import CHANNELS_MAX, Peers
from comet_broker.ports import PeerChannel

M = TypeVar("M", bound=Message)


class Connection:
    """ports.PeerChannel: each call ends when the test says how, or when the connection is closed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False
        self.calls: list[asyncio.Future[bool]] = []

    async def unary(self, method: str, request: Message, response: type[M], timeout_s: float, _: object = None) -> M:
        done = asyncio.get_running_loop().create_future()
        self.calls.append(done)
        if not await done:
            raise Unavailable(f"{method} to {self.address} failed within {timeout_s} s")
        return response()

    def stream(self) -> Stream:
        raise NotImplementedError

    async def replicate(self, _: object) -> Stream:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True
        for call in self.calls:
            if not call.done():
                call.set_result(False)


class Net:
    """ports.Network."""

    def __init__(self) -> None:
        self.made: defaultdict[str, list[Connection]] = defaultdict(list)

    def connect(self, address: str) -> PeerChannel:
        self.made[address].append(Connection(address))
        return self.made[address][-1]

    def closed(self, address: str) -> list[bool]:
        return [one.closed for one in self.made[address]]

    async def refused(self, address: str) -> bool:
        return not address


async def start(peers: Peers, address: str = "a:1") -> asyncio.Task[Message]:
    call = peers.call(address, "x", admin.StatisticsRequest(), admin.StatisticsResponse, 1.0)
    task = asyncio.get_running_loop().create_task(call)
    await asyncio.sleep(0)
    return task


async def test_a_call_that_fails_takes_no_other_with_it() -> None:
    net = Net()
    peers = Peers(net)
    first, second = await start(peers), await start(peers)
    (shared,) = net.made["a:1"]
    shared.calls[0].set_result(False)
    with pytest.raises(Unavailable):
        await first
    assert net.closed("a:1") == [False], "the other call is under way"
    third = await start(peers)
    assert len(net.made["a:1"]) == 2, "what comes after gets a connection of its own"
    shared.calls[1].set_result(True)
    assert await second == admin.StatisticsResponse()
    assert net.closed("a:1") == [True, False]
    net.made["a:1"][1].calls[0].set_result(True)
    await third
    assert net.closed("a:1") == [True, False]
    await peers.close()
    assert net.closed("a:1") == [True, True]


async def test_after_a_time_out_the_next_call_gets_a_connection_of_its_own() -> None:
    """The one that did not answer may be dead without a word."""
    net = Net()
    peers = Peers(net)
    first = await start(peers)
    net.made["a:1"][0].calls[0].set_exception(Timeout("no answer"))
    with pytest.raises(Timeout):
        await first
    assert net.closed("a:1") == [True]
    second = await start(peers)
    net.made["a:1"][1].calls[0].set_result(True)
    await second
    await peers.close()


async def test_a_connection_that_has_been_given_up_is_closed_with_the_rest() -> None:
    net = Net()
    peers = Peers(net)
    first, second = await start(peers), await start(peers)
    net.made["a:1"][0].calls[0].set_result(False)
    with pytest.raises(Unavailable):
        await first
    await peers.close()
    with pytest.raises(Unavailable):
        await second
    assert net.made["a:1"][0].closed


async def test_too_many_connections_cost_the_oldest_but_not_its_calls() -> None:
    net = Net()
    peers = Peers(net)
    calls = [await start(peers, f"a:{number}") for number in range(CHANNELS_MAX + 1)]
    assert not net.made["a:0"][0].closed
    for number, call in enumerate(calls):
        net.made[f"a:{number}"][0].calls[0].set_result(True)
        await call
    assert [address for address, (one,) in net.made.items() if one.closed] == ["a:0"]
    await peers.close()
    assert all(one.closed for (one,) in net.made.values())
