"""The scenario `compaction` with records that expire: a time to live of their own, or that of the topic.

No reader meets a record that has expired. In the end nothing is left of a key whose last record has expired: no replica
that was away brings back an older one. A record whose time has not come is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from comet.records.expiry import has_expired
from comet.settings.topic import NO_LIMIT, TopicConfig
from tests.sim import compaction_scenario
from tests.sim.cluster_profile import ClusterProfile, ClusterTopic
from tests.sim.cluster_world import ClusterWorld
from tests.sim.compaction_scenario import FILLER, CompactedTopic, CompactionScenario
from tests.sim.result import Result

# In milliseconds; None is that of the topic.
LIVES: Final = (None, None, NO_LIMIT, 500, 3_000, 10_000, 600_000)
TOPIC_LIVES: Final = (NO_LIMIT, NO_LIMIT, 20_000)


@dataclass(frozen=True, slots=True)
class ExpiringTopic(CompactedTopic):
    record_ttl_ms: int = NO_LIMIT

    def config(self) -> TopicConfig:
        return replace(CompactedTopic.config(self), record_ttl_ms=self.record_ttl_ms)


class ExpiryScenario(CompactionScenario):
    def __init__(self, world: ClusterWorld, profile: ClusterProfile) -> None:
        self._random: Random = world.random("ttl")
        self._topic_ttl_ms = self._random.choice(TOPIC_LIVES)
        super().__init__(world, profile)
        self._expires: dict[tuple[bytes, int], int] = {}  # of the writes that do

    def _topics(self) -> list[ClusterTopic]:
        (topic,) = super()._topics()
        fields = {name: getattr(topic, name) for name in topic.__dataclass_fields__}
        return [ExpiringTopic(**fields, record_ttl_ms=self._topic_ttl_ms)]

    def _time_to_live(self, key: bytes, number: int) -> dict[str, Any]:
        if key == FILLER:  # not compacted at the end, so that an expired one would leave the one before
            return {"ttl_ms": NO_LIMIT}
        now_us, own = self.world.clock.wall_us(), self._random.choice(LIVES)
        if number < 0:  # a tombstone
            return {}
        ttl_ms = self._topic_ttl_ms if own is None else own
        if ttl_ms != NO_LIMIT:
            self._expires[key, number] = now_us + 1000 * ttl_ms
        return {"timestamp_us": now_us} | ({} if own is None else {"ttl_ms": own})

    def _expired(self, key: bytes, number: int) -> bool:
        return has_expired(self._expires.get((key, number), 0), self.world.clock.wall_us())

    def _met(self, name: str, found: dict[bytes, int], record: Any) -> None:
        super()._met(name, found, record)
        number = found[record.key]
        if self._expired(record.key, number):
            self.world.history.complaints.append(
                f"{name} read {number} of {record.key!r} at {record.offset}, which had expired"
            )

    def _may_be_gone(self, key: bytes, number: int) -> bool:
        return super()._may_be_gone(key, number) or self._expired(key, number)


def simulate(seed: int, profile: ClusterProfile | None = None) -> Result:
    """Runs one seed on a loop of its own and judges what happened."""
    return compaction_scenario.simulate(seed, profile, ExpiryScenario, "expiry")
