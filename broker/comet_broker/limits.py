"""Every limit of the broker, in one place, with the relations between them asserted.

A name ends in its unit. What a user may change is in `config`; these limits bound memory under any load of clients.
"""

from __future__ import annotations

from typing import Final

from comet.wire.liveness import BETWEEN_BROKERS, OF_CLIENTS

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# One record batch, as produced, stored and delivered; the topic's record_bytes_max lies below it.
BATCH_BYTES_MAX: Final = 8 * MIB
# One gRPC message, both ways: a batch with its frame, or a delivery of several batches.
MESSAGE_BYTES_MAX: Final = 16 * MIB
# A delivery gathers batches up to this size; a single larger batch travels alone.
DELIVERY_BYTES_MAX: Final = 512 * KIB
# The largest credit of a subscription.
CREDIT_BYTES_MAX: Final = 64 * MIB

# What one stream may queue at the broker before the broker stops reading from it.
SESSION_ANSWERS_MAX: Final = 1024
SESSION_ANSWER_BYTES_MAX: Final = 2 * MIB
SESSION_SUBSCRIPTIONS_MAX: Final = 256
SESSION_CURSORS_MAX: Final = 10_000
SESSION_TASKS_MAX: Final = 64
SESSIONS_MAX: Final = 20_000
# Connections to the broker: this share of its file descriptors, so that logs always have the rest. One that has not
# begun to speak HTTP/2, or has no calls, is closed.
CONNECTIONS_SHARE: Final = 0.5
WIRE_CONNECTIONS_SHARE: Final = 0.25  # those of the wire
CONNECTION_HANDSHAKE_MS: Final = 10_000
CONNECTION_IDLE_MS: Final = 5 * 60_000
# Calls of one connection, reset ones included until their handler has ended. A gateway has one connection to a broker
# for its unary calls. Beyond that gRPC refuses the connection's new calls (RST_STREAM); its clients wait by themselves.
CONNECTION_CALLS_MAX: Final = 1_024
# Calls of all connections that no handler has taken yet. Beyond that gRPC cancels new ones, of any connection, so that
# one connection alone must not reach it. Reset ones count, because grpc.aio takes them too, one after the other.
PENDING_CALLS_SHARE: Final = 0.25  # of the memory
PENDING_CALL_BYTES: Final = 64 * KIB  # of one with METADATA_BYTES_MAX in small headers, measured
PENDING_CALLS_MAX: Final = 8_192
CONNECTION_PENDING_SHARE: Final = 0.25  # of these calls
METADATA_BYTES_MAX: Final = 4 * KIB  # headers of one call, each with 32 bytes

# Bytes in flight, of all clients: this share of the memory that the process may use (memory.in_flight).
IN_FLIGHT_SHARE: Final = 0.25
MEMORY_BYTES: Final = 1 << 30  # that it may use, where neither a setting nor the system says it
MEMORY_BYTES_MIN: Final = 128 * MIB
UNFINISHED_SHARE: Final = 0.125  # of it, for frames of the wire that have not come whole
# One message that a broker takes may need no more than this share of its memory, and a broker with less than
# MEMORY_BYTES gives each stream a window of WINDOW_BYTES instead of one that grows with the speed of the network.
MESSAGE_SHARE: Final = 1 / 64
FRAME_BYTES_MAX: Final = 64 * KIB  # of a frame beside its batch
WINDOW_BYTES: Final = 64 * KIB
LARGE_FRAME_BYTES: Final = 256 * KIB  # after which a broker looks at its memory
# A unary call beside its message and answer: its task, its objects, and gRPC's.
CALL_BYTES: Final = 16 * KIB
WAITING_CALLS_MAX: Final = 10_000  # that wait for records, at one broker
ANSWER_RESERVED_BYTES_MIN: Final = 16 * KIB  # larger answers of unary calls are sent in turn
UNARY_READ_S_MAX: Final = 30.0  # for the message of a unary call

# Recent batches kept in memory for live readers.
TAIL_PARTITION_BYTES_MAX: Final = 4 * MIB
TAIL_TOTAL_BYTES_MAX: Final = 32 * MIB

