"""Planted bugs of many producers: mistakes in what a partition forgets of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from comet.records import BatchHeader
from comet_broker.core import producers
from comet_broker.core.forgotten import Forgotten
from comet_broker.core.producers import ProducerTable
from comet_broker.storage.log import Log
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

CROWD_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0, **more: Any) -> Callable[[Patches], Patches]:
    given: dict[str, Any] = {
        "brokers": 3, "fault_every_s": 3.0, "replicas": 3, "min_insync": 2, "available": False, "acks": 2,
        "admin": False, "pause_s": 0.3, "crowds": 1, "final_crash": "none", **more,
    }  # fmt: skip

    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults, wires=0.0, **given)
        CROWD_MUTANTS[patches.__name__] = Mutant("crowds", why, tuple(breaks.split()), profile, patches, caught_by)
        return patches

    return register


@mutant("beyond a number of producers the one goes that wrote longest ago, and is new when it comes again", "C9")
def forget_producers_by_number() -> list[Patch]:
    def shorten(self: ProducerTable) -> None:
        while len(self._producers) > producers.PRODUCERS_MAX:
            _, one = self._producers.popitem(last=False)
            self._batches -= len(one.window) // 4

    return [(ProducerTable, "_shorten", shorten)]


@mutant(
    "a broker that starts again knows no epochs of producers that it has forgotten",
    "C9",
    "drain",
    brokers=1,  # the broker that starts again leads again, and finds its retry
    replicas=1,
    min_insync=1,
    producers=1,
    pause_s=0.12,  # a start has to fall into a crowd
    fault_every_s=1.0,
    caught_by=11,
)
def starts_forget_epochs() -> list[Patch]:
    real = ProducerTable._restore_short

    def restore(self: ProducerTable, data: bytes, at: int) -> int:
        at = real(self, data, at)
        self._forgotten = Forgotten()
        return at

    return [(ProducerTable, "_restore_short", restore)]


@mutant("a follower forgets by another order than its leader", "C9", "kill", "drain")
def followers_forget_by_number() -> list[Patch]:
    real = Log._write

    def write(self: Log, parts: Any, header: BatchHeader, *more: Any) -> None:
        real(self, parts, header, *more)
        if len(parts) == 1:  # as the leader stamped it
            self.producers._short.clear()

    return [(Log, "_write", write)]
