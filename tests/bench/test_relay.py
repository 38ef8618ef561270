"""The bare relay: frames are whole however they are cut, and every one of them arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.wire.framing import head
from comet_bench.broker.relay import BUFFER_BYTES, RelayConnection
from comet_bench.processes import BenchFailed, Worker


@given(st.lists(st.integers(0, 300), max_size=20), st.lists(st.integers(0, 7_000), max_size=20))
def test_frames_are_handed_over_whole(sizes: list[int], cuts: list[int]) -> None:
    frames = [head(size) + bytes([number]) * size for number, size in enumerate(sizes)]
    stream, taken = b"".join(frames), list[bytes]()
    connection = RelayConnection(taken.append)
    for start, end in itertools.pairwise(sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})):
        room = connection.get_buffer(-1)
        assert len(room) >= end - start
        room[: end - start] = stream[start:end]
        connection.buffer_updated(end - start)
    assert taken == frames
    assert len(connection.get_buffer(-1)) == BUFFER_BYTES, "nothing is left over"


def test_a_consumer_whose_relay_ends_says_so() -> None:
    with Worker("relay") as relay:
        config = {"records": 10, "skip": 1, "servers": {"broker": [relay.pid]}}
        with Worker("relay_stopwatch", **config, **relay.ready()) as consumer:
            consumer.ready()
            consumer.go()
            relay.child.kill()
            with pytest.raises(BenchFailed, match="the relay has closed the connection"):
                consumer.done()
