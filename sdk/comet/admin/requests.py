"""The requests of `comet.Admin` whose arguments need a check or a conversion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from comet.errors import InvalidArgument
from comet.types import StartLike, position
from comet.v1 import admin_pb2 as admin
from comet.wire import group_protobuf, protobuf

if TYPE_CHECKING:
    from comet.groups.committed_offsets import Offsets


def record_deletion(
    name: str, partition: int, before_offset: int | None, topic_id: bytes, *, dry_run: bool
) -> admin.DeleteRecordsRequest:
    if before_offset is not None and before_offset < 0:
        raise InvalidArgument(f"before_offset must be an offset, or None for all records, not {before_offset}")
    before = -1 if before_offset is None else before_offset
    return admin.DeleteRecordsRequest(
        name=name, partition=partition, before_offset=before, topic_id=topic_id, dry_run=dry_run
    )


def group_reset(
    name: str,
    to: StartLike | None,
    shift: int | None,
    offsets: Offsets | None,
    topics: Iterable[str | tuple[str, int]],
    *,
    now_us: int,
    dry_run: bool,
) -> admin.ResetGroupRequest:
    request = admin.ResetGroupRequest(name=name, dry_run=dry_run)
    if [to, shift, offsets].count(None) != 2:
        raise InvalidArgument("give exactly one of to, shift and offsets")
    if to is not None:
        request.position.CopyFrom(protobuf.position_to_pb(position(to, now_us=now_us)))
    elif shift is not None:
        request.shift = shift
    else:
        from comet.groups import committed_offsets

        request.offsets.extend(committed_offsets.topic_offsets(offsets or {}))
    request.topics.extend(group_protobuf.selected(topics))
    return request
