"""Planted bugs of keys and values: mistakes in what a leader compares, and in what it answers from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from comet.errors import CometError
from comet.key_values.key_calls import KeyCalls, Undecided
from comet.v1 import records_pb2 as pb
from comet_broker.key_values import views
from comet_broker.key_values.table import KeyRecord
from comet_broker.key_values.view import KeyView
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.partition import Partition
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

REGISTER_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults or None, registers=6)
        REGISTER_MUTANTS[patches.__name__] = Mutant(
            "registers", why, tuple(breaks.split()), profile, patches, caught_by
        )
        return patches

    return register


@mutant("a condition is compared with committed records alone", "C37 C9", caught_by=0)
def pending_records_are_not_compared() -> list[Patch]:
    def newest(self: KeyView, key: bytes) -> KeyRecord | None:
        return self.table.last(key)

    return [(KeyView, "newest", newest)]


@mutant("a condition is compared before the request is looked for", "C2 C37", "kill", "cut_links", caught_by=0)
def a_repeat_meets_its_own_record() -> list[Patch]:
    real = Partition.produce

    def produce(self: Partition, batch: memoryview, acks: int, condition: Callable[[], None] | None = None) -> Accepted:
        if condition is not None and self.leadership is not None:
            condition()
        return real(self, batch, acks, condition)

    return [(Partition, "produce", produce)]


@mutant("any replica answers reads", "C37", "isolate", "pause", "partition", caught_by=1)
def followers_answer() -> list[Patch]:
    def check(partition: Partition, *, stale: bool) -> None:
        if partition.closed is not None:
            raise partition.closed

    return [(views, "_check_readable", check)]


@mutant("records above the high watermark are shown", "C37", "isolate", "kill", "partition", caught_by=0)
def uncommitted_records_are_shown() -> list[Patch]:
    real = KeyView._settle

    def settle(self: KeyView, high_watermark: int) -> None:
        real(self, self.partition.log.log_end)

    return [(KeyView, "_settle", settle)]


@mutant("a request that may be written is sent again record by record", "C2 C37", "kill", "cut_links", caught_by=3)
def records_of_a_request_that_may_be_written_are_sent_singly() -> list[Patch]:
    real = KeyCalls.publish

    async def publish(self: KeyCalls, partition: int, records: Sequence[pb.Record], give_up: float) -> list[int]:
        if len(records) == 1:
            return await real(self, partition, records, give_up)
        try:
            return await real(self, partition, records, asyncio.get_running_loop().time() + 0.1)
        except CometError as error:
            raise Undecided from error

    return [(KeyCalls, "publish", publish)]
