"""Errors as RFC 9457 problem documents.

    {"type": "urn:comet:problem:TOPIC_NOT_FOUND", "title": "No such topic", "status": 404, "code": "TOPIC_NOT_FOUND",
     "detail": "topic 'quotes' does not exist", "hint": "create it first", "request_id": "…", …}

`code` is stable: that of the CometError of a broker or the SDK, or one of the gateway's own. One table has the status
of each; if a later retry helps there is a Retry-After.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from comet.errors import BY_CODE, CometError

MEDIA_TYPE: Final = "application/problem+json"


class ProblemKind(NamedTuple):
    """One row: the status, a fixed title, and what to do."""

    status: int
    title: str
    hint: str = ""
    retry_after_s: float = 0  # used if the error has no delay of its own


KINDS: Final[dict[str, ProblemKind]] = {
    # faults of the request
    "INVALID_ARGUMENT": ProblemKind(400, "Invalid argument"),
    "MALFORMED_FRAME": ProblemKind(400, "Malformed frame"),
    "MALFORMED_FILTER": ProblemKind(400, "Malformed filter", "Examples: price>100, user.name=anna, @key ^= EUR."),
    "CORRUPT_BATCH": ProblemKind(400, "Corrupt record batch"),
    "SERDE": ProblemKind(400, "Value cannot be encoded or decoded"),
    "UNSUPPORTED_VERSION": ProblemKind(501, "Unsupported version", "Upgrade the older side."),
    "RECORD_TOO_LARGE": ProblemKind(413, "Record too large", "Raise the topic's record_bytes_max, or send less."),
    # conflicts with what exists
    "TOPIC_NOT_FOUND": ProblemKind(404, "No such topic", "Create it with POST /v1/topics."),
    "PARTITION_NOT_FOUND": ProblemKind(404, "No such partition"),
    "GROUP_NOT_FOUND": ProblemKind(404, "No such group"),
    "BROKER_NOT_FOUND": ProblemKind(404, "No such broker"),
    "SCHEDULE_NOT_FOUND": ProblemKind(
        404, "No such schedule", "It has fired for the last time, or was cancelled; GET /v1/schedules lists them."
    ),
    "CALENDAR_NOT_FOUND": ProblemKind(404, "No such calendar", "Store it with PUT /v1/calendars/{calendar}."),
    "CALENDAR_CHANGED": ProblemKind(412, "Calendar has another version", "Read it again, and send its ETag."),
    "KEY_NOT_FOUND": ProblemKind(404, "Key has no value"),
    "TOPIC_EXISTS": ProblemKind(409, "Topic exists"),
    "REVISION_MISMATCH": ProblemKind(412, "Another revision", "Read it again; `revision` is the actual one."),
    "GROUP_NOT_EMPTY": ProblemKind(409, "Group has members", "Stop the members first."),
    "STALE_GENERATION": ProblemKind(409, "Partition was reassigned in a newer generation"),
    "MEMBER_UNKNOWN": ProblemKind(409, "Not a member of the group", "Join again."),
    "MEMBER_FENCED": ProblemKind(409, "Member fenced by another instance"),
    "LOCK_EXPIRED": ProblemKind(409, "Acquisition lock expired", "The record was acknowledged, or goes to others."),
    "SEQUENCE_GAP": ProblemKind(409, "Sequence gap: an earlier batch is missing"),
    "SEQUENCE_TOO_OLD": ProblemKind(409, "Sequence too old: written long before"),
    "UNKNOWN_PRODUCER": ProblemKind(409, "Unknown producer"),
    "PRODUCER_FENCED": ProblemKind(409, "Producer fenced by a newer one"),
    "TRANSACTION_ABORTED": ProblemKind(409, "Transaction aborted"),
    "TRANSACTION_NOT_OPEN": ProblemKind(409, "No open transaction"),
    # gone
    "OFFSET_OUT_OF_RANGE": ProblemKind(410, "Offset out of range", "`log_start` is the first offset of the log."),
    "TRUNCATED": ProblemKind(410, "Log truncated before this position"),
    "DATA_LOSS": ProblemKind(410, "Data loss: records are damaged"),
    # temporary
    "NOT_LEADER": ProblemKind(503, "No leader, or another leader", retry_after_s=0.2),
    "LEADERSHIP_LOST": ProblemKind(503, "Leader changed; the records may or may not be written", retry_after_s=0.2),
    "NOT_COORDINATOR": ProblemKind(503, "Another broker coordinates the group", retry_after_s=0.2),
    "COORDINATOR_LOADING": ProblemKind(503, "Coordinator is loading", retry_after_s=0.5),
    "NOT_ENOUGH_REPLICAS": ProblemKind(503, "Too few in-sync replicas", retry_after_s=1),
    "UNAVAILABLE": ProblemKind(503, "No broker reachable", retry_after_s=1),
    "DRAINING": ProblemKind(503, "Shutting down", "Connect again: another gateway answers.", retry_after_s=1),
    "CLOSED": ProblemKind(503, "Gateway is stopping", retry_after_s=1),
    "LIMIT_EXCEEDED": ProblemKind(429, "Limit reached", retry_after_s=1),
    "DISK_FULL": ProblemKind(507, "Broker's disk is full", "Nothing was written.", retry_after_s=10),
    "TIMEOUT": ProblemKind(504, "No answer in time; the request may or may not have been executed",
                    "Send it again with the same Idempotency-Key, or check the result."),
    # for an operator
    "CREDENTIALS_REFUSED": ProblemKind(502, "Brokers refuse the gateway's access key or token",
                                       "Give the gateway a valid one."),
    "LOG_FAILED": ProblemKind(500, "Broker's log has failed"),
    "DATA_FOLDER_TAKEN": ProblemKind(500, "Data folder belongs to another broker"),
    "STORE_DAMAGED": ProblemKind(500, "Metadata store is damaged"),
    "INTERNAL": ProblemKind(500, "Internal error", "Report it with the request id."),
    # the gateway's own
    "MALFORMED_BODY": ProblemKind(400, "Body does not match its Content-Type"),
    "MALFORMED_CURSOR": ProblemKind(400, "Malformed cursor",
                                    "Start at an offset, a time, earliest or latest."),
    "MALFORMED_TOKEN": ProblemKind(400, "Malformed lock token"),
    "UNAUTHENTICATED": ProblemKind(401, "Authentication required", "Send Authorization: Bearer <token>."),
    "PROVIDER_UNAVAILABLE": ProblemKind(503, "Identity provider does not answer",
                                        "Tokens of the tokens file work all the same.", retry_after_s=5),
    "FORBIDDEN": ProblemKind(403, "Permission denied"),
    "STALE_PAGE": ProblemKind(403, "Page of another session", "Reload the page."),
    "FOREIGN_ORIGIN": ProblemKind(403, "Origin not allowed", "Add the origin to the gateway's `origins`."),
    "FOREIGN_HOST": ProblemKind(421, "Unknown host name", "Add it to the gateway's `hosts`."),
    "NOT_FOUND": ProblemKind(404, "Not found"),
    "ALERT_NOT_FOUND": ProblemKind(404, "No such alert"),
    "ALERT_NOT_FIRING": ProblemKind(409, "Alert is not firing", "Only a firing alert is acknowledged."),
    "ALERTS_OFF": ProblemKind(404, "Alerts are off", "Set the gateway's setting `alerts`."),
    "METHOD_NOT_ALLOWED": ProblemKind(405, "Method not allowed"),
    "NOT_ACCEPTABLE": ProblemKind(406, "Not acceptable"),
    "UNSUPPORTED_MEDIA_TYPE": ProblemKind(415, "Unsupported Content-Type or Content-Encoding"),
    "BODY_TOO_LARGE": ProblemKind(413, "Body too large", "Send less at once, or stream NDJSON."),
    "BODY_STALLED": ProblemKind(408, "Body incomplete", "Send it faster, and without pauses."),
    "HEADERS_TOO_LARGE": ProblemKind(431, "Headers or trailers too large", "Send fewer or shorter ones."),
    "KEY_REUSED": ProblemKind(422, "Idempotency-Key was used with another body", "Use a new key for each request."),
    "VALIDATION": ProblemKind(422, "Request does not match its schema"),
    "LEADERS_MOVING": ProblemKind(409, "Leaders are being moved already", "Wait until that ends, or stop it."),
    "SUBSCRIPTION_EXISTS": ProblemKind(409, "Subscription id in use",
                                       "Use another id, or unsubscribe first."),
    "SUBSCRIPTION_NOT_FOUND": ProblemKind(404, "No such subscription on this connection"),
    "TOO_MANY_SUBSCRIPTIONS": ProblemKind(429, "Too many subscriptions on one connection", "Open another connection."),
    "TOO_MANY_REQUESTS": ProblemKind(429, "Too many requests", retry_after_s=1),
    "OVERLOADED": ProblemKind(503, "Gateway overloaded",
                              "Try again, or use another gateway.", retry_after_s=1),
}  # fmt: skip

assert KINDS.keys() >= BY_CODE.keys(), "every error of the SDK has a status"


class Problem(Exception):
    """Ends a request with a problem document. `more`: its members for programs."""

    def __init__(
        self, code: str, detail: str, *, hint: str = "", retry_after_ms: int = 0, more: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.kind = KINDS[code]
        self.detail = detail
        self.hint = hint or self.kind.hint
        self.retry_after_s = retry_after_ms / 1000 or self.kind.retry_after_s
        self.more = dict(more or {})

    @classmethod
    def of(cls, error: CometError) -> Problem:
        """The problem of an error of a broker or the SDK."""
        return cls(error.code, error.message, retry_after_ms=error.retry_after_ms, more=error.details)

    @property
    def log_fields(self) -> Mapping[str, object]:
        """The fields of a line of the log that shows it."""
        return {"code": self.code}

    def document(self, request_id: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {
            **self.more,
            "type": f"urn:comet:problem:{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            found["hint"] = self.hint
        if self.retry_after_s:
            found["retry_after_ms"] = round(self.retry_after_s * 1000)
        if request_id:
            found["request_id"] = request_id
        return found

    def body(self, request_id: str = "") -> bytes:
        return msgspec.json.encode(self.document(request_id))

    def headers(self) -> dict[str, str]:
        headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
        if self.kind.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after_s:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
        return headers


def answers(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for its `responses`, beside those that every route has."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = KINDS[code]
        row = found.setdefault(kind.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _REFERENCE}}})
        row["description"] = "; ".join(filter(None, [row["description"], f"{code}: {kind.title}"]))
    return found


_REFERENCE: Final = {"$ref": "#/components/schemas/ProblemDocument"}
# Errors of every route, added to the OpenAPI by the application.
EVERYWHERE: Final = (
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "FORBIDDEN", "FOREIGN_ORIGIN", "FOREIGN_HOST", "VALIDATION",
    "PROVIDER_UNAVAILABLE",
    "TOO_MANY_REQUESTS", "LIMIT_EXCEEDED", "HEADERS_TOO_LARGE", "INTERNAL", "UNAVAILABLE", "OVERLOADED", "DRAINING",
    "TIMEOUT",
)  # fmt: skip
