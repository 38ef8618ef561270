"""CometErrors as gRPC statuses with google.rpc details."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from comet.errors import BY_CODE, CometError

# One status per stable code: it says what a client in another language should do if it only sees the status.
STATUS: Final[dict[str, grpc.StatusCode]] = {
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "MALFORMED_FRAME": grpc.StatusCode.INVALID_ARGUMENT,
    "CORRUPT_BATCH": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_VERSION": grpc.StatusCode.UNIMPLEMENTED,
    "MALFORMED_FILTER": grpc.StatusCode.INVALID_ARGUMENT,
    "RECORD_TOO_LARGE": grpc.StatusCode.INVALID_ARGUMENT,
    "SERDE": grpc.StatusCode.INVALID_ARGUMENT,
    "TOPIC_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TOPIC_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "PARTITION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "NOT_LEADER": grpc.StatusCode.FAILED_PRECONDITION,  # not UNAVAILABLE: a retry at this broker does not help
    "OFFSET_OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "DATA_LOSS": grpc.StatusCode.DATA_LOSS,
    "SEQUENCE_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "SEQUENCE_TOO_OLD": grpc.StatusCode.ALREADY_EXISTS,  # it was written, once
    "UNKNOWN_PRODUCER": grpc.StatusCode.FAILED_PRECONDITION,
    "PRODUCER_FENCED": grpc.StatusCode.PERMISSION_DENIED,
    "DISK_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "LOG_FAILED": grpc.StatusCode.FAILED_PRECONDITION,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "TIMEOUT": grpc.StatusCode.DEADLINE_EXCEEDED,
    "LIMIT_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "FORBIDDEN": grpc.StatusCode.PERMISSION_DENIED,
    "CREDENTIALS_REFUSED": grpc.StatusCode.UNAUTHENTICATED,
    "DATA_FOLDER_TAKEN": grpc.StatusCode.FAILED_PRECONDITION,
    "STORE_DAMAGED": grpc.StatusCode.INTERNAL,
    "CLOSED": grpc.StatusCode.CANCELLED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "NOT_ENOUGH_REPLICAS": grpc.StatusCode.UNAVAILABLE,
    "TRUNCATED": grpc.StatusCode.DATA_LOSS,
    "LEADERSHIP_LOST": grpc.StatusCode.ABORTED,
    "BROKER_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "NOT_COORDINATOR": grpc.StatusCode.FAILED_PRECONDITION,  # as NOT_LEADER
    "COORDINATOR_LOADING": grpc.StatusCode.UNAVAILABLE,
    "MEMBER_UNKNOWN": grpc.StatusCode.FAILED_PRECONDITION,
    "MEMBER_FENCED": grpc.StatusCode.PERMISSION_DENIED,
    "STALE_GENERATION": grpc.StatusCode.FAILED_PRECONDITION,
    "GROUP_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "GROUP_NOT_EMPTY": grpc.StatusCode.FAILED_PRECONDITION,
    "LOCK_EXPIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "TRANSACTION_ABORTED": grpc.StatusCode.ABORTED,
    "TRANSACTION_NOT_OPEN": grpc.StatusCode.FAILED_PRECONDITION,
    "KEY_REUSED": grpc.StatusCode.INVALID_ARGUMENT,
    "SCHEDULE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CALENDAR_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CALENDAR_CHANGED": grpc.StatusCode.FAILED_PRECONDITION,
    "KEY_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "REVISION_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
}
DOMAIN: Final = "comet"

assert STATUS.keys() == BY_CODE.keys(), "every error has a status"


async def abort(context: grpc.aio.ServicerContext[object, object], error: CometError) -> None:
    """Ends the call with the error's status and details. Never returns."""
    status = STATUS[error.code]
    details = [_any(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=error.details))]
    if error.retry_after_ms:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(_any(error_details_pb2.RetryInfo(retry_delay=delay)))
    message = status_pb2.Status(code=status.value[0], message=error.message, details=details)
    await context.abort(
        status, error.message, trailing_metadata=(("grpc-status-details-bin", message.SerializeToString()),)
    )


def _any(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
