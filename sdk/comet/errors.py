"""All errors of Comet, as one tree.

    CometError
    ├── InvalidArgument            the request is invalid; fix the call
    │   ├── MalformedFrame         bytes that are not a frame of the protocol
    │   ├── MalformedFilter        a text that is not a filter; the details have the place
    │   ├── CorruptBatch           bytes that are not a record batch, or were damaged on the way
    │   ├── UnsupportedVersion     a format, codec or flag this version does not know
    │   ├── RecordTooLarge         more bytes than the topic or the broker takes
    │   ├── SerdeError             a value that the serde of the type cannot encode or decode
    │   │   └── DecryptionError    an encrypted value that the keyring cannot decrypt
    │   ├── KeyReused              an idempotency key was used before with other content
    │   └── InvalidSchedule        the text of a schedule is wrong, or it never comes
    ├── TopicNotFound, TopicExists, PartitionNotFound, BrokerNotFound, KeyNotFound, ScheduleNotFound
    ├── RevisionMismatch           the key or schedule has another revision than expected; nothing was written
    ├── NotLeader                  ask another broker; metadata is stale
    │   └── LeadershipLost         the leader wrote the batch, and was replaced before it acknowledged
    ├── CalendarNotFound, CalendarChanged
    ├── OffsetOutOfRange           the offset is deleted, or not written yet
    ├── Truncated                  the log was truncated below an offset that was read
    ├── DataLoss                   a range of the log is damaged and cannot be read here
    │   └── CorruptRecords         a stored batch whose columns do not add up: no replica can read it
    ├── ProducerError              idempotent producers
    │   ├── SequenceGap            an earlier batch is missing
    │   ├── SequenceTooOld         a retry of something long since written
    │   ├── UnknownProducer        the broker no longer remembers this producer
    │   └── ProducerFenced         a newer epoch of this producer exists
    ├── NotCoordinator             another broker coordinates this group or transactional id
    │   └── CoordinatorLoading     the coordinator is still loading its state
    ├── GroupError                 members of groups
    │   ├── MemberUnknown          the member does not exist, or was removed: join again
    │   ├── MemberFenced           another instance took this member's place
    │   ├── StaleGeneration        the partition is no longer assigned to the member
    │   ├── GroupNotFound, GroupNotEmpty
    │   └── LockExpired            the acquisition lock expired; another member may have the record
    ├── TransactionError           the transaction accepts nothing more
    │   ├── TransactionAborted     it timed out, or was aborted; begin another
    │   └── TransactionNotOpen     a batch of a transaction that ended or never began
    ├── DiskFull                   nothing was written; retry when there is space
    ├── NotEnoughReplicas          too few are in sync for acks="all"; nothing was written
    ├── LogFailed                  a write or sync of the partition's log failed; it takes no more writes
    ├── Unavailable                no broker could be reached, or it went away
    │   └── Draining               the broker is about to stop
    ├── Timeout                    no answer in time: the request may or may not have taken effect
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
    """The base class of all errors that Comet raises.

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

    @property
    def log_fields(self) -> Mapping[str, object]:
        """The fields of a line of the log that shows it."""
        found: dict[str, object] = {"code": self.code}
        if "topic" in self.details:
            found["topic"] = self.details["topic"]
        if (partition := self.details.get("partition", "")).isdecimal():
            found["partition"] = int(partition)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.details, self.retry_after_ms)


def _rebuild(cls: type[CometError], message: str, details: dict[str, str], retry_after_ms: int) -> CometError:
    return cls(message, details=details, retry_after_ms=retry_after_ms)


class InvalidArgument(CometError):
    """The request is invalid; the message says what to change."""

    code = "INVALID_ARGUMENT"


class MalformedFrame(InvalidArgument):
    """Bytes on a stream that are not a frame of the protocol."""

    code = "MALFORMED_FRAME"


class MalformedFilter(InvalidArgument):
    """A text that is not a filter. Its details have the `position` of the wrong character, counted from 0, the
    `problem`, and the text around it as `shown`."""

    code = "MALFORMED_FILTER"


class CorruptBatch(InvalidArgument):
    """Bytes that are not a record batch: truncated, damaged, or inconsistent in themselves."""

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


