"""The checker against histories made by hand: each invariant lets a right history pass and finds a wrong one.

Every wrong history differs from the right one in one thing, so that what is found is that thing. Where a loss is
excused, the same loss just outside the excuse must be found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comet.settings.topic import Flush
from tests.sim.checker import INVARIANTS, check
from tests.sim.history import (
    Call,
    Damage,
    Ends,
    FinalLog,
    History,
    Outcome,
    Produce,
    Read,
    Recovered,
    Session,
    make_value,
    read_value,
)

TP = ("t", 0)
RECORDS = 10


def value(number: int, process: str = "p") -> bytes:
    return make_value(process, number, TP, 60)


def right(flush: Flush = Flush.ALWAYS) -> History:
    """One producer writes ten records, one a second, and hears of each after 0.1 s; a consumer reads them all."""
    history = History(flush={"t": flush}, loss_window_s={"t": 2.0}, settled_within_s=1.0)
    for number in range(RECORDS):
        history.produces.append(
            Produce("p", TP, 1, True, value(number), number, number, number + 0.1, Outcome.OK, "", number)
        )
        history.reads.append(Read("c", 1, TP, number, value(number), number + 1, number + 0.2))
        history.ends.append(Ends("a", TP, number + 0.3, number + 0.4, 0, number + 1))
    history.sessions.append(Session("c", 1, TP, "earliest", "start"))
    history.calls.append(Call("a", "CreateTopic", 0.0, 0.1, Outcome.OK))
    history.calls.append(Call("a", "DeleteRecords", 0.0, 0.1, Outcome.FAIL, "INVALID_ARGUMENT"))
    history.final[TP] = FinalLog(0, RECORDS, [(n, value(n)) for n in range(RECORDS)], complete=True)
    return history


def cut_short(history: History, end: int) -> None:
    """The final log ends earlier, and nobody but the first client saw the rest."""
    final = history.final[TP]
    final.log_end, final.records = end, final.records[:end]
    history.reads = [read for read in history.reads if read.offset < end]
    history.ends = [ends for ends in history.ends if ends.high_watermark <= end]


def test_a_right_history_passes_and_exercises_every_invariant() -> None:
    verdict = check(right())
    assert verdict.ok, "\n".join(verdict.lines())
    assert all(finding.checked for finding in verdict.findings.values())


def lose_the_last(history: History) -> None:
    cut_short(history, RECORDS - 1)


def swap_a_value(history: History) -> None:
    history.final[TP].records[4] = (4, value(5))
    history.final[TP].records[5] = (5, value(4))


def read_garbage(history: History) -> None:
    history.reads[3].value = value(3)[:-1] + b"x"


def read_of_elsewhere(history: History) -> None:
    history.produces[3].tp = ("t", 1)


def read_what_was_refused(history: History) -> None:
    history.produces[3].outcome, history.produces[3].code = Outcome.FAIL, "RECORD_TOO_LARGE"


def read_two_values_at_one_offset(history: History) -> None:
    history.reads.append(Read("d", 1, TP, 3, value(4), RECORDS, 50.0))


def leave_a_hole(history: History) -> None:
    history.final[TP].records.pop(4)


def report_a_loss_that_was_none(history: History) -> None:
    history.final[TP].lost = ((4, 5),)


def read_incompletely(history: History) -> None:
    history.final[TP].complete = False


def lose_what_was_read(history: History) -> None:
    history.produces[-1].outcome, history.produces[-1].code = Outcome.UNKNOWN, "TIMEOUT"
    history.final[TP].records.pop()
    history.final[TP].log_end -= 1
    history.ends.pop()


def read_beyond_the_watermark(history: History) -> None:
    history.reads[5].high_watermark = 5


def end_goes_back(history: History) -> None:
    history.ends[5].high_watermark = 4


def start_goes_back(history: History) -> None:
    history.ends[5].log_start = 3


def write_twice(history: History) -> None:
    history.final[TP].records.append((RECORDS, value(3)))
    history.final[TP].log_end += 1


def write_out_of_order(history: History) -> None:
    first, second = history.produces[4], history.produces[5]
    first.number, second.number = second.number, first.number


def acknowledge_out_of_order(history: History) -> None:
    first, second = history.produces[4], history.produces[5]
    first.value, second.value = second.value, first.value
    first.number, second.number = second.number, first.number
    first.offset, second.offset = second.offset, first.offset


def fail_without_a_code(history: History) -> None:
    history.calls[1].code = "KeyError"


def fail_by_a_bug(history: History) -> None:
    history.calls[1].code = "INTERNAL"


def skip(history: History) -> None:
    history.reads.pop(4)


def repeat(history: History) -> None:
    history.reads.insert(4, history.reads[3])


def begin_too_late(history: History) -> None:
    history.reads = history.reads[2:]
    history.ends.append(Ends("a", TP, 60.0, 60.1, 0, RECORDS))


def begin_elsewhere(history: History) -> None:
    history.sessions[0].start, history.sessions[0].first = "offset", 1


def begin_before_the_end_that_was_known(history: History) -> None:
    history.sessions[0].start, history.sessions[0].at = "latest", 5.0


def lose_a_position_for_no_reason(history: History) -> None:
    history.sessions.append(Session("c", 2, TP, "earliest", "OFFSET_OUT_OF_RANGE"))


def report_a_hole_for_no_reason(history: History) -> None:
    history.sessions.append(Session("c", 2, TP, "offset", "DATA_LOSS", 5))


def never_answer_a_produce(history: History) -> None:
    history.produces[4].outcome = Outcome.PENDING


def never_answer_a_call(history: History) -> None:
    history.calls[0].outcome = Outcome.PENDING


def never_settle(history: History) -> None:
    history.settled_within_s = None


def complain(history: History) -> None:
    history.complaints.append("a task died")


WRONG: list[tuple[str, Callable[[History], None]]] = [
    ("C1", lose_the_last),
    ("C1", swap_a_value),
    ("C2", read_garbage),
    ("C2", read_of_elsewhere),
    ("C2", read_what_was_refused),
    ("C3", read_two_values_at_one_offset),
    ("C4", leave_a_hole),
    ("C4", report_a_loss_that_was_none),
    ("C4", read_incompletely),
    ("C7", lose_what_was_read),
    ("C7", read_beyond_the_watermark),
    ("C8", end_goes_back),
    ("C8", start_goes_back),
    ("C9", write_twice),
    ("C10", write_out_of_order),
    ("C11", acknowledge_out_of_order),
    ("C19", fail_without_a_code),
    ("C19", fail_by_a_bug),
    ("C20", skip),
    ("C20", repeat),
    ("C22", begin_too_late),
    ("C22", begin_elsewhere),
    ("C22", begin_before_the_end_that_was_known),
    ("C22", lose_a_position_for_no_reason),
    ("C22", report_a_hole_for_no_reason),
    ("C25", never_answer_a_produce),
    ("C25", never_answer_a_call),
    ("C25", never_settle),
    ("C29", complain),
]


@pytest.mark.parametrize(("invariant", "spoil"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_one_wrong_thing_is_found(invariant: str, spoil: Callable[[History], None]) -> None:
    history = right()
    spoil(history)
    verdict = check(history)
    assert invariant in verdict.violated, "\n".join(verdict.lines())


def test_every_invariant_has_a_wrong_history() -> None:
    assert {invariant for invariant, _ in WRONG} == set(INVARIANTS)


# ---- what excuses a loss, and what does not; the power fails at 9.5 s, the last two records came at 8 and 9 s


def after_power_cut(flush: Flush, end: int, **recovered: float) -> list[str]:
    history = right(flush)
    cut_short(history, end)
    history.recovered.append(Recovered(TP, 10.0, 0, end, lossy_since=9.5, **recovered))
    return check(history).violated


def test_with_flush_always_a_power_cut_excuses_nothing() -> None:
    assert after_power_cut(Flush.ALWAYS, RECORDS - 1) == ["C1"]


def test_with_flush_interval_the_window_is_excused_and_no_more() -> None:
    assert after_power_cut(Flush.INTERVAL, RECORDS - 2) == []  # acknowledged at 8.1 s, 1.4 s before the cut
    assert after_power_cut(Flush.INTERVAL, RECORDS - 3) == ["C1"]  # acknowledged at 7.1 s, 2.4 s before


def test_with_flush_os_what_came_since_the_last_orderly_stop_is_excused() -> None:
    assert after_power_cut(Flush.OS, 1) == []
    assert after_power_cut(Flush.OS, 5, synced_at=4.5) == []
    assert after_power_cut(Flush.OS, 4, synced_at=4.5) == ["C1"]


def test_a_kill_excuses_nothing_whatever_the_policy() -> None:
    for flush in Flush:
        history = right(flush)
        cut_short(history, RECORDS - 1)
        history.recovered.append(Recovered(TP, 10.0, 0, RECORDS - 1))
        assert check(history).violated == ["C1"]


def test_only_a_suffix_may_be_lost() -> None:
    history = right(Flush.OS)
    history.recovered.append(Recovered(TP, 10.0, 0, RECORDS - 1, lossy_since=9.5))
    history.final[TP].records[4] = (4, value(7, "other"))
    assert "C1" in check(history).violated


def test_an_offset_is_used_again_after_a_power_cut_but_only_then() -> None:
    for lossy_since, violated in ((9.5, False), (None, True)):
        history = right(Flush.OS)
        history.recovered.append(Recovered(TP, 10.0, 0, RECORDS - 1, lossy_since=lossy_since))
        again = value(0, "q")
        history.produces.append(Produce("q", TP, 1, True, again, 0, 11.0, 11.1, Outcome.OK, "", RECORDS - 1))
        history.final[TP].records[-1] = (RECORDS - 1, again)
        assert ("C3" in check(history).violated) is violated


def test_damage_excuses_what_was_damaged_and_reported() -> None:
    history = right()
    history.damage.append(Damage(TP, 9.0, 4, 6))
    final = history.final[TP]
    final.lost = ((4, 6),)
    final.records = [record for record in final.records if record[0] not in (4, 5)]
    assert check(history).ok
    final.records.pop()
    assert "C1" in check(history).violated


def test_deletion_excuses_what_was_deleted() -> None:
    history = right()
    history.deletes[TP] = 3
    final = history.final[TP]
    final.log_start, final.records = 3, final.records[3:]
    assert check(history).ok
    final.log_start, final.records = 4, final.records[1:]
    assert "C1" in check(history).violated


def test_a_value_says_who_wrote_it_and_whether_it_is_whole() -> None:
    written = make_value("p7", 12, ("a.topic-name", 3), 100)
    assert len(written) == 100
    assert read_value(written) == ("p7", 12, ("a.topic-name", 3))
    assert read_value(written[:-1] + bytes([written[-1] ^ 1])) is None
