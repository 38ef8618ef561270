"""The topics that get the records of schedules, and the rights of the schedules' authors."""

from __future__ import annotations

from comet.errors import InvalidArgument, RecordTooLarge, TopicNotFound
from comet.settings.topic import Consistency
from comet.types import is_internal_topic
from comet.v1 import schedules_pb2 as pb
from comet_broker import limits
from comet_broker.access.control import AccessControl
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import TopicSpec


class TopicTargets:
    """Implements firing.Targets. Owned by the Scheduler."""

    def __init__(self, view: ClusterView, access: AccessControl) -> None:
        self._view = view
        self._access = access

    def refusal(self, schedule: pb.Schedule) -> str:
        spec = self._spec(schedule.topic)
        if spec is None:
            return f"topic {schedule.topic} does not exist"
        found = self._access.explain(schedule.author, "write", "topic", schedule.topic, tuple(schedule.author_roles))
        if not found.allowed:
            return f"{schedule.author} may not write to topic {schedule.topic} any more: {found.why}"
        if schedule.record.HasField("partition") and schedule.record.partition >= spec.partitions:
            return f"topic {schedule.topic} has no partition {schedule.record.partition}"
        return ""

    def is_available(self, topic: str) -> bool:
        spec = self._spec(topic)
        return spec is not None and spec.config.consistency is Consistency.AVAILABLE

    def check(self, schedule: pb.Schedule) -> None:
        """Raises the error of a schedule whose topic would refuse its record."""
        topic = schedule.topic
        if is_internal_topic(topic):
            raise InvalidArgument(f"no schedule writes to {topic}: Comet alone writes it")
        spec = self._spec(topic)
        if spec is None:
            raise TopicNotFound(f"topic {topic!r} does not exist")
        record = schedule.record
        if record.HasField("partition") and record.partition >= spec.partitions:
            raise InvalidArgument(f"topic {topic!r} has {spec.partitions} partitions, and no {record.partition}")
        size = record.ByteSize()
        most = min(spec.config.record_bytes_max, limits.SCHEDULE_RECORD_BYTES_MAX)
        if size > most:
            raise RecordTooLarge(
                f"the record of schedule {schedule.id!r} has {size} bytes, and at most {most} are taken",
                details={"record_bytes_max": str(most)},
            )

    def _spec(self, topic: str) -> TopicSpec | None:
        found = self._view.state.topics.get(topic)
        return None if found is None else found.value