# How long a client may repeat a batch or request: the longest `timeout_ms` of a producer.
RETRY_MS_MAX: Final = 24 * 3_600_000
# Between brokers, where silence is judged as comet.wire.liveness has it, a frame of more than ANNOUNCED_BYTES is
# announced, and may take as long as a link of LINK_BYTES_PER_S_MIN needs for it.
LINK_BYTES_PER_S_MIN: Final = 512 * KIB
ANNOUNCED_BYTES: Final = MIB
# gRPC's own pings notice silence within the bound of clients, on connections without a stream, and of clients that send
# no heartbeats. They do not start while heartbeats come.
KEEPALIVE_MS: Final = round(1500 * OF_CLIENTS.heartbeat_s)
KEEPALIVE_TIMEOUT_MS: Final = round(1000 * OF_CLIENTS.silence_s) - KEEPALIVE_MS
# Connections between brokers: one attempt to connect, and the answer to a keepalive ping, which also bounds how long
# sent bytes may stay without TCP's acknowledgement.
PEER_CONNECT_MS: Final = 3_000
PEER_KEEPALIVE_MS: Final = 10_000
PEER_KEEPALIVE_TIMEOUT_MS: Final = 3_000

TOPICS_MAX: Final = 10_000
TOPIC_PARTITIONS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 20_000

# Unary calls for thin clients.
PUBLISH_RECORDS_MAX: Final = 10_000
FETCH_RECORDS_MAX: Final = 10_000
FETCH_BYTES_MAX: Final = 4 * MIB
FETCH_WAIT_MS_MAX: Final = 60_000
LIST_PAGE_MAX: Final = 1_000

# The last record of each key, for the partitions whose keys are read (key_values).
KEY_VIEWS_MAX: Final = 64  # partitions; the one that was used longest ago makes room
KEY_VIEW_IDLE_S_MIN: Final = 10.0  # since its last use, before it does
KEY_TABLE_CACHE_BYTES: Final = 4 * MIB  # of one in memory; the rest is in a file
KEY_TABLE_BYTES_MAX: Final = 16 << 30
KEY_SLICE_BYTES: Final = 256 * KIB  # of the log, taken in at once; more is taken in by a worker
KEY_PENDING_MAX: Final = 20_000  # records above the high watermark, of one partition
KEY_PENDING_BYTES_MAX: Final = 16 * MIB
KEY_WAIT_S_MAX: Final = 10.0  # of a call, until the log is taken in
KEY_HISTORY_MAX: Final = 64  # records of one key whose offsets are known
READ_KEYS_MAX: Final = 1_000  # in one answer
READ_KEYS_BYTES_MAX: Final = MIB  # and one record

# Schedules.
SCHEDULES_PUT_MAX: Final = 1_000  # in one request
SCHEDULES_LISTED_MAX: Final = 1_000
SCHEDULES_MAX: Final = 1_000_000  # of a partition of `__schedules`
SCHEDULES_RECURRING_MAX: Final = 10_000  # of them, those that are due more than once
SCHEDULE_TICK_MAX: Final = 500  # schedules that fire in one transaction
SCHEDULE_TICK_BYTES_MAX: Final = MIB  # of their records, or one schedule's
SCHEDULE_LATE_RECORDS_MAX: Final = 1_000  # that one schedule fires in one transaction
SCHEDULE_RECORD_BYTES_MAX: Final = MIB  # of the record of a schedule, as the protocol has it
SCHEDULE_REASON_CHARS_MAX: Final = 300
SCHEDULE_TABLE_CACHE_BYTES: Final = MIB

# Transactions, per slot of a coordinator.
TRANSACTION_PARTITIONS_MAX: Final = 1_000  # that one transaction writes to
TRANSACTION_NOTE_BYTES_MAX: Final = 256  # that a transactional id remembers of its last commit
TRANSACTION_ABORTED_EPOCHS_MAX: Final = 256  # remembered per transactional id
TRANSACTIONAL_IDS_MAX: Final = 2_000
TRANSACTIONAL_ID_IDLE_S_MIN: Final = 600  # before one is forgotten to make room
TRANSACTIONAL_ID_ABANDONED_S: Final = 3_600  # a generated id whose stream is gone
TRANSACTIONAL_ID_IDLE_S_MAX: Final = 7 * 24 * 3_600
TRANSACTION_TIMEOUT_MS: Final = 60_000  # the default
TRANSACTION_TIMEOUT_MS_MAX: Final = 15 * 60_000

