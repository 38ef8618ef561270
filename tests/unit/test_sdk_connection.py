"""The parts of a connection without a broker: its requests in flight, its queue, its subscribers, its liveness."""

from __future__ import annotations

import pytest

from comet import limits
from comet.client.in_flight import NUMBER_MAX, InFlightRequests
from comet.client.send_queue import SendQueue
from comet.client.subscribers import Subscribers
from comet.errors import CometError, LimitExceeded, NotLeader, Unavailable
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb


class Batch:
    def __init__(self) -> None:
        self.answers: list[int | CometError] = []

    def acked(self, base_offset: int, append_time_us: int) -> None:
        self.answers.append(base_offset)

    def refused(self, error: CometError) -> None:
        self.answers.append(error)


class Source:
    def __init__(self, *frames: bytes) -> None:
        self.frames = list(frames)
        self.left: list[SendQueue] = []

    def next_frame(self, queue: SendQueue) -> bytes | None:
        return self.frames.pop(0) if self.frames else None

    def leave(self, queue: SendQueue) -> None:
        self.left.append(queue)


# ---- requests in flight


async def test_a_number_in_flight_is_not_given_twice() -> None:
    requests = InFlightRequests("broker:9092")
    call = pb.ClientFrame()
    requests.add_call(call)
    requests.add_batch(2, Batch())
    requests.add_one_way(3, lambda _: None)
    requests._last = NUMBER_MAX - 1
    assert [requests.next_number() for _ in range(3)] == [NUMBER_MAX, 4, 5]
    assert call.request == 1


async def test_each_kind_of_request_gets_its_refusal_once() -> None:
    requests, batch, error = InFlightRequests("broker:9092"), Batch(), NotLeader("moved")
    refusals: list[CometError] = []
    call = pb.ClientFrame()
    future = requests.add_call(call)
    requests.add_batch(2, batch)
    requests.add_one_way(3, refusals.append)
    assert [requests.refuse(number, error) for number in (call.request, 2, 3)] == [True, True, True]
    assert future.exception() is error and batch.answers == [error] and refusals == [error]
    assert [requests.refuse(number, error) for number in (call.request, 2, 3)] == [False, False, False]
    assert not requests.answer_due


async def test_an_answer_in_time_counts_and_a_late_one_is_ignored() -> None:
    requests, kept, forgotten = InFlightRequests("broker:9092"), Batch(), Batch()
    requests.add_batch(1, kept)
    requests.add_batch(2, forgotten)
    requests.forget_batch(2)
    assert requests.answer_due
    requests.acknowledge([(1, 7, 0), (2, 8, 0), (1, 9, 0)])
    assert kept.answers == [7] and not forgotten.answers
    assert not requests.answer_due


async def test_a_lost_connection_fails_the_calls_each_with_an_error_of_its_own() -> None:
    requests = InFlightRequests("broker:9092")
    calls = [requests.add_call(pb.ClientFrame()) for _ in range(2)]
    requests.add_batch(9, Batch())
    requests.close("lost")
    errors = [future.exception() for future in calls]
    assert all(isinstance(error, Unavailable) for error in errors) and errors[0] is not errors[1]
    assert not requests.answer_due


async def test_calls_and_one_way_requests_are_bounded() -> None:
    requests = InFlightRequests("broker:9092")
    for _ in range(limits.REQUESTS_MAX):
        requests.add_call(pb.ClientFrame())
    with pytest.raises(LimitExceeded):
        requests.add_call(pb.ClientFrame())
    for number in range(limits.ONE_WAY_REQUESTS_MAX + 1):
        requests.add_one_way(10**6 + number, lambda _: None)
    assert not requests.refuse(10**6, NotLeader("moved"))
    assert requests.refuse(10**6 + 1, NotLeader("moved"))


# ---- the queue


async def test_control_frames_go_first_and_sources_in_turn() -> None:
    queue = SendQueue("broker:9092")
    changed = queue.changed()
    queue.ready(Source())
    assert changed.done()
    queue.ready(Source(b"one"))
    queue.ready(Source(b"two"))
    queue.put(b"control")
    assert [queue.next_frame(False) for _ in range(4)] == [b"control", b"one", b"two", None]


async def test_sources_wait_while_they_are_held_and_control_frames_do_not() -> None:
    queue, source = SendQueue("broker:9092"), Source(b"one")
    queue.ready(source)
    queue.hold(60.0)
    queue.hold(0.01)
    queue.put(b"control")
    assert [queue.next_frame(False) for _ in range(2)] == [b"control", None]
    await queue.changed()
    assert queue.next_frame(False) == b"one"
    queue.hold(60.0)
    queue.ready(source)
    assert queue.next_frame(True) is None and source.left == [queue], "it may leave the broker all the same"
    queue.clear()


async def test_sources_leave_a_broker_that_shuts_down() -> None:
    queue, source = SendQueue("broker:9092"), Source(b"one")
    queue.ready(source)
    queue.put(b"control")
    assert queue.next_frame(True) == b"control"
    assert queue.next_frame(True) is None
    assert source.left == [queue] and source.frames == [b"one"]


async def test_control_frames_are_bounded() -> None:
    queue = SendQueue("broker:9092")
    for _ in range(limits.CONTROL_FRAMES_MAX):
        queue.put(b"")
    with pytest.raises(LimitExceeded):
        queue.put(b"")


# ---- subscribers


def test_frames_go_to_their_subscriber_and_others_are_dropped() -> None:
    subscribers = Subscribers()
    heard: list[pb.ServerFrame] = []
    subscribers.listeners["one"] = heard.append
    for group in ("one", "two"):
        subscribers.receive("assignment", pb.ServerFrame(assignment=groups_pb.Assignment(group=group)))
        subscribers.receive("evicted", pb.ServerFrame(evicted=groups_pb.Evicted(group=group)))
    assert [frame.WhichOneof("frame") for frame in heard] == ["assignment", "evicted"]
    subscribers.receive("delivery", pb.ServerFrame(delivery=pb.Delivery(partition=4)))
    subscribers.end(4, NotLeader("moved"))
