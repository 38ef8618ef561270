"""Every limit of the broker, in one place, with the relations between them asserted.

A name ends in its unit. What a user may change is in `config`; these are what keeps memory bounded
whatever the clients do.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# One record batch, as produced, stored and delivered; the topic's record_bytes_max lies below it.
BATCH_BYTES_MAX: Final = 8 * MIB
# One gRPC message, both ways: a batch with its frame, or a delivery of several batches.
MESSAGE_BYTES_MAX: Final = 16 * MIB
# A delivery gathers batches up to this size; a single larger batch travels alone.
DELIVERY_BYTES_MAX: Final = 512 * KIB
# The most a subscription can have outstanding.
CREDIT_BYTES_MAX: Final = 64 * MIB

# What one stream may keep waiting on the broker's side before the broker stops reading from it.
SESSION_ANSWERS_MAX: Final = 1024
SESSION_SUBSCRIPTIONS_MAX: Final = 256
SESSION_CURSORS_MAX: Final = 10_000
SESSION_TASKS_MAX: Final = 64
SESSIONS_MAX: Final = 20_000

# Recent batches kept in memory for live readers.
TAIL_PARTITION_BYTES_MAX: Final = 4 * MIB
TAIL_TOTAL_BYTES_MAX: Final = 32 * MIB

TOPICS_MAX: Final = 10_000
TOPIC_PARTITIONS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 20_000

# Unary calls for thin clients.
PUBLISH_RECORDS_MAX: Final = 10_000
FETCH_RECORDS_MAX: Final = 10_000
FETCH_BYTES_MAX: Final = 4 * MIB
FETCH_WAIT_MS_MAX: Final = 60_000
LIST_PAGE_MAX: Final = 1_000

# Transactions, per slot of a coordinator.
TRANSACTION_PARTITIONS_MAX: Final = 1_000  # that one transaction writes to
TRANSACTIONAL_IDS_MAX: Final = 2_000
TRANSACTION_TIMEOUT_MS: Final = 60_000  # where none is asked for
TRANSACTION_TIMEOUT_MS_MAX: Final = 15 * 60_000

BLOCKING_THREADS: Final = 4

assert DELIVERY_BYTES_MAX <= BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX + DELIVERY_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX <= CREDIT_BYTES_MAX
assert TAIL_PARTITION_BYTES_MAX <= TAIL_TOTAL_BYTES_MAX
assert TOPIC_PARTITIONS_MAX <= PARTITIONS_MAX
assert TRANSACTION_TIMEOUT_MS <= TRANSACTION_TIMEOUT_MS_MAX
