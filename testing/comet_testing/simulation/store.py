"""The metadata store as one broker reaches it: over the network, with everything that can happen to it on the way.

    broker ──► SimStore ──(way there)──► MemoryStore, which all brokers share
                  ▲                          │
                  └──(way back, or never)────┘

A call that gets no answer in CALL_S ends with StoreUnavailable; whether it took effect depends on which of the two
ways was closed. What was sent takes effect even when the sender is stopped or dies meanwhile. Watches arrive late, can
be held up, and can be told that the history is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar, cast

from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import (
    Compacted,
    Compare,
    Delete,
    KeyValue,
    Put,
    RangeResult,
    StoreUnavailable,
    TransactionResult,
    WatchEvent,
)
from comet_broker.metadata.watches import Watch
from comet_testing.simulation.network import Network

T = TypeVar("T")

STORE: Final = "store"  # its name on the network
CALL_S: Final = 1.0  # as metadata.etcd has it
DELAY_S_MAX: Final = 0.004


@dataclass(slots=True)
class StoreWeather:
    """How the store is doing, for one broker; faults change it."""

    delay_s_max: float = DELAY_S_MAX
    keepalive_s_max: float = 0.0  # more for keepalives
    refusing: float = 0.0  # how often a call does not get there
    forgetting: float = 0.0  # how often it takes effect and the answer does not come
    watch_held_until: float = 0.0
    compactions: int = 0  # so many watches are told that their history is gone


class SimStore:
    """A MetadataStore. One per process of a broker; `close` ends nothing but this one's use of it."""

    def __init__(
        self, inner: MemoryStore, network: Network, address: str, weather: StoreWeather, random: Random
    ) -> None:
        self._inner = inner
        self._network = network
        self._address = address
        self._weather = weather
        self._random = random

    # ---- MetadataStore

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda: self._inner.get(key))

    async def range(self, prefix: str) -> RangeResult:
        return await self._call(lambda: self._inner.range(prefix))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        return await self._call(lambda: self._inner.transact(tuple(compares), tuple(operations)))

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        return _Watch(self, cast("Watch", self._inner.watch(prefix, from_revision)))

    async def arrive(self, events: Sequence[WatchEvent]) -> None:
        """The time that news take to get here. Raises Compacted when they are not news any more."""
        network, weather = self._network, self._weather
        await network.travel(STORE, self._address)
        await asyncio.sleep(self._delay())
        await asyncio.sleep(max(0.0, weather.watch_held_until - network.now()))
        if weather.compactions:
            weather.compactions -= 1
            raise Compacted(events[-1].revision + 1)

    async def grant_lease(self, ttl_ms: int) -> int:
        return await self._call(lambda: self._inner.grant_lease(ttl_ms))

    async def keep_alive(self, lease: int) -> int:
        return await self._call(
            lambda: self._inner.keep_alive(lease), self._random.random() * self._weather.keepalive_s_max
        )

    async def revoke_lease(self, lease: int) -> None:
        await self._call(lambda: self._inner.revoke_lease(lease))

    async def close(self) -> None:
        """The store goes on without this broker."""

    # ---- on the way

    def _delay(self) -> float:
        return self._random.random() ** 3 * self._weather.delay_s_max

    async def _call(self, operation: Callable[[], Coroutine[Any, Any, T]], extra_s: float = 0.0) -> T:
        """What comes of an operation of the store, which happens once its request has arrived there."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        network, weather, random = self._network, self._weather, self._random
        refused, forgotten = random.random() < weather.refusing, random.random() < weather.forgetting
        there, back = (self._address, STORE), (STORE, self._address)

        def arrive() -> None:
            if answer.cancelled() and random.random() < 0.5:
                return  # given up before it was sent on
            result, error = _outcome(operation())
            if not forgotten:
                network.later(self._delay(), lambda: network.when_open(back, lambda: _settle(answer, result, error)))

        if not refused:
            network.later(self._delay() + extra_s, lambda: network.when_open(there, arrive))
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {CALL_S} s") from None


class _Watch(AsyncIterator[Sequence[WatchEvent]]):
    """No generator: those of a killed process would be closed by the loop, as if it were alive."""

    def __init__(self, store: SimStore, inner: Watch) -> None:
        self._store = store
        self._inner = inner

    async def __anext__(self) -> Sequence[WatchEvent]:
        events = await anext(self._inner)
        await self._store.arrive(events)
        return events

    async def aclose(self) -> None:
        await self._inner.aclose()


def _outcome(operation: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
    """A call to the MemoryStore takes effect at once: it never waits."""
    try:
        operation.send(None)
    except StopIteration as done:
        return done.value, None
    except Exception as error:  # noqa: BLE001 - it is the caller's
        return None, error
    raise AssertionError("the store in memory does not wait")


def _settle(answer: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
