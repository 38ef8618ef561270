"""The reaction of a consumer to an error of one partition. Pure.

metadata is stale                         FETCH_METADATA   another broker may lead the partition
an assigned topic is not found            FETCH_METADATA   the coordinator decides whether it still exists
retriable, or without an answer in time   RETRY
a follower lacks records                  ASK_LEADER       which may have them
any other                                 STOP             and read on elsewhere, if the application has said so
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from comet.consumer.options import OutOfRange
from comet.errors import (
    CometError,
    CorruptBatch,
    DataLoss,
    LogFailed,
    OffsetOutOfRange,
    Timeout,
    TopicNotFound,
    Truncated,
)
from comet.types import AtOffset, Earliest, Gap, Latest, Position

# Errors that a follower may give although the leader has the records.
_LACKING: Final = (OffsetOutOfRange, Truncated, DataLoss, LogFailed, CorruptBatch)


class Reaction(Enum):
    RETRY = auto()
    FETCH_METADATA = auto()
    ASK_LEADER = auto()
    STOP = auto()


def reaction_to(error: CometError, *, follower: bool, assigned: bool) -> Reaction:
    """`follower`: another broker than the leader gave the error. `assigned`: a coordinator assigns the partition.

    >>> reaction_to(Truncated("cut"), follower=True, assigned=False)
    <Reaction.ASK_LEADER: 3>
    """
    if error.metadata_stale or (assigned and isinstance(error, TopicNotFound)):
        return Reaction.FETCH_METADATA
    if error.retriable or isinstance(error, Timeout):
        return Reaction.RETRY
    return Reaction.ASK_LEADER if follower and isinstance(error, _LACKING) else Reaction.STOP


def restart_after(
    error: CometError, gap: Gap | None, *, on_out_of_range: OutOfRange, reports_gaps: bool
) -> Position | None:
    """The position at which a stopped partition is read on; None if its error is to be raised.

    >>> restart_after(OffsetOutOfRange("gone"), None, on_out_of_range="latest", reports_gaps=False)
    Latest()
    """
    if isinstance(error, OffsetOutOfRange) and on_out_of_range != "raise":
        return Earliest() if on_out_of_range == "earliest" else Latest()
    return AtOffset(gap.next_offset) if gap is not None and reports_gaps else None
