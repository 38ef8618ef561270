"""Encodes a schedule with its record as JSON: the members of `comet.ScheduleInfo`, then the record."""

from __future__ import annotations

import json

from comet.admin.documents import document
from comet.admin.schedules import ScheduleDetails
from comet_gateway.records.record_json import contents


def schedule_json(found: ScheduleDetails) -> bytes:
    """The document of a schedule. A JSON value is copied unchanged."""
    record = contents(found.key, found.value, found.headers)
    if found.partition is not None:
        record += b',"partition":%d' % found.partition
    if found.ttl_ms is not None:
        record += b',"ttl_ms":"%d"' % found.ttl_ms
    about = json.dumps(document(found.schedule), ensure_ascii=False, separators=(",", ":")).encode()
    return b'%b,"record":{%b}}' % (about[:-1], record[1:])
