"""What holds up an event loop is named, and told apart from a process that was stopped."""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType

import pytest

from comet.client.watchdog import Watch, Watchdog, holder


def watch(now: list[float]) -> Watch:
    found = Watch(Watchdog(lambda: now[0]))
    found.name, found.session_s, found.thread, found.beaten_s = "group g", 10.0, 1, 0.0
    return found


def here() -> dict[int, FrameType]:
    return {1: sys._getframe(1)}


def test_it_is_told_once_while_it_lasts_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    one = watch(now)
    with caplog.at_level(logging.WARNING, "comet"):
        for at in (1.0, 4.9):
            one.check(at, here())
        assert not caplog.records
        for at in (5.1, 6.0, 8.0):
            one.check(at, here())
        assert len(caplog.records) == 1
        assert "test_it_is_told_once" in caplog.text
        assert not one.explain()
        now[0] = 9.0
        one.beat(9.0)
    assert "was blocked for 9.0 s" in caplog.records[1].getMessage()
    assert "test_it_is_told_once" in one.explain()
    now[0] = 30.0
    assert not one.explain(), "long ago"


def test_a_process_that_was_stopped_is_not_blamed_on_code(caplog: pytest.LogCaptureFixture) -> None:
    now = [40.0]
    one = watch(now)
    one.beat(40.0)
    assert "stopped or starved" in caplog.text
    assert "the process was stopped or starved" in one.explain()


def test_short_waits_are_nobodys_business(caplog: pytest.LogCaptureFixture) -> None:
    one = watch([0.0])
    for at in range(1, 20):
        one.check(at + 0.5, here())
        one.beat(at + 0.6)
    assert not caplog.records


def test_the_place_is_the_users_and_says_what_it_called() -> None:
    entered, leave = threading.Event(), threading.Condition()

    def users_code() -> None:
        with leave:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=users_code, daemon=True)
    thread.start()
    assert entered.wait(60)
    with leave:  # which it gives away only once it is in the call
        try:
            assert thread.ident is not None
            named = holder(sys._current_frames()[thread.ident])
        finally:
            leave.notify()
    thread.join()
    assert named.startswith(__file__)
    assert "users_code" in named
    assert "threading.py" in named
    assert holder(None)


def test_the_thread_is_there_only_while_there_are_members() -> None:
    dog = Watchdog()
    one = Watch(dog)
    one.session_s = 10.0
    dog.add(one)
    thread = dog._thread
    assert thread is not None
    dog.remove(one)
    thread.join(60)
    assert dog._thread is None
