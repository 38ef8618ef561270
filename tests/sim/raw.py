"""Clients that speak the protocol without the SDK, to do what the SDK never would.

A meter subscribes with little credit and counts what the broker sends. A vandal sends frames that are wrong in every
way at hand, among them batches with a right checksum and columns that do not add up, and expects a typed error for
each, while everyone else goes on undisturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from comet import records
from comet.errors import CometError
from comet.records import Codec
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import DELIVERY_PREFIX_BYTES, parse_delivery
from comet_testing.simulation.network import Network, SimStream
from tests import poison
from tests.property import records_oracle as oracle
from tests.sim.history import Call, History, Outcome, PartitionName

ANSWER_S_MAX: Final = 20.0
BATCH_BYTES_MAX: Final = 80 << 10  # more than any producer of the simulation puts into one batch


class RawClient:
    """One stream, used by one task."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.name = name
        self.deliveries: list[bytes] = []  # that came while an answer was waited for
        self._stream = SimStream(network, name, address)  # over gRPC: it sends no heartbeats
        self._request = 0

    async def ask(self, frame: pb.ClientFrame) -> pb.ServerFrame:
        """The answer to a request, whatever it is."""
        self._request += 1
        frame.request = self._request
        return await self.answer(frame.SerializeToString(), self._request)

    async def answer(self, frame: bytes, request: int) -> pb.ServerFrame:
        await self._stream.write(frame)
        async with asyncio.timeout(ANSWER_S_MAX):
            while True:
                received = await self.read()
                if parse_delivery(received) is not None:
                    self.deliveries.append(received)
                    continue
                answer = pb.ServerFrame.FromString(received)
                if answer.request == request or request in answer.acks.requests:
                    return answer

    async def read(self) -> bytes:
        frame = await self._stream.read()
        if frame is None:
            raise ConnectionError("the broker ended the stream")
        return frame

    async def write(self, frame: bytes) -> None:
        await self._stream.write(frame)

    async def attach(self, tp: PartitionName) -> pb.Attached | None:
        answer = await self.ask(pb.ClientFrame(attach=pb.Attach(topic=tp[0], partition=tp[1])))
        return answer.attached if answer.HasField("attached") else None

    def close(self) -> None:
        self._stream.cancel()


