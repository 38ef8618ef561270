"""When the demo starts a process again that has ended, and when it gives up."""

from __future__ import annotations

from comet_demo.processes.restart_policy import CALM_S, PAUSES_S, Care


def test_it_is_started_again_after_ever_longer_and_in_the_end_no_more() -> None:
    notes: dict[str, str] = {}
    care = Care(notes)
    now = 100.0
    for pause_s in PAUSES_S:
        assert not care.due("life", now, "code 1")
        assert not care.due("life", now + pause_s - 0.1, "code 1")
        assert notes["life"] == "life ended, and is started again: code 1"
        now += pause_s
        assert care.due("life", now, "code 1")
        care.look(now)
        assert "life" in notes
    for later in range(10):
        assert not care.due("life", now + later * 100, "code 2")
        care.look(now + later * 100)
        assert notes["life"] == "life ended, again and again: code 2"


def test_what_runs_well_again_has_no_note_and_begins_with_the_first_pause() -> None:
    notes: dict[str, str] = {}
    care = Care(notes)
    for now in (0.0, 10.0):
        assert not care.due("life", now, "code 1")
        assert care.due("life", now + PAUSES_S[1], "code 1")
    care.look(12.0 + CALM_S)
    assert not notes
    assert not care.due("life", 100.0 + CALM_S, "code 1")
    assert care.due("life", 100.0 + CALM_S + PAUSES_S[0], "code 1")


def test_of_several_each_has_its_own() -> None:
    notes: dict[str, str] = {}
    care = Care(notes)
    care.due("life", 0.0, "code 1")
    care.due("paper", 0.5, "code 2")
    assert care.due("life", 1.0, "code 1") and not care.due("paper", 1.0, "code 2")
    assert set(notes) == {"life", "paper"}
