"""Samples every broker once a second while a page of the dashboard is open.

    tick ─► each broker by itself, with a timeout: its numbers, its metadata, its history since the last tick
         ─► topics, from the broker with the newest metadata, if they changed
         ─► facts.Cluster, from all answers by then

While no broker answers, the last known facts stay, with their time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import comet
from comet.errors import CometError, Unavailable
from comet_gateway.dashboard import build_facts
from comet_gateway.dashboard.broker_pool import ANSWER_S, BrokerPool, Connect, PooledBroker
from comet_gateway.dashboard.build_facts import TopicWithLeaders
from comet_gateway.dashboard.metric_history import STEPS, WATCHED_S, Histories, Tracks
from comet_web import facts

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S: Final = 1.0
HURRY_S: Final = 0.2  # between two ticks, at least
GATHER_S: Final = 0.4  # that a tick waits for slow brokers
AFTER_S: Final = 0.1  # a tick, new facts are there, unless a broker is slow
FRESH_S: Final = 2.0  # maximum age of facts for a request that does not wait
TRIED_MAX: Final = 2  # brokers, one after the other, before the bootstrap client
PATIENCE_S: Final = 0.8  # that a request waits for newer facts


@dataclass(slots=True)
class _Topics:
    """The topics of one metadata revision."""

    revision: int = -1
    infos: Sequence[comet.TopicInfo] = ()
    by_name: Mapping[str, TopicWithLeaders] = field(default_factory=dict)
    replicas: Mapping[int, int] = field(default_factory=dict)


class Sampler:
    """One per application, owned by its sources; used on its loop. `first` queries any broker and is not closed here;
    `connect` creates a client of the broker at an address."""

    def __init__(
        self,
        bootstrap: str,
        first: comet.Admin,
        connect: Connect,
        *,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._bootstrap = bootstrap
        self._first = first
        self._clock_us = clock_us
        self._histories = Histories()
        self._members = BrokerPool(connect, self._histories, clock_us)
        self._topics = _Topics()
        self._listing: asyncio.Task[None] | None = None
        self._known: facts.Cluster | None = None
        self._tracks: dict[str, Tracks] = {}  # by range, of this tick
        self._assembled_at = -1e9
        self._begun_at = 0.0  # of the last completed tick
        self.outdated_at = -1e9  # requests wait for a tick that starts later
        self._reason = ""  # why no broker answers
        self._viewed_at = -1e9
        self._ticking: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._due = 0.0  # time of the next tick
        self._closed = False
        self.rounds = 0

    # ---- queries of pages

    @property
    def name(self) -> str:
        """The name of the cluster: its first bootstrap address."""
        return self._bootstrap.partition(",")[0]

    @property
    def infos(self) -> Sequence[comet.TopicInfo]:
        """Topics with their partitions, as of the last tick."""
        return self._topics.infos

    async def cluster(self, range_: str = "15m") -> facts.Cluster:
        """The facts of the last tick; the first request waits for one. Raises Unavailable."""
        now = asyncio.get_running_loop().time()
        self._viewed_at = now
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._known is None else PATIENCE_S):
                while self._ticking is not None and not self._good_at(now):
                    self._ticked.clear()
                    await self._ticked.wait()
        if self._known is None:
            raise Unavailable("the state of the cluster is unknown; retry")
        if STEPS[range_][0] > 1 and await self._histories.lengthen(self._members.admins()):
            self._tracks.clear()
        tracks = self._tracks.get(range_)
        if tracks is None:
            tracks = self._tracks[range_] = self._histories.sums(range_, self._members.answering())
        return replace(self._known, tracks=tracks)

    def broker_tracks(self, broker: int, range_: str) -> Tracks:
        """Tracks of one broker, after `cluster` of that range."""
        return self._histories.of_broker(broker, range_)

    async def topic_tracks(self, topic: str, range_: str) -> Tracks:
        return await self._histories.of_topic(topic, range_, self._members.admins())

    async def group_tracks(self, group: str, range_: str) -> Tracks:
        """Lag by topic."""
        admins = self._members.admins()
        known = None if self._known is None else self._known.groups.get(group)
        if known is not None and known.coordinator in admins:
            admins = {known.coordinator: admins[known.coordinator]}
        return await self._histories.of_group(group, range_, admins)

    async def query(self, question: Callable[[comet.Admin], Awaitable[T]]) -> T:
        """Queries the broker that answered last, then the next one if it is silent. Raises CometError."""
        latest = sorted(self._members.answering().values(), key=lambda one: -one.answered_at)
        for one in latest[:TRIED_MAX]:
            with suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(ANSWER_S):
                    return await question(one.admin)
        return await question(self._first)

    def admin_of(self, broker: int) -> comet.Admin:
        """A client of that broker only. Raises BrokerNotFound."""
        return self._members.admin_of(broker)

    def renew(self) -> None:
        """Marks the facts as outdated after a change, and hurries the next tick."""
        if self._ticking is not None:
            self.outdated_at = asyncio.get_running_loop().time()
            self._hurry.set()

    def next(self, when: float) -> float:
        """The time near `when` that follows a tick."""
        if self._ticking is None:
            return when
        off = (when - self._due - AFTER_S) % TICK_S
        return when - off if off < TICK_S / 2 else when - off + TICK_S

    def statistics(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "running": self._ticking is not None,
            "brokers": len(self._members),
            "topics": len(self._topics.infos),
            "followed": self._histories.followed,
        }

    async def close(self) -> None:
        self._closed = True
        running = [task for task in (self._ticking, self._listing) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._histories.close()
        await self._members.close()

    # ---- ticking

    def _good_at(self, now: float) -> bool:
        """Whether the facts are fresh enough for a request at that time."""
        fresh = now - self._assembled_at <= FRESH_S and self._begun_at >= self.outdated_at
        return self._known is not None and fresh

    def _start(self) -> None:
        if self._ticking is None and not self._closed:
            self._ticking = asyncio.create_task(self._run(), name="dashboard: sampler")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._due = loop.time()
            while loop.time() - self._viewed_at < WATCHED_S:
                self._hurry.clear()
                began = loop.time()
                await self._tick()
                self._due = max(self._due + TICK_S, loop.time())
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._due):
                        await self._hurry.wait()
                        await asyncio.sleep(max(0.0, began + HURRY_S - loop.time()))
                        self._due = loop.time()
        except Exception:
            log.exception("sampling the cluster failed")
        finally:
            self._ticking = None
            self._ticked.set()

    async def _tick(self) -> None:
        began = asyncio.get_running_loop().time()
        if not self._members.answering():
            await self._begin()
        patience = ANSWER_S if self._known is None else GATHER_S
        if queries := self._members.query():
            await asyncio.wait(queries, timeout=patience)
        self._members.learn(self._topics.replicas)
        more = self._members.query(new=True)
        if (listing := self._list()) is not None:
            more.append(listing)
        if more:
            await asyncio.wait(more, timeout=patience)
            self._members.learn(self._topics.replicas)
        try:
            self._assemble()
        except Exception:
            log.exception("combining the answers of brokers failed")
            self._reason = "their answers cannot be read; see the gateway's log"
            self._known = self._unreachable()
        self.rounds += 1
        self._begun_at = began
        self._ticked.set()

    async def _begin(self) -> None:
        """No known broker answers: fetches the brokers from the bootstrap addresses."""
        try:
            async with asyncio.timeout(ANSWER_S):
                self._members.take(await self._first.describe_cluster(), self._topics.replicas)
        except TimeoutError:
            self._reason = f"no broker at {self._bootstrap} answers"
        except CometError as error:
            self._reason = error.message

    def _list(self) -> asyncio.Task[None] | None:
        """Lists topics again if the metadata changed."""
        newest = self._members.newest()
        if newest is not None and self._listing is None and newest.revision != self._topics.revision:
            self._listing = asyncio.create_task(self._listed(newest), name="dashboard: list topics")
        return self._listing

    async def _listed(self, newest: PooledBroker) -> None:
        revision = newest.revision
        try:
            async with asyncio.timeout(ANSWER_S):
                infos = await newest.admin.list_topics()
        except (TimeoutError, CometError):
            return  # retried at the next tick
        finally:
            self._listing = None
        by_name = {info.name: build_facts.topic_with_leaders(info) for info in infos}
        self._topics = _Topics(revision, infos, by_name, build_facts.replicas(infos))
        self._histories.keep(by_name)

    # ---- assembly

    def _assemble(self) -> None:
        self._assembled_at = asyncio.get_running_loop().time()
        self._tracks = {}
        newest = self._members.newest()
        if newest is None or newest.cluster is None:
            self._known = self._unreachable()
            return
        answering = self._members.answering()
        numbers = {id_: one.numbers for id_, one in answering.items() if one.numbers is not None}
        controller, replicas = newest.cluster.controller, self._topics.replicas
        coordinated = {id_: one.groups for id_, one in answering.items()}
        before = {} if self._known is None else self._known.groups
        groups = build_facts.groups(coordinated, before, self._members.coordinating())
        led = {id_: each.get("topics") or {} for id_, each in numbers.items()}
        self._known = facts.Cluster(
            time_us=max(one.answered_us for one in answering.values()),
            cluster_id=newest.cluster.cluster_id,
            controller=controller,
            brokers=tuple(
                build_facts.broker(one.known(numbers.get(one.info.id)), controller, replicas)
                for one in self._members.by_id()
            ),
            topics=build_facts.topics(self._topics.by_name, led, groups, self._histories.trends(answering)),
            groups=groups,
            events=self._histories.events.all(answering),
        )

    def _unreachable(self) -> facts.Cluster:
        """The last known facts, marked as unreachable."""
        before = self._known or facts.Cluster(time_us=self._clock_us())
        members = self._members.by_id()
        return replace(
            before,
            reachable=False,
            reason=next((one.failure for one in members if one.failure), self._reason),
            brokers=tuple(build_facts.broker(one.known(None), None, self._topics.replicas) for one in members),
        )
