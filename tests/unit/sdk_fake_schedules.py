"""A broker in memory that stores schedules, and never fires them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from comet.errors import CometError, TopicNotFound
from comet.v1 import schedules_pb2 as schedules
from comet.wire import protobuf
from comet.wire.acting import ActingFor
from tests.unit.sdk_fake import FakeBroker, FakeChannel

NOW_US = 1_796_000_000_000_000
Verdict = Callable[[schedules.SchedulePut], CometError | None]


class SchedulesChannel(FakeChannel):
    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: Any = None
    ) -> Any:
        if isinstance(request, schedules.PutSchedulesRequest):
            assert isinstance(self.broker, FakeSchedules)
            self.broker.authors.append((request, acting))
        return await super().unary(method, request, response, timeout_s, acting)


class FakeSchedules(FakeBroker):
    """Stores schedules by id, and counts requests. The first `lost` answers get lost after the schedules are stored."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.stored: dict[str, schedules.SchedulePut] = {}
        self.requests: list[schedules.PutSchedulesRequest] = []
        self.authors: list[tuple[schedules.PutSchedulesRequest, ActingFor | None]] = []
        self.lost: list[CometError] = []
        self.verdict: Verdict = lambda put: None

    def connect(self, address: str) -> FakeChannel:
        return SchedulesChannel(self, address)

    def answer(self, method: str, request: Any) -> Any:
        if method != "comet.v1.Admin/PutSchedules":
            return super().answer(method, request)
        self.requests.append(request)
        answer = schedules.PutSchedulesResponse(results=[self._put(request.topic, put) for put in request.schedules])
        if self.lost:
            raise self.lost.pop(0)
        return answer

    def _put(self, topic: str, put: schedules.SchedulePut) -> schedules.SchedulePutResult:
        assert put.fresh
        assert put.HasField("delay_ms") != bool(put.schedule.spec)
        error = TopicNotFound(topic) if topic not in self.topics else self.verdict(put)
        if error is not None:
            return schedules.SchedulePutResult(error=protobuf.error_to_pb(error))
        created = put.schedule.id not in self.stored
        self.stored.setdefault(put.schedule.id, put)
        found = schedules.Schedule(topic=topic, id=put.schedule.id, next_us=NOW_US + 1000 * put.delay_ms)
        return schedules.SchedulePutResult(schedule=found, created=created)

    def values(self) -> list[bytes]:
        return [put.schedule.record.value for put in self.stored.values()]
