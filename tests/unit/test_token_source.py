"""Tokens that clients fetch: when, how often, and the answer while there are none. On virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from comet import limits
from comet.client.bootstrap import Bootstrap, environment_credentials
from comet.errors import CometError, CredentialsRefused, InvalidArgument, Unavailable
from comet.producer.producer import Producer
from comet.security import token_source
from comet.security.client_credentials import ClientCredentials
from comet.security.token_source import TokenSource, expiry_of
from comet.wire.transport import Channel
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake import FakeBroker as Broker

START_S = 1_000_000.0  # of the wall clock


def part(document: object) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def token_until(expires_s: object, number: int = 0) -> str:
    return f"{part({'alg': 'none'})}.{part({'exp': expires_s, 'n': number})}.c2ln"


class Issuer:
    """An async provider whose tokens hold for `life_s`, and which fails while `error` is set."""

    def __init__(self, life_s: float = 100.0) -> None:
        self.life_s = life_s
        self.calls = 0
        self.at: list[float] = []
        self.error: Exception | None = None
        self.answers: asyncio.Event | None = None
        self.text: str | None = None

    async def __call__(self) -> str:
        self.calls += 1
        self.at.append(round(wall() - START_S, 1))
        if self.answers is not None:
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        return self.text if self.text is not None else token_until(wall() + self.life_s, self.calls)


def wall() -> float:
    return START_S + asyncio.get_running_loop().time()


Scenario = Callable[[Issuer, TokenSource], Awaitable[None]]


def scenario(function: Scenario) -> Callable[[], None]:
    async def main() -> None:
        issuer = Issuer()
        await function(issuer, TokenSource(issuer, clock=wall, random=Random(1)))

    return lambda: run(lambda _: main())


@scenario
async def test_all_who_wait_share_one_fetch_and_a_cancelled_one_ends_it_for_no_other(
    issuer: Issuer, source: TokenSource
) -> None:
    issuer.answers = asyncio.Event()
    waiting = [asyncio.create_task(source.ready()) for _ in range(10)]
    await asyncio.sleep(1)
    waiting[0].cancel()
    await asyncio.sleep(1)
    issuer.answers.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError) and done[1:] == [None] * 9
    assert issuer.calls == 1
    await source.ready()
    assert issuer.calls == 1, "it still holds"


@scenario
async def test_a_token_is_renewed_before_it_expires_by_one_of_its_clients(issuer: Issuer, source: TokenSource) -> None:
    await source.ready()
    keeping = [asyncio.create_task(source.keep()) for _ in range(5)]
    last = source.text()
    for _ in range(990):
        await asyncio.sleep(1)
        assert expiry_of(source.text()) >= wall() + 19, "it holds for a while at any time"  # type: ignore[operator]
    assert 12 <= issuer.calls <= 14 and source.text() != last
    gaps = [after - before for before, after in zip(issuer.at, issuer.at[1:], strict=False)]
    assert all(70 <= gap <= 81 for gap in gaps) and len(set(gaps)) > 5, "with jitter"
    for task in keeping:
        task.cancel()


@scenario
async def test_a_silent_issuer_disturbs_no_token_that_holds(issuer: Issuer, source: TokenSource) -> None:
    await source.ready()
    held = source.text()
    keeping = asyncio.create_task(source.keep())
    issuer.error = ConnectionError("client_secret=hunter2")
    await asyncio.sleep(99)
    assert source.text() == held
    await source.ready()
    calls = issuer.calls
    assert 3 <= calls <= 8, "pauses grow"
    await asyncio.sleep(2)
    with pytest.raises(Unavailable, match="the token provider Issuer failed: ConnectionError") as caught:
        await source.ready()
    assert "hunter2" not in str(caught.value)
    issuer.error = None
    await asyncio.sleep(limits.TOKEN_PAUSE_MS_MAX / 1000 + 1)
    assert source.text() != held
    keeping.cancel()


@scenario
async def test_a_failed_fetch_is_not_repeated_at_once(issuer: Issuer, source: TokenSource) -> None:
    issuer.error = CredentialsRefused("invalid_client")
    for _ in range(50):
        with pytest.raises(CredentialsRefused, match="invalid_client") as caught:
            await source.ready()
    assert issuer.calls == 1
    assert 0 < caught.value.retry_after_ms <= limits.TOKEN_PAUSE_MS
    for _ in range(400):
        await asyncio.sleep(1)
        with pytest.raises(CredentialsRefused):
            await source.ready()
    assert issuer.at[:7] == [0, 1, 3, 7, 15, 31, 63] and issuer.at[-1] - issuer.at[-2] <= 61
    issuer.error = None
    await asyncio.sleep(61)
    await source.ready()


@scenario
async def test_an_issuer_that_does_not_answer_is_given_up(issuer: Issuer, source: TokenSource) -> None:
    issuer.answers = asyncio.Event()
    with pytest.raises(Unavailable, match="gave no token within 10 s"):
        await source.ready()
    assert wall() == START_S + 10


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("opaque", "a JWT that has `exp`"), ("a.b.c", "a JWT that has `exp`"), ("", "a JWT that has `exp`"),
        (token_until("soon"), "a JWT that has `exp`"), (token_until(True), "expired"),
        (token_until(START_S - 5), "expired 5 s ago: compare the clocks"),
        (token_until(START_S + 5) + "x" * 9_000, "a JWT that has `exp`"),
    ],
)  # fmt: skip
def test_nonsense_is_named_and_not_shown(text: str, told: str) -> None:
    @scenario
    async def check(issuer: Issuer, source: TokenSource) -> None:
        issuer.text = text
        with pytest.raises(CometError, match=told) as caught:
            await source.ready()
        assert not text or text not in str(caught.value)

    check()


@scenario
async def test_a_refused_token_is_renewed_once_in_a_while(issuer: Issuer, source: TokenSource) -> None:
    await source.ready()
    first = source.text()
    assert await asyncio.gather(*[source.renewed(first) for _ in range(5)]) == [True] * 5
    assert issuer.calls == 2
    assert await source.renewed(first), "another one is there already"
    assert not await source.renewed(source.text())
    assert issuer.calls == 2
    issuer.error = CredentialsRefused("invalid_client")
    await asyncio.sleep(2)
    assert not await source.renewed(source.text())
    assert issuer.calls == 3


@scenario
async def test_a_provider_that_gives_no_text_is_named(issuer: Issuer, source: TokenSource) -> None:
    issuer.text = 7  # type: ignore[assignment]
    with pytest.raises(CredentialsRefused, match="Issuer gave int in place of a token"):
        await source.ready()


async def test_a_provider_that_is_not_async_blocks_no_loop_and_runs_once_at_a_time() -> None:
    go, threads = threading.Event(), set()

    def provider() -> str:
        threads.add(threading.current_thread())
        go.wait(30)
        return token_until(2**33)

    source = TokenSource(provider)
    waiting = asyncio.create_task(source.ready())
    await asyncio.sleep(0)
    go.set()
    await waiting
    assert source.text() == token_until(2**33)
    assert threading.current_thread() not in threads
    gone = TokenSource(lambda: (_ for _ in ()).throw(KeyError("hunter2")))
    with pytest.raises(Unavailable, match=r"failed: KeyError$"):
        await gone.ready()


def test_a_call_that_has_not_returned_is_not_repeated() -> None:
    go = threading.Event()
    source = TokenSource(lambda: str(go.wait(30)), clock=wall)

    async def main() -> None:
        with pytest.raises(Unavailable, match="gave no token within"):
            await source.ready()
        await asyncio.sleep(2)
        with pytest.raises(Unavailable, match="has not returned"):
            await source.ready()

    run(lambda _: main())
    go.set()


def test_loops_of_several_threads_share_a_token() -> None:
    calls = []

    async def provider() -> str:
        calls.append(1)
        return token_until(2**33)

    source = TokenSource(provider)
    threads = [threading.Thread(target=lambda: asyncio.run(source.ready())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


async def test_a_loop_that_ends_in_the_middle_of_a_fetch_leaves_it_to_others() -> None:
    answers = True

    async def provider() -> str:
        if not answers:
            await asyncio.Event().wait()
        return token_until(2**33)

    source = TokenSource(provider)

    async def cut() -> None:
        task = asyncio.create_task(source.ready())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()

    answers = False
    await asyncio.to_thread(lambda: asyncio.run(cut()))
    answers = True
    await source.ready()


@scenario
async def test_a_token_that_came_meanwhile_is_not_fetched_again(issuer: Issuer, source: TokenSource) -> None:
    await source.ready()
    await source._fetch(None)
    assert issuer.calls == 1


# ---- as a client uses it


class RefusedStream:
    """A stream that the broker refuses at once."""

    async def write(self, frame: bytes) -> None: ...
    async def read(self) -> bytes | None:
        raise CredentialsRefused("none of the issuer's keys")

    def cancel(self) -> None: ...


def with_client(function: Callable[[Issuer, TokenSource, Broker, Producer], Awaitable[None]]) -> Callable[[], None]:
    """On virtual time, with a broker that refuses tokens for streams while it has their text in `refused`."""

    @scenario
    async def test(issuer: Issuer, source: TokenSource) -> None:
        broker = Broker({"quotes": 1})

        def connect(address: str) -> Channel:
            channel = broker.connect(address)
            accepted = channel.stream
            stream = lambda: RefusedStream() if source.text() in refused else accepted()  # noqa: E731
            channel.stream = stream  # type: ignore[assignment, method-assign]
            return channel

        refused: set[str] = broker.__dict__.setdefault("refused", set())
        token_source._sources[issuer] = source
        try:
            async with Producer(Bootstrap(ADDRESS, token=issuer), connect=connect, random=Random(1)) as producer:
                await function(issuer, source, broker, producer)
        finally:
            del token_source._sources[issuer]

    return test


@with_client
async def test_an_idle_client_renews_its_token(
    issuer: Issuer, source: TokenSource, broker: Broker, producer: Producer
) -> None:
    await producer.publish("quotes", b"1")
    await asyncio.sleep(95)
    assert issuer.calls == 2
    await producer.close()
    await asyncio.sleep(300)
    assert issuer.calls == 2, "a closed client needs none"


@with_client
async def test_a_stream_whose_token_is_refused_is_opened_with_a_new_one(
    issuer: Issuer, source: TokenSource, broker: Broker, producer: Producer
) -> None:
    await source.ready()
    broker.__dict__["refused"].add(source.text())
    await producer.publish("quotes", b"1")
    assert issuer.calls == 2


# ---- how a client is given one

CREDENTIALS: dict[str, Any] = {
    "token_url": "https://login.example/token",
    "client_id": "a",
    "client_secret_file": "/secret",
}


def test_equal_credentials_share_a_source_and_none_shows_a_token() -> None:
    one, other = (Bootstrap("b", token=ClientCredentials(**CREDENTIALS)) for _ in range(2))
    assert one.bearer is other.bearer and one.tls is not None
    assert pickle.loads(pickle.dumps(one)).bearer is one.bearer
    assert repr(one.bearer) == "<TokenSource of https://login.example/token>"
    source = TokenSource(lambda: "")
    source._held = source._checked(token_until(2**33))
    assert token_until(2**33) not in repr(source) + repr(source._held)


def test_a_provider_without_a_hash_has_a_source_of_its_own() -> None:
    class Unhashable(Issuer):
        __hash__ = None  # type: ignore[assignment]

    provider = Unhashable()
    assert TokenSource.of(provider) is not TokenSource.of(provider)
    assert TokenSource.of(wall) is TokenSource.of(wall)  # type: ignore[arg-type]


def test_the_environment_names_client_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_credentials() is None
    monkeypatch.setenv("COMET_CLIENT_OAUTH_URL", "https://login.example/token")
    with pytest.raises(InvalidArgument, match="needs COMET_CLIENT_OAUTH_ID and COMET_CLIENT_OAUTH_SECRET as well"):
        Bootstrap.of("b")
    monkeypatch.setenv("COMET_CLIENT_OAUTH_ID", "a")
    monkeypatch.setenv("COMET_CLIENT_OAUTH_SECRET", "/secret")
    assert environment_credentials() == ClientCredentials(**CREDENTIALS)
    assert isinstance(Bootstrap.of("b").bearer, TokenSource)
    monkeypatch.setenv("COMET_CLIENT_TOKEN", "/token")
    with pytest.raises(InvalidArgument, match="COMET_CLIENT_TOKEN and COMET_CLIENT_OAUTH_URL name two tokens"):
        Bootstrap.of("b")


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/token", "ftp://login.example", "login.example", "https://", "https://a:b@login.example/",
        "https://login.example/#x", "https://login.example/a b", "https://login.example:99999/", "https://ü.example/",
        "http://127.0.0.1.example/", "https://login.example/\r\nx: y",
    ],
)  # fmt: skip
def test_a_url_that_others_could_read_or_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="token_url") as caught:
        ClientCredentials(**CREDENTIALS | {"token_url": url})
    assert "a:b" not in str(caught.value)


def test_credentials_that_cannot_be_are_refused() -> None:
    for wrong in ({"client_id": ""}, {"client_secret_file": ""}, {"auth": "digest"}):
        with pytest.raises(InvalidArgument):
            ClientCredentials(**CREDENTIALS | wrong)
    with pytest.raises(InvalidArgument, match="token must be a file, or a function that returns a token, not int"):
        Bootstrap("b", token=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not both") as caught:
        Bootstrap("b", access_key="key", token=lambda: "x")
    assert "the token provider" in str(caught.value)


def test_a_warning_names_the_issuer_once(caplog: pytest.LogCaptureFixture) -> None:
    @scenario
    async def check(issuer: Issuer, source: TokenSource) -> None:
        await source.ready()
        issuer.error = Unavailable("it is away")
        keeping = asyncio.create_task(source.keep())
        await asyncio.sleep(95)
        keeping.cancel()

    with caplog.at_level(logging.WARNING, "comet"):
        check()
    (record,) = caplog.records
    assert "token not renewed" in record.message and "it is away" in record.message