class Meter:
    """Subscribes to one partition with little credit and checks every delivery against what it granted."""

    def __init__(self, client: RawClient, tp: PartitionName, history: History, random: Random) -> None:
        self._client = client
        self._tp = tp
        self._history = history
        self._random = random
        self._granted = 0
        self._received = 0
        self._position = -1

    async def run(self) -> None:
        attached = await self._client.attach(self._tp)
        if attached is None:
            return
        self._granted = self._random.choice((1, 3_000, 20_000))
        answer = await self._client.ask(
            pb.ClientFrame(
                subscribe=pb.Subscribe(
                    subscription=1,
                    starts=[pb.Start(partition=attached.partition, position=types.Position(earliest=True))],
                    credit=self._granted,
                )
            )
        )
        if not answer.HasField("subscribed"):
            return
        self._position = answer.subscribed.partitions[0].offset
        for frame in self._client.deliveries:
            self._check(frame)
        for _ in range(self._random.randint(1, 6)):
            await self._take(self._random.uniform(0.05, 0.5))
            more = self._random.choice((1, 5_000, 50_000))
            self._granted += more
            await self._client.write(pb.ClientFrame(credit=pb.Credit(subscription=1, bytes=more)).SerializeToString())
        self._history.faults["metered"] += 1

    async def _take(self, seconds: float) -> None:
        """Takes whatever comes in that time."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._check(await self._client.read())
        except TimeoutError:
            return

    def _check(self, frame: bytes) -> None:
        delivery = parse_delivery(frame)
        if delivery is None:
            return
        credit = self._granted - self._received
        self._readable(frame)
        batches = list(records.iterate(memoryview(frame)[DELIVERY_PREFIX_BYTES:]))
        size = len(frame) - DELIVERY_PREFIX_BYTES
        first, end = batches[0].header.base_offset, batches[-1].header.next_offset
        if credit <= 0:
            self._complain(f"sent {size} bytes with no credit left ({credit})")
        # A cold read needs room for one whole batch, and may fill that room with several smaller ones.
        if size > credit + BATCH_BYTES_MAX and len(batches) > 1:
            self._complain(f"sent {len(batches)} batches of {size} bytes for {credit} bytes of credit")
        if end > delivery[1]:
            self._complain(f"sent offsets up to {end}, beyond the high watermark {delivery[1]}")
        if not first <= self._position < end:
            self._complain(f"sent offsets {first} to {end} instead of {self._position}")
        self._received += size
        self._position = end

    def _readable(self, frame: bytes) -> None:
        """Whatever was acknowledged can be read, also by a reader that shares no code with ours."""
        at = DELIVERY_PREFIX_BYTES
        while at < len(frame):
            try:
                header, _ = oracle.read(frame[at:], stamped=True)
            except oracle.Refused as error:
                self._complain(f"sent a batch that nobody can read: {error}")
                return
            at += header["length"]

    def _complain(self, what: str) -> None:
        where = f"{self._client.name} {self._tp} at {self._position}"
        self._history.complaints.append(f"{where}, granted {self._granted}, got {self._received}: the broker {what}")


def bad_batches(random: Random) -> list[tuple[bytes, str]]:
    """Batches no broker may take, each with what is wrong with it."""
    good = b"".join(records.encode([b"hostile"] * 3, timestamps=1))
    flipped = bytearray(good)
    flipped[random.randrange(28, len(good))] ^= 1 << random.randrange(8)
    version = bytearray(good)
    version[32] = 77
    length = bytearray(good)
    length[20:24] = (0xFFFFFFF0).to_bytes(4, "little")
    bomb = bytearray(b"".join(records.encode([b"\0" * 100_000], timestamps=1, codec=Codec.ZSTD)))
    bomb[80:84] = (0x7FFFFFF8).to_bytes(4, "little")
    return [
        (bytes(flipped), "flipped bit"),
        (bytes(version), "unknown version"),
        (bytes(length), "length beyond the frame"),
        (bytes(bomb), "decompression bomb"),
        (good[: random.randrange(len(good))], "cut off"),
        (good + b"\0" * 8, "trailing bytes"),
        (b"", "nothing"),
        *((poison.poisoned(kind, codec), f"{kind}, {codec.name}") for kind in poison.KINDS for codec in Codec),
    ]


class Vandal:
    """Sends nonsense; every request of it must be answered with a typed error, on a stream that stays open."""

    def __init__(
        self, client: RawClient, tp: PartitionName, history: History, random: Random, now: Callable[[], float]
    ) -> None:
        self._client = client
        self._tp = tp
        self._history = history
        self._random = random
        self._now = now

    async def run(self) -> None:
        await self._client.write(self._random.randbytes(self._random.randrange(1, 200)))
        await self._client.write(b"")
        attached = await self._client.attach(self._tp)
        if attached is None:
            return
        for batch, what in bad_batches(self._random):
            produce = pb.Produce(partition=attached.partition, acks=types.ACKS_LEADER, batch=batch)
            await self._refused(pb.ClientFrame(produce=produce), what)
        good = b"".join(records.encode([b"hostile"], timestamps=1))
        unknown = pb.Produce(partition=4_000_000_000, acks=types.ACKS_LEADER, batch=good)
        await self._refused(pb.ClientFrame(produce=unknown), "unknown handle")
        start = pb.Start(partition=attached.partition, position=types.Position(offset=1 << 60))
        await self._refused(pb.ClientFrame(subscribe=pb.Subscribe(subscription=9, starts=[start])), "offset far away")
        twice = pb.Start(partition=attached.partition, position=types.Position(earliest=True))
        await self._refused(pb.ClientFrame(subscribe=pb.Subscribe(subscription=9, starts=[twice] * 2)), "named twice")
        answer = await self._client.ask(pb.ClientFrame(ping=pb.Ping()))
        if not answer.HasField("pong"):
            self._history.complaints.append(f"{self._client.name}: no pong after nonsense")
        self._history.faults["vandal"] += 1

    async def _refused(self, frame: pb.ClientFrame, what: str) -> None:
        call = Call(self._client.name, what, self._now())
        self._history.calls.append(call)
        call.outcome, call.code = Outcome.UNKNOWN, "TIMEOUT"  # until the answer is there
        answer = await self._client.ask(frame)
        call.completed = self._now()
        if answer.HasField("error"):
            call.outcome = Outcome.FAIL
            call.code = types.ErrorCode.Name(answer.error.error.code).removeprefix("ERROR_CODE_")
        else:
            self._history.complaints.append(f"{self._client.name}: the broker took what it had to refuse: {what}")


def ends_quietly(error: BaseException) -> bool:
    """Whether a raw client may stop for this: its connection is gone, or the broker is."""
    return isinstance(error, CometError | ConnectionError | TimeoutError)
