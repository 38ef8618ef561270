"""The machine that hears markets, against servers that break off, fall silent, talk nonsense, or refuse."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

import comet
from comet.processes.restart_policy import Schedule
from comet.sources.websocket import MESSAGE_BYTES_MAX, Timing
from comet_demo.model import Quote, Trade
from comet_demo.providers import Event
from comet_demo.providers.public_feeds import Alpaca, Binance, Coinbase, Dialect, SocketProvider
from tests.market import servers
from tests.market.servers import Market, market, say

WITHIN_S = 60.0
PATIENT = Timing(
    open_s=WITHIN_S, subscribe_s=WITHIN_S, ping_s=WITHIN_S, close_s=0.1, again=Schedule((0.01, 0.02), calm_s=WITHIN_S)
)
# To see a connection ended for what took too long. On a busy machine it is a good one now and then: it is made again.
QUICK = replace(PATIENT, open_s=0.3, subscribe_s=0.3, ping_s=0.3)


def provider(dialect: Dialect, *, timing: Timing = PATIENT, **settings: Any) -> SocketProvider:
    for name, value in settings.items():
        setattr(dialect, name, value)
    return SocketProvider(dialect, Random(1), timing=timing, now_us=lambda: servers.NOW_US + 1)


def coinbase(server: Market, **settings: Any) -> SocketProvider:
    return provider(Coinbase(["BTC-USD"], server.url), **settings)


def alpaca(server: Market, key: str = "key", timing: Timing = PATIENT) -> SocketProvider:
    return provider(Alpaca(key, "secret", ["AAPL"], server.url), timing=timing)


async def take(source: SocketProvider, count: int) -> list[Event]:
    """The first events."""
    taken: list[Event] = []
    async with asyncio.timeout(WITHIN_S), aclosing(source.stream()) as stream:
        async for events in stream:
            taken += events
            if len(taken) >= count:
                return taken
    raise AssertionError("a live market does not end")


def prices(events: list[Event]) -> list[float]:
    return [event.price if isinstance(event, Trade) else event.last for event in events]


async def test_what_is_lost_is_connected_again_and_what_was_missed_meanwhile_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = servers.coinbase(servers.match(1, first=True), servers.match(2, price="2"), then=servers.leave)
    second = servers.coinbase(servers.match(5, price="5", first=True), servers.match(6, price="6"))
    async with market(first, second) as server:
        source = coinbase(server)
        assert prices(await take(source, 3)) == [2.0, 5.0, 6.0]
    assert source.statistics() == {"connections": 2, "messages": 6, "malformed": 0, "missed": 2}
    assert "the connection was lost" in caplog.text and "connecting again in" in caplog.text


async def polite(socket: ServerConnection) -> None:
    await socket.close(1001, "going away")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (servers.coinbase(), "no message for 0.2 s"),
        (servers.until_gone, "no subscription within"),
        (servers.coinbase(then=polite), "1001 (going away)"),
        (servers.coinbase("x" * (MESSAGE_BYTES_MAX + 1)), "1009"),
        (servers.coinbase(b"\xff\xfe", "{", "", then=servers.leave), "the connection was lost"),
        (servers.coinbase({"type": "error", "message": "you are too slow"}), "you are too slow"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "HTTP 503"),
        (HTTPStatus.TOO_MANY_REQUESTS, "HTTP 429"),
    ],
)
async def test_whatever_ends_a_connection_the_next_one_goes_on(
    script: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with market(script, servers.coinbase(servers.ticker())) as server:
        hasty = says.startswith(("no subscription", "no message"))
        # Nothing else of the first connection may take too long, however busy the machine: it is to end for this.
        silence_s = 0.2 if "no message" in says else WITHIN_S
        timing = replace(PATIENT, subscribe_s=0.3) if "no subscription" in says else PATIENT
        assert prices(await take(coinbase(server, silence_s=silence_s, timing=timing), 1)) == [100.5]
        assert server.asked >= 2 if hasty else server.asked == 2
    assert says in caplog.text


async def test_nonsense_is_counted_and_skipped() -> None:
    hostile: list[Any] = [
        "not JSON", b"\x00\x01", "[" * 100_000, "{}", "[]", "null", '"text"', {"type": "match"},
        servers.ticker(bid="NaN"), servers.ticker(bid="-1"), servers.ticker(ask="1e999"),
        servers.match(3) | {"time": "9999-01-01T00:00:00Z"}, servers.match(3) | {"trade_id": -1},
        servers.match(3, symbol="EVIL-USD"), servers.match(3) | {"price": None}, '{"type": "ticker"}',
    ]  # fmt: skip
    async with market(servers.coinbase(*hostile, servers.match(4, price="4"))) as server:
        source = coinbase(server)
        assert prices(await take(source, 1)) == [4.0]
        assert server.asked == 1
    assert source.statistics()["malformed"] == len(hostile)


async def test_a_server_that_talks_nothing_but_nonsense_counts_as_silent() -> None:
    async def babble(socket: ServerConnection) -> None:
        while True:
            await say(socket, "nonsense")
            await asyncio.wait({asyncio.ensure_future(socket.wait_closed())}, timeout=0.05)

    async with market(servers.coinbase(then=babble), servers.coinbase(servers.ticker())) as server:
        assert prices(await take(coinbase(server, silence_s=0.2), 1)) == [100.5]
        assert server.asked >= 2


async def test_only_what_makes_sense_puts_the_end_off() -> None:
    source = provider(Coinbase(["BTC-USD"]))
    source._parse("nonsense")
    assert source._received_at == 0.0
    source._parse(json.dumps(servers.heartbeat(7)))
    assert source._received_at > 0.0


async def test_an_end_that_answers_no_ping_is_left() -> None:
    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await socket.wait_closed()

    async with market(servers.alpaca(then=deaf), servers.alpaca([servers.stock_trade()])) as server:
        assert prices(await take(alpaca(server, timing=QUICK), 1)) == [126.55]
        assert server.asked >= 2


async def test_pauses_grow_and_differ(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Of connections that are lost soon, whatever came by them; one that lasts begins with the first pause again."""
    drawn: list[tuple[float, float]] = []
    random = Random(1)

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return 10.0

    monkeypatch.setattr(random, "uniform", uniform)
    again = Schedule((0.01, 0.02, 0.04), calm_s=WITHIN_S)
    script = servers.coinbase(servers.ticker(), then=servers.leave)
    async with market(script) as server:
        source = SocketProvider(
            Coinbase(["BTC-USD"], server.url), random, timing=replace(PATIENT, again=again),
            now_us=lambda: servers.NOW_US + 1,
        )  # fmt: skip
        assert len(await take(source, 5)) == 5
    assert drawn == [(0.5, 1.0)] * 4
    waits = [line.rpartition("again in ")[2] for line in caplog.messages if "again in" in line]
    assert waits == ["0.1 s", "0.2 s", "0.4 s", "0.4 s"]
    usual = Timing().again
    assert usual.endless and usual.pauses_s[0] == 1.0 and usual.pauses_s[-1] == usual.calm_s == 60.0


