"""The canonical hot frames: what protobuf makes of them, and that the parsers take exactly them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from comet.v1 import groups_pb2, records_pb2, replication_pb2, types_pb2
from comet.wire import frames

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
LENGTHS = [0, 1, 100, 101, 102, 114, 115, 127, 128, 16_370, 16_383, 16_384, 1 << 21, (1 << 21) + 1]


@given(u32, u32, st.integers(0, 2), st.lists(st.binary(max_size=200), max_size=4))
def test_protobuf_reads_a_produce_frame(request: int, handle: int, acks: int, parts: list[bytes]) -> None:
    batch = b"".join(parts)
    frame = frames.produce_frame(request, handle, acks, parts, len(batch))
    message = records_pb2.ClientFrame.FromString(frame)
    assert message == records_pb2.ClientFrame(
        request=request,
        produce=records_pb2.Produce(partition=handle, acks=types_pb2.Acks.Name(acks), batch=batch),
    )
    parsed = frames.parse_produce(frame)
    assert parsed is not None
    assert (*parsed[:3], bytes(parsed[3])) == (request, handle, acks, batch)


@given(u32, u64, u32, st.binary(max_size=300))
def test_protobuf_reads_a_delivery(handle: int, high_watermark: int, epoch: int, batches: bytes) -> None:
    frame = frames.delivery_prefix(handle, high_watermark, epoch, len(batches)) + batches
    message = records_pb2.ServerFrame.FromString(frame)
    assert message == records_pb2.ServerFrame(
        delivery=records_pb2.Delivery(
            partition=handle, high_watermark=high_watermark, leader_epoch=epoch, batches=batches
        )
    )
    assert frames.parse_delivery(frame) == (handle, high_watermark, epoch)
    assert frame[frames.DELIVERY_PREFIX_BYTES :] == batches


def fetched(batches: bytes, aborted: int = 1) -> records_pb2.FetchResponse:
    found = [groups_pb2.AbortedTransaction(producer_id=1, epoch=2, first=3, end=4)] * aborted
    return records_pb2.FetchResponse(
        batches=batches, first_offset=5, next_offset=6, leader_epoch=7, log_start=1, aborted=found
    )


def others_of(response: records_pb2.FetchResponse) -> bytes:
    others = records_pb2.FetchResponse()
    others.CopyFrom(response)
    others.ClearField("batches")
    return others.SerializeToString()


@given(u32, st.binary(max_size=300), st.integers(0, 3))
def test_protobuf_reads_what_was_fetched(request: int, batches: bytes, aborted: int) -> None:
    response = fetched(batches, aborted)
    frame = frames.joined(frames.fetched_frame(request, batches, others_of(response)))
    assert records_pb2.ServerFrame.FromString(frame) == records_pb2.ServerFrame(request=request, fetched=response)
    parsed = frames.parse_fetched(frame)
    assert parsed is not None
    assert (parsed[0], bytes(parsed[1]), bytes(parsed[2])) == (request, batches, others_of(response))


@given(u32, u32, i64, i64)
def test_protobuf_reads_progress(handle: int, epoch: int, log_end: int, flushed_end: int) -> None:
    frame = frames.progress_frame(handle, epoch, log_end, flushed_end)
    progress = replication_pb2.Progress(handle=handle, leader_epoch=epoch, log_end=log_end, flushed_end=flushed_end)
    message = replication_pb2.FollowerFrame(progress=progress)
    assert replication_pb2.FollowerFrame.FromString(frame) == message
    assert frames.parse_progress(frame) == (handle, epoch, log_end, flushed_end)
    if handle and epoch and log_end and flushed_end:
        assert message.SerializeToString() == frame


def test_progress_of_another_encoder_is_left_to_protobuf() -> None:
    short = replication_pb2.FollowerFrame(progress=replication_pb2.Progress(handle=1, leader_epoch=2))
    assert frames.parse_progress(short.SerializeToString()) is None
    frame = frames.progress_frame(1, 2, 3, 4)
    for at in (0, 1, 2, 7, 12, 21):
        assert frames.parse_progress(frame[:at] + b"\xff" + frame[at + 1 :]) is None


@pytest.mark.parametrize("length", LENGTHS)
def test_every_size_of_length(length: int) -> None:
    batch = b"x" * length
    frame = frames.produce_frame(1, 2, 1, [batch], length)
    assert records_pb2.ClientFrame.FromString(frame).produce.batch == batch
    parsed = frames.parse_produce(frame)
    assert parsed is not None and parsed[3] == batch
    frame = frames.delivery_prefix(1, 2, 3, length) + batch
    assert records_pb2.ServerFrame.FromString(frame).delivery.batches == batch
    assert frames.parse_delivery(frame) == (1, 2, 3)
    frame = frames.joined(frames.fetched_frame(1, batch, b""))
    assert records_pb2.ServerFrame.FromString(frame).fetched.batches == batch
    taken = frames.parse_fetched(frame)
    assert taken is not None and taken[1] == batch and not taken[2]


def test_lengths_of_more_than_28_bits_are_spread_over_the_fifth_byte() -> None:
    """Without building such a frame: a prefix alone is enough to see where the bits go."""
    length = (5 << 28) + 3
    prefix = frames.delivery_prefix(1, 2, 3, length)
    assert prefix[26:] == bytes([0x7A, 0x83, 0x80, 0x80, 0x80, 0x05])
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(prefix[1:6])) == length + 26


def test_the_batch_is_not_copied() -> None:
    frame = frames.produce_frame(1, 2, 1, [b"x" * 100], 100)
    parsed = frames.parse_produce(frame)
    assert parsed is not None and parsed[3].obj is frame


@pytest.mark.parametrize("cut", range(frames.DELIVERY_PREFIX_BYTES + 3))
def test_a_frame_that_is_cut_is_not_canonical(cut: int) -> None:
    assert frames.parse_produce(frames.produce_frame(1, 2, 1, [b"abcdefghijk"], 11)[:cut]) is None
    assert frames.parse_delivery((frames.delivery_prefix(1, 2, 3, 4) + b"abcd")[:cut]) is None
    assert frames.parse_fetched(frames.joined(frames.fetched_frame(1, b"abcd", b"12345678"))[:cut]) is None


def test_what_protobuf_writes_itself_is_not_canonical() -> None:
    """Its lengths are as short as can be, so the caller must fall back to the parser."""
    produce = records_pb2.Produce(partition=2, acks=types_pb2.ACKS_LEADER, batch=b"x" * 50)
    assert frames.parse_produce(records_pb2.ClientFrame(request=1, produce=produce).SerializeToString()) is None
    delivery = records_pb2.Delivery(partition=1, high_watermark=2, leader_epoch=3, batches=b"x" * 50)
    assert frames.parse_delivery(records_pb2.ServerFrame(delivery=delivery).SerializeToString()) is None
    response = records_pb2.ServerFrame(request=1, fetched=fetched(b"x" * 50))
    assert frames.parse_fetched(response.SerializeToString()) is None


PRODUCE = frames.produce_frame(7, 9, 2, [b"batch"], 5)
DELIVERY = frames.delivery_prefix(7, 9, 2, 5) + b"batch"
FETCHED = frames.joined(frames.fetched_frame(7, b"batch", others_of(fetched(b"batch"))))


@given(st.integers(0, len(PRODUCE) - 1), st.integers(0, 255))
@example(16, 0x18)
@example(17, 3)
@example(23, 1)
def test_a_changed_produce_frame_means_what_protobuf_says_or_nothing(at: int, value: int) -> None:
    changed = bytes([*PRODUCE[:at], value, *PRODUCE[at + 1 :]])
    parsed = frames.parse_produce(changed)
    if parsed is None:
        assert changed != PRODUCE
        return
    message = records_pb2.ClientFrame.FromString(changed)
    produce = message.produce
    request, handle, acks, batch = parsed
    assert (request, handle, acks) == (message.request, produce.partition, int(produce.acks))
    assert bytes(batch) == produce.batch
    assert frames.produce_frame(request, handle, acks, [bytes(batch)], len(batch)) == changed


@given(st.integers(0, len(DELIVERY) - 1), st.integers(0, 255))
def test_a_changed_delivery_means_what_protobuf_says_or_nothing(at: int, value: int) -> None:
    changed = bytes([*DELIVERY[:at], value, *DELIVERY[at + 1 :]])
    parsed = frames.parse_delivery(changed)
    if parsed is None:
        assert changed != DELIVERY
        return
    delivery = records_pb2.ServerFrame.FromString(changed).delivery
    assert parsed == (delivery.partition, delivery.high_watermark, delivery.leader_epoch)
    assert delivery.batches == changed[frames.DELIVERY_PREFIX_BYTES :]


@given(st.integers(0, frames.FETCHED_PREFIX_BYTES + 4), st.integers(0, 255))
@example(19, 0x86)
def test_a_changed_answer_to_a_fetch_means_what_protobuf_says_or_nothing(at: int, value: int) -> None:
    changed = bytes([*FETCHED[:at], value, *FETCHED[at + 1 :]])
    parsed = frames.parse_fetched(changed)
    if parsed is None:
        assert changed != FETCHED
        return
    request, batches, others = parsed
    try:
        message = records_pb2.ServerFrame.FromString(changed)
    except DecodeError:  # what follows the batches is for protobuf to refuse
        with pytest.raises(DecodeError):
            records_pb2.FetchResponse.FromString(bytes(others))
        return
    response = records_pb2.FetchResponse.FromString(bytes(others))
    assert message.request == request and message.fetched.batches == batches
    assert others_of(message.fetched) == others_of(response)


@given(st.binary(max_size=80))
def test_random_bytes_that_are_taken_are_a_frame(data: bytes) -> None:
    if frames.parse_produce(data) is not None:
        records_pb2.ClientFrame.FromString(data)
    if frames.parse_delivery(data) is not None:
        records_pb2.ServerFrame.FromString(data)


@given(u32, i64, i64)
def test_one_acknowledgement_is_what_protobuf_makes_of_it(request: int, base_offset: int, append_time_us: int) -> None:
    acks = records_pb2.ProduceAcks(requests=[request], base_offsets=[base_offset], append_times_us=[append_time_us])
    frame = frames.ack_frame(request, base_offset, append_time_us)
    assert frame == records_pb2.ServerFrame(acks=acks).SerializeToString()
    assert frames.parse_ack(frame) == (request, base_offset, append_time_us)


def test_other_frames_of_that_length_are_no_acknowledgement() -> None:
    frame = frames.ack_frame(1, 2, 3)
    for index in (0, 1, 2, 3, 8, 9, 18, 19):
        assert frames.parse_ack(frame[:index] + bytes([frame[index] ^ 1]) + frame[index + 1 :]) is None
    assert frames.parse_ack(frame[:-1]) is None
    assert (
        frames.parse_ack(records_pb2.ServerFrame(go_away=records_pb2.GoAway(reason="x" * 24)).SerializeToString())
        is None
    )


@given(u32, u32, st.integers(0, 2), st.lists(st.integers(0, 100_000), min_size=1, max_size=5))
def test_a_frame_in_parts_is_the_frame(request: int, handle: int, acks: int, sizes: list[int]) -> None:
    parts = [bytes([at]) * size for at, size in enumerate(sizes)]
    whole = frames.produce_frame(request, handle, acks, parts, sum(sizes))
    outgoing = frames.outgoing_produce(request, handle, acks, parts, sum(sizes))
    assert len(outgoing) == len(whole)
    assert b"".join([outgoing] if isinstance(outgoing, bytes) else outgoing.parts) == whole
    assert frames.joined(outgoing) == whole


def test_a_large_part_is_not_copied() -> None:
    data = bytes(frames.PARTS_FROM_BYTES)
    outgoing = frames.outgoing_produce(1, 2, 1, [b"header", data], 6 + len(data))
    assert isinstance(outgoing, frames.FrameParts)
    assert any(part is data for part in outgoing.parts)


def test_a_frame_is_joined_once() -> None:
    outgoing = frames.FrameParts((b"a", memoryview(b"bc")), 3)
    assert outgoing.join() == b"abc"
    assert outgoing.join() is outgoing.join()
    assert outgoing.parts == (b"abc",), "the parts are free again"
