"""Every limit of the SDK, in one place, with the relations between them asserted. A name ends in its unit."""

from __future__ import annotations

from typing import Final

from comet.errors import InvalidArgument

KIB: Final = 1 << 10
MIB: Final = 1 << 20
UINT32_MAX: Final = (1 << 32) - 1

# One gRPC message, both ways; the broker's limit is the same.
MESSAGE_BYTES_MAX: Final = 16 * MIB
# One record batch; the broker's own limit is in Welcome and never larger.
BATCH_BYTES_MAX: Final = 8 * MIB
# The largest batch size of a producer; a single record may be larger.
BATCH_BYTES_CHOSEN_MAX: Final = 4 * MIB
BATCH_RECORDS_MAX: Final = 1 << 17

# The format's overhead per record: an offset of its value, one of its key, and a timestamp.
RECORD_OVERHEAD_BYTES: Final = 16
EXPIRY_BYTES: Final = 8  # of the time at which a record expires
HEADER_OVERHEAD_BYTES: Final = 8

# `send` seals a batch at the first size, `send_many` makes slices of the second.
SEND_BATCH_BYTES: Final = 128 * KIB
BULK_BATCH_BYTES: Final = 768 * KIB
PRODUCER_BUFFER_BYTES: Final = 32 * MIB
# While a batch of its partition is on the wire, a batch that is not full waits this long, or less where it is awaited.
GATHER_MS_MAX: Final = 1
# Batches of one partition sent and not yet answered. The broker remembers at least as many, so that it
# recognizes a retry.
IN_FLIGHT_BATCHES_MAX: Final = 32
# A batch is retried for at most this long. The broker remembers sequences for longer than that.
PRODUCER_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
# Delayed records: the longest delay, and what one request stores of them at most.
DELAY_MS_MAX: Final = 366 * 86_400_000
DELAYED_RECORDS_MAX: Final = 1_000
DELAYED_BYTES_MAX: Final = MIB
# Without an answer by then, the request is repeated, perhaps to another broker.
DELAYED_PATIENCE_MS: Final = 5_000
# Unread failures that are kept for flush() to raise.
FAILURES_STORED_MAX: Final = 100

CONSUMER_BUFFER_BYTES: Final = 8 * MIB
CONSUMER_BUFFER_BYTES_MIN: Final = 64 * KIB
CONSUMER_BUFFER_BYTES_MAX: Final = 64 * MIB  # the broker limits credit to this
# Leader epochs that a reader remembers, to tell which epoch a position belongs to.
EPOCHS_STORED_MAX: Final = 16

# Requests of one connection that wait for an answer, except produce, and frames waiting to be written.
REQUESTS_MAX: Final = 20_000
CONTROL_FRAMES_MAX: Final = 20_000

# Requests that are answered only when refused, such as heartbeats: the last ones that are remembered.
ONE_WAY_REQUESTS_MAX: Final = 1024

CONNECT_TIMEOUT_MS: Final = 5_000
REQUEST_TIMEOUT_MS: Final = 10_000
# How often a member of a group reports a topic that it has named and that does not exist.
MISSING_TOPIC_REPORT_MS: Final = 30_000
# After a broker announces its stop, the wait for outstanding answers.
GO_AWAY_GRACE_MS: Final = 5_000
METADATA_REFRESH_MS: Final = 30_000
# Without an answer to a metadata request by then, another broker is asked as well.
METADATA_PATIENCE_MS: Final = 250

# Attaching a partition that takes longer than this continues in the background.
ATTACH_PATIENCE_MS: Final = 250

BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
# Retries while the cluster answers, but a partition has no leader or the leader does not answer.
ROUTE_BACKOFF_MAX_MS: Final = 250
# Members of groups. The coordinator removes a member that is silent for the session timeout.
SESSION_TIMEOUT_MS: Final = 10_000
SESSION_TIMEOUT_MS_MIN: Final = 500
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
# Assignments that arrive before the answer to Join is read.
PUSHES_STORED_MAX: Final = 16
COMMIT_INTERVAL_MS: Final = 500
COMMIT_TIMEOUT_MS: Final = 15_000
# On close, the wait for the last commit and for Leave.
LEAVE_TIMEOUT_MS: Final = 5_000
# The wait for the first position of a partition that is to be released.
FIRST_POSITION_MS: Final = 5_000
# Members of share groups: the acquisition lock, and how many records a member may have at a time.
LOCK_MS: Final = 30_000
IN_FLIGHT_RECORDS: Final = 1_000
IN_FLIGHT_RECORDS_MAX: Final = 20_000
LOCK_MS_MIN: Final = 100
LOCK_MS_MAX: Final = 12 * 3_600_000
DELIVERIES: Final = 5  # brokers have the same default
DELIVERIES_MAX: Final = 250
# The delay before a record is delivered again whose value could not be decrypted: doubled with each delivery.
UNDECRYPTED_DELAY_MS: Final = 1_000
UNDECRYPTED_DELAY_MS_MAX: Final = 60_000
ACQUIRE_RECORDS_MAX: Final = 10_000  # acquired by one call without a session

