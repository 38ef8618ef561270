"""The framing of the wire: any cut of the bytes gives the same frames, within bounded memory."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import Forbidden, RecordTooLarge
from comet.v1 import wire_pb2 as pb
from comet.wire import framing
from comet.wire.frames import Frame
from comet.wire.framing import DATA, FrameReader, Kind

BYTES_MAX = 300_000
SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([framing.LARGE_BYTES - 1, framing.LARGE_BYTES, framing.LARGE_BYTES + 1]),
    st.integers(framing.READ_BYTES - 20, framing.READ_BYTES + 20),
)
FIRST = framing.FIRST_BYTES
GOLDEN = Path(__file__).parents[1] / "golden" / "wire.txt"


def whole(size: int, seed: int) -> bytes:
    content = bytes((seed + at) % 251 for at in range(251)) * (size // 251 + 1)
    return framing.head(size) + content[:size]


class Others:
    """Readers that share the buffer, and use it whenever the reader under test does not hold it."""

    def __init__(self) -> None:
        self.buffer = framing.read_buffer()

    def scribble(self) -> None:
        self.buffer[:] = b"\xff" * len(self.buffer)


def feed(
    reader: FrameReader, others: Others, data: bytes, *, stop_after: int, alone: bool = False
) -> list[tuple[int, Frame]]:
    """Gives bytes as a transport does, and takes `stop_after` frames at a time. They are kept as they come: memory that
    is used again would change them. With `alone` it first asks for a frame that has come alone."""
    found: list[tuple[int, Frame]] = []
    while data:
        room = reader.room()
        assert len(room), "a transport ends a connection whose buffer is empty"
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        lone = reader.lone(size) if alone else None
        if lone is not None:
            found.append((DATA, lone))
            others.scribble()
            continue
        reader.filled(size)
        while True:
            taken = 0
            while taken < stop_after and (frame := reader.next()) is not None:
                found.append(frame)
                taken += 1
            reader.keep()
            others.scribble()
            if taken < stop_after:
                break
            reader.resume()
    return found


@given(
    st.lists(SIZES, min_size=1, max_size=6),
    st.lists(st.integers(1, 400_000), max_size=20),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_cut_gives_the_same_frames(sizes: list[int], cuts: list[int], stop_after: int, alone: bool) -> None:
    others = Others()
    reader = FrameReader(others.buffer, BYTES_MAX)
    data = b"".join(whole(size, number) for number, size in enumerate(sizes))
    found, at = [], 0
    for cut in [*cuts, len(data)]:
        found += feed(reader, others, data[at : at + cut], stop_after=stop_after, alone=alone)
        at += cut
    assert found == [(DATA, whole(size, number)[framing.HEAD_BYTES :]) for number, size in enumerate(sizes)]
    assert reader.unfinished_bytes == 0


@given(st.lists(st.sampled_from([0, 1, 200, 1000, 1001, 5000]), min_size=1, max_size=5), st.data())
def test_a_frame_that_comes_alone_is_taken_at_once(sizes: list[int], data: st.DataObject) -> None:
    """One that comes with others, in parts, or over the limit is not, and nothing has changed then."""
    others = Others()
    reader = FrameReader(others.buffer, 1000)
    for number, size in enumerate(sizes):
        frame = whole(size, number)
        cut = data.draw(st.integers(0, len(frame)))
        if not cut and size <= 1000:
            reader.room()[: len(frame)] = frame
            assert reader.lone(len(frame)) == frame[framing.HEAD_BYTES :]
            others.scribble()
            continue
        with pytest.raises(RecordTooLarge) if size > 1000 else nullcontext():
            taken = feed(reader, others, frame[:cut], stop_after=9, alone=True)
            taken += feed(reader, others, frame[cut:], stop_after=9, alone=True)
            assert taken == [(DATA, frame[framing.HEAD_BYTES :])]
        if size > 1000:
            return


def test_the_end_of_one_frame_and_the_beginning_of_the_next_are_not_one_that_comes_alone() -> None:
    others = Others()
    reader = FrameReader(others.buffer, 1000)
    frames = [whole(100, number) for number in range(3)]
    data = b"".join(frames)
    found = []
    for at in (0, 10, 118, 226):
        found += feed(reader, others, data[at : at + 108 if at else 10], stop_after=9, alone=True)
    assert found == [(DATA, frame[framing.HEAD_BYTES :]) for frame in frames]


def test_the_rest_of_a_large_frame_is_not_one_that_comes_alone() -> None:
    others = Others()
    reader = FrameReader(others.buffer, BYTES_MAX)
    frame = whole(50_000, 0)
    assert not feed(reader, others, frame[:20_000], stop_after=9, alone=True)
    others.buffer[: framing.HEAD_BYTES] = framing.head(30_008 - framing.HEAD_BYTES)
    assert feed(reader, others, frame[20_000:], stop_after=9, alone=True) == [(DATA, frame[framing.HEAD_BYTES :])]


def test_a_frame_of_the_connection_is_not_taken_as_one_of_the_call() -> None:
    reader = FrameReader(framing.read_buffer(), 1000)
    end = framing.end()
    reader.room()[: len(end)] = end
    assert reader.lone(len(end)) is None


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([FIRST - 1, FIRST, FIRST + 1, 2 * FIRST, 2 * FIRST + 1, 5]), min_size=1, max_size=3),
    st.lists(st.integers(1, 5 * FIRST), max_size=4),
)
def test_a_frame_whose_memory_grows_as_it_comes_is_the_same(sizes: list[int], cuts: list[int]) -> None:
    others = Others()
    reader = FrameReader(others.buffer, 8 * FIRST)
    data = b"".join(whole(size, number) for number, size in enumerate(sizes))
    found, at = [], 0
    for cut in [*cuts, len(data)]:
        found += feed(reader, others, data[at : at + cut], stop_after=9)
        at += cut
        assert reader.unfinished_bytes <= max(FIRST, 2 * at)
    assert found == [(DATA, whole(size, number)[framing.HEAD_BYTES :]) for number, size in enumerate(sizes)]


def test_the_head_of_a_large_frame_takes_little_memory() -> None:
    others = Others()
    reader = FrameReader(others.buffer, 8 * FIRST)
    feed(reader, others, framing.HEAD.pack(8 * FIRST, DATA) + b"x", stop_after=9)
    assert reader.unfinished_bytes == FIRST


def test_a_frame_over_the_limit_is_refused_before_it_takes_memory() -> None:
    others = Others()
    reader = FrameReader(others.buffer, 1000)
    assert feed(reader, others, whole(1000, 0), stop_after=9) == [(DATA, whole(1000, 0)[8:])]
    for size in (1001, 0xFFFFFFFF):
        with pytest.raises(RecordTooLarge, match="1000 is the limit"):
            feed(FrameReader(others.buffer, 1000), others, framing.HEAD.pack(size, DATA), stop_after=9)
    for kind in (Kind.HELLO, Kind.END, 77):
        head = framing.HEAD.pack(framing.CONTROL_BYTES_MAX + 1, kind)
        with pytest.raises(RecordTooLarge, match=str(framing.CONTROL_BYTES_MAX)):
            feed(FrameReader(others.buffer, BYTES_MAX), others, head, stop_after=9)


def test_what_another_protocol_begins_with_is_too_large() -> None:
    others = Others()
    for first in (b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\n", bytes.fromhex("1603010200010001")):
        with pytest.raises(RecordTooLarge):
            feed(FrameReader(others.buffer, framing.CONTROL_BYTES_MAX), others, first, stop_after=9)


def test_the_memory_of_a_frame_that_has_not_come_whole_is_known() -> None:
    others = Others()
    reader = FrameReader(others.buffer, BYTES_MAX)
    feed(reader, others, whole(100_000, 0)[:-1], stop_after=9)
    assert reader.unfinished_bytes == 100_000
    feed(reader, others, whole(100_000, 0)[-1:], stop_after=9)
    assert reader.unfinished_bytes == 0
    feed(reader, others, whole(100, 0)[:60], stop_after=9)
    assert reader.unfinished_bytes == 60


def test_an_error_passes_with_its_code() -> None:
    error = Forbidden("not you", details={"principal": "client:x"}, retry_after_ms=70)
    found = framing.parse_end(framing.end(error)[framing.HEAD_BYTES :])
    assert isinstance(found, Forbidden)
    assert (found.message, dict(found.details), found.retry_after_ms) == ("not you", {"principal": "client:x"}, 70)
    assert framing.parse_end(b"") is None


def test_a_long_error_is_cut_to_a_control_frame() -> None:
    error = Forbidden("x" * 50_000, details={"all": "y" * 50_000})
    found = framing.parse_end(framing.end(error)[framing.HEAD_BYTES :])
    assert isinstance(found, Forbidden) and found.message == "x" * 1000


def test_frames_are_as_they_are_documented() -> None:
    hello = pb.WireHello(version=1, call="comet.v1.Comet/Stream", authorization="Bearer x", broker_id=2, cluster_id="c")
    made = {
        "hello": framing.control(Kind.HELLO, hello.SerializeToString()),
        "welcome": framing.control(
            Kind.WELCOME, pb.WireWelcome(version=1, frame_bytes_max=16 << 20).SerializeToString()
        ),
        "data": framing.head(3) + b"abc",
        "end": framing.end(),
        "end, refused": framing.end(Forbidden("no")),
    }
    assert [f"{name}: {data.hex()}" for name, data in made.items()] == GOLDEN.read_text().splitlines()


def test_after_a_large_frame_only_the_start_of_the_next_is_read_into_the_shared_buffer() -> None:
    others = Others()
    reader = FrameReader(others.buffer, BYTES_MAX)
    assert len(reader.room()) == framing.READ_BYTES
    feed(reader, others, whole(framing.READ_BYTES, 1), stop_after=9)
    assert len(reader.room()) == framing.LARGE_BYTES
    feed(reader, others, whole(10, 1), stop_after=9)
    assert len(reader.room()) == framing.READ_BYTES, "small frames come several at a time"
