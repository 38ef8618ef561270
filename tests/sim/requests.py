"""A client process that holds no session: requests with an idempotency key, sent again until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from comet.errors import CometError, InvalidArgument
from comet.producer.producer import Producer
from comet.types import Receipt
from comet.values.record import NewRecord
from tests.sim.history import Outcome, PartitionName, Produce, make_value
from tests.sim.workload import ProducerPlan, close_quietly
from tests.sim.world import World

LAST_ATTEMPTS_S: Final = 60.0  # after which a request is left unanswered, once all is mended


class RequestClient:
    """One request after the other, each repeated under its key, now and then also after its answer."""

    def __init__(self, world: World, name: str, plan: ProducerPlan, tps: Sequence[PartitionName]) -> None:
        self.name = name
        self._world = world
        self._plan = plan
        self._tps = tps
        self._random = world.random(name)
        self._number = 0

    async def run(self) -> None:
        world, requests = self._world, 0
        while not world.stopping:
            requests += 1
            await self._request(f"{self.name}-{requests}")
            await world.sleep(self._random, self._plan.pause_s)

    async def _request(self, key: str) -> None:
        topic, _ = self._random.choice(self._tps)
        tps = [tp for tp in self._tps if tp[0] == topic]
        operations = [self._next(self._random.choice(tps)) for _ in range(self._random.randint(1, 5))]
        receipts, code = None, ""
        stop_at = None
        while receipts is None and (stop_at is None or self._world.now() < stop_at):
            try:
                receipts = await self._attempt(topic, operations, key)
            except InvalidArgument as error:
                self._world.history.complaints.append(f"request {key} was told {error}")
                break
            except CometError as error:
                self._world.note(f"request {key} was told {error.code}")
                code = error.code
            if stop_at is None and self._world.stopping:
                stop_at = self._world.now() + LAST_ATTEMPTS_S
        for at, operation in enumerate(operations):
            operation.completed = self._world.now()
            operation.outcome, operation.code = (Outcome.UNKNOWN, code) if receipts is None else (Outcome.OK, "")
            if receipts is not None:
                operation.offset = receipts[at].offset
                self._world.wrote(operation)
        if receipts is not None and self._random.random() < 0.3:
            try:
                await self._attempt(topic, operations, key)
            except CometError as error:
                self._world.note(f"request {key}, repeated, was told {error.code}")

    async def _attempt(self, topic: str, operations: list[Produce], key: str) -> list[Receipt]:
        """By a client of its own, that gives up soon."""
        world = self._world
        producer = Producer(
            world.addresses,
            name=self.name,
            connect=world.network.connect(self.name),
            random=world.random(f"{self.name}/sdk"),
            clock_us=world.clock.wall_us,
        )
        records = [NewRecord(operation.value, partition=operation.tp[1]) for operation in operations]
        timeout_ms = self._random.choice((30, 300, 3_000))
        try:
            return await producer.publish_once(
                topic, records, idempotency_key=key, acks=self._plan.acks or 1, timeout_ms=timeout_ms
            )
        finally:
            await asyncio.shield(close_quietly(producer))

    def _next(self, tp: PartitionName) -> Produce:
        value = make_value(self.name, self._number, tp, self._random.choice((60, 200, 1500)))
        acks = 2 if self._plan.acks == "all" else 1
        operation = Produce(self.name, tp, acks, True, value, self._number, self._world.now())
        self._number += 1
        self._world.history.produces.append(operation)
        return operation
