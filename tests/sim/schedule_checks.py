"""Holds what schedules did against every promise, one function per promise.

The outcome of each call decides what is allowed: a put or cancel that was answered has taken effect, one that was not
may have, also later. Records of `available` topics may come again, and may be lost with a leader; those of a deleted
topic are not read.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from comet.schedules.due import jitter_us
from tests.sim.checker import TITLES, Finding, Verdict
from tests.sim.history import Outcome
from tests.sim.schedule_history import End, FiredRecord, Life, Name, ScheduleHistory
from tests.sim.schedule_workload import AVAILABLE, DELETED, SECOND_US

Records = dict[tuple[Name, bytes], list[FiredRecord]]


def _by_life(history: ScheduleHistory) -> Records:
    found: Records = defaultdict(list)
    for one in sorted(history.records, key=lambda one: (one.topic, one.partition, one.offset)):
        found[(one.topic, one.id), one.value].append(one)
    return found


def _read(history: ScheduleHistory) -> list[Life]:
    """Lives of topics whose records count, each once."""
    return [life for life in history.lives if life.topic not in (AVAILABLE, DELETED)]


def once(history: ScheduleHistory, finding: Finding) -> None:
    """C38. A schedule that is due once fires once, or was cancelled and does not. Of an `available` topic at least one
    attempt counts."""
    records = _by_life(history)
    tried = {(fire.topic, fire.id) for fire in history.fires}
    for life in history.lives:
        waits = life.once and life.topic == AVAILABLE and life.put is Outcome.OK and life.end is End.NONE
        if waits and not finding.holds(life.name in tried):
            finding.violations.append(f"{life.topic}/{life.id} has not fired")
    for life in _read(history):
        if not life.once:
            continue
        found = records[life.name, life.value]
        least, most = 0, 1
        if life.put is Outcome.FAIL or life.end is End.ACKED:
            most = 0
        elif life.put is Outcome.OK and life.end in (End.NONE, End.GONE):
            least = 1
        if not finding.holds(least <= len(found) <= most):
            finding.violations.append(
                f"{life.topic}/{life.id} fired {len(found)} times; put {life.put.value}, cancel {life.end.value}: "
                f"{[(one.partition, one.offset) for one in found]}"
            )
        for one in found:
            known = life.next_us and not life.unsure and life.end is End.NONE
            if not finding.holds(not known or one.due_us == life.next_us):
                finding.violations.append(f"{life.topic}/{life.id} fired for {one.due_us}, it was due {life.next_us}")


def recurring(history: ScheduleHistory, finding: Finding) -> None:
    """C39. A recurring schedule numbers its records without a gap or repetition, in the order of their times."""
    records = _by_life(history)
    for life in _read(history):
        if life.once:
            continue
        found = records[life.name, life.value]
        if not finding.holds([one.count for one in found] == list(range(1, len(found) + 1))):
            finding.violations.append(f"{life.topic}/{life.id} {life.number} has {[one.count for one in found]}")
        if life.put is Outcome.FAIL and found:
            finding.violations.append(f"{life.topic}/{life.id} {life.number} fired, and was refused")
        if life.fires_max and len(found) > life.fires_max:
            finding.violations.append(f"{life.topic}/{life.id} {life.number} fired {len(found)} of {life.fires_max}")
        for one, after in itertools.pairwise(found):
            if not finding.holds(life.run or one.due_us < after.due_us):
                finding.violations.append(
                    f"{life.topic}/{life.id} {life.number} fired for {one.due_us}, then for {after.due_us}"
                )
            gap = after.due_us - one.due_us
            if (
                life.late == "fire_all"
                and not life.changed
                and not finding.holds(gap == found[1].due_us - found[0].due_us)
            ):
                finding.violations.append(f"{life.topic}/{life.id} {life.number} left out times after {one.due_us}")
        for one in found:
            if not finding.holds(life.run or not one.due_us % SECOND_US):
                finding.violations.append(f"{life.topic}/{life.id} fired for {one.due_us}, not on the second")


def by_calendar(history: ScheduleHistory, finding: Finding) -> None:
    """C42. A schedule by a calendar fires for times of the calendar, and for all of its last version."""
    records = _by_life(history)
    for life in history.lives:
        if not life.by_calendar:
            continue
        fired = {one.due_us for one in records[life.name, life.value]}
        if not finding.holds(fired <= history.calendar_times):
            finding.violations.append(f"{life.id} fired for {sorted(fired - history.calendar_times)}, no time of it")
        if not finding.holds(fired >= {*history.last_times}):
            finding.violations.append(f"{life.id} did not fire for {sorted({*history.last_times} - fired)}")


def not_early(history: ScheduleHistory, finding: Finding) -> None:
    """C40. Nothing fires before the clock of the broker that fires it has shown its time; what fires is in the topic
    under the same number and time, or not at all."""
    lives = {life.name: life for life in history.lives}
    due: set[tuple[Name, int, int]] = set()
    for fire in history.fires:
        life = lives.get((fire.topic, fire.id))
        due.add(((fire.topic, fire.id), fire.count, fire.due_us))
        jitter_ms = 0 if life is None or not life.once else life.jitter_ms
        shown = fire.clock_us - jitter_us(fire.id, fire.due_us, 1000 * jitter_ms)
        if not finding.holds(fire.due_us <= shown):
            finding.violations.append(
                f"{fire.topic}/{fire.id} fired {(fire.due_us - shown) / 1e6:.3f} s before its time, {fire.due_us}"
            )
    for one in history.records:
        if not finding.holds(((one.topic, one.id), one.count, one.due_us) in due and one.due_us == one.timestamp_us):
            finding.violations.append(f"{one.topic}/{one.id} has a record that no broker has fired: {one}")


def states_agree(history: ScheduleHistory, finding: Finding) -> None:
    """C41. In the end the schedules are those that clients have put and that are not over, and each has counted its
    records; nothing that is due waits."""
    finding.checked += len(history.settled) + history.pages
    finding.violations += [*history.stranded, *history.lists]
    records = _by_life(history)
    by_name = history.by_name()
    for name, kept in history.kept.items():
        lives = [life for life in by_name.get(name, ()) if life.put is not Outcome.FAIL]
        if not finding.holds(bool(lives)):
            finding.violations.append(f"{name} is listed, and was never put")
            continue
        last = lives[-1]
        if not finding.holds(last.end not in (End.ACKED, End.GONE)):
            finding.violations.append(f"{name} is listed, and is over: cancel {last.end.value}")
        if name[0] == DELETED:
            if not finding.holds(kept.paused):
                finding.violations.append(f"{name} is active, and its topic is deleted")
            continue
        if name[0] == AVAILABLE:
            continue
        # Of a put without an answer the life before it may go on.
        counts = {len(records[name, life.value]) for life in (lives if last.put is Outcome.UNKNOWN else lives[-1:])}
        if not finding.holds(kept.fired in counts):
            finding.violations.append(f"{name} has counted {kept.fired} records, and has {counts}")
    for name, lives in by_name.items():
        answered = [life for life in lives if life.put is not Outcome.FAIL]
        last = answered[-1] if answered else lives[-1]
        if last.once or not last.open or name[0] == DELETED:
            continue
        ended = bool(last.fires_max)  # it may have ended by itself
        if not finding.holds(ended or name in history.kept):
            finding.violations.append(f"{name} is not listed, and was not cancelled")


CHECKS: Final[dict[str, tuple[str, Callable[[ScheduleHistory, Finding], None]]]] = {
    "C38": ("a schedule that is due once fires once, or is cancelled and does not", once),
    "C39": ("a recurring schedule numbers its records, in the order of their times", recurring),
    "C42": ("a schedule by a calendar fires for its times, and waits for a newer one", by_calendar),
    "C40": ("nothing fires before the clock of its broker has shown its time", not_early),
    "C41": ("schedules that are kept, listed and due are those that are not over", states_agree),
}
TITLES.update({name: title for name, (title, _) in CHECKS.items()})


def check_schedules(history: ScheduleHistory) -> Verdict:
    findings = {}
    for name, (_, function) in CHECKS.items():
        if name == "C42" and not history.calendar_times:
            continue  # this run has no calendar
        findings[name] = Finding()
        function(history, findings[name])
    return Verdict(findings)
