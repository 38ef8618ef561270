"""Lists of the command line: colours of states, totals of lag, names by patterns."""

from __future__ import annotations

import io
import sys

import pytest

from comet.cli._colours import colour_of, coloured, shows_colours
from comet.cli._lag import lag_totals
from comet.cli._listing import is_pattern, matching
from comet.cli._output import note, print_table, report_error
from comet.errors import InvalidArgument, TopicNotFound
from comet.types import PartitionLag


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def colourful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        ("ok", "green"), ("stable", "green"), ("empty", "dim"), ("-", "dim"), ("rebalancing", "yellow"),
        ("warn", "yellow"),
        ("2 under-replicated", "yellow"), ("1 offline; 2 under-replicated", "red"), ("never", "red"), ("fail", "red"),
        ("under-replicated; lost 3..7", "red"), ("broker 2 in conflict", "red"), ("refuses acks=all", "red"),
        ("3m 20s", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_worst_word_of_a_state_gives_its_colour(state: str, colour: str) -> None:
    assert colour_of(state) == colour


@pytest.mark.usefixtures("colourful")
def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coloured("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert coloured("x", "", Terminal()) == "x"
    assert coloured("x", "red", io.StringIO()) == "x"
    assert shows_colours(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert not shows_colours(Terminal(), {"NO_COLOR": "1"}) and not shows_colours(Terminal(), {"TERM": "dumb"})
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("x", "red", Terminal()) == "x"


@pytest.mark.usefixtures("colourful")
def test_states_of_a_table_are_coloured_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", stream)
        print_table(["topic", "state", "drained in"], [["ok", "offline", "never"], ["b", "ok", "3 s"]])
        return stream.getvalue()

    assert "\x1b" not in shown(io.StringIO())
    drawn = shown(Terminal())
    assert drawn.count("\x1b[31m") == 2 and drawn.count("\x1b[32m") == 1
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = shown(Terminal())
    assert "\x1b[31m" not in drawn and "\x1b[32m" not in drawn


@pytest.mark.usefixtures("colourful")
def test_errors_are_red_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, begins in ((Terminal(), "\x1b[31merror:\x1b[0m x ["), (io.StringIO(), "error: x [")):
        monkeypatch.setattr(sys, "stderr", stream)
        report_error(InvalidArgument("x"), as_json=False)
        note("y")
        assert stream.getvalue().startswith(begins) and stream.getvalue().endswith("y\n")


def lag(behind: int, age_s: float, drain_s: float | None) -> PartitionLag:
    return PartitionLag("t", 0, None, 0, 0, behind, behind, age_s, drain_s)


def test_the_lag_of_a_group_is_the_sum_the_oldest_and_the_slowest() -> None:
    assert lag_totals(None) == ("-", "-", "-")
    assert lag_totals([]) == lag_totals([lag(0, 0, None)]) == ("0", "-", "-")
    assert lag_totals([lag(3, 1.5, 2), lag(4, 0.5, 90), lag(0, 0, None)]) == ("7", "1.5 s", "1m 30s")
    assert lag_totals([lag(3, 1.5, 2), lag(4, 0.5, None)]) == ("7", "1.5 s", "never")


def test_patterns_choose_topics_but_none_of_comets_own() -> None:
    topics = ["__offsets", "a", "test-1", "test-2", "test-A"]
    assert matching(["*"], topics) == ["a", "test-1", "test-2", "test-A"]
    assert matching(["test-?", "a", "a", "test-[12]"], topics) == ["test-1", "test-2", "test-A", "a"]
    assert matching(["TEST-*", "a"], [*topics, "TEST-9"]) == ["TEST-9", "a"]
    assert matching(["__offsets"], topics) == ["__offsets"]
    assert [is_pattern(name) for name in ("a", "a*", "a?", "[a]")] == [False, True, True, True]
    with pytest.raises(TopicNotFound, match=r"no topic matches 'zest-\*'"):
        matching(["a", "zest-*"], topics)
    with pytest.raises(TopicNotFound, match="topic 'b' does not exist"):
        matching(["b"], topics)
    with pytest.raises(InvalidArgument):
        matching([""], topics)
