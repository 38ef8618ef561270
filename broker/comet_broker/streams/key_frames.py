"""The frames of one stream about single records by key: answered at once if possible, else from a task. A client over
its quota of bytes is answered later.

    publish    ─► appended ─► enough replicas have it ─► published, with one receipt per record
    read_keys  ─► keys

Owned by a Session, on the loop's thread.
"""

from __future__ import annotations

from typing import Any

from comet.errors import CometError
from comet.v1 import records_pb2 as pb
from comet_broker.partitions.context import Accepted
from comet_broker.streams.answers import AnswerQueue, Replies
from comet_broker.streams.context import StreamClient
from comet_broker.streams.pacing import LOOK_S
from comet_broker.streams.unary_records import UnaryRecords


class KeyFrames:
    """Implements context.FrameHandler."""

    def __init__(self, replies: Replies, answers: AnswerQueue, client: StreamClient, records: UnaryRecords) -> None:
        self._replies = replies
        self._usage = client.usage
        self._answers = answers
        self._records = records

    def take(self, request: int, kind: str, frame: Any) -> bool:
        if kind == "publish":
            self._publish(request, frame)
        elif kind == "read_keys":
            self._read(request, frame)
        else:
            return False
        return True

    def close(self) -> None:
        """Has nothing to end: the answers end with the stream."""

    # ---- publish

    def _publish(self, request: int, wanted: pb.PublishRequest) -> None:
        partition, accepted = self._records.publish_now(wanted)
        if accepted is None:
            self._replies.spawn(request, self._publish_later(request, wanted))
            return
        taken = accepted

        def acknowledged(error: CometError | None) -> None:
            self._answers.settle(1)
            if error is None:
                self._published(request, wanted, taken)
            else:
                self._replies.fail(request, error)

        self._answers.owed += 1  # counts for the backlog meanwhile
        if partition.when_acked(taken.end_offset, wanted.acks, acknowledged):
            acknowledged(None)

    async def _publish_later(self, request: int, wanted: pb.PublishRequest) -> None:
        self._published(request, wanted, await self._records.publish_here(wanted))

    def _published(self, request: int, wanted: pb.PublishRequest, accepted: Accepted) -> None:
        receipts = [
            pb.Receipt(
                partition=wanted.partition,
                offset=accepted.base_offset + delta,
                append_time_us=accepted.append_time_us,
                duplicate=accepted.duplicate,
            )
            for delta in range(len(wanted.records))
        ]
        self._replies.answer(pb.ServerFrame(request=request, published=pb.PublishResponse(receipts=receipts)))

    # ---- read_keys

    def _read(self, request: int, wanted: pb.ReadKeysRequest) -> None:
        in_debt = self._usage.limited and self._usage.send_later_s() > 0
        answer = None if in_debt else self._records.read_keys_now(wanted)
        if answer is None:
            self._replies.spawn(request, self._read_later(request, wanted))
        else:
            self._answer(request, answer)

    async def _read_later(self, request: int, wanted: pb.ReadKeysRequest) -> None:
        while self._usage.limited and (wait_s := self._usage.send_later_s()) > 0:
            await self._usage.wait(min(wait_s, LOOK_S))
        self._answer(request, await self._records.read_keys_here(wanted))

    def _answer(self, request: int, answer: pb.ReadKeysResponse) -> None:
        if self._usage.limited:
            self._usage.sent(answer.ByteSize())
        self._replies.answer(pb.ServerFrame(request=request, keys=answer))
