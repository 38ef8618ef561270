"""The rules of recovery: one action per finding, with the reason beside each row.

The known synced end of the log decides. Synced records were acknowledged, so an unreadable one there is damage, and
nothing is cut. Bytes that were not synced reach the disk in any order, so nothing behind the first bad batch is
reliable: it is removed. If the checkpoint itself is lost, both are possible, and all readable records are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class RecoveryFinding(Enum):
    """A defect at an offset of the log."""

    BAD_THEN_GOOD = "bytes that are not a batch, with whole batches behind them in the same segment"
    BAD_TO_THE_END = "no whole batch follows in this segment, but there are later segments"
    BAD_TAIL = "no whole batch follows in the last segment"
    GAP = "the next segment begins at a later offset"
    OVERLAP = "the next segment begins at an offset that an earlier one holds"
    NO_HEADER = "a segment file without a whole header block"
    FOREIGN = "a segment file whose header names another topic, partition or offset"


class Known(Enum):
    """Whether the log is known to have been synced beyond that offset."""

    SYNCED = "synced"
    NOT_SYNCED = "not synced"
    UNKNOWN = "there is no checkpoint"


class Action(Enum):
    QUARANTINE = "keep all; the offsets up to the next whole batch are reported as lost"
    CUT = "cut the segment here and delete all later ones"
    SET_ASIDE = "rename the file and go on without it"
    REMOVE = "delete the file"


RULES: Final[Mapping[tuple[RecoveryFinding, Known], tuple[Action, str]]] = {
    (RecoveryFinding.BAD_THEN_GOOD, Known.SYNCED): (Action.QUARANTINE, "synced data is damaged, later data is not"),
    (RecoveryFinding.BAD_THEN_GOOD, Known.NOT_SYNCED): (
        Action.CUT,
        "a power cut writes pages in any order; keep the prefix",
    ),
    (RecoveryFinding.BAD_THEN_GOOD, Known.UNKNOWN): (
        Action.QUARANTINE,
        "it may have been acknowledged, and later data is readable",
    ),
    (RecoveryFinding.BAD_TO_THE_END, Known.SYNCED): (Action.QUARANTINE, "the damage ends at the next segment"),
    (RecoveryFinding.BAD_TO_THE_END, Known.NOT_SYNCED): (Action.CUT, "later segments reached the disk before this one"),
    (RecoveryFinding.BAD_TO_THE_END, Known.UNKNOWN): (
        Action.QUARANTINE,
        "it may have been acknowledged, and later data is readable",
    ),
    (RecoveryFinding.BAD_TAIL, Known.SYNCED): (
        Action.QUARANTINE,
        "synced and gone: offsets up to the synced end stay used",
    ),
    (RecoveryFinding.BAD_TAIL, Known.NOT_SYNCED): (Action.CUT, "the torn end of a crash"),
    (RecoveryFinding.BAD_TAIL, Known.UNKNOWN): (Action.CUT, "there is nothing behind it to keep"),
    (RecoveryFinding.GAP, Known.SYNCED): (Action.QUARANTINE, "a segment, or its end, is missing"),
    (RecoveryFinding.GAP, Known.NOT_SYNCED): (Action.CUT, "the later segment reached the disk before the earlier one"),
    (RecoveryFinding.GAP, Known.UNKNOWN): (Action.QUARANTINE, "the missing records may have been acknowledged"),
    (RecoveryFinding.OVERLAP, Known.SYNCED): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.OVERLAP, Known.NOT_SYNCED): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.OVERLAP, Known.UNKNOWN): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.NO_HEADER, Known.SYNCED): (
        Action.SET_ASIDE,
        "the log of these batches is unknown; keep the file",
    ),
    (RecoveryFinding.NO_HEADER, Known.NOT_SYNCED): (Action.REMOVE, "a crash interrupted the segment's creation"),
    (RecoveryFinding.NO_HEADER, Known.UNKNOWN): (Action.SET_ASIDE, "it may hold acknowledged data; keep the file"),
    (RecoveryFinding.FOREIGN, Known.SYNCED): (Action.SET_ASIDE, "foreign data is neither served nor deleted"),
    (RecoveryFinding.FOREIGN, Known.NOT_SYNCED): (Action.SET_ASIDE, "foreign data is neither served nor deleted"),
    (RecoveryFinding.FOREIGN, Known.UNKNOWN): (Action.SET_ASIDE, "foreign data is neither served nor deleted"),
}

assert len(RULES) == len(RecoveryFinding) * len(Known), "every finding has its row"