class DecryptionError(SerdeError):
    """A stored value that the keyring cannot decrypt: `details["key_id"]` is its wrapping key, if it names one, with
    `topic`, `partition` and `offset`. The consumer goes on after it, as after a value that cannot be decoded."""


class KeyReused(InvalidArgument):
    """A request with the same idempotency key and other content was written before; this one was not written."""

    code = "KEY_REUSED"


class InvalidSchedule(InvalidArgument):
    """The text of a schedule is wrong, or it never comes. `details["position"]` is the character where the wrong part
    begins, from 0; `details["hint"]` says what to write instead."""


class TopicNotFound(CometError):
    """The topic does not exist."""

    code = "TOPIC_NOT_FOUND"


class TopicExists(CometError):
    """A topic with this name exists already."""

    code = "TOPIC_EXISTS"


class PartitionNotFound(CometError):
    """The partition does not exist, or a handle to it is no longer valid: attach again."""

    code = "PARTITION_NOT_FOUND"
    metadata_stale = True


class KeyNotFound(CometError):
    """The key has no value, or not at this revision."""

    code = "KEY_NOT_FOUND"


class RevisionMismatch(CometError):
    """The key or schedule has another revision than expected; nothing was written. `revision` is the actual one, or -1
    if there is none: the key has no value, the schedule does not exist."""

    code = "REVISION_MISMATCH"

    @property
    def revision(self) -> int:
        """The actual revision; -1: none."""
        return int(self.details.get("revision", -1))


class NotLeader(CometError):
    """Another broker leads the partition; `details["leader"]` names it if known."""

    code = "NOT_LEADER"
    retriable = True
    metadata_stale = True


class LeadershipLost(NotLeader):
    """The broker wrote the batch and stopped leading the partition before it acknowledged: the new leader may or may
    not have the batch. An idempotent producer finds out by sending it again."""

    code = "LEADERSHIP_LOST"
    outcome_unknown = True


class OffsetOutOfRange(CometError):
    """The offset lies before `details["log_start"]` (deleted) or after `details["log_end"]`."""

    code = "OFFSET_OUT_OF_RANGE"


class DataLoss(CometError):
    """Offsets `details["first"]` up to, not including, `details["end"]` are damaged on this broker."""

    code = "DATA_LOSS"


class CorruptRecords(DataLoss):
    """A stored batch has a valid checksum and columns that do not add up, so no reader can decode it: offsets
    `details["first"]` up to, not including, `details["end"]`; `details["reason"]` names the column. Reading goes on at
    `end`. Leaders refuse such batches; a log written by an older broker may hold them."""


class ProducerError(CometError):
    """The broker refuses a batch of an idempotent producer."""


class SequenceGap(ProducerError):
    """An earlier batch of the idempotent producer is not in the log."""

    code = "SEQUENCE_GAP"


class SequenceTooOld(ProducerError):
    """A retried batch that is too old for its offset to be known. It was written once."""

    code = "SEQUENCE_TOO_OLD"
    outcome_unknown = True  # the records are in the log, so nothing may say that they are not


class UnknownProducer(ProducerError):
    """The broker no longer remembers this producer: it was idle for long, or many others wrote since. This attempt
    wrote nothing; an earlier attempt may have written the batch."""

    code = "UNKNOWN_PRODUCER"


class ProducerFenced(ProducerError):
    """A newer epoch of this producer has written; this one must stop."""

    code = "PRODUCER_FENCED"


class NotCoordinator(CometError):
    """Another broker coordinates the group or transactional id; `details["leader"]` names it if known."""

    code = "NOT_COORDINATOR"
    retriable = True
    metadata_stale = True


class CoordinatorLoading(NotCoordinator):
    """The broker has just become the coordinator and is still loading committed offsets. It never means "none"."""

    code = "COORDINATOR_LOADING"
    metadata_stale = False


class GroupError(CometError):
    """A request that the group refuses in its present state, or from this member."""


class MemberUnknown(GroupError):
    """The member does not exist: its session timed out, or it left. Its partitions are assigned to others."""

    code = "MEMBER_UNKNOWN"


class MemberFenced(GroupError):
    """Another member joined with the same instance id; this one must stop."""

    code = "MEMBER_FENCED"


