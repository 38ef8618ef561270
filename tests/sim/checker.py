"""Holds a history against every promise: one function per invariant, one table of them.

Each function goes over the history and reports what breaks its promise and how many observations it looked at. An
invariant that saw nothing is "not exercised", which fails a run whose purpose it was.

What a loss may be excused by (the promise table for one replica, docs/guarantees.md):

    a process killed        nothing: the page cache survives
    power cut, or a disk    always: nothing. interval: what was acknowledged within the loss window before.
    that failed an fsync    os: what was acknowledged since the broker last closed the log in good order.
                            In each case only a suffix of the log; its offsets may then be used again.
    damage on disk          the batches that were damaged, reported as lost; never wrong bytes
    deletion                what was asked for, and what the topic's retention covers
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from comet.errors import BY_CODE
from comet.settings.topic import Flush
from tests.sim.history import UNKNOWN_END, FinalLog, History, Outcome, PartitionName, Produce, Session, read_value

SETTLE_S_MAX: Final = 60.0  # after all faults are healed, everything works again within this
SLICE_MAX: Final = 5  # violations of one invariant that are printed


@dataclass(slots=True)
class Finding:
    """What one invariant found."""

    checked: int = 0
    violations: list[str] = field(default_factory=list)

    def holds(self, statement: bool) -> bool:
        """Counts one observation; the caller says what is wrong when it does not hold."""
        self.checked += 1
        return statement


@dataclass(slots=True)
class Verdict:
    findings: dict[str, Finding]

    @property
    def violated(self) -> list[str]:
        return [name for name, finding in self.findings.items() if finding.violations]

    @property
    def ok(self) -> bool:
        return not self.violated

    def lines(self) -> list[str]:
        lines = []
        for name, finding in self.findings.items():
            state = "VIOLATED" if finding.violations else "pass" if finding.checked else "not exercised"
            lines.append(f"{name:4} {state:14} {finding.checked:7} checked  {TITLES[name]}")
            lines += [f"       {text}" for text in finding.violations[:SLICE_MAX]]
            if len(finding.violations) > SLICE_MAX:
                lines.append(f"       ... and {len(finding.violations) - SLICE_MAX} more")
        return lines


@dataclass(slots=True, frozen=True)
class Cut:
    """A recovery after which a suffix of the log may be gone, from `end` on."""

    since: float  # when power failed
    synced: float  # everything known before was certainly on disk
    end: int


class Evidence:
    """The history, indexed for the questions the invariants ask."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.writes: dict[bytes, Produce] = {op.value: op for op in history.produces}
        self.cuts: dict[PartitionName, list[Cut]] = defaultdict(list)
        for opened in history.recovered:
            if opened.lossy_since is not None:
                self.cuts[opened.tp].append(Cut(opened.lossy_since, opened.synced_at, opened.log_end))
        self.final: dict[PartitionName, dict[int, bytes]] = {tp: dict(log.records) for tp, log in history.final.items()}
        self.offsets: dict[bytes, list[tuple[PartitionName, int]]] = defaultdict(list)
        for tp, log in history.final.items():
            for offset, value in log.records:
                self.offsets[value].append((tp, offset))

    def window(self, topic: str) -> float:
        """Seconds before a power cut in which an acknowledged record may be lost."""
        match self.history.flush.get(topic, Flush.ALWAYS):
            case Flush.ALWAYS:
                return 0.0
            case Flush.INTERVAL:
                return self.history.loss_window_s[topic]
            case Flush.OS:
                return float("inf")

    def may_be_lost(self, tp: PartitionName, offset: int, known_at: float, value: bytes = b"") -> bool:
        """Whether a record that somebody knew of at that time may be missing now, or its offset hold another."""
        if self.deleted(tp, offset) or self.damaged(tp, offset):
            return True
        window = self.window(tp[0])
        return window > 0 and any(
            cut.end <= offset and known_at > max(cut.since - window, cut.synced) for cut in self.cuts[tp]
        )

    def deleted(self, tp: PartitionName, offset: int) -> bool:
        return offset < self.history.deletes.get(tp, 0)

    def damaged(self, tp: PartitionName, offset: int) -> bool:
        return any(damage.tp == tp and damage.first <= offset < damage.end for damage in self.history.damage)

    def reused(self, tp: PartitionName, offset: int) -> bool:
        """Whether a power cut may have made room for another record at this offset."""
        return self.window(tp[0]) > 0 and any(cut.end <= offset for cut in self.cuts[tp])

    def partitions(self) -> Iterable[tuple[PartitionName, FinalLog]]:
        return self.history.final.items()


