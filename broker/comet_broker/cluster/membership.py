"""This broker's membership: its registration, the lease of the registration, and how long it holds.

    register ─► grant lease ─► put cluster/brokers/<id> ─► keep alive, every quarter of the time to live
                  ▲                                              │
                  └── revoke what is left ◄── on_lost ◄──────────┴─ lease gone, or no keepalive for too long

The lease is the cluster's view of this broker; `deadline` is the broker's own. It counts from the moment the last good
keepalive was *sent*, on this machine's monotonic clock, so it is over before the cluster may take the broker for dead,
however long the process was stopped or its loop was busy. `alive()` asks the clock: no timer has to fire first.

Where one process has the store to itself no broker can take over, and the broker is alive as long as it runs; it
registers all the same, so that everything else works alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from comet.errors import Closed, CometError, InvalidArgument
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import BrokerRecord, broker_key
from comet_broker.metadata.store import (
    LEASE_TTL_MS_MAX,
    Compare,
    Delete,
    KeyValue,
    LeaseLost,
    MetadataStore,
    Put,
    StoreUnavailable,
    TransactionResult,
)
from comet_broker.ports import Clock
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
MARGIN: Final = 0.1  # of the time to live: for the difference of clocks, and the time of an append
KEEPALIVES: Final = 4  # in a time to live
FENCED_S: Final = 3.0
TAKEN_LEASES: Final = 2  # times to live to wait for the end of another folder's registration


class Entrance(Protocol):
    """Writes registrations to the store; see store_guard.StoreGuard."""

    async def ready(self) -> None:
        """Returns once the store may be written to."""

    async def enter(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult: ...


class Membership:
    """Owned by the broker. `register` once, then it keeps itself, until `leave`.

    record       returns what to register; called each time, `lease` and `draining` are filled in here
    exclusive    no other process uses the store
    entrance     writes a registration; None: as any other transaction
    on_lost, on_registered    called on the loop, in the order in which they were added
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore,
        view: ClusterView,
        clock: Clock,
        tasks: Tasks,
        record: Callable[[], BrokerRecord],
        exclusive: bool | None = None,
        entrance: Entrance | None = None,
    ) -> None:
        self._entrance = entrance
        self.broker_id = config.broker_id
        self.exclusive = not config.etcd if exclusive is None else exclusive
        self.broker_epoch = 0  # 0: not registered
        self.lease = 0
        self.deadline = -math.inf
        self.draining = False
        self.suspended = False  # the store is not trusted
        self.final = False  # the broker is stopping: a registration that ends is not renewed
        self.fenced: CometError | None = None  # another broker is registered under this id
        self.on_lost: list[Callable[[], None]] = []
        self.on_registered: list[Callable[[], None]] = []
        self._key = broker_key(config.broker_id)
        self._ttl_ms = LEASE_TTL_MS_MAX if self.exclusive else config.session_ms
        self._store = store
        self._view = view
        self._clock = clock
        self._tasks = tasks
        self._record = record
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        view.listen(self._changed)

    @property
    def ttl_s(self) -> float:
        return self._ttl_ms / 1000

    def alive(self) -> bool:
        """Whether no broker can have taken this one for dead yet. Checked before each append and each answer."""
        if self.suspended:
            return False
        return self.exclusive or (self.broker_epoch != 0 and self._clock.monotonic() < self.deadline)

    # ---- life

    async def register(self) -> None:
        """Registers this broker and keeps it registered from then on. Waits while the store does not answer.

        Raises InvalidArgument when a broker with another data folder is alive under the same id.
        """
        assert self._keeper is None
        await self._register()
        self._keeper = self._tasks.keep(self._keep, "keep membership")

    async def set_draining(self) -> None:
        """Tells the controller that this broker is about to stop, so that its leadership is handed over."""
        self.draining = True
        while self.broker_epoch:
            try:
                item = await self._store.get(self._key)
                if item is None or item.create_revision != self.broker_epoch:
                    return  # a new registration says it as well
                record = msgspec.structs.replace(BrokerRecord.decode(item.value), draining=True)
                compares = [Compare(self._key, item.mod_revision)]
                if (await self._store.transact(compares, [Put(self._key, record.encode(), self.lease)])).applied:
                    return
            except LeaseLost:
                return
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        """Ends the registration at an orderly stop. If the store does not answer, the lease expires."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        lease, self.lease, self.broker_epoch, self.deadline = self.lease, 0, 0, -math.inf
        if lease:
            with contextlib.suppress(StoreUnavailable, TimeoutError, Closed):
                async with asyncio.timeout(self.ttl_s / KEEPALIVES):
                    await self._store.revoke_lease(lease)

    def suspend(self) -> None:
        """Gives up the registration while the store is not trusted, and registers again when it is. The old
        registration in the store is left to expire."""
        self.lease = 0
        self.suspended = True
        if self.broker_epoch:
            self._lose()
        self._wake.set()

    async def revoke(self, broker: int, broker_epoch: int = 0) -> None:
        """Ends another broker's registration, when its process is certainly gone. `broker_epoch`: the epoch of that
        process; 0 for the current one."""
        assert broker != self.broker_id
        found = self._view.state.brokers.get(broker)
        if found is None or broker_epoch not in {0, found.create_revision}:
            return
        log.warning(
            "broker %d is gone: its registration ends before its lease does", broker, extra={"peer_broker": broker}
        )
        try:
            await self._store.revoke_lease(found.value.lease)
        except StoreUnavailable as error:
            log.warning(
                "cannot revoke the lease of broker %d, which has to expire: %s",
                broker,
                error,
                extra={"peer_broker": broker},
            )

    # ---- registering

    async def _register(self) -> None:
        lease = 0
        granted_at = 0.0
        waiting_since: float | None = None
        while True:
            try:
                if self._entrance is not None:
                    await self._entrance.ready()
                if not lease or self._clock.monotonic() - granted_at > self.ttl_s / 2:
                    granted_at = self._clock.monotonic()
                    lease = await self._store.grant_lease(self._ttl_ms)
                record = msgspec.structs.replace(self._record(), lease=lease, draining=self.draining)
                enter = self._store.transact if self._entrance is None else self._entrance.enter
                result = await enter([Compare(self._key, 0)], [Put(self._key, record.encode(), lease)])
                if result.applied:
                    return self._registered(lease, result.revision, granted_at)
                item = await self._store.get(self._key)
                if item is None:
                    continue
                if item.lease == lease:  # the lost answer was a success
                    return self._registered(lease, item.create_revision, granted_at)
                if self._left_behind(item, record):
                    log.info("ending the registration of an earlier start of this broker")
                    await self._store.revoke_lease(item.lease)
                    await self._store.transact([Compare(self._key, item.mod_revision)], [Delete(self._key)])
                    continue
                now = self._clock.monotonic()
                waiting_since = now if waiting_since is None else waiting_since
                if now - waiting_since > TAKEN_LEASES * self.ttl_s or self.exclusive:
                    await self._give_back(lease)
                    raise self._taken(BrokerRecord.decode(item.value))
                await asyncio.sleep(self.ttl_s / KEEPALIVES)
            except LeaseLost:
                lease = 0
            except StoreUnavailable as error:
                log.warning("cannot register, retrying: %s", error)
                await asyncio.sleep(RETRY_S)

    @staticmethod
    def _left_behind(item: KeyValue, record: BrokerRecord) -> bool:
        """It names the folder that this process has locked, so the process that wrote it is gone."""
        return BrokerRecord.decode(item.value).folder == record.folder

    def _registered(self, lease: int, broker_epoch: int, sent_at: float) -> None:
        self.lease = lease
        self.broker_epoch = broker_epoch
        self.fenced = None
        self.suspended = False
        self._extend(sent_at, self._ttl_ms)
        log.info("broker %d is registered, epoch %d", self.broker_id, broker_epoch)
        self._notify(self.on_registered)

    def _extend(self, sent_at: float, ttl_ms: int) -> None:
        self.deadline = sent_at + ttl_ms / 1000 * (1 - MARGIN)

    async def _give_back(self, lease: int) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._store.revoke_lease(lease)

    def _taken(self, other: BrokerRecord) -> InvalidArgument:
        return InvalidArgument(
            f"broker id {self.broker_id} is in use by the broker at {other.host}:{other.port}, which has another data"
            " folder: give each broker an id of its own",
            details={"broker": str(self.broker_id), "host": other.host, "port": str(other.port)},
        )

    # ---- keeping

    async def _keep(self) -> None:
        while True:
            try:
                await self._keep_alive()
                if self.broker_epoch:
                    self._lose()
                if self.final:
                    return
                await self._register_again()
            except Closed:
                return  # this process is stopping, or its store has failed for good and reports that itself

    async def _keep_alive(self) -> None:
        """Returns when the lease is gone, or not known to exist any more."""
        every_s = self.ttl_s / KEEPALIVES
        pause_s = 0.0  # the registration may have taken a while
        while True:
            await self._pause(pause_s)
            sent_at = self._clock.monotonic()
            if sent_at >= self.deadline or self._known_gone():
                return
            try:
                async with asyncio.timeout(min(every_s, self.deadline - sent_at)):
                    ttl_ms = await self._store.keep_alive(self.lease)
            except LeaseLost:
                return
            except (StoreUnavailable, TimeoutError):
                pause_s = min(RETRY_S, every_s / KEEPALIVES)
                continue
            if self._clock.monotonic() >= self.deadline:
                return  # too late: others may have acted on the silence, and this broker has refused requests
            self._extend(sent_at, ttl_ms)
            pause_s = every_s

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not beyond the end of the known registration."""
        self._wake.clear()
        if self._known_gone():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, self.deadline - self._clock.monotonic()))):
                await self._wake.wait()

    def _changed(self, keys: Sequence[str]) -> None:
        if self._key in keys and self._known_gone():
            self._wake.set()

    def _known_gone(self) -> bool:
        """Whether the store has shown a later revision without the registration."""
        state = self._view.state
        return 0 < self.broker_epoch <= state.revision and state.broker_epoch(self.broker_id) != self.broker_epoch

    def _lose(self) -> None:
        log.warning("broker %d is no longer registered", self.broker_id)
        self.broker_epoch = 0
        self.deadline = -math.inf
        self._notify(self.on_lost)

    def _notify(self, callbacks: Sequence[Callable[[], None]]) -> None:
        for callback in list(callbacks):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                self._tasks.report("a listener of the registration", error)

    async def _register_again(self) -> None:
        """As at the start, but a running broker has no caller to raise to when its id is taken."""
        lease, self.lease = self.lease, 0
        if lease:
            await self._give_back(lease)
        while True:
            try:
                await self._register()
            except Closed:
                raise
            except CometError as error:
                self.fenced = error if isinstance(error, InvalidArgument) else None
                log.error("broker %d cannot register again: %s", self.broker_id, error)
                await asyncio.sleep(min(self.ttl_s, FENCED_S))
            else:
                return
