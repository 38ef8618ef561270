"""What went wrong, as RFC 9457 problem documents.

    {"type": "urn:comet:problem:TOPIC_NOT_FOUND", "title": "No such topic", "status": 404, "code": "TOPIC_NOT_FOUND",
     "detail": "there is no topic 'quotes'", "hint": "create it first", "request_id": "…", …}

`code` is stable: that of the CometError where a broker said no, else one of the gateway's own. One table says which
status each has; where a wait helps there is a Retry-After.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from comet.errors import BY_CODE, CometError

MEDIA_TYPE: Final = "application/problem+json"


class ProblemKind(NamedTuple):
    """One row: the status, a title that never changes, and what to do about it."""

    status: int
    title: str
    hint: str = ""
    retry_after_s: float = 0  # at least, where the error itself gives no delay


KINDS: Final[dict[str, ProblemKind]] = {
    # what the request says
    "INVALID_ARGUMENT": ProblemKind(400, "The request makes no sense as it stands"),
    "MALFORMED_FRAME": ProblemKind(400, "Not a frame of the protocol"),
    "CORRUPT_BATCH": ProblemKind(400, "Not a record batch"),
    "SERDE": ProblemKind(400, "A value that cannot be encoded or decoded"),
    "UNSUPPORTED_VERSION": ProblemKind(501, "A version that is not known here", "Upgrade the older of the two."),
    "RECORD_TOO_LARGE": ProblemKind(413, "A record is too large", "Raise record_bytes_max of the topic, or send less."),
    # what there is not, or is already
    "TOPIC_NOT_FOUND": ProblemKind(404, "No such topic", "Create it with POST /v1/topics."),
    "PARTITION_NOT_FOUND": ProblemKind(404, "No such partition"),
    "GROUP_NOT_FOUND": ProblemKind(404, "No such group"),
    "BROKER_NOT_FOUND": ProblemKind(404, "No such broker"),
    "TOPIC_EXISTS": ProblemKind(409, "A topic of that name exists"),
    "GROUP_NOT_EMPTY": ProblemKind(409, "The group has members", "Stop them first."),
    "STALE_GENERATION": ProblemKind(409, "Somebody else has the partition now"),
    "MEMBER_UNKNOWN": ProblemKind(409, "Not a member of the group", "Join again."),
    "MEMBER_FENCED": ProblemKind(409, "Another instance has taken the place of this member"),
    "LOCK_EXPIRED": ProblemKind(409, "The lock is over", "The record goes to somebody else, or was settled."),
    "SEQUENCE_GAP": ProblemKind(409, "A batch before this one is missing"),
    "SEQUENCE_TOO_OLD": ProblemKind(409, "Written long since"),
    "UNKNOWN_PRODUCER": ProblemKind(409, "Nothing is known of this producer any more"),
    "PRODUCER_FENCED": ProblemKind(409, "Another producer has taken over"),
    "TRANSACTION_ABORTED": ProblemKind(409, "The transaction was aborted"),
    "TRANSACTION_NOT_OPEN": ProblemKind(409, "The transaction is not open"),
    # what is gone
    "OFFSET_OUT_OF_RANGE": ProblemKind(410, "The log does not hold this offset", "`log_start` says where it begins."),
    "TRUNCATED": ProblemKind(410, "The log was cut behind this position"),
    "DATA_LOSS": ProblemKind(410, "Records are damaged and cannot be read"),
    # what may work in a moment
    "NOT_LEADER": ProblemKind(503, "The partition has no leader, or another one", retry_after_s=0.2),
    "LEADERSHIP_LOST": ProblemKind(503, "The leader changed; the records may or may not be written", retry_after_s=0.2),
    "NOT_COORDINATOR": ProblemKind(503, "The group has another coordinator", retry_after_s=0.2),
    "COORDINATOR_LOADING": ProblemKind(503, "The coordinator is still loading", retry_after_s=0.5),
    "NOT_ENOUGH_REPLICAS": ProblemKind(503, "Too few replicas are in sync", retry_after_s=1),
    "UNAVAILABLE": ProblemKind(503, "No broker can be reached", retry_after_s=1),
    "DRAINING": ProblemKind(503, "It is about to stop", "Connect again: another one answers.", retry_after_s=1),
    "CLOSED": ProblemKind(503, "The gateway is stopping", retry_after_s=1),
    "LIMIT_EXCEEDED": ProblemKind(429, "A limit is reached", retry_after_s=1),
    "DISK_FULL": ProblemKind(507, "The broker's disk is full", "Nothing was written.", retry_after_s=10),
    "TIMEOUT": ProblemKind(504, "No answer in time; what was asked may or may not have been done",
                    "Send it again with the same Idempotency-Key, or look."),
    # what an operator has to look at
    "LOG_FAILED": ProblemKind(500, "The broker's log has failed"),
    "DATA_FOLDER_TAKEN": ProblemKind(500, "The data folder belongs to another broker"),
    "STORE_DAMAGED": ProblemKind(500, "The metadata store is damaged"),
    "INTERNAL": ProblemKind(500, "A bug", "Report it with the request id."),
    # the gateway's own
    "MALFORMED_BODY": ProblemKind(400, "The body is not what its Content-Type says"),
    "MALFORMED_CURSOR": ProblemKind(400, "Not a cursor of this gateway",
                                    "Begin at an offset, a time, earliest or latest."),
    "MALFORMED_WHERE": ProblemKind(400, "Not a condition on fields", "As in price>100, user.name=anna, tags~urgent."),
    "MALFORMED_TOKEN": ProblemKind(400, "Not a token that a lock was given with"),
    "UNAUTHENTICATED": ProblemKind(401, "Who is asking?", "Send Authorization: Bearer <token>."),
    "FORBIDDEN": ProblemKind(403, "Not allowed"),
    "STALE_PAGE": ProblemKind(403, "The page is of another session", "Load the page again."),
    "FOREIGN_ORIGIN": ProblemKind(403, "A page of another origin", "Add the origin to the gateway's `origins`."),
    "FOREIGN_HOST": ProblemKind(421, "Not a name of this gateway", "Add it to the gateway's `hosts`."),
    "NOT_FOUND": ProblemKind(404, "Nothing is here"),
    "METHOD_NOT_ALLOWED": ProblemKind(405, "Not with this method"),
    "NOT_ACCEPTABLE": ProblemKind(406, "No such representation"),
    "UNSUPPORTED_MEDIA_TYPE": ProblemKind(415, "A Content-Type or Content-Encoding that is not known here"),
    "BODY_TOO_LARGE": ProblemKind(413, "The body is too large", "Send less at once, or stream NDJSON."),
    "BODY_STALLED": ProblemKind(408, "The body did not come to its end", "Send it in one go."),
    "KEY_REUSED": ProblemKind(422, "The Idempotency-Key was used for another body", "Take a new key for each request."),
    "VALIDATION": ProblemKind(422, "The request does not fit its schema"),
    "LEADERS_MOVING": ProblemKind(409, "Leaders are being moved already", "Wait for the end of that, or stop it."),
    "SUBSCRIPTION_EXISTS": ProblemKind(409, "A subscription of that id is open",
                                       "Take another id, or unsubscribe first."),
    "SUBSCRIPTION_NOT_FOUND": ProblemKind(404, "No such subscription on this connection"),
    "TOO_MANY_SUBSCRIPTIONS": ProblemKind(429, "Too many subscriptions on one connection", "Open another connection."),
    "TOO_MANY_REQUESTS": ProblemKind(429, "Too much at once", retry_after_s=1),
    "OVERLOADED": ProblemKind(503, "The gateway has its hands full",
                              "Try again, or ask another gateway.", retry_after_s=1),
}  # fmt: skip

assert KINDS.keys() >= BY_CODE.keys(), "every error of the SDK has a status"


class Problem(Exception):
    """Ends a request with a problem document. `more` is what a program needs of it."""

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
        """What a broker, or the SDK, said."""
        return cls(error.code, error.message, retry_after_ms=error.retry_after_ms, more=error.details)

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
    """For the `responses` of a route: what can go wrong with it, beside what can with every route."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = KINDS[code]
        row = found.setdefault(kind.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _REFERENCE}}})
        row["description"] = "; ".join(filter(None, [row["description"], f"{code}: {kind.title}"]))
    return found


_REFERENCE: Final = {"$ref": "#/components/schemas/ProblemDocument"}
# What every route can answer, put into the OpenAPI by the app.
EVERYWHERE: Final = (
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "FORBIDDEN", "FOREIGN_ORIGIN", "FOREIGN_HOST", "VALIDATION",
    "TOO_MANY_REQUESTS", "LIMIT_EXCEEDED", "INTERNAL", "UNAVAILABLE", "OVERLOADED", "DRAINING", "TIMEOUT",
)  # fmt: skip
