"""Groups and a bank as real processes that are killed and paused; and that the checks of it see what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness import group_cycles, group_notes
from tests.robustness.group_member import SESSION_MS
from tests.robustness.group_notes import Life, Look, Note, Topic, Verdict

# Beside whatever else runs on the machine. Alone, who leaves is replaced within 200 ms, and not when its session ends.
LEFT_MS_MAX = SESSION_MS
KILLED_MS_MAX = SESSION_MS + 10_000

GIVEN: Topic = {0: [(0, b"a:0"), (1, b"b:0"), (2, b"a:1")], 1: [(0, b"c:0")]}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_members_and_brokers_that_die_or_stand_still_lose_and_repeat_nothing(tmp_path: Path) -> None:
    report = await group_cycles.run(tmp_path, seconds=15, seed=1, measured=1)
    print(report)
    assert not report.violations, "\n".join(report.violations[:10])
    assert report.verdict.counts["exactly once: committed"] > 10, str(report)
    assert report.verdict.counts["transfers: committed"] > 10, str(report)
    assert report.acked > 1_000 and report.balances and report.take_overs, str(report)
    # None where the machine stood still in each try.
    assert max(report.left_ms, default=0.0) < LEFT_MS_MAX, str(report)
    assert max(report.killed_ms, default=0.0) < KILLED_MS_MAX, str(report)


def life(*notes: str, name: str = "m") -> Life:
    """One note per argument, a second after the other from second 1 on: `H 0 0 a:0`."""
    words = [note.split(" ") for note in notes]
    return Life("g", name, Path(), [Note(what, float(at), rest) for at, (what, *rest) in enumerate(words, 1)])


WELL = life("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 1 b:0", "H 0 2 a:1", "H 1 0 c:0")


def at_least_once(*lives: Life, looks: tuple[Look, ...] = ()) -> list[str]:
    verdict = Verdict()
    group_notes.at_least_once(verdict, list(lives), GIVEN, list(looks))
    return verdict.violations


def test_a_member_that_handles_everything_is_fine_and_so_is_one_that_repeats_what_was_not_committed() -> None:
    first = life("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 1 b:0", "X 0", "H 0 2 a:1", name="one")
    second = life("A 0 1", "H 0 1 b:0", "H 0 2 a:1", "A 1 0", "H 1 0 c:0", name="two")
    assert not at_least_once(WELL)
    assert not at_least_once(first, second), "what it had in hand when it lost the partition"
    assert group_notes.take_overs([first, second]) == 2


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        (("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 1 b:0", "H 0 2 a:1"), "1 of 4 were never handled"),
        (("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 2 a:1", "H 0 1 b:0", "H 1 0 c:0"), "0/2 where 1 was next"),
        (("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 0 a:0", "H 0 1 b:0", "H 0 2 a:1", "H 1 0 c:0"), "0/0 where 1 was next"),
        (("A 0 0", "H 0 0 a:0", "H 0 1 b:0", "H 0 2 a:1", "H 1 0 c:0"), "1/0 where None was next"),
        (("A 0 0", "A 1 0", "X 0", "H 0 0 a:0", "H 0 1 b:0", "H 0 2 a:1", "H 1 0 c:0"), "0/1 where None was next"),
        (("A 0 0", "A 1 0", "H 0 0 a:0", "H 0 1 b:9", "H 0 2 a:1", "H 1 0 c:0"), "was given b'b:9'"),
    ],
)
def test_what_is_skipped_repeated_or_handled_by_nobody_who_owns_it_is_seen(notes: tuple[str, ...], what: str) -> None:
    assert any(what in violation for violation in at_least_once(life(*notes)))


def test_a_position_before_what_lies_below_it_was_handled_is_seen_and_one_that_goes_back() -> None:
    assert not at_least_once(WELL, looks=(Look("g", 0, 1, 3.5), Look("g", 0, 3, 5.5)))
    assert at_least_once(WELL, looks=(Look("g", 0, 2, 3.5),))
    verdict = Verdict()
    group_notes.positions_only_rise(verdict, [Look("g", 0, 2, 1), Look("g", 1, 0, 1), Look("g", 0, 1, 2)])
    assert len(verdict.violations) == 1


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ({0: [(0, b"A:0"), (2, b"B:0"), (3, b"A:1")]}, "1 of 4 are missing"),
        ({0: [(0, b"A:0"), (2, b"B:0"), (3, b"A:1"), (4, b"A:1")], 1: [(0, b"C:0")]}, "1 are there twice"),
        ({0: [(0, b"A:1"), (2, b"B:0"), (3, b"A:0")], 1: [(0, b"C:0")]}, "b'A:1' at 0/0 comes after -1"),
    ],
)
def test_outputs_that_are_missing_twice_or_out_of_order_are_seen(made: Topic, what: str) -> None:
    well, bad = Verdict(), Verdict()
    group_notes.outputs(well, {0: [(0, b"A:0"), (2, b"B:0"), (3, b"A:1")], 1: [(0, b"C:0")]}, GIVEN)
    group_notes.outputs(bad, made, GIVEN)
    assert not well.violations
    assert any(what in violation for violation in bad.violations)


def test_an_input_that_is_lost_is_seen() -> None:
    well, bad = Verdict(), Verdict()
    group_notes.inputs(well, GIVEN, {(0, 2): b"a:1"}, {b"a": 2, b"b": 1, b"c": 1})
    group_notes.inputs(bad, GIVEN, {(0, 3): b"a:2"}, {b"a": 3, b"b": 1, b"c": 1})
    assert not well.violations
    assert len(bad.violations) == 2


def test_records_that_nobody_accepted_or_two_did_are_seen() -> None:
    def shared(*lives: Life) -> list[str]:
        verdict = Verdict()
        group_notes.shared(verdict, list(lives), {0: GIVEN[0][:2]})
        return verdict.violations

    assert not shared(life("H 0 0 1", "K 0 0", "H 0 1 1", "E 0 1"), life("H 0 1 2", "K 0 1"))
    assert not shared(life("H 0 0 1", "K 0 0", "H 0 1 1")), "it died, and perhaps it had said so"
    assert shared(life("H 0 0 1", "K 0 0", "H 0 1 1", "N 0 1"))
    assert shared(life("H 0 0 1", "K 0 0", "H 0 1 1", "K 0 1"), life("H 0 1 2", "K 0 1", name="another"))
