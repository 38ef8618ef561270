"""A client process whose answer is lost, and a crowd of producers that write to the partition before it asks again.

The tables of producers are small in such a run, so that a crowd of tens stands for one of tens of thousands: the
producer that waits has its window, its last batch or its epoch alone by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from comet.errors import CometError, UnknownProducer
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL, ACKS_LEADER
from comet_broker.core import forgotten, producers
from tests.sim.cluster_world import ALL
from tests.sim.history import Outcome, PartitionName, Produce, make_value
from tests.sim.planting import replaced
from tests.sim.workload import ProducerPlan
from tests.sim.world import World

PUBLISH: Final = "comet.v1.Comet/Publish"
LAST_ATTEMPTS_S: Final = 60.0  # after which a batch is left unanswered, once all is mended
ATTEMPT_S: Final = 2.0
CROWDS: Final = (2, 10, 30)  # with the tables below: windows, last batches, epochs

_LIMITS: Final = (
    (producers, "PRODUCERS_MAX", 6), (producers, "KNOWN_MAX", 20), (forgotten, "RUN_IDS", 64),
)  # fmt: skip


def small_tables() -> AbstractContextManager[None]:
    return replaced(_LIMITS)


class CrowdClient:
    """Sends without the SDK. Every producer writes one batch, its first."""

    def __init__(self, world: World, name: str, plan: ProducerPlan, tps: Sequence[PartitionName]) -> None:
        self.name = name
        self._world = world
        self._acks = ACKS_ALL if plan.acks == "all" else ACKS_LEADER
        self._tps = tps
        self._pause_s = plan.pause_s
        self._random = world.random(name)
        self._connect = world.network.connect(name)
        self._made = 0

    async def run(self) -> None:
        world = self._world
        while not world.stopping:
            tp = self._random.choice(self._tps)
            waiting = self._begin(tp)
            await self._attempt(waiting)  # whatever the answer is, it is lost
            for _ in range(self._random.choice(CROWDS)):
                other = self._begin(tp)
                if not await self._attempt(other):
                    self._end(other, Outcome.UNKNOWN)
            await self._insist(waiting)
            world.history.faults["crowd"] += 1
            await world.sleep(self._random, self._pause_s)

    def _begin(self, tp: PartitionName) -> Produce:
        self._made += 1
        value = make_value(f"{self.name}-{self._made}", 0, tp, 60)
        acks = ALL if self._acks == ACKS_ALL else 1
        operation = Produce(f"{self.name}-{self._made}", tp, acks, True, value, 0, self._world.now())
        self._world.history.produces.append(operation)
        return operation

    def _end(self, operation: Produce, outcome: Outcome) -> None:
        operation.completed, operation.outcome = self._world.now(), outcome
        operation.code = "" if outcome is Outcome.OK else operation.code
        if outcome is Outcome.OK:
            self._world.wrote(operation)

    async def _insist(self, operation: Produce) -> None:
        """Until it is answered, or refused as unknown."""
        world, stop_at = self._world, None
        operation.outcome = Outcome.PENDING
        while stop_at is None or world.now() < stop_at:
            try:
                if await self._attempt(operation):
                    return
            except UnknownProducer as error:
                operation.code = error.code
                world.history.faults["crowd forgot"] += 1
                break
            await world.sleep(self._random, 0.1)
            if stop_at is None and world.stopping:
                stop_at = world.now() + LAST_ATTEMPTS_S
        self._end(operation, Outcome.UNKNOWN)

    async def _attempt(self, operation: Produce) -> bool:
        """True if it was written, now or before. Raises UnknownProducer."""
        topic, partition = operation.tp
        number = int(operation.process.rpartition("-")[2])
        request = pb.PublishRequest(
            topic=topic, partition=partition, records=[pb.Record(value=operation.value)], acks=self._acks,
            producer_id=(1 + int(self.name.strip("abcdefghijklmnopqrstuvwxyz"))) << 32 | number,
        )  # fmt: skip
        channel = self._connect(self._random.choice(self._world.addresses))
        try:
            answer = await channel.unary(PUBLISH, request, pb.PublishResponse, ATTEMPT_S)
        except UnknownProducer:
            raise
        except CometError as error:
            operation.code = error.code
            return False
        finally:
            await channel.close()
        assert isinstance(answer, pb.PublishResponse)
        operation.offset = answer.receipts[0].offset
        self._end(operation, Outcome.OK)
        return True