class StaleGeneration(GroupError):
    """The partition is no longer assigned to the member, so its offsets there must not be committed."""

    code = "STALE_GENERATION"


class GroupNotFound(GroupError):
    """The group does not exist."""

    code = "GROUP_NOT_FOUND"


class GroupNotEmpty(GroupError):
    """The group has active members; stop them first."""

    code = "GROUP_NOT_EMPTY"


class LockExpired(GroupError):
    """A record's acquisition lock expired: another member may have it, or it became a dead letter."""

    code = "LOCK_EXPIRED"


class TransactionError(CometError):
    """The transaction accepts nothing more."""


class TransactionAborted(TransactionError):
    """The transaction timed out, or was aborted for the reason in the message. None of its records become visible;
    begin another."""

    code = "TRANSACTION_ABORTED"


class TransactionNotOpen(TransactionError):
    """The request is for a transaction that ended or never began. Nothing was written."""

    code = "TRANSACTION_NOT_OPEN"


class DiskFull(CometError):
    """The broker's disk is full. Nothing was written; reads go on; retry when there is space."""

    code = "DISK_FULL"
    retriable = True


class NotEnoughReplicas(CometError):
    """Fewer replicas are in sync than `min_insync`, so acks="all" is refused; nothing was written."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class Truncated(CometError):
    """Records that were read are no longer in the log: it was truncated to `details["log_end"]` and went on from it,
    so that other records now have those offsets."""

    code = "TRUNCATED"


class ScheduleNotFound(CometError):
    """There is no such schedule: it was never made, has fired for the last time, or was cancelled."""

    code = "SCHEDULE_NOT_FOUND"


class CalendarNotFound(CometError):
    """The calendar does not exist in the cluster."""

    code = "CALENDAR_NOT_FOUND"


class CalendarChanged(CometError):
    """The calendar has another version than the request expects: `details["version"]`, 0 if it does not exist. Nothing
    was changed."""

    code = "CALENDAR_CHANGED"


class BrokerNotFound(CometError):
    """The broker does not exist in the cluster."""

    code = "BROKER_NOT_FOUND"


class LogFailed(CometError):
    """A write or sync of the partition's log failed, so the broker accepts no more writes to it.

    Records that waited for that write or sync may or may not be there.
    """

    code = "LOG_FAILED"
    outcome_unknown = True


class Unavailable(CometError):
    """No broker could be reached, or the connection broke before the request was sent."""

    code = "UNAVAILABLE"
    retriable = True
    metadata_stale = True


class Draining(Unavailable):
    """The broker is about to stop and accepts no new requests."""

    code = "DRAINING"


class Timeout(CometError):
    """No answer in time: the request may or may not have taken effect."""

    code = "TIMEOUT"
    outcome_unknown = True


class LimitExceeded(CometError):
    """A documented limit was reached; the message names it."""

    code = "LIMIT_EXCEEDED"
    retriable = True


class Forbidden(CometError):
    """The caller is not permitted to do this."""

    code = "FORBIDDEN"


class CredentialsRefused(CometError):
    """The broker does not take the client's access key or token, or the client presents none; or the issuer gives it no
    token."""

    code = "CREDENTIALS_REFUSED"


class DataFolderTaken(CometError):
    """Another process owns the data folder."""

    code = "DATA_FOLDER_TAKEN"


class StoreDamaged(CometError):
    """The broker's metadata file is damaged or missing. `details["restore"]` is a command that puts the copy back."""

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


# The class of every stable code; base classes have no code of their own.
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
    """The error of a code on the wire; an unknown code becomes Internal and stays in the message."""
    cls = BY_CODE.get(code)
    if cls is None:
        return Internal(f"{code}: {message}", details=details, retry_after_ms=retry_after_ms)
    return cls(message, details=details, retry_after_ms=retry_after_ms)


def pip_install(extra: str, *packages: str) -> str:
    """The command that installs an extra of Comet, for hints. No release is on PyPI: it is run in a checkout.

    >>> pip_install("arrow", "polars")
    "pip install '.[arrow]' polars (in a checkout of Comet)"
    """
    names = " ".join([f"'.[{extra}]'", *packages])
    return f"pip install {names} (in a checkout of Comet)"