async def test_a_server_that_never_shakes_hands_is_tried_again() -> None:
    tries = asyncio.Semaphore(0)
    serving: list[asyncio.Task[Any] | None] = []

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        tries.release()
        try:
            await reader.read()
        finally:
            writer.close()

    silent = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with silent:
        url = f"ws://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        listening = asyncio.ensure_future(take(provider(Coinbase(["BTC-USD"], url), timing=QUICK), 1))
        async with asyncio.timeout(WITHIN_S):
            for _ in range(3):
                await tries.acquire()
        listening.cancel()
        await asyncio.gather(listening, *filter(None, serving), return_exceptions=True)


async def test_a_connection_is_left_before_the_server_would() -> None:
    async with market(servers.coinbase(), servers.coinbase(servers.ticker())) as server:
        assert prices(await take(coinbase(server, life_s=0.1, silence_s=None), 1)) == [100.5]
        assert server.asked >= 2


@pytest.mark.parametrize(
    ("script", "dialect", "says"),
    [
        (servers.alpaca(key="another"), Alpaca("wrong", "secret", ["AAPL"]), "auth failed.*COMET_ALPACA_KEY"),
        (HTTPStatus.FORBIDDEN, Coinbase(), "HTTP 403"),
        (HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS, Binance(), "HTTP 451"),
    ],
)
async def test_what_is_refused_is_raised_and_not_tried_again(script: Any, dialect: Dialect, says: str) -> None:
    async with market(script) as server:
        with pytest.raises(comet.InvalidArgument, match=says):
            await take(provider(dialect, url=server.url), 1)
        assert server.asked == 1


async def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(comet.InvalidArgument, match="not an address of a WebSocket"):
        await take(provider(Coinbase(url="http://localhost")), 1)


async def test_alpaca_lets_one_connection_in_and_the_other_is_gone_by_and_by() -> None:
    async def full(socket: ServerConnection) -> None:
        await say(socket, [{"T": "error", "code": 406, "msg": "connection limit exceeded"}])

    quote = servers.stock_quote()
    async with market(full, full, servers.alpaca([servers.stock_trade(), quote], [quote])) as server:
        source = alpaca(server)
        events = await take(source, 3)
        assert [type(event) for event in events] == [Trade, Quote, Quote]
        assert server.asked == 3


async def test_binance_is_answered_its_pings_and_left_at_once_when_it_stops() -> None:
    answered: list[float] = []

    async def ping(socket: ServerConnection) -> None:
        answered.append(await (await socket.ping(b"1234")))
        await say(socket, {"stream": "x", "data": {"e": "serverShutdown", "E": servers.NOW_US}})
        await socket.wait_closed()

    last = servers.binance(servers.trade(7), servers.trade(9), servers.book(3), servers.book(2), servers.book(4))
    async with market(servers.binance(servers.trade(5), then=ping), last) as server:
        source = provider(Binance(["BNBUSDT"], server.url))
        events = await take(source, 5)
    assert [type(event) for event in events] == [Trade, Trade, Trade, Quote, Quote]
    assert answered
    assert source.statistics()["missed"] == 2  # 6 and 8


async def test_coinbase_is_asked_again_for_what_its_heartbeats_know() -> None:
    async def lose(socket: ServerConnection) -> None:
        await say(socket, servers.match(1, first=True), servers.heartbeat(3), servers.heartbeat(3))
        kinds = [json.loads(await socket.recv())["type"] for _ in range(2)]
        assert kinds == ["unsubscribe", "subscribe"]
        await say(socket, servers.match(4, price="4"))
        await socket.wait_closed()

    async with market(servers.coinbase(then=lose)) as server:
        source = coinbase(server)
        assert prices(await take(source, 1)) == [4.0]
        assert server.asked == 1
    assert source.statistics()["missed"] == 2


async def test_a_listener_that_is_slow_holds_the_server_up_and_loses_nothing() -> None:
    said = [servers.match(number, price=str(number)) for number in range(1, 3001)]
    async with market(servers.coinbase(*said)) as server:
        source = coinbase(server)
        async with asyncio.timeout(WITHIN_S), aclosing(source.stream()) as stream:
            assert prices(list(await anext(stream))) == [1.0]
            assert source.statistics()["messages"] <= 3  # the rest is in the sockets, which are bounded
            rest = [prices(list(await anext(stream)))[0] for _ in range(2999)]
    assert rest == [float(number) for number in range(2, 3001)]
