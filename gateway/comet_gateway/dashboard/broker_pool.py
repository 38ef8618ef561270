"""The brokers of a cluster, each queried by a client of its own.

A silent broker does not block the others, and none answers in its place. Without an answer for a while it has no
numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final

import comet
from comet.errors import BrokerNotFound, CometError, Unavailable
from comet_gateway.dashboard import build_facts
from comet_gateway.dashboard.build_facts import Known, Numbers
from comet_gateway.dashboard.metric_history import Histories
from comet_web import facts

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0  # for an answer; after that a broker has no numbers
TAKEN_OVER_S: Final = 30.0  # after which others coordinate the groups of a lost broker
GONE_S: Final = 3_600.0  # that a removed broker is still shown
BROKERS_MAX: Final = 100
Connect = Callable[[str], comet.Admin]


@dataclass(slots=True)
class PooledBroker:
    """One broker. Lives as long as it is known."""

    info: comet.BrokerInfo
    admin: comet.Admin
    alive: bool = True  # registered in the cluster
    lost_at: float = 0.0
    numbers: Numbers | None = None
    groups: Mapping[str, facts.Group] = field(default_factory=dict)  # that it coordinates
    cluster: comet.ClusterInfo | None = None
    answered_at: float = -1e9
    answered_us: int = 0
    failure: str = ""
    querying: asyncio.Task[None] | None = None

    @property
    def revision(self) -> int:
        """The metadata revision that the broker knows."""
        return 0 if self.numbers is None else int(self.numbers.get("metadata_revision", 0))

    def known(self, numbers: Numbers | None) -> Known:
        info = self.info
        return Known(info.id, f"{info.host}:{info.port}", info.rack, info.version, info.draining, self.alive, numbers)


class BrokerPool:
    """All known brokers. Owned by the sampler; used on its loop."""

    def __init__(self, connect: Connect, histories: Histories, clock_us: Callable[[], int]) -> None:
        self._connect = connect
        self._histories = histories
        self._clock_us = clock_us
        self._all: dict[int, PooledBroker] = {}

    def __len__(self) -> int:
        return len(self._all)

    def by_id(self) -> list[PooledBroker]:
        return [one for _, one in sorted(self._all.items())]

    def answering(self) -> dict[int, PooledBroker]:
        now = asyncio.get_running_loop().time()
        return {id_: one for id_, one in self._all.items() if now - one.answered_at < ANSWER_S}

    def admins(self) -> dict[int, comet.Admin]:
        """Clients of the brokers that answer."""
        return {id_: one.admin for id_, one in self.answering().items()}

    def coordinating(self) -> set[int]:
        """Brokers that may coordinate groups: registered, or lost so recently that no other took over."""
        now = asyncio.get_running_loop().time()
        return {id_ for id_, one in self._all.items() if one.alive or now - one.lost_at < TAKEN_OVER_S}

    def newest(self) -> PooledBroker | None:
        """The answering broker with the newest metadata."""
        return max(self.answering().values(), key=lambda one: (one.revision, one.answered_at), default=None)

    def admin_of(self, broker: int) -> comet.Admin:
        """Raises BrokerNotFound."""
        found = self._all.get(broker)
        if found is None:
            known = ", ".join(map(str, sorted(self._all))) or "none"
            raise BrokerNotFound(f"broker {broker} does not exist; known brokers: {known}")
        return found.admin

    # ---- queries

    def query(self, *, new: bool = False) -> list[asyncio.Task[None]]:
        """Queries all brokers, or only `new` ones; not those that still process the last query."""
        for one in list(self._all.values()):
            if one.querying is None and not (new and (one.answered_us or one.failure)):
                one.querying = asyncio.create_task(self._query(one), name=f"dashboard: query broker {one.info.id}")
        return [
            one.querying for one in self._all.values() if one.querying is not None and not (new and one.answered_us)
        ]

    async def _query(self, one: PooledBroker) -> None:
        me = one.info.id
        try:
            async with asyncio.timeout(ANSWER_S):
                numbers = await one.admin.statistics(brief=True, topics=True, groups=True)
                if numbers.get("broker_id") != me:
                    raise Unavailable(f"{one.info.host}:{one.info.port} is another broker now")
                groups = build_facts.groups_of(me, numbers)
                cluster = await one.admin.describe_cluster()
                await self._histories.update(me, one.admin, int(numbers.get("started_us") or 0))
        except TimeoutError:
            one.failure = f"broker {me} does not answer"
        except CometError as error:
            one.failure = error.message
        except Exception:
            log.exception("querying broker %d failed", me, extra={"peer_broker": me})
            one.failure = f"the answer of broker {me} cannot be read"
        else:
            one.numbers, one.groups, one.cluster, one.failure = numbers, groups, cluster, ""
            one.answered_at, one.answered_us = asyncio.get_running_loop().time(), self._clock_us()
        finally:
            one.querying = None

    # ---- membership

    def learn(self, needed: Container[int]) -> None:
        """Updates the brokers from the newest answer. Removed ones stay for GONE_S, or while `needed`."""
        newest = self.newest()
        if newest is not None and newest.cluster is not None:
            self.take(newest.cluster, needed)

    def take(self, cluster: comet.ClusterInfo, needed: Container[int] = ()) -> None:
        now = asyncio.get_running_loop().time()
        there = {info.id: info for info in cluster.brokers}
        for id_, info in there.items():
            one = self._all.get(id_)
            if one is not None and (one.info.host, one.info.port) == (info.host, info.port):
                one.info, one.alive = info, True
                continue
            if one is not None:
                self._drop(id_)  # a new address; its history stays
            if len(self._all) < BROKERS_MAX:
                self._all[id_] = PooledBroker(info, self._connect(f"{info.host}:{info.port}"))
        for id_, one in list(self._all.items()):
            if id_ in there:
                continue
            if one.alive:
                one.alive, one.lost_at = False, now
            if now - one.lost_at > GONE_S and id_ not in needed:
                self._drop(id_)
                self._histories.forget(id_)

    def _drop(self, broker: int) -> None:
        one = self._all.pop(broker)
        if one.querying is not None:
            one.querying.cancel()
        closing = asyncio.create_task(one.admin.close(), name="dashboard: forget a broker")
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def close(self) -> None:
        querying = [one.querying for one in self._all.values() if one.querying is not None]
        for task in querying:
            task.cancel()
        await asyncio.gather(*querying, return_exceptions=True)
        for one in self._all.values():
            await one.admin.close()
