"""Planted bugs of requests with an idempotency key: mistakes in what partitions remember of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from comet.records import BatchHeader
from comet_broker.core.producers import ProducerTable
from comet_broker.core.requests import Requests
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.partition import Partition
from comet_broker.storage.deletion import Deletion
from comet_broker.storage.log import Log
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

REQUEST_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0, **more: Any) -> Callable[[Patches], Patches]:
    given: dict[str, Any] = {
        "brokers": 3, "fault_every_s": 1.5, "replicas": 3, "min_insync": 2, "available": False, "acks": 2,
        "admin": False, "pause_s": 0.1, "requests": 3, "final_crash": "none", **more,
    }  # fmt: skip

    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults, wires=0.0, **given)
        REQUEST_MUTANTS[patches.__name__] = Mutant("requests", why, tuple(breaks.split()), profile, patches, caught_by)
        return patches

    return register


@mutant("a follower does not take note of requests", "C9", "kill", caught_by=2)
def followers_forget_requests() -> list[Patch]:
    real = Log._write

    def write(self: Log, parts: Any, header: BatchHeader, *more: Any) -> None:
        if header.keyed and len(parts) == 1:  # as the leader stamped it
            header = header._replace(producer_id=0)
        real(self, parts, header, *more)

    return [(Log, "_write", write)]


@mutant("what a leader remembers of requests is lost when it starts again", "C9", "kill", replicas=1, min_insync=1)
def starts_forget_requests() -> list[Patch]:
    def restore(data: bytes, at: int) -> tuple[Requests, int]:
        _, at = real(data, at)
        return Requests(), at

    real = Requests.restore
    return [(Requests, "restore", staticmethod(restore))]


@mutant(
    "a log that was cut back still knows the requests that it has lost",
    "C1",
    "cut_back_and_lead_again",
    fault_every_s=6.0,
)
def cuts_forget_no_requests() -> list[Patch]:
    real = Deletion._truncate

    def cut(self: Deletion, planned: Any, producers: ProducerTable, start: int) -> None:
        producers.requests = self._state.producers.requests
        real(self, planned, producers, start)

    return [(Deletion, "_truncate", cut)]


@mutant(
    "who repeats a request is answered before the first one is committed",
    "C1",
    "isolate",
    "kill",
    "stall_links",
    caught_by=2,
)
def answer_repeated_requests_at_once() -> list[Patch]:
    real = Partition.produce

    def produce(self: Partition, batch: memoryview, acks: int) -> Accepted:
        accepted = real(self, batch, acks)
        return replace(accepted, end_offset=0) if accepted.duplicate else accepted

    return [(Partition, "produce", produce)]
