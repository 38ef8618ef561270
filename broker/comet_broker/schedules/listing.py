"""Lists of schedules by topic and id: a page of one partition, and one page of all partitions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final

from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet_broker import limits
from comet_broker.schedules.changes import key_of
from comet_broker.schedules.keeper import Keeper
from comet_broker.schedules.store import schedule_of

READS_MAX: Final = 10  # of the keys, for one page: a page may hold fewer than there are


async def page_of(keeper: Keeper, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    """The next schedules of one partition, without the values of their records."""
    limit = request.limit or 100
    wanted = records_pb.ReadKeysRequest()
    wanted.range.prefix = key_of(request.topic, request.prefix) if request.topic else b""
    wanted.range.limit = limits.READ_KEYS_MAX if request.state else limit
    if request.after:
        wanted.range.after = request.after.encode()
    page = pb.ListSchedulesResponse()
    for _ in range(READS_MAX):
        answer = await keeper.page(wanted)
        page.after = answer.after.decode() if answer.HasField("after") else ""
        for record in answer.records:
            found = schedule_of(record)
            if found is None or not _matches(found, request.state):
                continue
            _strip(found)
            page.schedules.append(found)
            if len(page.schedules) == limit:
                if record is not answer.records[-1]:
                    page.after = record.key.decode()
                return page
        if not page.after:
            break
        wanted.range.after = answer.after
    return page


def _matches(schedule: pb.Schedule, state: int) -> bool:
    return not state or schedule.paused == (state == pb.SCHEDULE_STATE_PAUSED)


def _strip(schedule: pb.Schedule) -> None:
    schedule.record.ClearField("value")
    del schedule.record.headers[:]


def merged(
    pages: Sequence[pb.ListSchedulesResponse], limit: int, allowed: Callable[[str], bool]
) -> pb.ListSchedulesResponse:
    """One page of the pages of all partitions, without the topics that the caller may not read: it may hold fewer
    schedules than the limit, while there are more."""
    ends = [page.after for page in pages if page.after]
    end = min(ends, default="")  # what comes behind it may be missing in a page
    found = pb.ListSchedulesResponse(after=end)
    for one in heapq.merge(*(page.schedules for page in pages), key=_key):
        if end and _key(one) > end:
            break
        if not allowed(one.topic):
            continue
        if len(found.schedules) == limit:
            found.after = _key(found.schedules[-1])
            break
        found.schedules.append(one)
    return found


def _key(schedule: pb.Schedule) -> str:
    return key_of(schedule.topic, schedule.id).decode()