# A consumer of a follower compares it with the leader at this interval, and gives it this time to catch up.
LAG_CHECK_MS: Final = 2_000
LAG_GRACE_MS: Final = 1_000
# The time for which a replica that was left is not chosen again.
REPLICA_AVOIDED_MS: Final = 30_000

# A transaction that is open for longer is aborted; `read_committed` readers wait for it.
TRANSACTION_TIMEOUT_MS_MAX: Final = 15 * 60_000
# The note that a transactional id keeps of its last committed transaction.
TRANSACTION_NOTE_BYTES_MAX: Final = 256
# An app's handlers: retries, the wait before a retry, and how many may run at once.
RETRIES_MAX: Final = 1_000_000
RETRY_BACKOFF_MS_MAX: Final = 60_000
RETRY_DELAYS_MAX: Final = 100
CONCURRENCY_MAX: Final = 10_000
# Records that wait for their turn per handler that may run, so that a slow key does not keep the others waiting.
DISPATCH_WINDOW_PER_HANDLER: Final = 16
# At most once: the records committed ahead of their handler, lost if it dies; at most one batch.
COMMITTED_AHEAD_RECORDS: Final = 100
TRANSACTION_RECORDS_MAX: Final = 100_000
TRANSACTION_GATHER_MS_MAX: Final = 10_000
# Records whose handlers do not wait before other tasks of the loop get their turn.
TURN_RECORDS: Final = 64
# The interval of commits of handled records, and the time that handlers of a revoked partition get to finish.
HANDLED_COMMIT_MS: Final = 500
REVOKED_GRACE_MS: Final = 30_000
# The time that a cancelled caller gets to abort its transaction.
LAST_WORD_MS: Final = 1_000
# A request to an issuer, for a token, its keys or its metadata: the time that it may take, and the size of the answer.
ISSUER_FETCH_MS: Final = 10_000
ISSUER_ANSWER_BYTES_MAX: Final = 1 << 20
# Tokens that clients fetch: the pause after failed fetches (doubled with each) and between renewals of refused tokens,
# and the sources that a process remembers.
TOKEN_PAUSE_MS: Final = 1_000
TOKEN_PAUSE_MS_MAX: Final = 60_000
TOKEN_SOURCES_MAX: Final = 64
# End-to-end encryption: values and bytes that a data key encrypts at most (AES-GCM with random nonces bears 2^32
# values), the time after which a producer takes a new one, and the data keys that are kept unwrapped.
DATA_KEY_RECORDS_MAX: Final = 1 << 24
DATA_KEY_RECORDS: Final = DATA_KEY_RECORDS_MAX
DATA_KEY_BYTES: Final = 1 << 36
DATA_KEY_MS_MAX: Final = 604_800_000
DATA_KEY_MS: Final = 3_600_000
DATA_KEYS_CACHED: Final = 1_024
WRAPPING_KEYS_MAX: Final = 1_000
KEY_FILE_BYTES_MAX: Final = 1 << 20

assert SEND_BATCH_BYTES <= BULK_BATCH_BYTES <= BATCH_BYTES_CHOSEN_MAX < BATCH_BYTES_MAX < MESSAGE_BYTES_MAX
assert BATCH_BYTES_MAX <= PRODUCER_BUFFER_BYTES
assert CONSUMER_BUFFER_BYTES_MIN <= CONSUMER_BUFFER_BYTES <= CONSUMER_BUFFER_BYTES_MAX
assert SESSION_TIMEOUT_MS_MIN <= SESSION_TIMEOUT_MS <= SESSION_TIMEOUT_MS_MAX
assert LEAVE_TIMEOUT_MS <= COMMIT_TIMEOUT_MS
assert BACKOFF_FIRST_MS <= ROUTE_BACKOFF_MAX_MS <= BACKOFF_MAX_MS <= CONNECT_TIMEOUT_MS


def within(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidArgument for an argument that is out of its bounds."""
    if not low <= value <= high:
        raise InvalidArgument(f"{name} must be from {low} to {high}, not {value!r}")