# Groups. A whole group has to fit into one transaction of the metadata store.
SLOT_GROUPS_MAX: Final = 1_000
GROUP_MEMBERS_MAX: Final = 1_000
GROUP_PARTITIONS_MAX: Final = 20_000
GROUP_SUBSCRIPTION_BYTES_MAX: Final = 128 * KIB
JOIN_TOPICS_MAX: Final = 1_000
COMMIT_OFFSETS_MAX: Final = 20_000
GROUP_WAITING_MAX: Final = 10_000  # commits, and as many other requests, that wait for the metadata store
INSTANCE_BYTES_MAX: Final = 100
RACK_CHARS_MAX: Final = 249
CLIENT_NAME_BYTES_MAX: Final = 100
SESSION_MS_MIN: Final = 100
SESSION_MS_MAX: Final = 30 * 60_000
RELEASE_MS_MAX: Final = 60 * 60_000
# Histories of lag, each of one group and topic: 28 bytes a point, 67 KiB each (core.lag).
SLOT_LAG_SERIES_MAX: Final = 50
SLOT_LAG_BYTES_MAX: Final = 4 * MIB
LAG_SERIES_MAX: Final = 300  # of all slots of one broker
LAG_BYTES_MAX: Final = 20 * MIB

# Batches that wait in one partition until their transaction coordinators have added it.
TRANSACTION_WAITING_MAX: Final = 1024
TRANSACTION_WAITING_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX

# Share groups, at the leader of a partition.
SHARES_MAX: Final = 20_000  # of one group at one partition each
SHARE_WINDOW_RECORDS_MAX: Final = 20_000  # how far a group may be beyond its first unacknowledged record
SHARE_DEAD_MAX: Final = 500  # dead records that wait to be written; then the partition stops
SHARE_MEMBERS_MAX: Final = 10_000  # of one group at one partition
SHARE_IN_FLIGHT_MAX: Final = 20_000  # records acquired by one subscription
SHARE_FRAME_RECORDS_MAX: Final = 1_000  # acquired in one frame, so that members take turns
SHARE_READ_BYTES: Final = 256 * KIB  # read ahead of what is acquired
SHARE_CHUNKS_MAX: Final = 64  # read and not acquired yet, of all groups together
SHARE_SUBSCRIPTIONS_MAX: Final = 64  # of one stream
SHARE_ACKNOWLEDGES_MAX: Final = 10_000  # of one stream, that wait to be stored
SHARE_RANGES_MAX: Final = 20_000  # in one acknowledge
SHARE_LOCK_MS: Final = 30_000  # the default
SHARE_LOCK_MS_MIN: Final = 100
SHARE_LOCK_MS_MAX: Final = 12 * 3_600_000
SHARE_DELIVERIES: Final = 5
SHARE_DELIVERIES_MAX: Final = 250
SHARE_DELAY_MS_MAX: Final = 24 * 3_600_000
SHARE_REASON_CHARS_MAX: Final = 200
# Without a stream: of one group at one partition, and what is remembered of acknowledgements there.
SHARE_TICKETS_MAX: Final = 10_000  # locks
SHARE_ANSWERS_MAX: Final = 20_000  # records
SHARE_ANSWERS_S: Final = 60.0  # after the last record of a lock is acknowledged
# How often a leader asks the store whether a group without members still exists. A deletion waits that long.
SHARE_CHECK_S: Final = 0.25
ACQUIRE_RECORDS_MAX: Final = 10_000  # in one call
ACKNOWLEDGEMENTS_MAX: Final = 10_000  # in one call

CALENDARS_MAX: Final = 100  # of the cluster
CALENDAR_BYTES_MAX: Final = 256 * KIB  # of one, as it is stored
CALENDARS_BYTES_MAX: Final = 4 * MIB  # of all of them

