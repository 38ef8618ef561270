"""The machine's own limits, one way between two processes: the upper bound for any broker on it.

Each is the plainest program for its task, so that Comet's figures have an honest ceiling beside them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from comet.wire.tuning import tune_process
from comet_bench.report import quantiles
from comet_bench.timer import Ticker

if TYPE_CHECKING:
    from comet_bench.link import Link, Work

STAMP: Final = struct.Struct("<q")
HOST: Final = "127.0.0.1"
METHOD: Final = "/comet_bench.Limit/Sink"
TCP_CHUNK_BYTES: Final = 1 << 20
FILE_CHUNK_BYTES: Final = 1 << 20
MEMCPY_BYTES: Final = 64 << 20  # far beyond the caches
STOP_GRACE_S: Final = 1.0


# Needed for messages of this size; all other options are gRPC's defaults.
PLAIN_OPTIONS: Final = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def _options(*, tuned: bool) -> Any:
    """Channel options; `tuned` also sets up the process as Comet does. Call it before grpc is imported."""
    if not tuned:
        return PLAIN_OPTIONS
    tune_process()
    from comet.wire.grpc_channel import OPTIONS

    return OPTIONS


async def _serve(link: Link, conversation: Callable[[Any], Awaitable[None]], *, tuned: bool = True) -> dict[str, Any]:
    """Serves METHOD until told to stop. The conversation gets the call's context."""
    options = _options(tuned=tuned)
    import grpc
    import grpc.aio

    async def answer(_request: Any, context: Any) -> None:
        await conversation(context)

    handler: Any = grpc.stream_stream_rpc_method_handler(answer)
    server = grpc.aio.server(options=options)
    service, _, method = METHOD[1:].partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    await link.go(port=port)  # the order here means: stop
    await server.stop(STOP_GRACE_S)
    return {}


async def grpc_sink(link: Link, config: Any) -> dict[str, Any]:
    """Serves one call: takes messages as bytes and answers with their total at the end."""

    async def sink(context: Any) -> None:
        total = 0
        while isinstance(message := await context.read(), bytes):
            total += len(message)
        await context.write(total.to_bytes(8, "little"))

    return await _serve(link, sink, tuned=config["tuned"])


async def grpc_echo(link: Link, _config: Any) -> dict[str, Any]:
    """Serves one call that sends every message back."""

    async def echo(context: Any) -> None:
        while isinstance(message := await context.read(), bytes):
            await context.write(message)

    return await _serve(link, echo)


async def grpc_source(link: Link, config: Any) -> dict[str, Any]:
    """Writes `messages` messages of `message_bytes`; the clock stops when the sink has them all."""
    options = _options(tuned=config["tuned"])
    import grpc.aio

    message = os.urandom(config["message_bytes"])
    async with grpc.aio.insecure_channel(f"{HOST}:{config['port']}", options=options) as channel:
        await channel.channel_ready()
        await link.go()
        call: Any = channel.stream_stream(METHOD)()
        start = time.perf_counter()
        for _ in range(config["messages"]):
            await call.write(message)
        await call.done_writing()
        total = int.from_bytes(await call.read(), "little")
        seconds = time.perf_counter() - start
    assert total == config["messages"] * config["message_bytes"], total
    return {"bytes_per_s": total / seconds}


async def grpc_pace(link: Link, config: Any) -> dict[str, Any]:
    """`clients.pace` and `clients.stopwatch` in one: there and back is as many hops as through a broker."""
    tune_process()
    import grpc.aio

    from comet.wire.grpc_channel import OPTIONS

    records, interval_ns = config["records"], 1_000_000_000 // config["rate"]
    async with grpc.aio.insecure_channel(f"{HOST}:{config['port']}", options=OPTIONS) as channel:
        await channel.channel_ready()
        await link.go()
        call: Any = channel.stream_stream(METHOD)()
        receiving = asyncio.ensure_future(_receive_stamps(call, records))
        due_ns = time.perf_counter_ns() + interval_ns
        ticker = Ticker(due_ns, interval_ns)
        left = records
        while left > 0:
            for _ in range(min(await ticker.due(), left)):
                await call.write(STAMP.pack(due_ns) + bytes(config["message_bytes"] - STAMP.size))
                due_ns += interval_ns
                left -= 1
        ticker.close()
        ages_us = await receiving
        await call.done_writing()
    return quantiles(ages_us[config["skip"] :])


async def _receive_stamps(call: Any, records: int) -> list[float]:
    ages_us = []
    for _ in range(records):
        stamp = STAMP.unpack_from(await call.read())[0]
        ages_us.append((time.perf_counter_ns() - stamp) / 1e3)
    return ages_us


async def clock(link: Link, config: Any) -> dict[str, Any]:
    """Only watches the clock: its delay at `rate` ticks a second is the machine's share of latency."""
    interval_ns = 1_000_000_000 // config["rate"]
    ages_us: list[float] = []
    await link.go()
    due_ns = time.perf_counter_ns() + interval_ns
    while len(ages_us) < config["records"]:
        late_ns = time.perf_counter_ns() - due_ns
        if late_ns >= 0:
            ages_us.append(late_ns / 1e3)
            due_ns += interval_ns
    return quantiles(ages_us)


async def tcp_sink(link: Link, _config: Any) -> dict[str, Any]:
    """Blocking sockets: no loop, no callbacks, as fast as the kernel moves bytes."""
    with socket.create_server((HOST, 0)) as server:
        await link.go(port=server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            into = memoryview(bytearray(TCP_CHUNK_BYTES))
            total = 0
            while got := connection.recv_into(into):
                total += got
            return {"total": total, "end": time.perf_counter()}


async def tcp_source(link: Link, config: Any) -> dict[str, Any]:
    await link.go()
    chunk = os.urandom(TCP_CHUNK_BYTES)
    with socket.create_connection((HOST, config["port"])) as connection:
        start = time.perf_counter()
        for _ in range(config["bytes"] // TCP_CHUNK_BYTES):
            connection.sendall(chunk)
    return {"start": start}


async def file(link: Link, config: Any) -> dict[str, Any]:
    """Appends to one file as the broker with flush=os does: into the page cache, and to the disk later."""
    await link.go()
    chunk = os.urandom(FILE_CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=config["folder"], buffering=0) as target:
        start = time.perf_counter()
        for _ in range(config["bytes"] // FILE_CHUNK_BYTES):
            os.write(target.fileno(), chunk)
        seconds = time.perf_counter() - start
    return {"bytes_per_s": config["bytes"] / seconds}


async def memcpy(link: Link, config: Any) -> dict[str, Any]:
    source, target = memoryview(os.urandom(MEMCPY_BYTES)), memoryview(bytearray(MEMCPY_BYTES))
    target[:] = source  # the pages exist before the clock starts
    await link.go()
    times = max(config["bytes"] // MEMCPY_BYTES, 1)
    start = time.perf_counter()
    for _ in range(times):
        target[:] = source
        await asyncio.sleep(0)
    return {"bytes_per_s": times * MEMCPY_BYTES / (time.perf_counter() - start)}


WORKS: Final[dict[str, Work]] = {
    "grpc_sink": grpc_sink,
    "grpc_source": grpc_source,
    "grpc_echo": grpc_echo,
    "grpc_pace": grpc_pace,
    "clock": clock,
    "tcp_sink": tcp_sink,
    "tcp_source": tcp_source,
    "file": file,
    "memcpy": memcpy,
}
