"""What happened, as the clients saw it: the only thing the checker looks at.

An operation is entered when it is invoked and filled in when it completes. Its outcome is

    OK        it happened
    FAIL      it provably did not happen
    UNKNOWN   it may or may not have happened (a time-out, a lost connection, a client that died)
    PENDING   never completed; at the end of a run that is a hang, and a violation

Server events (kills, power cuts, deletions, damage) are trusted for one thing only: to excuse a loss that the
promise table allows. All times are seconds of the simulation's one clock.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from comet.settings.topic import Flush

PartitionName = tuple[str, int]  # topic, partition


UNKNOWN_END: Final = -1


class Outcome(str, Enum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"
    PENDING = "pending"


@dataclass(slots=True)
class Produce:
    """One record handed to a producer."""

    process: str
    tp: PartitionName
    acks: int
    idempotent: bool
    value: bytes
    number: int  # in the order of this producer's sends
    invoked: float
    completed: float = -1.0
    outcome: Outcome = Outcome.PENDING
    code: str = ""
    offset: int = -1


@dataclass(slots=True)
class Read:
    """One record handed to an application by a consumer. `session` counts up whenever the position was set anew."""

    process: str
    session: int
    tp: PartitionName
    offset: int
    value: bytes
    high_watermark: int
    at: float


@dataclass(slots=True)
class Session:
    """A consumer began, or was told to begin again, at a position: `first` is the first offset it asked for."""

    process: str
    session: int
    tp: PartitionName
    start: str  # "earliest", "latest", "offset"
    why: str  # "start", "seek", or the code of the error that made it
    first: int = -1  # for "offset"
    at: float = 0.0


@dataclass(slots=True)
class Ends:
    """The answer to "how far does the log reach"; UNKNOWN_END where it did not say."""

    process: str
    tp: PartitionName
    invoked: float
    completed: float
    log_start: int
    high_watermark: int


@dataclass(slots=True)
class Call:
    """Any other request to a broker; what counts is that it ended, and how."""

    process: str
    name: str
    invoked: float
    completed: float = -1.0
    outcome: Outcome = Outcome.PENDING
    code: str = ""


@dataclass(slots=True)
class Recovered:
    """A broker opened a log: where it says it begins and ends, and what the log had gone through before."""

    tp: PartitionName
    at: float
    log_start: int
    log_end: int
    lossy_since: float | None = None  # a power cut or a failed disk at this time came before
    synced_at: float = -1.0  # when the log was last closed in good order before that


@dataclass(slots=True)
class Damage:
    """Bits on disk were flipped in batches that hold these offsets; [first, end)."""

    tp: PartitionName
    at: float
    first: int
    end: int


@dataclass(slots=True)
class FinalLog:
    """What a fresh reader found in a partition after everything was healed."""

    log_start: int
    log_end: int
    records: list[tuple[int, bytes]] = field(default_factory=list)
    lost: tuple[tuple[int, int], ...] = ()
    complete: bool = False


@dataclass(slots=True)
class History:
    produces: list[Produce] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    final: dict[PartitionName, FinalLog] = field(default_factory=dict)
    flush: dict[str, Flush] = field(default_factory=dict)  # by topic
    loss_window_s: dict[str, float] = field(default_factory=dict)  # by topic with flush=interval
    deletes: dict[PartitionName, int] = field(default_factory=dict)  # records below may be deleted
    faults: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)  # what an observer saw that must never be, as it happened
    register_answers: int = 0  # of clients of single keys, which compare them with what was told before
    register_complaints: list[str] = field(default_factory=list)
    compared: int = 0  # batches of replicas that were compared at the end
    settled_within_s: float | None = None  # after the heal, how long until every probe was answered

    def counts(self) -> dict[str, int]:
        outcomes = Counter(f"produce {op.outcome.value}" for op in self.produces)
        return {
            **dict(sorted(outcomes.items())),
            "reads": len(self.reads),
            "ends": len(self.ends),
            "calls": len(self.calls),
            "recoveries": len(self.recovered),
            **{f"fault {name}": count for name, count in sorted(self.faults.items())},
        }

    def write(self, path: Path) -> None:
        """As JSON Lines, in the order of time, for a person to grep through."""
        lines: list[tuple[float, dict[str, Any]]] = []
        for group in (self.produces, self.reads, self.sessions, self.ends, self.calls, self.recovered, self.damage):
            for entry in group:
                at = getattr(entry, "invoked", None)
                when: float = entry.at if at is None else at  # type: ignore[union-attr]
                lines.append((when, {"kind": type(entry).__name__, **asdict(entry)}))
        lines.sort(key=lambda line: line[0])
        with path.open("w") as out:
            for _, line in lines:
                out.write(json.dumps(line, default=_text) + "\n")
            for tp, final in self.final.items():
                out.write(json.dumps({"kind": "FinalLog", "tp": tp, **asdict(final)}, default=_text) + "\n")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace")[:60] if isinstance(value, bytes) else str(value)


VALUE_BYTES_MIN: Final = 40


def make_value(process: str, number: int, tp: PartitionName, size: int) -> bytes:
    """A value that says who wrote it, where to, and whether it is whole."""
    head = f"{process}|{number}|{tp[0]}|{tp[1]}|".encode()
    body = head + b"." * max(0, size - len(head) - 8)
    return body + f"{zlib.crc32(body):08x}".encode()


def read_value(value: bytes) -> tuple[str, int, PartitionName] | None:
    """Who wrote a value and where to; None if it is not whole."""
    body, crc = value[:-8], value[-8:]
    if f"{zlib.crc32(body):08x}".encode() != crc:
        return None
    process, number, topic, partition, _ = body.decode().split("|", 4)
    return process, int(number), (topic, int(partition))