def name_of(value: bytes) -> str:
    whole = read_value(value)
    return repr(value[:40]) if whole is None else f"{whole[0]}#{whole[1]}"


# ---- the log


def no_acked_loss(evidence: Evidence, finding: Finding) -> None:
    for op in evidence.history.produces:
        if op.outcome is not Outcome.OK or op.acks == 0 or op.tp not in evidence.final:
            continue
        there = evidence.final[op.tp].get(op.offset)
        if not finding.holds(there == op.value or evidence.may_be_lost(op.tp, op.offset, op.completed)):
            finding.violations.append(
                f"{name_of(op.value)} was acknowledged at {op.tp} offset {op.offset} at {op.completed:.4f} s, "
                f"there is {'nothing' if there is None else name_of(there)}"
            )


def integrity(evidence: Evidence, finding: Finding) -> None:
    seen = [(read.tp, read.offset, read.value, read.process) for read in evidence.history.reads]
    seen += [
        (tp, offset, value, "the final read") for tp, log in evidence.partitions() for offset, value in log.records
    ]
    for tp, offset, value, who in seen:
        op = evidence.writes.get(value)
        if not finding.holds(op is not None and op.tp == tp and read_value(value) is not None):
            finding.violations.append(f"{who} got {name_of(value)} at {tp} offset {offset}, which nobody wrote there")
        if op is not None and not finding.holds(op.outcome is not Outcome.FAIL):
            finding.violations.append(
                f"{who} got {name_of(value)} at {tp} offset {offset}, but its producer was told {op.code}"
            )


def unique_slot(evidence: Evidence, finding: Finding) -> None:
    slots: dict[tuple[PartitionName, int], set[bytes]] = defaultdict(set)
    for op in evidence.history.produces:
        if op.outcome is Outcome.OK and op.acks > 0:
            slots[op.tp, op.offset].add(op.value)
    for read in evidence.history.reads:
        slots[read.tp, read.offset].add(read.value)
    for tp, log in evidence.partitions():
        for offset, value in log.records:
            slots[tp, offset].add(value)
    for (tp, offset), values in slots.items():
        lives = 1 + sum(cut.end <= offset for cut in evidence.cuts[tp] if evidence.window(tp[0]) > 0)
        if not finding.holds(len(values) <= lives):
            finding.violations.append(
                f"{tp} offset {offset} held {sorted(map(name_of, values))}, at most {lives} can be right"
            )


def dense_offsets(evidence: Evidence, finding: Finding) -> None:
    for tp, log in evidence.partitions():
        if not finding.holds(log.complete):
            finding.violations.append(f"the final read of {tp} did not reach its end {log.log_end}")
        lost = {offset for first, end in log.lost for offset in range(first, end)}
        want = [offset for offset in range(log.log_start, log.log_end) if offset not in lost]
        have = [offset for offset, _ in log.records]
        if not finding.holds(not log.complete or have == want):
            finding.violations.append(f"{tp} holds offsets {_ranges(have)}, expected {_ranges(want)}")
        for offset in lost:
            if not finding.holds(evidence.damaged(tp, offset)):
                finding.violations.append(f"{tp} offset {offset} is reported lost, nothing damaged it")


def _ranges(offsets: list[int]) -> str:
    parts: list[list[int]] = []
    for offset in offsets:
        if parts and parts[-1][1] == offset - 1:
            parts[-1][1] = offset
        else:
            parts.append([offset, offset])
    return ", ".join(f"{first}-{last}" for first, last in parts[:8]) or "none"


def no_vanishing_reads(evidence: Evidence, finding: Finding) -> None:
    for read in evidence.history.reads:
        if not finding.holds(read.offset < read.high_watermark):
            finding.violations.append(
                f"{read.process} got {read.tp} offset {read.offset}, the high watermark said {read.high_watermark}"
            )
        if read.tp not in evidence.final:
            continue
        there = evidence.final[read.tp].get(read.offset)
        if not finding.holds(there == read.value or evidence.may_be_lost(read.tp, read.offset, read.at, read.value)):
            finding.violations.append(
                f"{read.process} read {name_of(read.value)} at {read.tp} offset {read.offset} at {read.at:.4f} s, "
                f"there is {'nothing' if there is None else name_of(there)}"
            )


