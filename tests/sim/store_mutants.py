"""Planted bugs of stores that go back: mistakes in noticing it, and in the recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from comet_broker.cluster import store_guard as guard_module
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.core import lineage, recovery
from comet_broker.core.lineage import Floor, LineageFinding, LineageVerdict, PartitionChange, Seen
from comet_broker.core.recovery import Choice
from comet_broker.metadata.store import RangeResult
from comet_broker.replication import follower
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.cluster_world import ALL
from tests.sim.planting import Mutant, Patch
from tests.sim.store_scenario import FAULTS, GOES_BACK

STORE_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, breaks: str, *faults: str, caught_by: int = 0, acks: int = ALL) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = ClusterProfile(faults=faults or FAULTS, final_crash="none", acks=acks)
        STORE_MUTANTS[patches.__name__] = Mutant("store", why, tuple(breaks.split()), profile, patches, caught_by)
        return patches

    return register


@mutant("every store is trusted", "C1 C29", GOES_BACK)
def trust_every_store() -> list[Patch]:
    return [(guard_module, "judge", lambda floor, seen: LineageVerdict(LineageFinding.SAME))]


@mutant("a restart forgets what its folder knew of the store", "C1 C29", GOES_BACK)
def forget_the_floor() -> list[Patch]:
    return [(guard_module, "read_floor", lambda files: None)]


@mutant("a listing is not judged, nor what comes after it", "C1 C5 C6 C29", GOES_BACK)
def trust_every_listing() -> list[Patch]:
    real = StoreGuard.admit

    async def admit(self: StoreGuard, listing: RangeResult, known: Floor) -> bool:
        self.floor = Floor(cluster_id=self.floor.cluster_id, mine=self.floor.mine)
        self._epochs.clear()
        self._last_change = PartitionChange()
        return await real(self, listing, self.floor)

    return [(StoreGuard, "admit", admit)]


@mutant("a registration takes the lineage that it finds for the one it knows", "C1 C29", GOES_BACK)
def register_in_any_history() -> list[Patch]:
    real = lineage.judge

    def judge(floor: Floor, seen: Seen) -> LineageVerdict:
        if not seen.epochs:  # not a listing
            return LineageVerdict(LineageFinding.SAME)
        return real(floor, seen)

    async def admit(self: StoreGuard, listing: RangeResult, known: Floor) -> bool:
        self.judged = True
        return True

    return [(guard_module, "judge", judge), (StoreGuard, "admit", admit)]


@mutant("the copy with the highest epoch is chosen, whatever it lacks", "C1 C29", GOES_BACK)
def choose_by_the_epoch_alone() -> list[Patch]:
    def rank(choice: Choice) -> tuple[int, int, int]:
        return -choice.last_epoch, choice.log_end, choice.broker

    return [(recovery, "_rank", rank)]


@mutant("a recovery counts on from the epoch that the store has", "C6 C5 C29 C1", GOES_BACK, acks=1, caught_by=18)
def raise_epochs_from_the_store_alone() -> list[Patch]:
    real = recovery._partition

    def partition(tp: Any, name: str, copies: Any, inventories: Sequence[Any], state: Any) -> Any:
        plan = real(tp, name, copies, inventories, state)
        found = state.partitions.get(tp)
        return msgspec.structs.replace(plan, epoch=1 if found is None else found.value.epoch + 1)

    return [(recovery, "_partition", partition)]


@mutant("copies that hold other records in the same epoch are not cut", "C5 C6 C29 C31", GOES_BACK, acks=1)
def keep_what_was_written_in_an_epoch_given_twice() -> list[Patch]:
    return [(follower, "given_up_from", lambda partition: None)]
