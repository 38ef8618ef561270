"""The broker of sdk_fake with transactions: a coordinator, added partitions, and markers kept beside the
log.

Tests read `committed(topic, partition)`. `ends` decides the fate of every EndTransaction, as `script` does of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comet import records
from comet.errors import CometError, ProducerFenced, TransactionAborted, TransactionNotOpen
from comet.records import BatchHeader
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from tests.unit.sdk_fake import ADDRESS, FakeBroker, FakeChannel, FakePartition, FakeStream, Fate

Ends = Callable[[groups_pb.EndTransaction], "Fate | CometError"]


class TransactionStream(FakeStream):
    broker: TransactionBroker

    def _on_open_transactions(self, request: int, opening: groups_pb.OpenTransactions) -> None:
        opened = self.broker.open_transactions(opening)
        self.send(pb.ServerFrame(request=request, opened_transactions=opened))

    def _on_end_transaction(self, request: int, ending: groups_pb.EndTransaction) -> None:
        fate = self.broker.ends(ending)
        if isinstance(fate, CometError):
            raise fate
        if fate is Fate.LOST:
            return
        ended = self.broker.end_transaction(ending)
        if fate is Fate.WRITTEN:
            self.send(pb.ServerFrame(request=request, ended_transaction=ended))


class TransactionChannel(FakeChannel):
    def stream(self) -> FakeStream:
        stream = super().stream()
        stream.__class__ = TransactionStream
        return stream


class TransactionBroker(FakeBroker):
    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.ends: Ends = lambda ending: Fate.WRITTEN
        self.names: dict[str, int] = {}  # transactional id: producer id
        self.epochs: dict[int, int] = {}  # producer id: the one epoch that may write
        self.first_epochs: dict[int, int] = {}  # of whoever opened it last
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.notes: dict[int, bytes] = {}  # producer id: of its last commit with one
        self.offsets: dict[tuple[str, str, int], int] = {}  # group, topic, partition
        self.check_group: Callable[[groups_pb.Commit], None] = lambda commit: None
        self.openings: list[groups_pb.OpenTransactions] = []
        self.endings: list[groups_pb.EndTransaction] = []
        self.script = self._admit

    def connect(self, address: str) -> FakeChannel:
        return TransactionChannel(self, address)

    def answer(self, method: str, request: Any) -> Any:
        if method == "comet.v1.Comet/FindCoordinator":
            host, port = ADDRESS.split(":")
            return groups_pb.FindCoordinatorResponse(slot=1, broker=self.id, host=host, port=int(port))
        return super().answer(method, request)

    def _admit(self, partition: FakePartition, header: BatchHeader) -> Fate | CometError:
        """What the leader of a partition hears from the coordinator."""
        if not header.transactional:
            return Fate.WRITTEN
        known = self.epochs.get(header.producer_id, -1)
        if header.producer_epoch == known:
            return Fate.WRITTEN
        if header.producer_epoch < self.first_epochs[header.producer_id]:
            return ProducerFenced("another producer has the id")
        if self.outcomes.get((header.producer_id, header.producer_epoch)) is False:
            return TransactionAborted("that one was aborted")
        return TransactionNotOpen("it is over, or never was")

    def open_transactions(self, opening: groups_pb.OpenTransactions) -> groups_pb.OpenedTransactions:
        self.openings.append(opening)
        name = opening.transactional_id or f"made-up-{len(self.names)}"
        producer_id = self.names.setdefault(name, len(self.names) + 1)
        before = self.epochs.get(producer_id, -1)
        self.outcomes.setdefault((producer_id, before), False)
        self.epochs[producer_id] = self.first_epochs[producer_id] = before + 1
        note = self.notes.get(producer_id, b"")
        return groups_pb.OpenedTransactions(transactional_id=name, producer_id=producer_id, epoch=before + 1, note=note)

    def time_out(self, name: str) -> None:
        """The coordinator aborts what is open."""
        producer_id = self.names[name]
        self.outcomes[producer_id, self.epochs[producer_id]] = False
        self.epochs[producer_id] += 1

    def end_transaction(self, ending: groups_pb.EndTransaction) -> groups_pb.EndedTransaction:
        self.endings.append(ending)
        current, identity = self.epochs[ending.producer_id], (ending.producer_id, ending.epoch)
        known = self.outcomes.get(identity)
        if ending.epoch < self.first_epochs[ending.producer_id]:
            raise ProducerFenced("another producer has the id")
        if known is not None and ending.epoch + 1 == current:
            if known != ending.commit:
                raise TransactionNotOpen("it was committed") if known else TransactionAborted("it was aborted")
        elif ending.epoch != current:
            raise TransactionNotOpen("it is over, or never was")
        else:
            if ending.commit and ending.HasField("offsets"):
                self.check_group(ending.offsets)
                for topic in ending.offsets.topics:
                    for entry in topic.offsets:
                        self.offsets[ending.offsets.group, topic.topic, entry.partition] = entry.offset
            if ending.commit and ending.note:
                self.notes[ending.producer_id] = ending.note
            self.outcomes[identity] = ending.commit
            self.epochs[ending.producer_id] += 1
        return groups_pb.EndedTransaction(next_epoch=ending.epoch + 1)

    def committed(self, topic: str = "quotes", partition: int = 0) -> list[bytes | None]:
        return [
            value
            for header, batch in self.topics[topic][partition].batches
            if not header.transactional or self.outcomes.get((header.producer_id, header.producer_epoch))
            for value in records.decode(batch).values
        ]
