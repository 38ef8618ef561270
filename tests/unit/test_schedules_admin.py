"""The client of schedules: the requests that it sends, and what it makes of the answers; the table of next times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message

import comet
from comet.admin.schedules import ScheduleAdmin, ScheduleChange, ScheduleInfo
from comet.cli._times import of_schedule
from comet.cli.schedule import listed
from comet.schedules.preview import SchedulePreview, preview
from comet.schedules.spec import parse_schedule
from comet.v1 import records_pb2, types_pb2
from comet.v1 import schedules_pb2 as pb
from comet.wire.protobuf import error_to_pb

DUE = 1_795_825_800_000_000
STORED = pb.Schedule(
    topic="quotes", id="report", spec="every 15m", next_us=DUE, fired=3, skipped=1, fired_us=DUE - 900_000_000,
    author="client:ann", created_us=5, tzdata="2026f", revision=7, late="skip", late_max_ms=1_000, jitter_ms=10,
    end_us=2 * DUE, fires_max=9,
    record=records_pb2.Record(
        key=b"k", value=b"v", headers=[records_pb2.Header(name="h", value=b"\xff")], partition=2, ttl_ms=-1
    ),
)  # fmt: skip
INFO = ScheduleInfo(
    "quotes", "report", "every 15m", "skip", 1_000, 10, 2 * DUE, 9, next_us=DUE, fired=3, skipped=1,
    fired_us=DUE - 900_000_000, author="client:ann", created_us=5, tzdata="2026f", revision=7,
)  # fmt: skip


class Broker:
    """Answers calls with what it is told, the last time with the last of these, and keeps the requests."""

    def __init__(self, *answers: Message | comet.CometError) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, Any]] = []

    def admin(self, timeout_ms: int = 30_000) -> ScheduleAdmin:
        return ScheduleAdmin(self.request, timeout_ms, Random(0))

    async def request(self, method: str, request: Any, response: type[Message]) -> Any:
        self.calls.append((method, request))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, comet.CometError):
            raise answer
        assert isinstance(answer, response)
        return answer


def put_answer(**members: Any) -> pb.PutSchedulesResponse:
    return pb.PutSchedulesResponse(results=[pb.SchedulePutResult(**members)])


async def test_a_put_has_the_record_and_the_rules_of_the_schedule() -> None:
    broker = Broker(put_answer(schedule=STORED, created=True))
    end = datetime(2026, 12, 31, 18, tzinfo=timezone(timedelta(hours=-5)))
    done = await broker.admin().put_schedule(
        "quotes", "report", "every  15m", value={"bid": 1.5}, key="k", headers={"h": b"\xff"}, partition=2, ttl_ms=-1,
        late="skip", late_max_ms=1_000, jitter_ms=10, end=end, fires_max=9, revision=-1, dry_run=True,
    )  # fmt: skip
    assert done == comet.SchedulePut(True, INFO, created=True)
    ((method, sent),) = broker.calls
    assert method == "PutSchedules"
    record = records_pb2.Record(
        key=b"k", value=b'{"bid":1.5}', headers=[records_pb2.Header(name="h", value=b"\xff")], partition=2, ttl_ms=-1
    )
    schedule = pb.Schedule(
        topic="quotes", id="report", spec="every  15m", record=record, late="skip", late_max_ms=1_000, jitter_ms=10,
        end_us=1_798_758_000_000_000, fires_max=9,
    )  # fmt: skip
    put = pb.SchedulePut(schedule=schedule, revision=-1)
    assert sent == pb.PutSchedulesRequest(topic="quotes", schedules=[put], dry_run=True)


async def test_a_put_without_a_revision_or_a_value_says_so() -> None:
    """Not set is another thing than 0: any revision, a tombstone."""
    broker = Broker(put_answer(schedule=STORED))
    await broker.admin().put_schedule("quotes", "", "every 15m", value=None)
    sent = broker.calls[0][1].schedules[0]
    assert not sent.HasField("revision") and not sent.HasField("delay_ms") and not sent.fresh
    assert not sent.schedule.record.HasField("value") and not sent.schedule.record.HasField("key")


@pytest.mark.parametrize(
    ("end", "sent_us"), [(None, 0), (77, 77), ("2026-12-31T18:00 America/New_York", 1_798_758_000_000_000)]
)
async def test_an_end_may_be_a_text_or_a_number(end: Any, sent_us: int) -> None:
    broker = Broker(put_answer(schedule=STORED))
    await broker.admin().put_schedule("quotes", "a", "every 15m", value=b"", end=end)
    assert broker.calls[0][1].schedules[0].schedule.end_us == sent_us


async def test_the_error_of_the_one_schedule_is_raised() -> None:
    error = types_pb2.Error(
        code=types_pb2.ERROR_CODE_REVISION_MISMATCH, message="it has revision 7", details={"revision": "7"}
    )
    admin = Broker(put_answer(error=error)).admin()
    with pytest.raises(comet.RevisionMismatch, match="it has revision 7") as caught:
        await admin.put_schedule("quotes", "report", "every 15m", value=b"", revision=6)
    assert caught.value.revision == 7


def failed(error: comet.CometError) -> pb.PutSchedulesResponse:
    return put_answer(error=error_to_pb(error))


LOADING = comet.Unavailable("partition 3 of __schedules has no leader now", retry_after_ms=1)
MOVED = comet.NotLeader("broker 2 leads it", details={"leader": "2"})


async def test_calls_are_repeated_while_their_partition_has_no_leader() -> None:
    stored = put_answer(schedule=STORED, created=True)
    broker = Broker(failed(LOADING), failed(MOVED), MOVED, stored)
    assert (await broker.admin().put_schedule("quotes", "report", "every 15m", value=b"")).created
    assert len(broker.calls) == 4 and all(call == broker.calls[0] for call in broker.calls)
    broker = Broker(MOVED, LOADING, STORED)
    assert (await broker.admin().run_schedule("quotes", "report")).schedule == INFO
    assert len(broker.calls) == 3


@pytest.mark.parametrize(
    "error", [comet.Unavailable("it went away"), comet.LeadershipLost("it was replaced"), comet.Timeout("no answer")]
)
async def test_a_call_that_may_have_been_done_is_not_repeated(error: comet.CometError) -> None:
    """Else a schedule could run twice."""
    broker = Broker(error)
    with pytest.raises(type(error)):
        await broker.admin().run_schedule("quotes", "report")
    assert len(broker.calls) == 1
    broker = Broker(failed(error))
    with pytest.raises(type(error)):
        await broker.admin().put_schedule("quotes", "report", "every 15m", value=b"")
    assert len(broker.calls) == 1


async def test_repeating_ends_with_the_time_out() -> None:
    broker = Broker(failed(comet.Unavailable("no leader", retry_after_ms=60_000)))
    with pytest.raises(comet.Unavailable, match="no leader"):
        await broker.admin().put_schedule("quotes", "report", "every 15m", value=b"")
    assert len(broker.calls) == 1


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"topic": "a/b"}, comet.InvalidArgument, "not a valid topic name"),
        ({"spec": "cron 30 25 * * *"}, comet.InvalidSchedule, "at character 8: hour '25'"),
        ({"end": "tomorrow"}, comet.InvalidSchedule, "time 'tomorrow'"),
        ({"jitter_ms": -1}, comet.InvalidArgument, "cannot be stored"),
        ({"fires_max": 2**64}, comet.InvalidArgument, "cannot be stored"),
        ({"id": "\ud800"}, comet.InvalidArgument, "cannot be stored"),
        ({"ttl_ms": 0}, comet.InvalidArgument, "ttl_ms must be"),
        ({"headers": {"a": 1}}, comet.InvalidArgument, "headers must be"),
        ({"key": 5}, comet.InvalidArgument, "a key must be"),
    ],
)
async def test_a_wrong_put_is_not_sent(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    broker = Broker(put_answer(schedule=STORED))
    given: dict[str, Any] = {"topic": "quotes", "id": "a", "spec": "every 15m", "value": b""} | wrong
    with pytest.raises(error, match=message):
        await broker.admin().put_schedule(**given)
    assert not broker.calls


async def test_a_schedule_has_its_record() -> None:
    broker = Broker(STORED)
    found = await broker.admin().get_schedule("quotes", "report")
    assert found == comet.ScheduleDetails(INFO, b"k", b"v", (("h", b"\xff"),), 2, -1)
    assert broker.calls == [("GetSchedule", pb.ScheduleRequest(topic="quotes", id="report"))]


async def test_what_is_not_set_is_none() -> None:
    found = await Broker(pb.Schedule(topic="quotes", id="a")).admin().get_schedule("quotes", "a")
    one = found.schedule
    assert (found.key, found.value, found.headers, found.partition, found.ttl_ms) == (None, None, (), None, None)
    assert (one.next_us, one.fired_us, one.end_us, one.fires_max) == (None, None, 0, 0)


@pytest.mark.parametrize(
    ("paused", "state"),
    [(None, pb.SCHEDULE_STATE_ANY), (True, pb.SCHEDULE_STATE_PAUSED), (False, pb.SCHEDULE_STATE_ACTIVE)],
)
async def test_a_list_has_its_filter_and_the_mark_of_the_next_page(paused: bool | None, state: Any) -> None:
    broker = Broker(pb.ListSchedulesResponse(schedules=[STORED], after="quotes/report"))
    found = await broker.admin().list_schedules("quotes", prefix="re", paused=paused, after="quotes/a", limit=7)
    assert found == comet.ScheduleList((INFO,), "quotes/report")
    wanted = pb.ListSchedulesRequest(topic="quotes", prefix="re", after="quotes/a", limit=7, state=state)
    assert broker.calls == [("ListSchedules", wanted)]


async def test_the_last_page_has_no_mark() -> None:
    broker = Broker(pb.ListSchedulesResponse())
    assert (await broker.admin().list_schedules()).after is None
    assert broker.calls[0][1] == pb.ListSchedulesRequest(limit=100)


@pytest.mark.parametrize("wrong", [{"prefix": "a"}, {"limit": 0}, {"limit": 1_001}, {"topic": ""}])
async def test_a_wrong_list_is_not_sent(wrong: dict[str, Any]) -> None:
    broker = Broker(pb.ListSchedulesResponse())
    with pytest.raises(comet.InvalidArgument):
        await broker.admin().list_schedules(**wrong)
    assert not broker.calls


CHANGES: list[tuple[str, str, Callable[..., Any]]] = [
    ("CancelSchedule", "cancelled", ScheduleAdmin.cancel_schedule),
    ("PauseSchedule", "paused", ScheduleAdmin.pause_schedule),
    ("ResumeSchedule", "resumed", ScheduleAdmin.resume_schedule),
    ("RunSchedule", "run", ScheduleAdmin.run_schedule),
]


@pytest.mark.parametrize(("call", "change", "method"), CHANGES)
async def test_a_change_names_the_schedule_and_its_revision(call: str, change: str, method: Any) -> None:
    broker = Broker(STORED)
    admin = broker.admin()
    assert await method(admin, "quotes", "report") == ScheduleChange(False, change, INFO)
    assert await method(admin, "quotes", "report", revision=0, dry_run=True) == ScheduleChange(True, change, INFO)
    assert broker.calls == [
        (call, pb.ScheduleRequest(topic="quotes", id="report")),
        (call, pb.ScheduleRequest(topic="quotes", id="report", revision=0, dry_run=True)),
    ]


async def test_a_move_has_the_new_times() -> None:
    broker = Broker(STORED)
    await broker.admin().move_schedule("quotes", "report", "every 1h", revision=7, dry_run=True)
    wanted = pb.MoveScheduleRequest(topic="quotes", id="report", spec="every 1h", revision=7, dry_run=True)
    assert broker.calls == [("MoveSchedule", wanted)]
    with pytest.raises(comet.InvalidSchedule):
        await broker.admin().move_schedule("quotes", "report", "hourly")


PAUSED = replace(INFO, paused=True, reason="topic quotes does not exist")


@pytest.mark.parametrize(
    ("change", "one", "text", "tried"),
    [
        ("cancelled", INFO, "cancelled quotes/report", "its times are every 15m, next at 2026-11-28T00:30:00+00:00"),
        ("run", INFO, "quotes/report is due now", "quotes/report would be due now"),
        ("paused", INFO, "paused quotes/report: every 15m", "would be paused: quotes/report: every 15m"),
        (
            "moved",
            INFO,
            "moved quotes/report: every 15m, next at 2026-11-28T00:30:00+00:00",
            "would be moved: quotes/report: every 15m, next at 2026-11-28T00:30:00+00:00",
        ),
        (
            "moved",
            PAUSED,
            "moved quotes/report: every 15m, paused: topic quotes does not exist",
            "would be moved: quotes/report: every 15m, paused: topic quotes does not exist",
        ),
    ],
)
def test_a_change_says_its_effect(change: str, one: ScheduleInfo, text: str, tried: str) -> None:
    assert str(ScheduleChange(False, change, one)) == text
    assert str(ScheduleChange(True, change, one)) == tried


# ---- the command line


async def test_a_list_goes_on_until_it_has_enough_or_there_are_no_more() -> None:
    """Brokers leave out what the caller may not read, so a page may even be empty."""

    def page(count: int, after: str) -> pb.ListSchedulesResponse:
        return pb.ListSchedulesResponse(schedules=[STORED] * count, after=after)

    broker = Broker(page(1, "quotes/a"), page(0, "quotes/b"), page(2, "quotes/c"), page(5, ""))
    found = await listed(broker.admin(), "quotes", limit=3, after="", prefix="r", paused=False)
    assert found == comet.ScheduleList((INFO,) * 3, "quotes/c")
    assert [(request.after, request.limit) for _, request in broker.calls] == [
        ("", 3), ("quotes/a", 2), ("quotes/b", 2),
    ]  # fmt: skip
    assert all((request.prefix, request.state) == ("r", pb.SCHEDULE_STATE_ACTIVE) for _, request in broker.calls)
    broker = Broker(page(0, "quotes/b"), page(1, ""))
    assert await listed(broker.admin(), None, limit=3, after="x", prefix="", paused=None) == (
        comet.ScheduleList((INFO,), None)
    )


# ---- the table of next times


def times(count: int) -> SchedulePreview:
    return preview(parse_schedule("every 15m"), DUE - 1, {}, count=count, now_us=DUE)


def test_times_end_with_the_schedule() -> None:
    endless = replace(INFO, end_us=0, fires_max=0)
    assert of_schedule(times(3), endless) == times(3)
    ended = of_schedule(times(3), replace(endless, end_us=times(3).times[1].time_us))
    assert (len(ended.times), ended.end) == (2, "the schedule ends")
    counted = of_schedule(times(3), replace(endless, fires_max=5))
    assert (len(counted.times), counted.end) == (2, "the schedule ends after 5 records")


def test_the_first_of_two_ends_counts() -> None:
    both = replace(INFO, fires_max=4, end_us=times(3).times[1].time_us)
    assert (len(of_schedule(times(3), both).times)) == 1
    later = datetime(2199, 1, 1, tzinfo=UTC)
    far = replace(INFO, fires_max=100, end_us=int(later.timestamp() * 1e6))
    assert of_schedule(times(3), far) == times(3)