# Metrics history of a broker: of each figure, 960 seconds and 1,500 minutes (core.history).
HISTORY_POINTS: Final = 960 + 1_500
TOPIC_SERIES_MAX: Final = 500  # topics with figures of their own: four each, of four bytes a point
TOPIC_SERIES_BYTES_MAX: Final = 20 * MIB  # of all of them
HISTORY_VALUES_MAX: Final = 1_000_000  # in one answer, of eight bytes each
EVENTS_MAX: Final = 500  # remembered of the cluster
REBALANCES_MAX: Final = 50  # remembered of a group
FAILURES_MAX: Final = 1_000  # failed entities that are shown
FAILURES_SHOWN_MAX: Final = 100  # of those, in one answer

# The audit log.
AUDIT_QUEUE_MAX: Final = 1_000  # events that wait for the topic
AUDIT_QUEUE_ADMIN_MIN: Final = 200  # of these, that only admin acts take: strangers cannot displace them
AUDIT_ROWS_MAX: Final = 1_000  # repeated events, of refused calls and of denials each
AUDIT_ADDRESS_ROWS_MAX: Final = 10  # of refused calls, of one address
AUDIT_PRINCIPAL_ROWS_MAX: Final = 100  # of denials, of one principal
AUDIT_USES_MAX: Final = 10_000  # first uses of a day
AUDIT_PRINCIPAL_USES_MAX: Final = 1_000  # of these, of one principal
AUDIT_REQUEST_BYTES_MAX: Final = 2 * KIB  # of an admin act, in its event
AUDIT_BATCH_BYTES_MAX: Final = 512 * KIB  # of events in one batch; one has a few KiB
AUDIT_FLUSH_S_MAX: Final = 1.0  # for events that wait when the broker stops

BLOCKING_THREADS: Final = 4

assert DELIVERY_BYTES_MAX <= BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX + DELIVERY_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX <= CREDIT_BYTES_MAX
assert LINK_BYTES_PER_S_MIN * (BETWEEN_BROKERS.silence_s - BETWEEN_BROKERS.heartbeat_s) >= ANNOUNCED_BYTES
assert 1000 * BETWEEN_BROKERS.silence_s >= PEER_CONNECT_MS
assert MESSAGE_SHARE * MEMORY_BYTES >= MESSAGE_BYTES_MAX  # so that only a small broker takes less
assert CONNECTION_CALLS_MAX <= CONNECTION_PENDING_SHARE * PENDING_CALLS_MAX
assert CALL_BYTES >= ANSWER_RESERVED_BYTES_MIN
assert TAIL_PARTITION_BYTES_MAX <= TAIL_TOTAL_BYTES_MAX
assert TOPIC_PARTITIONS_MAX <= PARTITIONS_MAX
assert TRANSACTION_TIMEOUT_MS <= TRANSACTION_TIMEOUT_MS_MAX <= 1000 * TRANSACTIONAL_ID_ABANDONED_S
assert TRANSACTIONAL_ID_IDLE_S_MIN <= TRANSACTIONAL_ID_ABANDONED_S <= TRANSACTIONAL_ID_IDLE_S_MAX
assert ACQUIRE_RECORDS_MAX <= SHARE_WINDOW_RECORDS_MAX
assert FETCH_BYTES_MAX + BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert KEY_VIEWS_MAX * KEY_TABLE_CACHE_BYTES <= IN_FLIGHT_SHARE * MEMORY_BYTES
assert KEY_SLICE_BYTES <= KEY_PENDING_BYTES_MAX
assert READ_KEYS_BYTES_MAX + BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert AUDIT_QUEUE_ADMIN_MIN < AUDIT_QUEUE_MAX <= PUBLISH_RECORDS_MAX
assert AUDIT_ADDRESS_ROWS_MAX <= AUDIT_PRINCIPAL_ROWS_MAX < AUDIT_ROWS_MAX
assert AUDIT_PRINCIPAL_USES_MAX < AUDIT_USES_MAX
assert SHARE_FRAME_RECORDS_MAX <= SHARE_IN_FLIGHT_MAX <= SHARE_WINDOW_RECORDS_MAX
assert TOPIC_SERIES_MAX * 4 * 4 * HISTORY_POINTS <= TOPIC_SERIES_BYTES_MAX
assert 8 * HISTORY_VALUES_MAX < MESSAGE_BYTES_MAX
assert CALENDAR_BYTES_MAX <= CALENDARS_BYTES_MAX < MESSAGE_BYTES_MAX
