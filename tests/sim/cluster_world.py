"""The world of a cluster: several hosts, one metadata store that each reaches over the network, and a monitor.

See `world` for what one broker's world is, which this one extends.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from comet_broker.metadata.memory import StoreSnapshot
from comet_testing.simulation.host import Host
from comet_testing.simulation.loop import SimLoop
from tests.sim.history import PartitionName, Produce, Read
from tests.sim.losses import Where
from tests.sim.monitor import Monitor
from tests.sim.world import World

ALL: Final = 2  # acks=all, as history.Produce has it


class ClusterWorld(World):
    def __init__(self, loop: SimLoop, seed: int, brokers: int, settings: dict[str, Any], racks: str = "") -> None:
        super().__init__(loop, seed)
        self.hosts = [
            self.new_host(
                f"host {number}",
                number,
                {"etcd": ("store:2379",), "rack": racks[number - 1 : number], **settings},
            )
            for number in range(1, brokers + 1)
        ]
        self.monitor = Monitor(self.store, self.hosts, self.now, settings["session_ms"] / 1000)
        self.flipped: set[Where] = set()
        self.broken: list[PartitionName] = []  # of which code raises on some broker, or has until just now
        self.silence = asyncio.Lock()  # faults that wait for what comes of them

    def restore(self, snapshot: StoreSnapshot) -> None:
        """The metadata store goes back to what it held then; its connections break."""
        self.store.restore(snapshot)
        self.monitor.restored(snapshot)

    def wrote(self, operation: Produce) -> None:
        if operation.acks == ALL:
            self.monitor.acknowledged(operation.tp, operation.offset)

    def standing(self, tp: PartitionName) -> tuple[int, int]:
        return self.monitor.standing(tp)

    def told(self, tp: PartitionName, broker: int, end: int, before: tuple[int, int]) -> None:
        self.monitor.told(tp, broker, end, before)

    def saw(self, read: Read) -> None:
        self.monitor.read(read.tp, read.offset)

    def where(self, tp: PartitionName) -> Where:
        return self.monitor.names[tp[0]], tp[1]

    def up(self) -> list[Host]:
        return [host for host in self.hosts if host.node is not None and not host.node.dead]

    def leader(self, tp: PartitionName) -> Host | None:
        """Who leads a partition, as the metadata store has it."""
        found = self.monitor.state.partitions.get(self.where(tp))
        if found is None or not found.value.leader:
            return None
        return self.hosts[found.value.leader - 1]

    def members(self, random: Random) -> tuple[Where, Host | None, list[Host]]:
        """A partition, its leader, and the other members of its in-sync set that run."""
        where = self.where((random.choice(sorted(self.history.flush)), 0))
        found = self.monitor.state.partitions.get(where)
        if found is None:
            return where, None, []
        up = {host.broker_id: host for host in self.up() if host.broker_id in found.value.in_sync}
        leader = up.pop(found.value.leader, None)
        return where, leader, list(up.values())
