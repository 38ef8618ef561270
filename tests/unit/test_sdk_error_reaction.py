"""The reaction of a consumer to an error of one partition, as a table."""

from __future__ import annotations

import pytest

from comet.consumer.error_reaction import Reaction, reaction_to, restart_after
from comet.consumer.options import OutOfRange
from comet.errors import (
    CometError,
    DataLoss,
    InvalidArgument,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    Timeout,
    TopicNotFound,
    Truncated,
    Unavailable,
)
from comet.types import AtOffset, Earliest, Gap, Latest, Position

GAP = Gap("quotes", partition=0, first=5, end=9, reason="deleted")


@pytest.mark.parametrize(
    ("error", "follower", "assigned", "reaction"),
    [
        (NotLeader("moved"), False, False, Reaction.FETCH_METADATA),
        (TopicNotFound("deleted"), False, True, Reaction.FETCH_METADATA),
        (TopicNotFound("deleted"), False, False, Reaction.STOP),
        (Unavailable("gone"), True, False, Reaction.FETCH_METADATA),
        (NotEnoughReplicas("few"), False, False, Reaction.RETRY),
        (Timeout("late"), True, False, Reaction.RETRY),
        (OffsetOutOfRange("behind"), True, False, Reaction.ASK_LEADER),
        (OffsetOutOfRange("gone"), False, False, Reaction.STOP),
        (Truncated("cut"), True, True, Reaction.ASK_LEADER),
        (DataLoss("damaged"), False, False, Reaction.STOP),
        (InvalidArgument("wrong"), True, False, Reaction.STOP),
    ],
)
def test_the_reaction_depends_on_the_error_and_its_source(
    error: CometError, follower: bool, assigned: bool, reaction: Reaction
) -> None:
    assert reaction_to(error, follower=follower, assigned=assigned) is reaction


@pytest.mark.parametrize(
    ("error", "gap", "policy", "reports_gaps", "where"),
    [
        (OffsetOutOfRange("gone"), GAP, "earliest", False, Earliest()),
        (OffsetOutOfRange("gone"), GAP, "latest", True, Latest()),
        (OffsetOutOfRange("gone"), GAP, "raise", True, AtOffset(9)),
        (OffsetOutOfRange("gone"), GAP, "raise", False, None),
        (DataLoss("damaged"), GAP, "earliest", True, AtOffset(9)),
        (DataLoss("damaged"), None, "earliest", True, None),
        (PartitionNotFound("none"), None, "latest", True, None),
    ],
)
def test_a_stopped_partition_goes_on_only_where_the_application_has_said(
    error: CometError, gap: Gap | None, policy: OutOfRange, reports_gaps: bool, where: Position | None
) -> None:
    assert restart_after(error, gap, on_out_of_range=policy, reports_gaps=reports_gaps) == where
