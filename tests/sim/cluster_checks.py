"""Holds the history of a cluster against its promises: those of one broker where they apply, and those of replication.

What a loss may be excused by (docs/guarantees.md):

    acks=all      that this very record was committed, and that a leader which did not have it was elected as the last
                  resort (`losses`). Anything, on an `available` topic.
    acks=1        the same; and what was not committed when a new epoch began after it was sent
    acks=0        anything

The monitor's complaints come in as violations of the invariant they name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

from tests.sim import checker
from tests.sim.checker import TITLES, Evidence, Finding, Verdict
from tests.sim.history import History, Outcome, PartitionName, Session
from tests.sim.monitor import Monitor


class ClusterEvidence(Evidence):
    """The whole history; `consistent` is the part of it that is about consistent topics."""

    def __init__(self, history: History, monitor: Monitor) -> None:
        super().__init__(history)
        self.monitor = monitor

    def window(self, topic: str) -> float:
        return 0.0

    def may_be_lost(self, tp: PartitionName, offset: int, known_at: float, value: bytes = b"") -> bool:
        agreed = self.monitor.of(tp)
        return self.deleted(tp, offset) or self.damaged(tp, offset) or agreed.took(offset, value)

    def reused(self, tp: PartitionName, offset: int) -> bool:
        return self.monitor.of(tp).covers(offset)

    def damaged(self, tp: PartitionName, offset: int) -> bool:
        return any(base <= offset < end for base, end in self.monitor.of(tp).ruined)

    def began_anew(self, tp: PartitionName) -> bool:
        return bool(self.monitor.of(tp).losses) or self.monitor.of(tp).doubted


def consistent_part(history: History, available: set[str]) -> History:
    """Without what was seen of `available` topics."""
    if not available:
        return history
    return replace(
        history,
        produces=[op for op in history.produces if op.tp[0] not in available],
        reads=[read for read in history.reads if read.tp[0] not in available],
        sessions=[session for session in history.sessions if session.tp[0] not in available],
        ends=[ends for ends in history.ends if ends.tp[0] not in available],
        final={tp: log for tp, log in history.final.items() if tp[0] not in available},
    )


def no_acked_loss(evidence: ClusterEvidence, finding: Finding) -> None:
    monitor = evidence.monitor
    for op in evidence.history.produces:
        if op.outcome is not Outcome.OK or op.acks == 0 or op.tp not in evidence.final:
            continue
        there = evidence.final[op.tp].get(op.offset)
        holds = there == op.value or evidence.may_be_lost(op.tp, op.offset, op.invoked, op.value)
        if not holds and op.acks == 1:
            where = (monitor.names[op.tp[0]], op.tp[1])
            began = any(at >= op.invoked for at, _, _ in monitor.epochs[where])
            holds = began and not monitor.agreed[where].holds(op.offset, op.value)
        if not finding.holds(holds):
            finding.violations.append(
                f"{checker.name_of(op.value)} (acks {op.acks}) was acknowledged at {op.tp} offset {op.offset} at "
                f"{op.completed:.4f} s, there is {'nothing' if there is None else checker.name_of(there)}"
            )


def unique_slot(evidence: ClusterEvidence, finding: Finding) -> None:
    """What was acknowledged to all or read: acks=1 promises no offset for good."""
    slots: dict[tuple[PartitionName, int], set[bytes]] = defaultdict(set)
    for op in evidence.history.produces:
        if op.outcome is Outcome.OK and op.acks > 1:
            slots[op.tp, op.offset].add(op.value)
    for read in evidence.history.reads:
        slots[read.tp, read.offset].add(read.value)
    for tp, log in evidence.partitions():
        for offset, value in log.records:
            slots[tp, offset].add(value)
    for (tp, offset), values in slots.items():
        lives = 1 + sum(loss.covers(offset) for loss in evidence.monitor.of(tp).losses)
        if not finding.holds(len(values) <= lives):
            finding.violations.append(f"{tp} offset {offset} held {sorted(map(checker.name_of, values))}")


def no_duplicates(evidence: Evidence, finding: Finding) -> None:
    where: dict[bytes, set[int]] = defaultdict(set)
    for value, tps in evidence.offsets.items():
        where[value].update(offset for _, offset in tps)
    for read in evidence.history.reads:
        if not evidence.reused(read.tp, read.offset):
            where[read.value].add(read.offset)
    for value, offsets in where.items():
        if not finding.holds(len(offsets) == 1):
            finding.violations.append(f"{checker.name_of(value)} is at offsets {sorted(offsets)}: written twice")


def real_time_order(evidence: Evidence, finding: Finding) -> None:
    """Of what was acknowledged to all: the offsets of others may be given again."""
    history = replace(evidence.history, produces=[op for op in evidence.history.produces if op.acks > 1])
    assert isinstance(evidence, ClusterEvidence)
    checker.real_time_order(ClusterEvidence(history, evidence.monitor), finding)


def ends_are_reached(evidence: ClusterEvidence, finding: Finding) -> None:
    """A replica may lag behind what another has told; in the end all have what anyone told of."""
    for ends in evidence.history.ends:
        log = evidence.history.final.get(ends.tp)
        if log is not None and not finding.holds(
            ends.high_watermark <= log.log_end or evidence.may_be_lost(ends.tp, ends.high_watermark - 1, ends.completed)
        ):
            finding.violations.append(
                f"{ends.tp} was said to end at {ends.high_watermark} at {ends.completed:.4f} s, "
                f"it ends at {log.log_end}"
            )


def _has_a_cause(evidence: ClusterEvidence, session: Session) -> bool:
    match session.why:
        case "OFFSET_OUT_OF_RANGE":
            return session.tp in evidence.history.deletes or evidence.began_anew(session.tp)
        case "DATA_LOSS":
            return evidence.damaged(session.tp, session.first - 1)
        case "TRUNCATED":
            return evidence.began_anew(session.tp)
        case _:
            return True


def no_silent_reset(evidence: ClusterEvidence, finding: Finding) -> None:
    first: dict[tuple[str, int, PartitionName], int] = {}
    for read in evidence.history.reads:
        first.setdefault((read.process, read.session, read.tp), read.offset)
    for session in evidence.history.sessions:
        if not finding.holds(_has_a_cause(evidence, session)):
            finding.violations.append(
                f"{session.process} was told {session.why} of {session.tp} at {session.at:.4f} s, without a cause"
            )
        offset = first.get((session.process, session.session, session.tp))
        if offset is None or session.start == "latest":
            continue
        wanted = session.first if session.start == "offset" else 0
        if not finding.holds(offset == wanted or evidence.deleted(session.tp, offset - 1)):
            finding.violations.append(
                f"{session.process} began {session.tp} at {session.start} {session.first} ({session.why}), "
                f"its first record was {offset}"
            )


MONITORED: Final = {
    "C1": "acknowledged to all is committed",
    "C5": "what is committed is the same on all replicas",
    "C6": "one leader per epoch, epochs and offsets rise together",
    "C8": "high watermarks do not go back",
    "C31": "who is in sync, or elected, has all that is committed",
    "C32": "what is committed is held by as many as min_insync asks for",
    "C33": "a leader that is not registered appends nothing",
}


def check(history: History, monitor: Monitor, available: set[str]) -> Verdict:
    everything = ClusterEvidence(history, monitor)
    evidence = ClusterEvidence(consistent_part(history, available), monitor)
    findings: dict[str, Finding] = defaultdict(Finding)
    for name, function in (
        ("C2", checker.integrity),
        ("C4", checker.dense_offsets),
        ("C10", checker.producer_order),
        ("C19", checker.typed_failures),
        ("C25", checker.everything_ends),
        ("C29", checker.stays_within_bounds),
    ):
        function(everything, findings[name])
    for name, cluster in (
        ("C1", no_acked_loss),
        ("C3", unique_slot),
        ("C7", checker.no_vanishing_reads),
        ("C8", ends_are_reached),
        ("C9", no_duplicates),
        ("C11", real_time_order),
        ("C20", checker.no_skip_no_repeat),
        ("C22", no_silent_reset),
    ):
        cluster(evidence, findings[name])
    if history.register_answers:
        findings["C37"].checked += history.register_answers
        findings["C37"].violations += history.register_complaints
    for name in MONITORED:
        findings[name].checked += monitor.checked[name]
        findings[name].violations += monitor.complaints[name]
    findings["C5"].checked += history.compared
    order = sorted(findings, key=lambda name: int(name[1:]))
    return Verdict({name: findings[name] for name in order})


TITLES["C37"] = "a key is a linearizable register"
TITLES.update({name: title for name, title in MONITORED.items() if name not in TITLES})
