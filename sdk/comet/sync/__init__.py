"""The synchronous API: producers, consumers and Admin for scripts, notebooks and threads.

They run the asynchronous classes on one event loop in a background thread that all of them share. `send`, and the next
record of a batch, do not wait for it; other calls do. Every method may be called from any thread; one consumer is read
by one thread at a time. Ctrl-C interrupts a call that waits.

    with comet.sync.Producer("localhost:9092") as producer:
        producer.publish("quotes", b"EURUSD 1.08")
    with comet.sync.Consumer("localhost:9092", "quotes") as consumer:
        for record in consumer: ...

The classes are generated from the asynchronous ones by `make generate`.
"""

from __future__ import annotations

from comet.event_loop import call
from comet.sync.access import AccessAdmin
from comet.sync.admin import Admin
from comet.sync.calendars import CalendarAdmin
from comet.sync.consumer import Consumer
from comet.sync.delivery import BulkDelivery, Delivery, ScheduledDelivery
from comet.sync.group_consumer import GroupConsumer
from comet.sync.kv import KV
from comet.sync.producer import Producer
from comet.sync.range_reader import Reader
from comet.sync.ranges import RangeReader
from comet.sync.schedules import ScheduleAdmin
from comet.sync.share_client import ShareClient
from comet.sync.share_consumer import ShareConsumer, ShareRecord
from comet.sync.time_merge import MergedReader
from comet.sync.transaction import Transaction, TransactionalProducer
from comet.sync.watch import KVWatch

__all__ = [
    "KV",
    "AccessAdmin",
    "Admin",
    "BulkDelivery",
    "CalendarAdmin",
    "Consumer",
    "Delivery",
    "GroupConsumer",
    "KVWatch",
    "MergedReader",
    "Producer",
    "RangeReader",
    "Reader",
    "ScheduleAdmin",
    "ScheduledDelivery",
    "ShareClient",
    "ShareConsumer",
    "ShareRecord",
    "Transaction",
    "TransactionalProducer",
    "call",
]  # fmt: skip
