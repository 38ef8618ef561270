"""The verdict on a follower's truncation: allowed, or refused because it would lose committed records.

    truncate  no committed record is truncated, or the leader has it and sends it again
    accepted  committed records are truncated, and an operator has accepted that: they are set aside first
    refused   committed records would be lost: nothing is truncated, and the replica does not follow

The leader of a healthy cluster has everything below every replica's high watermark. A leader that lacks some of it was
elected after a loss of records (docs/guarantees.md, the last resort), or because a disk, a data folder or the metadata
store went back in time. Then the replica with the higher watermark may be the only one that has the records.

Pure; `replication.follower` requests the verdict and acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TruncationVerdict(Enum):
    TRUNCATE = "truncate"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Own:
    """The follower's log. `whole_end` is the offset of its first damage, or its end."""

    whole_end: int
    high_watermark: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class Offer:
    """The answer of the leader of `epoch`: where to truncate, or with `restart` where to restart, and its log end."""

    epoch: int
    start: int
    restart: bool
    log_end: int


def judge(own: Own, offer: Offer, loss_accepted: int) -> TruncationVerdict:
    """The verdict; `loss_accepted` is the one for this replica, by the partition's state."""
    if own.high_watermark <= offer.start:
        return TruncationVerdict.TRUNCATE  # with a restart: the records below were deleted at the leader
    if own.whole_end <= offer.start and own.high_watermark <= offer.log_end:
        # Only damaged records are truncated, and the leader sends them again, if it has not deleted them.
        return TruncationVerdict.TRUNCATE
    if own.last_epoch < loss_accepted <= offer.epoch:
        return TruncationVerdict.ACCEPTED
    return TruncationVerdict.REFUSED
