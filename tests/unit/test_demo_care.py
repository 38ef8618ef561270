"""When the demo starts a process again that has ended, and when it gives up."""

from __future__ import annotations

from comet_demo.processes.restart_policy import CALM_S, PAUSES_S, RestartPolicy


def test_it_is_started_again_after_ever_longer_and_in_the_end_no_more() -> None:
    notes: dict[str, str] = {}
    policy = RestartPolicy(notes)
    now = 100.0
    for pause_s in PAUSES_S:
        assert not policy.due("life", now, "code 1")
        assert not policy.due("life", now + pause_s - 0.1, "code 1")
        assert notes["life"] == "life ended, restarting: code 1"
        now += pause_s
        assert policy.due("life", now, "code 1")
        policy.update(now)
        assert "life" in notes
    for later in range(10):
        assert not policy.due("life", now + later * 100, "code 2")
        policy.update(now + later * 100)
        assert notes["life"] == "life keeps ending, not restarted: code 2"


def test_what_runs_well_again_has_no_note_and_begins_with_the_first_pause() -> None:
    notes: dict[str, str] = {}
    policy = RestartPolicy(notes)
    for now in (0.0, 10.0):
        assert not policy.due("life", now, "code 1")
        assert policy.due("life", now + PAUSES_S[1], "code 1")
    policy.update(12.0 + CALM_S)
    assert not notes
    assert not policy.due("life", 100.0 + CALM_S, "code 1")
    assert policy.due("life", 100.0 + CALM_S + PAUSES_S[0], "code 1")


def test_of_several_each_has_its_own() -> None:
    notes: dict[str, str] = {}
    policy = RestartPolicy(notes)
    policy.due("life", 0.0, "code 1")
    policy.due("paper", 0.5, "code 2")
    assert policy.due("life", 1.0, "code 1") and not policy.due("paper", 1.0, "code 2")
    assert set(notes) == {"life", "paper"}