def monotone_ends(evidence: Evidence, finding: Finding) -> None:
    by_partition: dict[PartitionName, list[tuple[float, float, int, int]]] = defaultdict(list)
    for ends in evidence.history.ends:
        by_partition[ends.tp].append((ends.invoked, ends.completed, ends.log_start, ends.high_watermark))
    for tp, log in evidence.partitions():
        by_partition[tp].append((float("inf"), float("inf"), log.log_start, log.log_end))
    for tp, answers in by_partition.items():
        for invoked, completed, log_start, high_watermark in answers:
            if not finding.holds(log_start >= 0 and (log_start <= high_watermark or high_watermark == UNKNOWN_END)):
                finding.violations.append(f"{tp} was said to begin at {log_start} and end at {high_watermark}")
            before = [answer for answer in answers if answer[1] < invoked]
            start = max((answer[2] for answer in before), default=0)
            if not finding.holds(start <= log_start):
                finding.violations.append(f"the start of {tp} went back from {start} to {log_start}")
            for _, known, _, end in before if high_watermark != UNKNOWN_END else ():
                if not finding.holds(end <= high_watermark or evidence.may_be_lost(tp, end - 1, known)):
                    finding.violations.append(
                        f"the end of {tp} went back from {end} ({known:.4f} s) to {high_watermark} ({completed:.4f} s)"
                    )


# ---- producers


def no_duplicates(evidence: Evidence, finding: Finding) -> None:
    where: dict[bytes, set[int]] = defaultdict(set)
    for value, tps in evidence.offsets.items():
        where[value].update(offset for _, offset in tps)
    for read in evidence.history.reads:
        if not evidence.reused(read.tp, read.offset):
            where[read.value].add(read.offset)
    for value, offsets in where.items():
        if not finding.holds(len(offsets) == 1):
            finding.violations.append(f"{name_of(value)} is at offsets {sorted(offsets)}: written twice")


def producer_order(evidence: Evidence, finding: Finding) -> None:
    last: dict[tuple[PartitionName, str], tuple[int, int]] = {}
    for tp, log in evidence.partitions():
        for offset, value in log.records:
            op = evidence.writes.get(value)
            if op is None or not op.idempotent:
                continue
            number, at = last.get((tp, op.process), (-1, -1))
            if not finding.holds(op.number > number):
                finding.violations.append(
                    f"{tp}: {op.process} sent {op.number} before {number}, they are at {offset} and {at}"
                )
            last[tp, op.process] = (op.number, offset)


def real_time_order(evidence: Evidence, finding: Finding) -> None:
    by_partition: dict[PartitionName, list[Produce]] = defaultdict(list)
    for op in evidence.history.produces:
        if op.outcome is Outcome.OK and op.acks > 0:
            by_partition[op.tp].append(op)
    for tp, ops in by_partition.items():
        done = sorted(ops, key=lambda op: op.completed)
        highest: Produce | None = None
        position = 0
        for op in sorted(ops, key=lambda op: op.invoked):
            while position < len(done) and done[position].completed < op.invoked:
                if highest is None or done[position].offset > highest.offset:
                    highest = done[position]
                position += 1
            earlier = highest
            if earlier is None:
                continue
            if not finding.holds(earlier.offset < op.offset or evidence.reused(tp, op.offset)):
                finding.violations.append(
                    f"{tp}: {name_of(earlier.value)} was acknowledged at {earlier.offset} before "
                    f"{name_of(op.value)} was sent, which is at {op.offset}"
                )


def typed_failures(evidence: Evidence, finding: Finding) -> None:
    history = evidence.history
    operations = [(op.process, op.code, op.outcome) for op in history.produces]
    operations += [(call.process, call.code, call.outcome) for call in history.calls]
    for process, code, outcome in operations:
        failed = outcome in (Outcome.FAIL, Outcome.UNKNOWN)
        if failed and not finding.holds(code in BY_CODE and code != "INTERNAL"):
            finding.violations.append(f"{process}: a request failed with {code!r}, which is no documented answer")


# ---- consumers


def no_skip_no_repeat(evidence: Evidence, finding: Finding) -> None:
    position: dict[tuple[str, int, PartitionName], int] = {}
    for read in evidence.history.reads:
        key = (read.process, read.session, read.tp)
        expected = position.get(key, read.offset)
        if not finding.holds(read.offset == expected or evidence.reused(read.tp, min(read.offset, expected))):
            finding.violations.append(
                f"{read.process} (session {read.session}) got {read.tp} offset {read.offset} instead of {expected}"
            )
        position[key] = read.offset + 1


