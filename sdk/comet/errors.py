"""Everything that can go wrong, as one tree.

    CometError
    ├── InvalidArgument            what was asked makes no sense; fix the call
    │   ├── MalformedFrame         bytes that are no frame of the protocol
    │   ├── CorruptBatch           bytes that are no record batch, or were damaged on the way
    │   ├── UnsupportedVersion     a format, codec or flag this version does not know
    │   ├── RecordTooLarge         more bytes than the topic or the broker takes
    │   ├── SerdeError             a value that the codec of the type cannot encode or decode
    │   └── KeyReused              an idempotency key that came with another content before
    ├── TopicNotFound, TopicExists, PartitionNotFound, BrokerNotFound
    ├── NotLeader                  ask another broker; metadata is stale
    │   └── LeadershipLost         it was written, by a leader that was replaced before it could acknowledge
    ├── OffsetOutOfRange           the offset is gone, or not there yet
    ├── Truncated                  the log was cut back below what was read
    ├── DataLoss                   a range of the log is damaged and cannot be read here
    │   └── CorruptRecords         a stored batch whose columns do not add up: no replica can read it
    ├── ProducerError              idempotent producers
    │   ├── SequenceGap            an earlier batch is missing
    │   ├── SequenceTooOld         a retry of something long since written
    │   ├── UnknownProducer        the broker no longer remembers this producer
    │   └── ProducerFenced         a newer epoch of this producer exists
    ├── NotCoordinator             another broker coordinates this group or transactional id
    │   └── CoordinatorLoading     this one does, and is still reading what it has to know
    ├── GroupError                 members of groups
    │   ├── MemberUnknown          the group has no such member, or no longer: join again
    │   ├── MemberFenced           another instance took this member's place
    │   ├── StaleGeneration        the member does not own the partition any more
    │   ├── GroupNotFound, GroupNotEmpty
    │   └── LockExpired           the record was acquired for too long and is another's by now
    ├── TransactionError           a transaction that takes nothing more
    │   ├── TransactionAborted     it ran out of time, or was aborted; begin another
    │   └── TransactionNotOpen     a batch of a transaction that is over, or never was
    ├── DiskFull                   nothing was written; retry when there is space
    ├── NotEnoughReplicas          too few are in sync for acks="all"; nothing was written
    ├── LogFailed                  the disk failed under this partition; it takes no more writes
    ├── Unavailable                no broker could be reached, or it went away
    │   └── Draining               the broker is about to stop
    ├── Timeout                    no answer in time: it may or may not have happened
    ├── LimitExceeded              a documented limit; wait, or raise it
    ├── DataFolderTaken            another process owns the data folder
    ├── StoreDamaged               the metadata file is damaged; the message says how to restore it
    ├── Closed                     used after close()
    └── Internal                   a bug in Comet; please report it

Each class carries what a program needs to decide: a stable `code`, whether trying again can help
(`retriable`), whether the cluster moved on (`metadata_stale`), and whether the request may have
taken effect all the same (`outcome_unknown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class CometError(Exception):
    """The root of all errors that Comet raises.

    >>> import comet
    >>> try:
    ...     raise comet.TopicNotFound("topic 'quotes' does not exist; create it first")
    ... except comet.CometError as error:
    ...     print(error.code, error.retriable)
    TOPIC_NOT_FOUND False
    """

    code: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    metadata_stale: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, str] | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str] = dict(details or {})
        self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.details, self.retry_after_ms)


def _rebuild(cls: type[CometError], message: str, details: dict[str, str], retry_after_ms: int) -> CometError:
    return cls(message, details=details, retry_after_ms=retry_after_ms)


class InvalidArgument(CometError):
    """The request makes no sense as it stands; the message says what to change."""

    code = "INVALID_ARGUMENT"


class MalformedFrame(InvalidArgument):
    """Bytes on a stream that are no frame of the protocol."""

    code = "MALFORMED_FRAME"


class CorruptBatch(InvalidArgument):
    """Bytes that are no record batch: truncated, damaged, or inconsistent in themselves."""

    code = "CORRUPT_BATCH"


class UnsupportedVersion(InvalidArgument):
    """A format version, codec or flag that this version of Comet does not know."""

    code = "UNSUPPORTED_VERSION"


class RecordTooLarge(InvalidArgument):
    """A record or batch larger than its topic, or the broker, takes."""

    code = "RECORD_TOO_LARGE"


class SerdeError(InvalidArgument):
    """A value that cannot be encoded, or bytes that cannot be decoded, as the type asked for."""

    code = "SERDE"


class KeyReused(InvalidArgument):
    """A request with the same idempotency key and another content was written before; this one was not."""

    code = "KEY_REUSED"


class TopicNotFound(CometError):
    """No topic of that name exists."""

    code = "TOPIC_NOT_FOUND"


class TopicExists(CometError):
    """A topic of that name exists already."""

    code = "TOPIC_EXISTS"


class PartitionNotFound(CometError):
    """The topic has no such partition, or a handle to it is no longer valid: attach again."""

    code = "PARTITION_NOT_FOUND"
    metadata_stale = True


class NotLeader(CometError):
    """Another broker leads the partition. `details["leader"]` names it where that is known."""

    code = "NOT_LEADER"
    retriable = True
    metadata_stale = True


class LeadershipLost(NotLeader):
    """The broker wrote the batch and then stopped leading the partition, before it could acknowledge it: the new
    leader may or may not have it. An idempotent producer asks it, by sending the batch again."""

    code = "LEADERSHIP_LOST"
    outcome_unknown = True


class OffsetOutOfRange(CometError):
    """The offset lies before `details["log_start"]` (deleted) or after `details["log_end"]`."""

    code = "OFFSET_OUT_OF_RANGE"


class DataLoss(CometError):
    """Offsets `details["first"]` up to, not including, `details["end"]` are damaged on this broker."""

    code = "DATA_LOSS"


class CorruptRecords(DataLoss):
    """A stored batch has a right checksum and columns that do not add up, so that no reader can take it apart: offsets
    `details["first"]` up to, not including, `details["end"]`; `details["reason"]` names the column. Reading goes on at
    `end`. Leaders refuse such batches; a log written by an older broker may hold them."""


class ProducerError(CometError):
    """A batch that an idempotent producer may not write as it stands."""


class SequenceGap(ProducerError):
    """A batch that an idempotent producer sent before this one is not in the log."""

    code = "SEQUENCE_GAP"


class SequenceTooOld(ProducerError):
    """A repeated batch from so long ago that its offset is no longer known. It was written once."""

    code = "SEQUENCE_TOO_OLD"
    outcome_unknown = True  # the records are in the log, so nothing may say that they are not


class UnknownProducer(ProducerError):
    """The broker knows too little of this producer: it was idle for long, or many others wrote since. Nothing was
    written by this attempt; whether an earlier one wrote the batch is not known."""

    code = "UNKNOWN_PRODUCER"


class ProducerFenced(ProducerError):
    """A newer epoch of this producer has written; this one must stop."""

    code = "PRODUCER_FENCED"


class NotCoordinator(CometError):
    """Another broker coordinates the group or transactional id; `details["leader"]` names it where that is known."""

    code = "NOT_COORDINATOR"
    retriable = True
    metadata_stale = True


class CoordinatorLoading(NotCoordinator):
    """The broker has just become the coordinator and does not know yet what was committed. It never means "nothing"."""

    code = "COORDINATOR_LOADING"
    metadata_stale = False


class GroupError(CometError):
    """What a member of a group, or a group as it stands, does not allow."""


class MemberUnknown(GroupError):
    """The group has no such member: its session ran out, or it left. What it owned belongs to others by now."""

    code = "MEMBER_UNKNOWN"


class MemberFenced(GroupError):
    """Another instance joined under the same static name; this one must stop."""

    code = "MEMBER_FENCED"


class StaleGeneration(GroupError):
    """The member does not own the partition any more, so what it has done there must not be committed."""

    code = "STALE_GENERATION"


class GroupNotFound(GroupError):
    """No group of that name exists."""

    code = "GROUP_NOT_FOUND"


class GroupNotEmpty(GroupError):
    """The group has members; stop them first."""

    code = "GROUP_NOT_EMPTY"


class LockExpired(GroupError):
    """A record of a share group was not acknowledged in time, and has been given to another member or set aside."""

    code = "LOCK_EXPIRED"


class TransactionError(CometError):
    """A transaction that takes nothing more."""


class TransactionAborted(TransactionError):
    """The transaction was open for too long, or was aborted for another reason the message gives. Nothing of it is
    visible, or will be; begin another."""

    code = "TRANSACTION_ABORTED"


class TransactionNotOpen(TransactionError):
    """What came is for a transaction that is over, or was never opened. It was not written, and changes nothing."""

    code = "TRANSACTION_NOT_OPEN"


class DiskFull(CometError):
    """The broker's disk is full. Nothing was written; reads go on; retry when there is space."""

    code = "DISK_FULL"
    retriable = True


