"""Admission of produced batches: pure checks of a batch whose checksum has been verified.

Checks the columns that readers rely on, and reads no value. A batch whose columns do not add up is refused, since every
reader would fail at it for as long as it is in the log.
"""

from __future__ import annotations

from typing import Final

from comet import records
from comet.errors import CorruptBatch, InvalidArgument, RecordTooLarge
from comet.records import BatchHeader
from comet.settings.topic import TopicConfig
from comet_broker import limits

# Plain integers: enum arithmetic costs a microsecond.
_OFFSET_DELTAS: Final = int(records.Flag.OFFSET_DELTAS)
_KEYS: Final = int(records.Flag.KEYS)
_KEY_NULLS: Final = int(records.Flag.KEY_NULLS)
_CONTROL: Final = int(records.Flag.CONTROL)


def admit(header: BatchHeader, batch: memoryview, topic: str, config: TopicConfig) -> None:
    """Raises CorruptBatch, RecordTooLarge or InvalidArgument for a batch that no producer may send to this topic."""
    if header.length != len(batch):
        raise CorruptBatch(f"the frame holds {len(batch)} bytes, its batch says {header.length}")
    if header.length > limits.BATCH_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch of {header.length} bytes is over the broker's {limits.BATCH_BYTES_MAX}; send smaller batches"
        )
    if header.flags == _CONTROL:
        raise CorruptBatch("a producer sends no compaction plans: CONTROL is not allowed in produce")
    if header.flags & _OFFSET_DELTAS:
        raise CorruptBatch("a producer does not choose offsets: OFFSET_DELTAS is not allowed in produce")
    if config.compacts and header.flags & (_KEYS | _KEY_NULLS | _CONTROL) not in (_KEYS, _CONTROL):
        raise InvalidArgument(
            f"a record without a key: topic {topic!r} is compacted, which keeps the last record of each key; give "
            "every record a key"
        )
    lone = records.lone_size(header, batch)
    if lone >= 0:
        if lone > config.record_bytes_max:
            raise config.record_too_large(topic, lone)
        return
    columns = records.opened(header, batch)
    columns.check()
    if header.body_size > config.record_bytes_max:
        # Only a batch with a body of this size can hold a record that is too large: check its offsets.
        largest = columns.value_over(config.record_bytes_max)
        if largest is not None:
            raise config.record_too_large(topic, largest)