def _has_a_cause(evidence: Evidence, session: Session) -> bool:
    """Whether anything happened to a partition that makes what the consumer was told of it true."""
    match session.why:
        case "OFFSET_OUT_OF_RANGE":
            return session.tp in evidence.history.deletes or evidence.reused(session.tp, 1 << 62)
        case "DATA_LOSS":
            return evidence.damaged(session.tp, session.first - 1)
        case _:
            return True


def no_silent_reset(evidence: Evidence, finding: Finding) -> None:
    first: dict[tuple[str, int, PartitionName], tuple[int, float]] = {}
    for read in evidence.history.reads:
        first.setdefault((read.process, read.session, read.tp), (read.offset, read.at))
    bounds: dict[PartitionName, list[tuple[float, float, int, int]]] = defaultdict(list)
    for ends in evidence.history.ends:
        bounds[ends.tp].append((ends.invoked, ends.completed, ends.log_start, ends.high_watermark))
    for session in evidence.history.sessions:
        if not finding.holds(_has_a_cause(evidence, session)):
            finding.violations.append(f"{session.process} was told {session.why} of {session.tp}, without a cause")
        found = first.get((session.process, session.session, session.tp))
        if found is None:
            continue
        offset, at = found
        known = bounds[session.tp]
        match session.start:
            case "offset":
                holds = offset == session.first
            case "earliest":
                # Not before any start that was known by then, and not after one that was learnt later.
                holds = all(start <= offset for _, done, start, _ in known if done < session.at) and all(
                    offset <= start for asked, _, start, _ in known if asked > at
                )
            case _:
                holds = all(end <= offset for _, done, _, end in known if done < session.at)
        if not finding.holds(holds or evidence.reused(session.tp, offset)):
            finding.violations.append(
                f"{session.process} began {session.tp} at {session.start} {session.first} ({session.why}), "
                f"its first record was {offset}"
            )


# ---- liveness and bounds


def everything_ends(evidence: Evidence, finding: Finding) -> None:
    history = evidence.history
    for op in history.produces:
        if not finding.holds(op.outcome is not Outcome.PENDING):
            finding.violations.append(f"{name_of(op.value)}, sent at {op.invoked:.4f} s, never ended")
    for call in history.calls:
        if not finding.holds(call.outcome is not Outcome.PENDING):
            finding.violations.append(f"{call.process}: {call.name} at {call.invoked:.4f} s never ended")
    if not finding.holds(history.settled_within_s is not None and history.settled_within_s <= SETTLE_S_MAX):
        finding.violations.append(
            f"after all was healed it took {history.settled_within_s} s until everything worked again"
        )


def stays_within_bounds(evidence: Evidence, finding: Finding) -> None:
    finding.checked += 1
    finding.violations += evidence.history.complaints


Check = Callable[[Evidence, Finding], None]

# The letters and numbers are those of the issue that names every promise; the cluster's come with the cluster.
INVARIANTS: Final[dict[str, tuple[str, Check]]] = {
    "C1": ("nothing acknowledged is lost outside its documented window", no_acked_loss),
    "C2": ("every value read was written, there, whole, and not refused", integrity),
    "C3": ("one value per offset", unique_slot),
    "C4": ("offsets are dense and the final read is complete", dense_offsets),
    "C7": ("what was read stays, and lies below the high watermark", no_vanishing_reads),
    "C8": ("start and end of a log never go back", monotone_ends),
    "C9": ("nothing is written twice: idempotent producers repeat safely, others do not repeat", no_duplicates),
    "C10": ("the order of a producer is the order of the log", producer_order),
    "C11": ("acknowledged before sent is before in the log", real_time_order),
    "C19": ("every failure has a documented code", typed_failures),
    "C20": ("a consumer neither skips nor repeats", no_skip_no_repeat),
    "C22": ("a consumer begins where it was told to", no_silent_reset),
    "C25": ("every call ends, and a healed broker works again", everything_ends),
    "C29": ("queues, credit and background tasks keep their bounds", stays_within_bounds),
}
TITLES: Final = {name: title for name, (title, _) in INVARIANTS.items()}


def check(history: History) -> Verdict:
    evidence = Evidence(history)
    findings = {}
    for name, (_, function) in INVARIANTS.items():
        findings[name] = Finding()
        function(evidence, findings[name])
    return Verdict(findings)
