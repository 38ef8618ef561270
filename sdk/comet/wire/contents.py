"""The contents of the records in a request with an idempotency key, for SDK and broker."""

from __future__ import annotations

from comet.records import Content
from comet.v1 import records_pb2 as pb


def contents_of(request: pb.PublishRequest) -> list[Content]:
    """The contents of its records, each with the partition that the request or the record names."""
    whole = request.partition if request.HasField("partition") else -1
    return [_content(record, whole) for record in request.records]


def _content(record: pb.Record, whole: int) -> Content:
    """A record's content, with the partition of its request, or a negative number for any."""
    key, value, headers = record.key, record.value, record.headers
    return Content(
        record.partition if whole < 0 and record.HasField("partition") else whole,
        record.timestamp_us,
        key if key or record.HasField("key") else None,
        value if value or record.HasField("value") else None,
        [(header.name, header.value) for header in headers] if headers else (),
        record.ttl_ms,
    )
