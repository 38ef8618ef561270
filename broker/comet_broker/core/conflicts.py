"""Whether a follower may cut its log back to follow a leader, or would lose committed records by it.

    cut       nothing that it knows to be committed goes, or the leader has that, and sends it again
    accepted  committed records go, and an operator has accepted that: they are set aside first
    refused   committed records would go: nothing is cut, and the replica does not follow

The leader of a healthy cluster has everything below every replica's high watermark. One that has not was elected from
less than there is: after a loss of records (docs/guarantees.md, the last resort), or because a disk, a data folder or
the metadata store went back in time. The replica that knows more may then be the only one that has the records.

Pure; `replication.follower` asks, and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CutVerdict(Enum):
    CUT = "cut"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Own:
    """The follower's log. `whole_end` is where its first damage begins, or its end."""

    whole_end: int
    high_watermark: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class Offer:
    """What the leader of `epoch` says: where to cut, or with `restart` begin anew, and how far its own log goes."""

    epoch: int
    start: int
    restart: bool
    log_end: int


def judge(own: Own, offer: Offer, loss_accepted: int) -> CutVerdict:
    """`loss_accepted` is what the state of the partition says."""
    if own.high_watermark <= offer.start:
        return CutVerdict.CUT  # with a restart: what lies below was deleted at the leader
    if not offer.restart and own.whole_end <= offer.start and own.high_watermark <= offer.log_end:
        return CutVerdict.CUT  # only damage goes, and comes back whole
    if own.last_epoch < loss_accepted <= offer.epoch:
        return CutVerdict.ACCEPTED
    return CutVerdict.REFUSED
