"""What a Stream is, over each transport alike: comet.wire.transport.Stream on the client's side, ServedStream on the
broker's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest

from comet.errors import CometError, Draining, Forbidden, MalformedFrame, RecordTooLarge, Unavailable
from comet.limits import MESSAGE_BYTES_MAX as CLIENT_BYTES_MAX
from comet.wire.transport import Stream
from comet_testing.simulation.loop import run as run_virtual
from tests.contract.stream_world import (
    MESSAGE_BYTES_MAX,
    ScriptedSession,
    World,
    grpc_world,
    sim_world,
    wire_world,
)
from tests.waiting import until

pytestmark = pytest.mark.timeout(60)

WORLDS: Final[dict[str, Any]] = {
    "wire": wire_world,
    "grpc": grpc_world,
    "simulated": partial(sim_world, wire=False),
    "simulated wire": partial(sim_world, wire=True),
}
PATIENCE_S: Final = 20.0
STUCK_S: Final = 2.0  # without progress

Body = Callable[[World], Awaitable[None]]


def contract(body: Body) -> Any:
    """A test of each transport; the simulated ones run on virtual time."""

    @pytest.mark.parametrize("name", WORLDS)
    def test(name: str) -> None:
        async def main() -> None:
            async with WORLDS[name]() as world:
                await body(world)

        if name.startswith("simulated"):
            run_virtual(lambda _: main())
        else:
            asyncio.run(main())

    test.__doc__ = body.__doc__
    return test


async def opened(world: World) -> tuple[Stream, ScriptedSession]:
    stream = await world.open()
    await stream.write(b"first")
    assert await until(lambda: bool(world.broker.sessions and world.broker.sessions[-1].received), within_s=PATIENCE_S)
    session = world.broker.sessions[-1]
    assert session.received == [b"first"]
    session.received.clear()
    return stream, session


async def last_error(stream: Stream) -> CometError:
    """Of a stream that has nothing more to read. Every later call raises one of the same kind."""
    with pytest.raises(CometError) as raised:
        await asyncio.wait_for(stream.read(), PATIENCE_S)
    with pytest.raises(type(raised.value)):
        await stream.read()
    return raised.value


async def refusal(world: World) -> CometError:
    """The error of a stream that is not opened."""
    try:
        stream = await world.open()
    except CometError as error:
        return error
    return await last_error(stream)


def same(found: CometError, sent: CometError) -> bool:
    what = [(one.code, one.message, dict(one.details), one.retry_after_ms) for one in (found, sent)]
    return what[0] == what[1]


# ---- frames


@contract
async def test_frames_arrive_whole_and_in_order_both_ways(world: World) -> None:
    stream, session = await opened(world)
    frames = [bytes([number % 251]) * (number * number % 70_000) for number in range(1, 300)]
    session.send(*frames)
    for frame in frames:
        await stream.write(frame)
    assert [bytes(await stream.read() or b"") for _ in frames] == frames
    assert await until(lambda: len(session.received) == len(frames), within_s=PATIENCE_S)
    assert session.received == frames
    stream.cancel()


@contract
async def test_an_empty_frame_is_a_frame(world: World) -> None:
    stream, session = await opened(world)
    session.send(b"", b"x")
    await stream.write(b"")
    assert [await stream.read(), await stream.read()] == [b"", b"x"]
    assert await until(lambda: session.received == [b""], within_s=PATIENCE_S)
    stream.cancel()


@contract
async def test_streams_are_apart(world: World) -> None:
    one, first = await opened(world)
    other, second = await opened(world)
    first.send(b"to one")
    second.send(b"to other")
    assert [await other.read(), await one.read()] == [b"to other", b"to one"]
    one.cancel()
    assert await until(lambda: first.closed, within_s=PATIENCE_S)
    second.send(b"still there")
    assert await other.read() == b"still there" and not second.closed
    other.cancel()


@contract
async def test_a_frame_of_the_limit_passes_and_a_larger_one_is_refused(world: World) -> None:
    stream, session = await opened(world)
    await stream.write(bytes(MESSAGE_BYTES_MAX))
    assert await until(lambda: [len(one) for one in session.received] == [MESSAGE_BYTES_MAX], within_s=PATIENCE_S)
    await stream.write(bytes(MESSAGE_BYTES_MAX + 1))
    assert isinstance(await last_error(stream), RecordTooLarge)
    assert await until(lambda: session.closed, within_s=PATIENCE_S)
    assert len(session.received) == 1


@contract
async def test_a_frame_of_the_limit_passes_to_the_client_and_a_larger_one_is_refused(world: World) -> None:
    stream, session = await opened(world)
    session.send(bytes(CLIENT_BYTES_MAX))
    assert len(await stream.read() or b"") == CLIENT_BYTES_MAX
    session.send(bytes(CLIENT_BYTES_MAX + 1))
    assert isinstance(await last_error(stream), RecordTooLarge)


# ---- the end


@contract
async def test_after_the_clients_last_frame_the_rest_is_sent_and_the_call_ends_in_good_order(world: World) -> None:
    stream, session = await opened(world)
    frames = [bytes([number]) * 10_000 for number in range(50)]
    session.send(*frames)
    await world.finish(stream)
    assert [bytes(await stream.read() or b"") for _ in frames] == frames
    assert await asyncio.wait_for(stream.read(), PATIENCE_S) is None
    assert await stream.read() is None
    assert await until(lambda: session.closed, within_s=PATIENCE_S)
    with pytest.raises(Unavailable):
        await stream.write(b"late")


@contract
async def test_a_refused_stream_has_the_error_with_all_its_fields(world: World) -> None:
    world.broker.refuses = Forbidden("not you", details={"principal": "client:x"}, retry_after_ms=70)
    assert same(await refusal(world), world.broker.refuses)


@contract
async def test_a_stream_that_the_broker_ends_has_the_error_with_all_its_fields(world: World) -> None:
    stream, session = await opened(world)
    error = Draining("the broker stops", details={"a": "b"}, retry_after_ms=100)
    session.writer.end_call(error)
    assert same(await last_error(stream), error)
    assert await until(lambda: session.closed, within_s=PATIENCE_S)
    with pytest.raises(CometError):
        await stream.write(b"late")


@contract
async def test_what_was_sent_before_an_error_arrives_before_it(world: World) -> None:
    stream, session = await opened(world)
    session.send(b"one", b"two")
    assert [await stream.read(), await stream.read()] == [b"one", b"two"]
    session.writer.end_call(Draining("the broker stops"))
    assert isinstance(await last_error(stream), Draining)


@contract
async def test_a_frame_that_the_session_refuses_ends_the_stream_with_its_error(world: World) -> None:
    stream, session = await opened(world)
    session.refuses = MalformedFrame("5 bytes do not parse", details={"at": "0"})
    await stream.write(b"wrong")
    assert same(await last_error(stream), session.refuses)
    assert await until(lambda: session.closed, within_s=PATIENCE_S)


@contract
async def test_a_cancelled_stream_is_unavailable_and_the_broker_closes_its_session(world: World) -> None:
    stream, session = await opened(world)
    reading = asyncio.ensure_future(last_error(stream))
    await asyncio.sleep(0)
    stream.cancel()
    assert isinstance(await reading, Unavailable)
    with pytest.raises(Unavailable):
        await stream.write(b"late")
    assert await until(lambda: session.closed, within_s=PATIENCE_S)


@contract
async def test_a_connection_that_breaks_is_unavailable_on_both_sides(world: World) -> None:
    stream, session = await opened(world)
    world.cut()
    assert isinstance(await last_error(stream), Unavailable)
    with pytest.raises(Unavailable):
        await stream.write(b"late")
    assert await until(lambda: session.closed, within_s=PATIENCE_S)


# ---- back-pressure


async def stuck(count: Callable[[], int]) -> bool:
    """Whether a count stops."""
    before = -1
    while before != count():
        before = count()
        if await until(lambda: count() != before, within_s=STUCK_S):  # noqa: B023 - called in this turn of the loop
            continue
    return True


@contract
async def test_a_client_waits_for_a_broker_that_does_not_read(world: World) -> None:
    stream, session = await opened(world)
    release = session.hold()
    sent = list[int]()
    size = 64 << 10

    async def flood() -> None:
        for number in range(2 * world.held_bytes_max // size):
            await stream.write(number.to_bytes(4, "little") + bytes(size - 4))
            sent.append(number)

    flooding = asyncio.ensure_future(flood())
    assert await stuck(lambda: len(sent))
    assert not flooding.done() and len(sent) * size <= world.held_bytes_max
    release.set()
    await asyncio.wait_for(flooding, PATIENCE_S)
    assert await until(lambda: len(session.received) == len(sent), within_s=PATIENCE_S)
    assert [int.from_bytes(one[:4], "little") for one in session.received] == sent
    stream.cancel()


@contract
async def test_a_broker_waits_for_a_client_that_does_not_read(world: World) -> None:
    stream, session = await opened(world)
    size = 64 << 10
    count = 2 * world.held_bytes_max // size
    session.send(*(number.to_bytes(4, "little") + bytes(size - 4) for number in range(count)))
    assert await stuck(lambda: session.writer.sent)
    assert session.writer.sent * size <= world.held_bytes_max
    for number in range(count):
        frame = await asyncio.wait_for(stream.read(), PATIENCE_S)
        assert frame is not None and int.from_bytes(frame[:4], "little") == number
    stream.cancel()
