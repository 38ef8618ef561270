"""A broker without a network, on a real disk: what the tests of streams and calls run against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message import Message

from comet.v1 import admin_pb2 as admin
from comet.v1 import types_pb2 as types
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.metadata.memory import MemoryStore
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.files import RealFiles
from comet_broker.system import ThreadWorker
from tests.integration.held_clock import HeldClock
from tests.integration.stream_client import Call


@pytest.fixture
def clock() -> HeldClock:
    """The broker's. A test may hold it."""
    return HeldClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: HeldClock) -> AsyncIterator[Broker]:
    worker = ThreadWorker(2)
    files = RealFiles(tmp_path)
    one = Broker(
        BrokerConfig(data=tmp_path),
        files=files,
        store=MemoryStore(clock),
        clock=clock,
        worker=worker,
        random=Random(1),
        network=LocalNetwork(),
        boot_id="boot",
    )
    await one.start()
    await one.join()
    yield one
    await one.close()
    worker.close()
    assert not one.env.tasks.failed


@pytest.fixture
def call(broker: Broker) -> Call:
    table = {method.path: method for method in broker.methods}

    async def answer(path: str, request: Message) -> Message:
        return await table[path](request)

    return answer


@pytest.fixture
async def topic(call: Call) -> types.Topic:
    made: types.Topic = await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=2))
    return made
