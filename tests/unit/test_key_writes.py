"""Writes of a KV that are made in one turn: what goes into one request, and who gets its error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

import comet
from comet.errors import CometError
from comet.key_values.key_calls import KeyCalls, Undecided
from comet.key_values.key_writes import BYTES_MAX, RECORDS_MAX, KeyWrites
from comet.v1 import records_pb2 as pb

Refuse = Callable[[list[bytes]], Exception | None]


class Calls:
    """Stands for the leaders: notes the requests, and gives records the next offsets."""

    def __init__(self, refuse: Refuse = lambda _keys: None) -> None:
        self.requests: list[tuple[int, list[bytes]]] = []
        self.limits: list[float] = []
        self._refuse = refuse
        self._end = 0

    async def publish(self, partition: int, records: Sequence[pb.Record], give_up: float) -> list[int]:
        keys = [record.key for record in records]
        self.requests.append((partition, keys))
        self.limits.append(give_up)
        await asyncio.sleep(0)
        error = self._refuse(keys)
        if error is not None:
            raise error
        first, self._end = self._end, self._end + len(keys)
        return list(range(first, self._end))


def writes(calls: Calls) -> KeyWrites:
    return KeyWrites(cast("KeyCalls", calls), 10.0)


def record(key: str, value: bytes = b"1") -> pb.Record:
    return pb.Record(key=key.encode(), value=value)


async def test_writes_of_one_turn_go_to_a_partition_in_one_request() -> None:
    calls = Calls()
    found = writes(calls)
    offsets = await asyncio.gather(*[found.write(at % 2, record(f"{at}")) for at in range(5)])
    assert calls.requests == [(0, [b"0", b"2", b"4"]), (1, [b"1", b"3"])]
    assert offsets == [0, 3, 1, 4, 2]
    assert await found.write(0, record("6")) == 5
    assert len(calls.requests) == 3


async def test_a_key_is_once_in_a_request_and_its_writes_stay_in_order() -> None:
    calls = Calls()
    found = writes(calls)
    offsets = await asyncio.gather(*[found.write(0, record(key)) for key in "aba"])
    assert calls.requests == [(0, [b"a", b"b"]), (0, [b"a"])]
    assert offsets == [0, 1, 2]


async def test_a_request_is_bounded_and_a_larger_record_goes_alone() -> None:
    calls = Calls()
    found = writes(calls)
    await asyncio.gather(*[found.write(0, record(f"{at}")) for at in range(RECORDS_MAX + 1)])
    assert [len(keys) for _, keys in calls.requests] == [RECORDS_MAX, 1]
    calls.requests.clear()
    sizes = {"a": 1, "b": BYTES_MAX, "c": BYTES_MAX // 2, "d": BYTES_MAX // 2 - 2, "e": 1}
    await asyncio.gather(*[found.write(0, record(key, bytes(size))) for key, size in sizes.items()])
    assert calls.requests == [(0, [b"a"]), (0, [b"b"]), (0, [b"c", b"d"]), (0, [b"e"])]


@pytest.mark.parametrize("error", [comet.RevisionMismatch("another revision"), comet.RecordTooLarge("too large")])
async def test_the_record_that_is_refused_gets_the_error_and_the_others_are_written(error: CometError) -> None:
    calls = Calls(lambda keys: error if b"b" in keys else None)
    found = writes(calls)
    results = await asyncio.gather(*[found.write(0, record(key)) for key in "abc"], return_exceptions=True)
    assert results == [0, error, 1]
    assert calls.requests == [(0, [b"a", b"b", b"c"]), (0, [b"a"]), (0, [b"b"]), (0, [b"c"])]
    assert len(set(calls.limits)) == 1, "sending it again takes no longer than the call may"


async def test_the_others_do_not_wait_for_a_key_of_an_open_transaction() -> None:
    decided = asyncio.Event()

    class Waiting(Calls):
        async def publish(self, partition: int, records: Sequence[pb.Record], give_up: float) -> list[int]:
            if records[0].key == b"a" and len(records) == 1:
                await decided.wait()
            return await super().publish(partition, records, give_up)

    calls = Waiting(lambda keys: Undecided() if len(keys) > 1 else None)
    found = writes(calls)
    waiting, other = [asyncio.ensure_future(found.write(0, record(key))) for key in "ab"]
    assert await other == 0
    assert not waiting.done()
    decided.set()
    assert await waiting == 1


@pytest.mark.parametrize("error", [comet.Timeout("maybe written"), comet.Unavailable("too late"), ValueError("a bug")])
async def test_a_request_that_may_be_written_is_not_taken_apart(error: Exception) -> None:
    calls = Calls(lambda _keys: error)
    found = writes(calls)
    results = await asyncio.gather(*[found.write(0, record(key)) for key in "ab"], return_exceptions=True)
    assert results == [error, error]
    assert len(calls.requests) == 1


async def test_a_call_that_is_cancelled_before_its_turn_ends_is_not_sent() -> None:
    calls = Calls()
    found = writes(calls)
    cancelled, other = [asyncio.ensure_future(found.write(0, record(key))) for key in "ab"]
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    await other
    assert cancelled.cancelled()
    assert calls.requests == [(0, [b"b"])]


async def test_a_cancelled_call_takes_nothing_from_the_others() -> None:
    calls = Calls(lambda _keys: None if cancelled.cancel() else ValueError("it was done"))
    found = writes(calls)
    cancelled, other = [asyncio.ensure_future(found.write(0, record(key))) for key in "ab"]
    assert await other == 1
    assert cancelled.cancelled()