class NotEnoughReplicas(CometError):
    """Fewer replicas are in sync than `min_insync` asks for, so nothing may be acknowledged with acks="all"."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class Truncated(CometError):
    """What was read up to an offset is no longer there: the log was cut back to `details["log_end"]` and went on
    from it, so that other records now have those offsets."""

    code = "TRUNCATED"


class BrokerNotFound(CometError):
    """No broker of that id is in the cluster."""

    code = "BROKER_NOT_FOUND"


class LogFailed(CometError):
    """Writing or syncing the partition's log failed, so the broker no longer trusts it with writes.

    What was waiting for that write or sync may or may not be there.
    """

    code = "LOG_FAILED"
    outcome_unknown = True


class Unavailable(CometError):
    """No broker could be reached, or the connection went away before the request was sent."""

    code = "UNAVAILABLE"
    retriable = True
    metadata_stale = True


class Draining(Unavailable):
    """The broker is about to stop and takes nothing new."""

    code = "DRAINING"


class Timeout(CometError):
    """No answer in time: the request may or may not have taken effect."""

    code = "TIMEOUT"
    outcome_unknown = True


class LimitExceeded(CometError):
    """A documented limit was reached; the message names it."""

    code = "LIMIT_EXCEEDED"
    retriable = True


class DataFolderTaken(CometError):
    """Another process owns the data folder."""

    code = "DATA_FOLDER_TAKEN"


class StoreDamaged(CometError):
    """The broker's metadata file is damaged or gone. `details["restore"]` is a command that puts the copy back."""

    code = "STORE_DAMAGED"


class Closed(CometError):
    """The object was used after it was closed."""

    code = "CLOSED"


class Internal(CometError):
    """A bug in Comet: please report it with the message and the broker's log."""

    code = "INTERNAL"
    outcome_unknown = True


def _tree(cls: type[CometError]) -> list[type[CometError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _tree(child))]


# The class of every stable code; those that are only branches have no code of their own.
BY_CODE: dict[str, type[CometError]] = {cls.code: cls for cls in _tree(CometError) if "code" in vars(cls)} | {
    "INTERNAL": Internal
}


def from_code(
    code: str,
    message: str,
    *,
    details: Mapping[str, str] | None = None,
    retry_after_ms: int = 0,
) -> CometError:
    """The error that a code on the wire stands for; an unknown code becomes Internal, its name kept."""
    cls = BY_CODE.get(code)
    if cls is None:
        return Internal(f"{code}: {message}", details=details, retry_after_ms=retry_after_ms)
    return cls(message, details=details, retry_after_ms=retry_after_ms)
