"""What recovery does about each thing it can find: a table, with the reason beside each row.

What decides is how far the log is known to have been synced. What was synced had been promised, so that it is
damage if it cannot be read now; nothing is cut there. What was not synced was in no order when the power failed, so
that nothing behind the first bad batch can be relied on: it goes. Where the checkpoint itself is lost nobody
knows which, and whatever can be read is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class RecoveryFinding(Enum):
    """What is wrong, at some offset."""

    BAD_THEN_GOOD = "bytes that are no batch, with whole batches behind them in the same segment"
    BAD_TO_THE_END = "nothing whole follows in this segment, but there are later segments"
    BAD_TAIL = "nothing whole follows in the last segment"
    GAP = "the next segment begins at a later offset"
    OVERLAP = "the next segment begins at an offset that an earlier one holds"
    NO_HEADER = "a segment file without a whole header block"
    FOREIGN = "a segment file whose header names another topic, partition or offset"


class Known(Enum):
    """Whether the log is known to have been synced up to beyond that offset."""

    SYNCED = "synced"
    NOT_SYNCED = "not synced"
    UNKNOWN = "there is no checkpoint"


class Action(Enum):
    QUARANTINE = "keep all; the offsets up to the next whole batch are lost and say so"
    CUT = "cut the segment here and delete all later ones"
    SET_ASIDE = "rename the file and go on without it"
    REMOVE = "delete the file"


RULES: Final[Mapping[tuple[RecoveryFinding, Known], tuple[Action, str]]] = {
    (RecoveryFinding.BAD_THEN_GOOD, Known.SYNCED): (Action.QUARANTINE, "promised data is damaged, what follows is not"),
    (RecoveryFinding.BAD_THEN_GOOD, Known.NOT_SYNCED): (
        Action.CUT,
        "a power cut writes pages in any order; keep the prefix",
    ),
    (RecoveryFinding.BAD_THEN_GOOD, Known.UNKNOWN): (
        Action.QUARANTINE,
        "it may have been promised, and what follows reads",
    ),
    (RecoveryFinding.BAD_TO_THE_END, Known.SYNCED): (Action.QUARANTINE, "the next segment says where the damage ends"),
    (RecoveryFinding.BAD_TO_THE_END, Known.NOT_SYNCED): (Action.CUT, "later segments reached the disk before this one"),
    (RecoveryFinding.BAD_TO_THE_END, Known.UNKNOWN): (
        Action.QUARANTINE,
        "it may have been promised, and what follows reads",
    ),
    (RecoveryFinding.BAD_TAIL, Known.SYNCED): (
        Action.QUARANTINE,
        "synced and gone: offsets up to the synced end stay used",
    ),
    (RecoveryFinding.BAD_TAIL, Known.NOT_SYNCED): (Action.CUT, "the torn end of a crash"),
    (RecoveryFinding.BAD_TAIL, Known.UNKNOWN): (Action.CUT, "nothing behind it could be kept"),
    (RecoveryFinding.GAP, Known.SYNCED): (Action.QUARANTINE, "a segment, or its end, is missing"),
    (RecoveryFinding.GAP, Known.NOT_SYNCED): (Action.CUT, "the later segment reached the disk before the earlier one"),
    (RecoveryFinding.GAP, Known.UNKNOWN): (Action.QUARANTINE, "what is missing may have been promised"),
    (RecoveryFinding.OVERLAP, Known.SYNCED): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.OVERLAP, Known.NOT_SYNCED): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.OVERLAP, Known.UNKNOWN): (Action.SET_ASIDE, "an offset has one batch: the one in the chain"),
    (RecoveryFinding.NO_HEADER, Known.SYNCED): (
        Action.SET_ASIDE,
        "whose batches these are cannot be known; keep the file",
    ),
    (RecoveryFinding.NO_HEADER, Known.NOT_SYNCED): (Action.REMOVE, "a crash came while the segment was made"),
    (RecoveryFinding.NO_HEADER, Known.UNKNOWN): (Action.SET_ASIDE, "it may hold promised data; keep the file"),
    (RecoveryFinding.FOREIGN, Known.SYNCED): (Action.SET_ASIDE, "somebody else's data is neither served nor deleted"),
    (RecoveryFinding.FOREIGN, Known.NOT_SYNCED): (
        Action.SET_ASIDE,
        "somebody else's data is neither served nor deleted",
    ),
    (RecoveryFinding.FOREIGN, Known.UNKNOWN): (Action.SET_ASIDE, "somebody else's data is neither served nor deleted"),
}

assert len(RULES) == len(RecoveryFinding) * len(Known), "every finding has its row"
