"""Every limit of the SDK, in one place, with the relations between them asserted. A name ends in its unit."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
UINT32_MAX: Final = (1 << 32) - 1

# One gRPC message, both ways; the broker's limit is the same.
MESSAGE_BYTES_MAX: Final = 16 * MIB
# One record batch; the broker says its own limit in Welcome, which is never larger.
BATCH_BYTES_MAX: Final = 8 * MIB
# What a producer may be set to gather; a single record may be larger.
BATCH_BYTES_CHOSEN_MAX: Final = 4 * MIB
BATCH_RECORDS_MAX: Final = 1 << 17

# What the format adds to a record: an offset of its value, one of its key, and a timestamp.
RECORD_OVERHEAD_BYTES: Final = 16
HEADER_OVERHEAD_BYTES: Final = 8

# `send` seals a batch at this size, `send_many` cuts its slices to the other.
SEND_BATCH_BYTES: Final = 128 * KIB
BULK_BATCH_BYTES: Final = 768 * KIB
PRODUCER_BUFFER_BYTES: Final = 32 * MIB
# While a batch of its partition is on the wire, a batch that is not full waits this long, or less where it is awaited.
GATHER_MS_MAX: Final = 1
# Batches of one partition sent and not yet answered. The broker remembers at least as many, so that a
# repeated one is known for what it is.
IN_FLIGHT_BATCHES_MAX: Final = 32
# For how long a batch is sent again at most. The broker knows what it was sent for longer than that.
PRODUCER_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
# Failures that no caller has read, kept for flush() to raise.
FAILURES_STORED_MAX: Final = 100

CONSUMER_BUFFER_BYTES: Final = 8 * MIB
CONSUMER_BUFFER_BYTES_MIN: Final = 64 * KIB
CONSUMER_BUFFER_BYTES_MAX: Final = 64 * MIB  # the broker cuts credit to this
# Changes of leader that a reader remembers, so as to say which epoch a position belongs to.
EPOCHS_STORED_MAX: Final = 16

# Requests of one connection that wait for an answer, produce aside, and frames waiting to be written.
REQUESTS_MAX: Final = 20_000
CONTROL_FRAMES_MAX: Final = 20_000

# Of what is answered only where it is refused, such as heartbeats, the last so many can still be told apart.
ONE_WAY_REQUESTS_MAX: Final = 1024

CONNECT_TIMEOUT_MS: Final = 5_000
REQUEST_TIMEOUT_MS: Final = 10_000
# How often a connection looks whether it has heard anything. One that has not for so long asks; without an answer for
# the time after that it is dead. While an answer is waited for, the other brokers are asked about a silent one: where
# the cluster has given it up, it is given up here too.
HEARTBEAT_MS: Final = 500
PING_AFTER_MS: Final = 3_000
PING_TIMEOUT_MS: Final = 5_000
# After the broker said that it stops, how long answers under way are waited for.
GO_AWAY_GRACE_MS: Final = 5_000
METADATA_REFRESH_MS: Final = 30_000
# When one broker has not said by then what it knows of the cluster, another is asked as well.
METADATA_PATIENCE_MS: Final = 250

# A partition that takes longer than this to be attached is seen to while the others go on.
ATTACH_PATIENCE_MS: Final = 250

BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
# While the cluster can be asked, and a partition has no leader or its leader is not there.
ROUTE_BACKOFF_MAX_MS: Final = 250
# Members of groups. A session is how long the coordinator goes without word of a member before it puts it out.
SESSION_TIMEOUT_MS: Final = 10_000
SESSION_TIMEOUT_MS_MIN: Final = 500
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
# Assignments that come before the answer to Join has been read.
PUSHES_STORED_MAX: Final = 16
COMMIT_INTERVAL_MS: Final = 500
COMMIT_TIMEOUT_MS: Final = 15_000
# On close, how long the last commit and the farewell are waited for.
LEAVE_TIMEOUT_MS: Final = 5_000
# A partition that is to be released and whose first position is not known yet is waited for so long.
FIRST_POSITION_MS: Final = 5_000
PATTERN_CHARS_MAX: Final = 512
# Members of share groups: how long they have for a record, and how many they may have at a time.
LOCK_MS: Final = 30_000
IN_FLIGHT_RECORDS: Final = 1_000
IN_FLIGHT_RECORDS_MAX: Final = 20_000
LOCK_MS_MIN: Final = 100
ACQUIRE_RECORDS_MAX: Final = 10_000  # acquired by one call without a session

# A consumer that reads from a follower compares it with the leader so often, and then gives it so long to catch up.
LAG_CHECK_MS: Final = 2_000
LAG_GRACE_MS: Final = 1_000
# A replica that was left is not chosen again for so long.
REPLICA_AVOIDED_MS: Final = 30_000

# A transaction that is open for longer is aborted; readers of committed records wait for it.
TRANSACTION_TIMEOUT_MS_MAX: Final = 15 * 60_000
# What a transactional id remembers of its last committed transaction.
TRANSACTION_NOTE_BYTES_MAX: Final = 256
# Of an app's handlers: how often one may be tried again, how long that may wait, and how many may run at once.
RETRIES_MAX: Final = 1_000_000
RETRY_BACKOFF_MS_MAX: Final = 60_000
CONCURRENCY_MAX: Final = 10_000
# Records that wait for their turn per handler that may run, so that a slow key does not keep the others waiting.
DISPATCH_WINDOW_PER_HANDLER: Final = 16
# At most once: so many records are committed ahead of their handler, and lost if it dies; it is one batch at most.
COMMITTED_AHEAD_RECORDS: Final = 100
TRANSACTION_RECORDS_MAX: Final = 100_000
TRANSACTION_GATHER_MS_MAX: Final = 10_000
# After so many records whose handlers did not wait, other tasks of the loop get their turn.
TURN_RECORDS: Final = 64
# How often what handlers have done is committed, and how long those of a revoked partition may take to finish.
HANDLED_COMMIT_MS: Final = 500
REVOKED_GRACE_MS: Final = 30_000
# How long who is cancelled may take to say that its transaction is aborted.
LAST_WORD_MS: Final = 1_000

assert SEND_BATCH_BYTES <= BULK_BATCH_BYTES <= BATCH_BYTES_CHOSEN_MAX < BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX <= PRODUCER_BUFFER_BYTES
assert CONSUMER_BUFFER_BYTES_MIN <= CONSUMER_BUFFER_BYTES <= CONSUMER_BUFFER_BYTES_MAX
assert SESSION_TIMEOUT_MS_MIN <= SESSION_TIMEOUT_MS <= SESSION_TIMEOUT_MS_MAX
assert LEAVE_TIMEOUT_MS <= COMMIT_TIMEOUT_MS
assert PING_AFTER_MS % HEARTBEAT_MS == PING_TIMEOUT_MS % HEARTBEAT_MS == 0
assert BACKOFF_FIRST_MS <= ROUTE_BACKOFF_MAX_MS <= BACKOFF_MAX_MS <= CONNECT_TIMEOUT_MS
