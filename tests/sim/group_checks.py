"""Holds what groups and transactions did against every promise (FAULTS C12 to C23), one function per promise.

No fault of this scenario takes from a partition what was acknowledged by all, so nothing is excused here: a loss in
the log itself is for `cluster_checks` to find.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from tests.sim.checker import TITLES, Finding, Verdict, name_of
from tests.sim.group_history import NONE, Commitment, GroupHistory, Handled, Look, Ownership, Tx
from tests.sim.history import Outcome, PartitionName

AT_LEAST_ONCE: Final = "alo"
AT_MOST_ONCE: Final = "amo"
EXACTLY_ONCE: Final = "eos"
SHARED: Final = "share"
PASSING: Final = "pass"  # its members commit nothing, so that it is deleted whenever it empties

Key = tuple[str, PartitionName]
T = TypeVar("T", Look, Commitment, Ownership)


def _by_key(items: Iterable[T]) -> dict[Key, list[T]]:
    found: dict[Key, list[T]] = defaultdict(list)
    for item in items:
        found[item.group, item.tp].append(item)
    return found


# ---- members


def one_owner(history: GroupHistory, finding: Finding) -> None:
    """C17. Nobody owns what another was given in the same generation, and a partition that was given up in good order
    was given up, and what had been taken of it finished, before the next one had it. Who was put out may not have
    heard of it."""
    finished = _last_finished(history)
    for (group, tp), owners in _by_key(history.owned).items():
        by_since: dict[int, set[str]] = defaultdict(set)
        for one in owners:
            by_since[one.since].add(one.process)
        for since, processes in by_since.items():
            if not finding.holds(len(processes) == 1):
                finding.violations.append(f"{group}: {tp} was {sorted(processes)}'s in generation {since}")
        for one in owners:
            until = one.ended
            # At most once it is done with an event when it begins to handle it; exactly once, when it has committed.
            if group not in (AT_MOST_ONCE, EXACTLY_ONCE):
                until = max(until, finished.get((group, one.process, tp, one.since), -1.0))
            for other in owners:
                if other.process == one.process or other.since <= one.since:
                    continue
                if history.evicted.get((group, one.member), float("inf")) <= other.began:
                    continue
                if not finding.holds(one.ended >= 0 and until <= other.began):
                    finding.violations.append(
                        f"{group}: {other.process} had {tp} from {other.began:.4f} s (generation {other.since}), "
                        f"{one.process} until {until:.4f} s (generation {one.since}, {one.how or 'still'})"
                    )


def generations_rise(history: GroupHistory, finding: Finding) -> None:
    """C17. What somebody is given after another was done with it, it is given in a later generation: also where the
    group was empty in between, or deleted. Who was put out may hear of what it was given long ago."""
    for (group, tp), owners in _by_key(history.owned).items():
        ended = sorted((one.ended, one.since, one.process) for one in owners if one.ended >= 0)
        for one in owners:
            if history.evicted.get((group, one.member), float("inf")) <= one.began:
                continue
            before = [(since, who) for at, since, who in ended if at <= one.began and who != one.process]
            if before and not finding.holds(max(before)[0] < one.since):
                finding.violations.append(
                    f"{group}: {one.process} had {tp} in generation {one.since}, after {max(before)[1]} had it in "
                    f"generation {max(before)[0]}"
                )


def _last_finished(history: GroupHistory) -> dict[tuple[str, str, PartitionName, int], float]:
    """When each owner was done with the last event that it had taken."""
    spans: dict[tuple[str, str, PartitionName], list[Ownership]] = defaultdict(list)
    for one in history.owned:
        spans[one.group, one.process, one.tp].append(one)
    last: dict[tuple[str, str, PartitionName, int], float] = {}
    for taken in history.handled:
        for one in spans[taken.group, taken.process, taken.tp]:
            if one.began <= taken.began and not 0 <= one.ended < taken.began:
                key = one.group, one.process, one.tp, one.since
                last[key] = max(taken.finished, last.get(key, -1.0))
    return last


def handled_by_its_owner(history: GroupHistory, finding: Finding) -> None:
    """C17. Nothing is handed out to a member that does not believe that the partition is its own."""
    owned: dict[tuple[str, str, PartitionName], list[Ownership]] = defaultdict(list)
    for one in history.owned:
        owned[one.group, one.process, one.tp].append(one)
    for taken in history.handled:
        spans = owned[taken.group, taken.process, taken.tp]
        if not finding.holds(any(one.began <= taken.began and not 0 <= one.ended < taken.began for one in spans)):
            finding.violations.append(
                f"{taken.group}: {taken.process} was given {taken.tp} offset {taken.offset} at {taken.began:.4f} s, "
                "which it did not own"
            )


def in_order(history: GroupHistory, finding: Finding) -> None:
    """C20. While a member owns a partition it is given each record once and in order; at most once, what could not be
    committed is left out, and at exactly once what was aborted comes again."""
    handled: dict[tuple[str, str, PartitionName], list[Handled]] = defaultdict(list)
    for taken in history.handled:
        if taken.group != EXACTLY_ONCE:
            handled[taken.group, taken.process, taken.tp].append(taken)
    for span in history.owned:
        last = -1
        for taken in handled[span.group, span.process, span.tp]:
            if taken.began < span.began or 0 <= span.ended < taken.began:
                continue
            records = history.inputs.get(taken.tp, {})
            skipped = span.group != AT_MOST_ONCE and any(last < offset < taken.offset for offset in records)
            if last >= 0 and not finding.holds(taken.offset > last and not skipped):
                finding.violations.append(
                    f"{span.group}: {span.process} was given {span.tp} offset {taken.offset} after {last}"
                )
            last = taken.offset


# ---- positions


def positions_only_rise(history: GroupHistory, finding: Finding) -> None:
    """C21, C23. In real time, committed positions never go back, and what was confirmed is there for who asks."""
    commits = _by_key(history.commits)
    for key, found in _by_key(history.looks).items():
        looks = sorted(found, key=lambda one: one.completed)
        highest: list[tuple[float, int]] = [(-1.0, NONE)]  # completed, highest so far
        sure = [(one.completed, one.offset) for one in looks]
        sure += [(one.completed, one.offset) for one in commits.get(key, []) if one.outcome is Outcome.OK]
        for completed, offset in sorted(sure):
            highest.append((completed, max(offset, highest[-1][1])))
        times = [at for at, _ in highest]
        for one in looks:
            before = highest[bisect_left(times, one.invoked) - 1][1]
            if not finding.holds(one.offset >= before):
                finding.violations.append(
                    f"{key[0]}: {key[1]} was committed up to {before}, at {one.completed:.4f} s {one.offset} was said"
                )


def positions_are_within_the_log(history: GroupHistory, finding: Finding) -> None:
    """C21."""
    said: list[Look | Commitment] = [*history.looks, *(one for one in history.commits if one.outcome is Outcome.OK)]
    for one in said:
        end = history.ends.get(one.tp)
        if end is not None and not finding.holds(one.offset <= end):
            finding.violations.append(f"{one.group}: {one.tp} is committed up to {one.offset} and ends at {end}")


def nothing_skipped(history: GroupHistory, finding: Finding) -> None:
    """C20. At least once: whatever lies below a committed position had been handled when it was seen there."""
    at_the_end = [Look(*key, offset, float("inf"), float("inf")) for key, offset in history.committed.items()]
    for group in (AT_LEAST_ONCE, EXACTLY_ONCE):
        finished = _finished(history, group)
        for look in (*history.looks, *at_the_end):
            if look.group != group:
                continue
            for offset, value in history.inputs.get(look.tp, {}).items():
                if offset >= look.offset:
                    continue
                at = finished.get((look.tp, offset))
                if not finding.holds(at is not None and at <= look.completed):
                    when = "was never handled" if at is None else f"was handled at {at:.4f} s"
                    finding.violations.append(
                        f"{group}: {look.tp} is committed up to {look.offset} at {look.completed:.4f} s, "
                        f"and {name_of(value)} at {offset} {when}"
                    )


def _finished(history: GroupHistory, group: str) -> dict[tuple[PartitionName, int], float]:
    """When each event was first done with. For exactly once that is when its transaction was about to commit."""
    finished: dict[tuple[PartitionName, int], float] = {}
    for one in history.handled:
        if one.group == group and one.finished >= 0:
            key = one.tp, one.offset
            finished[key] = min(one.finished, finished.get(key, one.finished))
    return finished


def all_is_handled(history: GroupHistory, finding: Finding) -> None:
    """C20, C25. When nothing is wrong any more a group reaches the end, and then everything has been handled."""
    groups = {one.group for one in history.owned}
    for group in sorted(groups & {AT_LEAST_ONCE, EXACTLY_ONCE}):
        finished = _finished(history, group)
        for tp, records in history.inputs.items():
            for offset, value in records.items():
                if not finding.holds((tp, offset) in finished):
                    finding.violations.append(f"{group}: {name_of(value)} at {tp} offset {offset} was never handled")


def at_most_once(history: GroupHistory, finding: Finding) -> None:
    times = Counter((one.tp, one.offset) for one in history.handled if one.group == AT_MOST_ONCE)
    for (tp, offset), count in times.items():
        if not finding.holds(count == 1):
            finding.violations.append(f"{AT_MOST_ONCE}: {tp} offset {offset} was handled {count} times")


# ---- transactions


def _tags(records: Iterable[bytes]) -> Counter[bytes]:
    """An output is `input|topic`: the inputs that outputs came from."""
    return Counter(value.rpartition(b"|")[0] for value in records)


def exactly_once(history: GroupHistory, finding: Finding) -> None:
    """C16. Every input has one output, once the group is at the end, and none has two."""
    inputs = Counter(value for records in history.inputs.values() for value in records.values())
    for topic in sorted({tp[0] for tp in history.outputs}):
        outputs = _tags(
            value for tp, records in history.outputs.items() if tp[0] == topic for value in records.values()
        )
        for value in inputs.keys() | outputs.keys():
            if not finding.holds(outputs[value] == inputs[value]):
                finding.violations.append(
                    f"{name_of(value)} is {inputs[value]} times in the input and {outputs[value]} times in {topic}"
                )


def outputs_in_order(history: GroupHistory, finding: Finding) -> None:
    """C10, C16. Outputs of one partition, written to one partition, stand in the order of the inputs."""
    where = {value: (tp, offset) for tp, records in history.inputs.items() for offset, value in records.items()}
    for tp, records in history.outputs.items():
        last: dict[PartitionName, int] = defaultdict(lambda: -1)
        for _, value in sorted(records.items()):
            source, offset = where.get(value.rpartition(b"|")[0], (("", 0), -1))
            if not source[0]:
                continue  # exactly_once tells of it
            if not finding.holds(offset > last[source]):
                finding.violations.append(f"{tp}: the output of {source} offset {offset} comes after {last[source]}")
            last[source] = offset


def all_or_nothing(history: GroupHistory, finding: Finding) -> None:
    """C12. Of a transaction all outputs are there in the end, or none, and as it was said."""
    there, senders = _there(history), _senders(history)
    for one in history.transactions:
        present = [output in there for output in one.outputs]
        if one.outcome is Outcome.OK and not finding.holds(all(present)):
            finding.violations.append(
                f"{one.process} committed transaction {one.number}, and {present.count(False)} of its {len(present)} "
                "outputs are not there"
            )
        mine = int(one.outcome is not Outcome.FAIL)
        own = [is_there for is_there, sent in zip(present, one.outputs, strict=True) if senders[sent] <= mine]
        if one.outcome is Outcome.UNKNOWN and own and not finding.holds(all(own) or not any(own)):
            finding.violations.append(
                f"of transaction {one.number} of {one.process}, which may have committed, {own.count(True)} of "
                f"{len(own)} outputs are there"
            )
        if one.outcome is Outcome.FAIL and not finding.holds(not any(own)):
            finding.violations.append(
                f"{one.process} was told {one.code or 'that it aborted'} of transaction {one.number}, and "
                f"{own.count(True)} of its outputs are there"
            )


def _there(history: GroupHistory) -> set[tuple[str, bytes]]:
    return {(tp[0], value) for tp, records in history.outputs.items() for value in records.values()}


def _senders(history: GroupHistory) -> Counter[tuple[str, bytes]]:
    """How many may have put an output there: an input that is taken again after an abort has the same outputs."""
    senders: Counter[tuple[str, bytes]] = Counter()
    for one in history.transactions:
        if one.outcome in (Outcome.OK, Outcome.UNKNOWN):
            senders.update(one.outputs)
    return senders


def notes_are_of_the_last_commit(history: GroupHistory, finding: Finding) -> None:
    """C36. Whoever begins a transaction finds the note of the last one under its id that was committed with one."""
    there, senders = _there(history), _senders(history)
    noted: dict[str, list[Tx]] = defaultdict(list)
    for one in history.transactions:
        earlier = noted[one.id]
        if one.found is not None:
            at = next((at for at, other in enumerate(earlier) if other.note == one.found), -1)
            given = earlier[at] if at >= 0 else None
            counts = given is not None and given.outcome is not Outcome.FAIL and there.issuperset(given.outputs)
            if not finding.holds(not one.found or counts):
                finding.violations.append(f"{one.process} found the note {one.found!r}, which was not committed")
            for other in earlier[at + 1 :]:
                own = any(output in there and senders[output] == 1 for output in other.outputs)
                committed = other.outcome is Outcome.OK or (other.outcome is Outcome.UNKNOWN and own)
                if not finding.holds(not committed):
                    finding.violations.append(
                        f"{one.process} found the note {one.found!r} at {one.invoked:.4f} s, and {other.note!r} was "
                        "committed after it"
                    )
        if one.note:
            earlier.append(one)


def nothing_read_early(history: GroupHistory, finding: Finding) -> None:
    """C14. A reader of committed records sees nothing before its commit was asked for, and nothing that is not there
    in the end."""
    asked: dict[tuple[str, bytes], float] = {}
    for one in history.transactions:
        if one.ending >= 0:
            for output in one.outputs:
                asked[output] = min(one.ending, asked.get(output, one.ending))
    for seen in history.seen:
        at = asked.get((seen.tp[0], seen.value))
        if not finding.holds(at is not None and at <= seen.at):
            finding.violations.append(
                f"{seen.process} saw {name_of(seen.value)} of {seen.tp} at {seen.at:.4f} s, before its commit"
            )
        there = history.outputs.get(seen.tp, {}).get(seen.offset)
        if not finding.holds(there == seen.value):
            finding.violations.append(
                f"{seen.process} saw {name_of(seen.value)} at {seen.tp} offset {seen.offset}, which is not there"
            )


# ---- share groups


def accepted_once(history: GroupHistory, finding: Finding) -> None:
    """C34. What a member accepted, and was told is kept, is acquired by nobody any more."""
    kept: dict[tuple[str, PartitionName, int], float] = {}
    for one in history.acquired:
        if one.settled in ("accept", "reject") and one.outcome is Outcome.OK:
            key = one.group, one.tp, one.offset
            kept[key] = min(one.completed, kept.get(key, one.completed))
    for lock in history.locks:
        for offset in range(lock.first, lock.end):
            at = kept.get((lock.group, lock.tp, offset))
            if not finding.holds(at is None or at >= lock.at):
                finding.violations.append(
                    f"{lock.group}: {lock.tp} offset {offset} was acquired at {lock.at:.4f} s, settled at {at:.4f} s"
                )


def all_is_settled(history: GroupHistory, finding: Finding) -> None:
    """C35. In the end every record of a share group was accepted, or is in the dead-letter topic."""
    group = SHARED
    if not any(one.group == group for one in history.acquired):
        return
    done = _accepted(history)
    dead = history.dead.get(group, Counter())
    for tp, records in history.inputs.items():
        for offset, value in records.items():
            if not finding.holds((tp, offset) in done or dead[value] > 0):
                finding.violations.append(f"{group}: {name_of(value)} at {tp} offset {offset} was never settled")


def not_settled(history: GroupHistory, dead: Collection[bytes] = ()) -> list[tuple[PartitionName, int]]:
    """Records for which the members of the share group have to stay; `dead` is the content of the dead-letter topic.

    It goes by `history.ends`, not by the answers to producers: a record whose producer gave up may be in the log. A
    rejection without an answer counts once its record is a dead letter.
    """
    rejected = {
        (one.tp, one.offset)
        for one in history.acquired
        if one.group == SHARED and one.settled == "reject" and (one.outcome is Outcome.OK or one.value in dead)
    }
    done = _accepted(history) | rejected
    return [(tp, at) for tp, end in history.ends.items() for at in range(end) if (tp, at) not in done]


def _accepted(history: GroupHistory) -> set[tuple[PartitionName, int]]:
    return {(one.tp, one.offset) for one in history.acquired if one.group == SHARED and one.settled == "accept"}


def dead_letters_were_tried(history: GroupHistory, finding: Finding) -> None:
    """C35. What is in the dead-letter topic was rejected, or acquired as often as the group allows."""
    for group, dead in history.dead.items():
        rejected = {one.value for one in history.acquired if one.group == group and one.settled == "reject"}
        times = Counter(one.value for one in history.acquired if one.group == group)
        for value in dead:
            if not finding.holds(value in rejected or times[value] >= 1):
                finding.violations.append(f"{group}: {name_of(value)} is a dead letter, and nobody had it")


def everything_ends(history: GroupHistory, finding: Finding) -> None:
    """C25. No call hangs."""
    calls: list[tuple[str, Outcome]] = [(f"a commit of {one.process}", one.outcome) for one in history.commits]
    calls += [(f"transaction {one.number} of {one.process}", one.outcome) for one in history.transactions]
    calls += [(f"a settlement of {one.process}", one.outcome) for one in history.acquired if one.settled]
    for what, outcome in calls:
        if not finding.holds(outcome is not Outcome.PENDING):
            finding.violations.append(f"{what} never ended")


CHECKS: Final[dict[str, tuple[tuple[Callable[[GroupHistory, Finding], None], ...], str]]] = {
    "C10": ((outputs_in_order,), "outputs stand in the order of their inputs"),
    "C12": ((all_or_nothing,), "transactions are all or nothing"),
    "C14": ((nothing_read_early,), "nothing is read before it is committed"),
    "C16": ((exactly_once,), "every input has its output exactly once"),
    "C17": ((one_owner, generations_rise, handled_by_its_owner), "one owner per partition and generation"),
    "C20": ((in_order, nothing_skipped, all_is_handled), "nothing is skipped"),
    "C21": ((positions_only_rise, positions_are_within_the_log), "committed positions only rise"),
    "C25": ((everything_ends,), "every call ends"),
    "C34": ((at_most_once, accepted_once), "nothing is handled again that must not be"),
    "C35": ((all_is_settled, dead_letters_were_tried), "shared records are settled"),
    "C36": ((notes_are_of_the_last_commit,), "a note is that of the last commit"),
}


def check_groups(history: GroupHistory) -> Verdict:
    findings: dict[str, Finding] = {}
    for name, (functions, _) in CHECKS.items():
        findings[name] = Finding()
        for function in functions:
            function(history, findings[name])
    return Verdict(findings)


TITLES.update({name: title for name, (_, title) in CHECKS.items() if name not in TITLES})
