"""The checker of groups and transactions against histories made by hand: each promise lets a right one pass and finds
a wrong one, which differs from the right one in one thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.sim.group_checks import AT_LEAST_ONCE, AT_MOST_ONCE, CHECKS, EXACTLY_ONCE, SHARED, check_groups, not_settled
from tests.sim.group_history import (
    Commitment,
    GroupHistory,
    Handled,
    Lent,
    Lock,
    Look,
    Ownership,
    Seen,
    Tx,
)
from tests.sim.history import Outcome, make_value

TP = ("in", 0)
OUT, AUDIT = ("out", 0), ("audit", 0)
COUNT = 10


def value(number: int) -> bytes:
    return make_value("p", number, TP, 60)


def output(number: int, topic: str) -> bytes:
    return value(number) + b"|" + topic.encode()


def right() -> GroupHistory:
    """Ten records, one a second. Member a of each group has the first five, then it gives the partition to b. At
    exactly once each transaction has two inputs, and one more was aborted before."""
    history = GroupHistory()
    history.inputs[TP] = {number: value(number) for number in range(COUNT)}
    history.ends[TP] = COUNT
    for group in (AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE):
        history.owned.append(Ownership(group, "a", "id-a", TP, 1, 0.0, 5.5, "released"))
        history.owned.append(Ownership(group, "b", "id-b", TP, 2, 5.6))
        for number in range(COUNT):
            process = "a" if number < 5 else "b"
            at = number + (0.0 if number < 5 else 1.0)
            history.handled.append(Handled(group, process, TP, number, value(number), at, at + 0.1))
            commit = Commitment(group, process, TP, number + 1, at + 0.2, at + 0.3, Outcome.OK)
            if group != EXACTLY_ONCE:
                history.commits.append(commit)
                history.looks.append(Look(group, TP, number + 1, at + 0.35, at + 0.4))
        history.committed[group, TP] = COUNT
    history.transactions.append(
        Tx(
            "a", 0, [("out", output(0, "out") + b"?")], {TP: 1}, 0.0, -1.0, 0.1, Outcome.FAIL,
            id="t", note=b"aborted", found=b"",
        )
    )  # fmt: skip
    for number in range(0, COUNT, 2):
        numbers = (number, number + 1)
        outputs = [(topic, output(one, topic)) for one in numbers for topic in ("out", "audit")]
        at = number + (2.2 if number < 5 else 3.2)
        history.transactions.append(
            Tx(
                "a" if number < 5 else "b", number + 1, outputs, {TP: number + 2}, at, at + 0.1, at + 0.3,
                Outcome.OK, id="t", note=b"%d" % number if number != 4 else b"",
                found=b"%d" % (number - (4 if number == 6 else 2)) if number else b"",
            )
        )  # fmt: skip
        for tp in (OUT, AUDIT):
            for one in numbers:
                history.outputs.setdefault(tp, {})[one] = output(one, tp[0])
                history.seen.append(Seen("r", tp, one, output(one, tp[0]), at + 0.4))
    for number in range(COUNT):
        settled = "reject" if number == 3 else "accept"
        history.locks.append(Lock(SHARED, TP, number, number + 1, number))
        history.acquired.append(
            Lent(SHARED, "m", TP, number, value(number), 1, number, settled, number, number + 0.1, Outcome.OK)
        )
    history.dead[SHARED] = Counter([value(3)])
    return history


def test_a_right_history_passes_and_exercises_every_promise() -> None:
    verdict = check_groups(right())
    assert verdict.ok, "\n".join(verdict.lines())
    assert all(finding.checked for finding in verdict.findings.values())


def owned(history: GroupHistory, group: str, process: str) -> Ownership:
    return next(one for one in history.owned if (one.group, one.process) == (group, process))


def own_the_same_generation(history: GroupHistory) -> None:
    history.owned.append(Ownership(AT_LEAST_ONCE, "c", "id-c", TP, 2, 5.6))


def begin_generations_anew(history: GroupHistory) -> None:
    history.owned.append(Ownership(AT_LEAST_ONCE, "c", "id-c", TP, 1, 90.0))
    owned(history, AT_LEAST_ONCE, "b").ended = 80.0


def begin_before_the_other_has_released(history: GroupHistory) -> None:
    owned(history, AT_LEAST_ONCE, "b").began = 5.4


def finish_after_the_other_has_begun(history: GroupHistory) -> None:
    history.handled[4].finished = 5.7


def take_without_asking(history: GroupHistory) -> None:
    one = owned(history, AT_LEAST_ONCE, "a")
    one.how, one.ended = "taken", 5.7


def handle_what_is_anothers(history: GroupHistory) -> None:
    history.handled.append(Handled(AT_LEAST_ONCE, "a", TP, 9, value(9), 9.0, 9.1))


def skip_within_an_assignment(history: GroupHistory) -> None:
    history.handled = [one for one in history.handled if not (one.group == AT_LEAST_ONCE and one.offset == 3)]
    history.handled.append(Handled(AT_LEAST_ONCE, "b", TP, 3, value(3), 3.0, 3.1))
    history.owned.append(Ownership(AT_LEAST_ONCE, "b", "id-b", TP, 0, 2.9, 3.2, "evicted"))


def repeat_within_an_assignment(history: GroupHistory) -> None:
    history.handled.append(Handled(AT_LEAST_ONCE, "a", TP, 2, value(2), 5.0, 5.1))


def commit_before_it_is_handled(history: GroupHistory) -> None:
    history.looks[4].offset = 9


def never_handle(history: GroupHistory) -> None:
    for one in history.handled:
        if one.group == AT_LEAST_ONCE and one.offset == 9:
            one.finished = -1.0


def go_back(history: GroupHistory) -> None:
    history.looks[4].offset = 2


def forget_a_commit(history: GroupHistory) -> None:
    at = history.commits[6].completed
    history.looks.append(Look(history.commits[6].group, TP, 6, at + 0.01, at + 0.02))


def commit_beyond_the_end(history: GroupHistory) -> None:
    history.looks.append(Look(AT_MOST_ONCE, TP, COUNT + 1, 50.0, 50.1))


def handle_twice_at_most_once(history: GroupHistory) -> None:
    history.handled.append(Handled(AT_MOST_ONCE, "b", TP, 9, value(9), 20.0, 20.1))


def write_an_output_twice(history: GroupHistory) -> None:
    history.outputs[OUT][COUNT] = output(4, "out")


def lose_an_output(history: GroupHistory) -> None:
    history.outputs[AUDIT].pop(9)


def swap_outputs(history: GroupHistory) -> None:
    outputs = history.outputs[OUT]
    outputs[4], outputs[5] = outputs[5], outputs[4]


def tear_an_unknown_transaction(history: GroupHistory) -> None:
    history.transactions[2].outcome = Outcome.UNKNOWN
    history.outputs[OUT].pop(2)


def keep_an_aborted_output(history: GroupHistory) -> None:
    history.outputs[OUT][20] = output(0, "out") + b"?"


def find_the_note_of_an_abort(history: GroupHistory) -> None:
    history.transactions[1].found = b"aborted"


def find_a_note_that_nobody_set(history: GroupHistory) -> None:
    history.transactions[1].found = b"?"


def find_an_older_note(history: GroupHistory) -> None:
    history.transactions[3].found = b"0"


def find_no_note(history: GroupHistory) -> None:
    history.transactions[2].found = b""


def find_no_note_of_what_was_unknown_and_is_there(history: GroupHistory) -> None:
    history.transactions[1].outcome = Outcome.UNKNOWN
    history.transactions[2].found = b""


def find_a_note_of_what_is_not_there(history: GroupHistory) -> None:
    history.transactions[1].outcome = Outcome.UNKNOWN
    for tp in (OUT, AUDIT):
        for number in (0, 1):
            history.outputs[tp].pop(number)


def read_an_open_transaction(history: GroupHistory) -> None:
    history.seen[0].at = 1.0


def read_what_vanishes(history: GroupHistory) -> None:
    history.seen.append(Seen("r", OUT, 30, output(9, "out"), 40.0))


def acquire_what_was_accepted(history: GroupHistory) -> None:
    history.locks.append(Lock(SHARED, TP, 5, 6, 30.0))


def settle_nothing(history: GroupHistory) -> None:
    history.acquired[5].settled = ""


def lose_a_dead_letter(history: GroupHistory) -> None:
    history.dead[SHARED].clear()


def bury_what_nobody_had(history: GroupHistory) -> None:
    history.dead[SHARED][b"x"] = 1


def never_answer_a_commit(history: GroupHistory) -> None:
    history.commits[0].outcome = Outcome.PENDING


def never_end_a_transaction(history: GroupHistory) -> None:
    history.transactions[0].outcome = Outcome.PENDING


WRONG = [
    ("C17", own_the_same_generation),
    ("C17", begin_generations_anew),
    ("C17", begin_before_the_other_has_released),
    ("C17", finish_after_the_other_has_begun),
    ("C17", take_without_asking),
    ("C17", handle_what_is_anothers),
    ("C20", skip_within_an_assignment),
    ("C20", repeat_within_an_assignment),
    ("C20", commit_before_it_is_handled),
    ("C20", never_handle),
    ("C21", go_back),
    ("C21", forget_a_commit),
    ("C21", commit_beyond_the_end),
    ("C34", handle_twice_at_most_once),
    ("C16", write_an_output_twice),
    ("C16", lose_an_output),
    ("C10", swap_outputs),
    ("C12", tear_an_unknown_transaction),
    ("C12", keep_an_aborted_output),
    ("C36", find_the_note_of_an_abort),
    ("C36", find_a_note_that_nobody_set),
    ("C36", find_an_older_note),
    ("C36", find_no_note),
    ("C36", find_no_note_of_what_was_unknown_and_is_there),
    ("C36", find_a_note_of_what_is_not_there),
    ("C14", read_an_open_transaction),
    ("C14", read_what_vanishes),
    ("C34", acquire_what_was_accepted),
    ("C35", settle_nothing),
    ("C35", lose_a_dead_letter),
    ("C35", bury_what_nobody_had),
    ("C25", never_answer_a_commit),
    ("C25", never_end_a_transaction),
]


@pytest.mark.parametrize(("promise", "spoil"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_one_wrong_thing_is_found(promise: str, spoil: Callable[[GroupHistory], None]) -> None:
    history = right()
    spoil(history)
    verdict = check_groups(history)
    assert promise in verdict.violated, "\n".join(verdict.lines())


def test_every_promise_has_a_wrong_history() -> None:
    assert {promise for promise, _ in WRONG} == set(CHECKS)


def test_a_commit_without_an_answer_has_left_its_note_or_not() -> None:
    history = right()
    history.transactions[1].outcome = Outcome.UNKNOWN
    assert check_groups(history).ok
    history.transactions[5].outcome = Outcome.UNKNOWN
    for tp in (OUT, AUDIT):
        for number in (8, 9):
            history.outputs[tp].pop(number)
    history.transactions.append(Tx("c", 99, [], {}, 50.0, -1.0, 50.1, Outcome.FAIL, id="t", found=b"6"))
    assert "C36" not in check_groups(history).violated


def test_who_was_put_out_for_its_silence_may_not_have_heard_of_it() -> None:
    history = right()
    one = owned(history, AT_LEAST_ONCE, "a")
    one.how, one.ended = "evicted", 20.0
    history.evicted[AT_LEAST_ONCE, "id-a"] = 5.55
    assert check_groups(history).ok
    history.evicted[AT_LEAST_ONCE, "id-a"] = 5.65
    assert "C17" in check_groups(history).violated


def test_members_stay_until_the_whole_log_is_settled_whatever_producers_were_told() -> None:
    history = right()
    assert not_settled(history) == []
    history.ends[TP] = COUNT + 1  # one more record in the log: its producer gave up
    assert not_settled(history) == [(TP, COUNT)]
    history.acquired.append(
        Lent(SHARED, "m", TP, COUNT, value(COUNT), 1, 20.0)
    )  # acquired, and forgotten by the member
    assert not_settled(history) == [(TP, COUNT)]
    history.acquired.append(Lent(SHARED, "m", TP, COUNT, value(COUNT), 2, 24.0, "accept"))
    assert not_settled(history) == []


def test_a_rejection_without_an_answer_counts_once_its_record_is_a_dead_letter() -> None:
    history = right()
    history.acquired[3].outcome = Outcome.UNKNOWN
    assert not_settled(history) == [(TP, 3)]
    assert not_settled(history, [value(3)]) == []
