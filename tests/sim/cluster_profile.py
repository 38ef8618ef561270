"""What a run of a cluster is about: its profile, of which the seed decides what is left open, and its topics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Final

from comet.settings.topic import Consistency, Flush, TopicConfig
from comet_testing.simulation.link import EARLIER_KEEPALIVE_S, KEEPALIVE_S
from tests.sim import breaking, cluster_faults
from tests.sim.cluster_world import ALL
from tests.sim.workload import TopicPlan

BREAKING: Final = 0.1  # of the runs, in which code raises, too
LYING_DISKS: Final = 0.08  # of the seeds
BESIDE_LYING_DISKS: Final = ("drain", "kill", "late_watch", "partition", "pause", "store_slow")
WIRES: Final = (0.0, 0.0, 0.5, 1.0)  # the shares of streams over the wire that a seed draws
FINAL_CRASHES: Final = ("none", "none", "kill all", "drain all", "power one")


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """What a run is made of. What is None is drawn by the seed."""

    brokers: int | None = None
    faults: tuple[str, ...] | None = None
    fault_every_s: float | None = None
    replicas: int | None = None
    min_insync: int | None = None
    available: bool | None = None
    flush: Flush | None = None
    acks: int | None = None
    idempotent: bool | None = None
    producers: int | None = None
    pause_s: float | None = None  # between two sends of a producer
    admin: bool | None = None  # topics come and go, partitions move
    final_crash: str | None = None
    later: bool | None = None  # False: no fault that is younger than the known seeds
    requests: int | None = None  # clients that send requests with a key, beside the producers; none if not said
    registers: int | None = None  # clients that read and compare-and-set keys, likewise
    crowds: int | None = None  # clients of many producers each, likewise
    wires: float | None = None  # the share of streams that are over the wire
    keepalive_s: float | None = None  # in which gRPC notices silence


def draw(seed: int, profile: ClusterProfile) -> ClusterProfile:
    """The profile with everything that it leaves open decided by the seed."""
    random, chance = Random(f"{seed}/cluster profile"), Random(f"{seed}/staged")
    plain = sorted(cluster_faults.FAULTS.keys() - cluster_faults.DRAWN_APART)
    staged = chance.sample(cluster_faults.STAGED, chance.choice((0, 0, 1)))
    if profile.later is not False:
        staged += chance.sample(cluster_faults.LATER, chance.choice((0, 0, 0, 0, 0, 1)))
    if Random(f"{seed}/breaking").random() < BREAKING:
        staged.append(breaking.NAME)
    replicas = random.choice((3, 3, 3, 3, 2, 1))
    drawn = ClusterProfile(
        brokers=random.choice((3, 3, 3, 4)),
        faults=(*random.sample(plain, random.randint(1, 6)), *staged, *cluster_faults.drawn_apart(seed)),
        fault_every_s=random.choice((1.5, 3.0, 6.0)),
        replicas=replicas,
        min_insync=min(replicas, random.choice((2, 2, 2, 1))),
        available=random.random() < 0.15,
        flush=random.choice(list(Flush)),
        acks=random.choice((0, 1, ALL, ALL, ALL, ALL)),
        idempotent=random.random() < 0.75,
        producers=random.choice((2, 2, 3)),
        pause_s=random.choice((0.3, 0.6, 1.2)),
        admin=random.random() < 0.5,
        final_crash=random.choice(FINAL_CRASHES),
        wires=0.0 if profile.later is False else Random(f"{seed}/wires").choice(WIRES),
        keepalive_s=EARLIER_KEEPALIVE_S if profile.later is False else KEEPALIVE_S,
    )
    lying = Random(f"{seed}/lying disks")
    if lying.random() < LYING_DISKS:
        beside = lying.sample(BESIDE_LYING_DISKS, lying.randint(0, 2))
        faults = (lying.choice(cluster_faults.LYING), *beside)
        drawn = replace(drawn, brokers=3, faults=faults, replicas=3, min_insync=2, available=False, admin=False)
    given = {f.name: getattr(profile, f.name) for f in fields(profile) if getattr(profile, f.name) is not None}
    return replace(drawn, **given)


@dataclass(frozen=True, slots=True)
class ClusterTopic(TopicPlan):
    replicas: int
    min_insync: int
    available: bool

    def config(self) -> TopicConfig:
        return TopicConfig(
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            segment_bytes=self.segment_bytes,
            retention_ms=-1,  # wall clocks jump here
            min_insync=self.min_insync,
            consistency=Consistency.AVAILABLE if self.available else Consistency.CONSISTENT,
        )
