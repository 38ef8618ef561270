"""The states of streaming queries as records, and how a supervisor keeps queries running; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from comet.spark.query_state import QueryState, micros, reason, rounded
from comet.spark.query_supervisor import FIRST_BATCH_US_MAX, RESTARTS, QuerySupervisor

S = 1_000_000
NOON = "2026-01-31T12:00:00.500Z"
NOON_US = 1_769_860_800_500_000


def batch(number: int, rows: int = 10, newest: str | None = NOON, **more: Any) -> dict[str, Any]:
    times = {} if newest is None else {"max": newest, "watermark": "2026-01-31T11:59:59.000Z"}
    return {
        "batchId": number, "numInputRows": rows, "inputRowsPerSecond": 1000.04, "eventTime": times,
        "durationMs": {"addBatch": 80, "triggerExecution": 123}, **more,
    }  # fmt: skip


class Query:
    """A query that does what a test says."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: Any = None
        self.error: Exception | None = None
        self.busy = False

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.busy}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def fail(self, error: str = "no luck") -> None:
        self.isActive, self.error = False, ValueError(error)


class Lost:
    """A query whose Java is gone: whatever is asked is an error."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError("nobody answers")


class World:
    """A supervisor, the queries it has started, and what it told."""

    def __init__(self, *names: str) -> None:
        self.started: list[tuple[str, Query]] = []
        self.told: list[dict[str, Any]] = []
        self.refused: Exception | None = None
        self.supervisor = QuerySupervisor({name: {} for name in names}, self.start, self.told.append)

    def start(self, name: str) -> Query:
        if self.refused is not None:
            raise self.refused
        self.started.append((name, Query()))
        return self.started[-1][1]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.started]

    def fail_after(self, now: int, ran_us: int, pause_s: float) -> int:
        """The only query runs for a time and fails; it is started again after this pause, whose end is returned."""
        name, query = self.started[-1]
        query.lastProgress = batch(0)
        self.supervisor.turn(now)
        query.fail()
        now += ran_us
        starts = len(self.started)
        self.supervisor.turn(now)
        self.supervisor.turn(now + round(pause_s * S) - 1)
        assert (len(self.started), self.states(name)[-1]) == (starts, "failed")
        now += round(pause_s * S)
        self.supervisor.turn(now)
        assert len(self.started) == starts + 1
        return now

    def lose(self, name: str) -> None:
        gone: Any = Lost()
        self.supervisor._running[name] = gone

    def states(self, query: str) -> list[str]:
        return [record["state"] for record in self.told if record["query"] == query]


def test_a_record_says_what_a_batch_was() -> None:
    job = QueryState("bars.1s", {"window_s": 1, "mode": "update"})
    job.started()
    job.progressed(batch(7), now_us=5 * S)
    assert job.due_record(5 * S) == {
        "query": "bars.1s", "state": "running", "batch": 7, "rows": 10, "rows_per_s": 1000.0, "batch_ms": 123,
        "event_us": NOON_US, "watermark_us": NOON_US - 1_500_000, "at_us": 5 * S, "window_s": 1, "mode": "update",
        "error": "", "doing": "",
    }  # fmt: skip


def test_it_is_told_at_once_that_a_state_changed_and_of_batches_once_a_second() -> None:
    job = QueryState("stats", {"window_s": 60, "mode": "update"})
    assert job.due_record(S) is not None
    assert job.due_record(S + 1) is None
    job.progressed(batch(0), S + 2)
    assert job.due_record(S + 2) is not None
    for number in range(1, 9):
        job.progressed(batch(number), S + 100_000 * number)
        assert job.due_record(S + 100_000 * number) is None
    told = job.due_record(2 * S + 2)
    assert told is not None and told["batch"] == 8
    assert job.due_record(4 * S) is None, "nothing is new"


def test_one_that_has_nothing_to_do_says_now_and_then_that_it_is_there() -> None:
    job = QueryState("archive", {"window_s": 60, "mode": "append"})
    job.progressed(batch(0), S)
    assert job.due_record(S) is not None
    job.progressed(batch(0), 5 * S)
    assert job.due_record(5 * S) is None
    told = job.due_record(6 * S)
    assert told is not None and told["at_us"] == 6 * S and told["batch"] == 0


def test_the_newest_event_never_goes_back_and_1970_is_no_watermark() -> None:
    job = QueryState("bars.1s", {"window_s": 1, "mode": "update"})
    job.progressed(batch(0, eventTime={"max": NOON, "watermark": "1970-01-01T00:00:00.000Z"}), S)
    assert (job.event_us, job.watermark_us) == (NOON_US, None)
    job.progressed(batch(1, newest="2026-01-31T11:00:00.000Z"), 2 * S)
    job.progressed(batch(2, newest=None), 3 * S)
    assert job.event_us == NOON_US and job.watermark_us is not None


def test_one_that_finds_nothing_to_do_runs_and_has_done_no_batch() -> None:
    job = QueryState("bars.1s", {"window_s": 1, "mode": "update"})
    job.progressed(batch(0, durationMs={"latestOffset": 3, "triggerExecution": 3}), S)
    assert (job.state, job.last.batch, job.event_us) == ("running", None, None)


def test_pauses_grow_to_the_longest_and_begin_at_the_first_after_it_was_well_for_long() -> None:
    world, now = World("a"), 0
    world.supervisor.turn(now)
    for pause_s in (*RESTARTS.pauses_s, RESTARTS.pauses_s[-1], RESTARTS.pauses_s[-1]):
        now = world.fail_after(now, S, pause_s)
    now = world.fail_after(now, 120 * S, RESTARTS.pauses_s[-1])
    now = world.fail_after(now, 121 * S, RESTARTS.pauses_s[0])
    world.fail_after(now, S, RESTARTS.pauses_s[1])


@pytest.mark.parametrize(
    ("value", "rate"), [(12.34, 12.3), ("NaN", 0.0), (float("inf"), 0.0), (-1, 0.0), (None, 0.0), ("fast", 0.0)]
)
def test_rates_that_are_none_are_nought(value: Any, rate: float) -> None:
    assert rounded(value) == rate


@pytest.mark.parametrize(
    ("text", "at"), [(NOON, NOON_US), (None, None), ("soon", None), ("2026-01-31T12:00:00.5", None)]
)
def test_times_are_read_as_spark_writes_them(text: Any, at: int | None) -> None:
    assert micros(text) == at


def test_the_reason_is_taken_out_of_pages_of_traceback() -> None:
    pages = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in call\n'
        "    raise Unavailable(text)\n"
        "comet.errors.Unavailable: no broker at 127.0.0.1:9092\n\n"
        "\tat org.apache.spark.Something(Some.scala:12)\n"
    )
    assert reason(pages) == "Unavailable: no broker at 127.0.0.1:9092"
    assert reason("[A_CLASS] something\n\tat org.apache") == "[A_CLASS] something"
    assert reason("") == "no reason given"
    assert len(reason("x" * 10_000)) <= 500


def test_queries_are_started_one_after_the_other() -> None:
    world = World("a", "b", "c")
    world.supervisor.turn(S)
    world.supervisor.turn(2 * S)
    assert world.names == ["a"]
    world.started[0][1].lastProgress = batch(0)
    world.supervisor.turn(3 * S)
    assert world.names == ["a", "b"]
    world.supervisor.turn(3 * S + FIRST_BATCH_US_MAX)
    assert world.names == ["a", "b"]
    world.supervisor.turn(3 * S + FIRST_BATCH_US_MAX + 1)
    assert world.names == ["a", "b", "c"]


def test_one_that_fails_is_told_of_and_started_again_while_the_others_go_on() -> None:
    world = World("a", "b")
    world.supervisor.turn(0)
    world.started[0][1].lastProgress = batch(0)
    world.supervisor.turn(S)
    world.started[0][1].fail("broken")
    world.supervisor.turn(2 * S)
    assert world.told[-1]["state"] == "failed" and world.told[-1]["error"] == "broken"
    world.supervisor.turn(2 * S + 900_000)
    assert world.names == ["a", "b"]
    world.supervisor.turn(3 * S)
    assert world.names == ["a", "b", "a"]
    assert world.states("a") == ["starting", "running", "failed", "starting"]
    assert world.started[1][1].isActive


def test_one_that_cannot_be_started_is_tried_again_until_it_can() -> None:
    world = World("a")
    world.refused = RuntimeError("no such topic")
    for now in range(0, 200 * S, S):
        world.supervisor.turn(now)
    assert set(world.states("a")) == {"failed"}
    assert 8 < world.states("a").count("failed") < 12, "half a minute between two, in the end"
    world.refused = None
    for now in range(200 * S, 231 * S, S):
        world.supervisor.turn(now)
    assert world.names == ["a"]


def test_queries_are_stopped_between_batches_and_by_force_only_when_that_is_said() -> None:
    world = World("a", "b")
    world.supervisor.turn(0)
    world.started[0][1].lastProgress = batch(0)
    world.supervisor.turn(S)
    world.started[1][1].busy = True
    assert not world.supervisor.end(2 * S)
    assert [query.isActive for _, query in world.started] == [False, True]
    assert world.states("a")[-1] == "running", "all of it stops, or none of it has"
    assert world.supervisor.end(3 * S, force=True)
    assert world.states("a")[-1] == world.states("b")[-1] == "stopped"


def test_nothing_is_started_once_it_is_to_end() -> None:
    world = World("a", "b")
    world.supervisor.turn(0)
    world.started[0][1].fail()
    world.supervisor.turn(S)
    assert world.supervisor.end(2 * S)
    world.supervisor.turn(100 * S)
    assert world.names == ["a", "b"]
    assert world.states("a")[-1] == "failed", "that it failed is more to know than that it ended"


def test_one_that_does_not_answer_any_more_has_failed_while_the_others_go_on() -> None:
    world = World("a", "b")
    world.supervisor.turn(0)
    world.started[0][1].lastProgress = batch(0)
    world.supervisor.turn(S)
    world.lose("a")
    world.started[1][1].lastProgress = batch(0)
    world.supervisor.turn(2 * S)
    assert (world.states("a")[-1], world.states("b")[-1]) == ("failed", "running")
    assert [record["error"] for record in world.told if record["state"] == "failed"] == ["nobody answers"]
    world.supervisor.turn(3 * S)
    assert world.names == ["a", "b", "a"]


def test_one_that_does_not_answer_any_more_does_not_keep_the_others_from_ending() -> None:
    world = World("a", "b")
    world.supervisor.turn(0)
    world.started[0][1].lastProgress = batch(0)
    world.supervisor.turn(S)
    world.lose("a")
    assert world.supervisor.end(2 * S)
    assert (world.states("a")[-1], world.states("b")[-1]) == ("failed", "stopped")
    assert not world.started[1][1].isActive
