"""`comet cluster recover` at the broker: the inventory of its folder, and the recovery that one broker makes for all.

    RecoverCluster ─► Inventory of each broker ─► core.recovery.planned ─► shown; or, accepted, written to the store

A broker that does not trust the store warns those that are registered there (`warn_others`): one that was away knows no
more than an old snapshot, and would lead by it.

The store is reached past the guard, which refuses it: only here, and only for what an operator has accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from comet.errors import CometError, InvalidArgument, Timeout, Unavailable
from comet.v1 import admin_pb2 as admin
from comet.v1 import coordination_pb2 as coordination
from comet_broker.cluster.peers import Peers
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.journal import Head, slot_prefix
from comet_broker.core.cluster import CLUSTER, ClusterState, LineageEntry
from comet_broker.core.lineage import MARK_BITS, Floor
from comet_broker.core.recovery import Inventory, Plan, batches, planned, slot_epoch
from comet_broker.core.slots import SLOTS
from comet_broker.metadata.store import KeyValue, StoreUnavailable
from comet_broker.partitions.topics import TopicTable

log = logging.getLogger(__name__)

ADDRESSES_MAX: Final = 1_000
INVENTORY_S_MAX: Final = 120.0  # it may have to open every log of the folder
WARN_S: Final = 1.0
WARN_S_MAX: Final = 2.0
METHOD: Final = "comet.v1.Admin/Inventory"
WARN: Final = "comet.v1.Coordination/Warn"


async def warn_others(me: int, guard: StoreGuard, peers: Peers) -> None:
    """Warns the brokers that are registered in a store which this broker does not trust, until it trusts it. A broker
    that knew no more than a restored store then stops leading. A task of its own."""
    while guard.reason:
        request = warning(me, guard)
        for address in list(guard.registered.values()):
            with contextlib.suppress(CometError):
                await peers.call(address, WARN, request, coordination.WarnResponse, WARN_S_MAX)
        await asyncio.sleep(WARN_S)


def warning(me: int, guard: StoreGuard) -> coordination.WarnRequest:
    return coordination.WarnRequest(broker=me, floor=guard.known().encode().decode())


class AdminRecovery:
    """The coroutines behind the unary calls; raises CometErrors."""

    def __init__(
        self,
        me: int,
        *,
        random: Random,
        guard: StoreGuard,
        view: ClusterView,
        peers: Peers,
        topics: TopicTable,
        folder_id: Callable[[], str],
        address: Callable[[], str],
    ) -> None:
        """`address` is where this broker takes calls of other brokers."""
        self._me = me
        self._random = random
        self._guard = guard
        self._view = view
        self._peers = peers
        self._topics = topics
        self._folder_id = folder_id
        self._address = address

    async def inventory(self, _: admin.InventoryRequest) -> admin.InventoryResponse:
        return admin.InventoryResponse(json=(await self._own()).encode().decode())

    async def _own(self) -> Inventory:
        copies, topics = await self._topics.inventory()
        return Inventory(
            broker=self._me,
            folder=self._folder_id(),
            cluster_id=self._view.cluster_id,
            reason=self._guard.reason,
            running=self._guard.judged,
            floor=self._guard.known(),
            copies=tuple(copies),
            topics=tuple(topics),
            address=self._address(),
        )

    async def recover_cluster(self, request: admin.RecoverClusterRequest) -> admin.RecoverClusterResponse:
        if not self._guard.reason:
            raise InvalidArgument("this broker trusts the metadata store: nothing to recover", details={"trusted": "1"})
        if len(request.brokers) > ADDRESSES_MAX:
            raise InvalidArgument(f"at most {ADDRESSES_MAX} addresses, not {len(request.brokers)}")
        inventories, silent = await self._inventories(request.brokers)
        try:
            state = await self._listed()
            plan = planned(inventories, state)
            if request.accept:
                await self._make(plan, inventories, state, request.accept)
        except StoreUnavailable as error:
            raise Timeout(f"the metadata store did not answer; run the command again: {error}") from error
        return admin.RecoverClusterResponse(
            json=plan.encode().decode(), digest=plan.digest, done=bool(request.accept), silent=silent
        )

    async def warned(self, request: coordination.WarnRequest) -> coordination.WarnResponse:
        """Takes a warning of another broker that knows more than the store has. It counts here as well."""
        try:
            floor = Floor.decode(request.floor.encode())
            await self._guard.learn(floor, request.broker)
        except (msgspec.DecodeError, StoreUnavailable) as error:
            log.warning(
                "warning of broker %d is not applied: %s", request.broker, error, extra={"peer_broker": request.broker}
            )
        return coordination.WarnResponse()

    async def _inventories(self, addresses: Sequence[str]) -> tuple[list[Inventory], list[str]]:
        """The inventories of all brokers that answer, including this one, and the addresses of the others. A broker
        that still trusts the store is warned first, and stops: its folder must not change any more."""

        async def one(address: str) -> Inventory | None:
            try:
                found = await self._inventory_of(address)
                if not found.reason:
                    request = warning(self._me, self._guard)
                    await self._peers.call(found.address, WARN, request, coordination.WarnResponse, WARN_S_MAX)
                    found = await self._inventory_of(address)
            except CometError as error:
                log.warning("no inventory from the broker at %s: %s", address, error, extra={"address": address})
                return None
            return found

        answers = await asyncio.gather(*map(one, addresses))
        found = {self._me: await self._own()}
        for answer in answers:
            if answer is not None:
                found.setdefault(answer.broker, answer)
        silent = [address for address, answer in zip(addresses, answers, strict=True) if answer is None]
        return [found[broker] for broker in sorted(found)], silent

    async def _inventory_of(self, address: str) -> Inventory:
        answer = await self._peers.call(
            address, METHOD, admin.InventoryRequest(), admin.InventoryResponse, INVENTORY_S_MAX
        )
        return Inventory.decode(answer.json.encode())

    async def _listed(self) -> ClusterState:
        listing = await self._guard.inner.range(CLUSTER)
        return ClusterState.of(listing.items, listing.revision)

    async def _make(self, plan: Plan, inventories: Sequence[Inventory], state: ClusterState, accept: str) -> None:
        if plan.digest != accept:
            raise InvalidArgument("the plan has changed since it was accepted; run the command again")
        if trusting := [one.broker for one in inventories if not one.reason]:
            raise Unavailable(
                f"broker {trusting[0]} still trusts the metadata store, and may go on writing; run the command again"
            )
        store = self._guard.inner
        keys = {slot: slot_prefix(slot) + "head" for slot in range(SLOTS)}
        heads: dict[int, KeyValue] = {}
        for slot, key in keys.items():
            item = await store.get(key)
            if item is not None:
                heads[slot] = item
        values = {slot: (key, Head(self._me, slot_epoch(plan, state, slot), 0).encode()) for slot, key in keys.items()}
        entry = LineageEntry(self._me, f"{self._random.getrandbits(MARK_BITS):016x}")
        for batch in batches(plan, inventories, state, heads, values, entry):
            result = await store.transact(batch.compares, batch.operations)
            if not result.applied:
                raise Unavailable("the metadata store changed meanwhile, and nothing is written; run the command again")
        log.warning(
            "metadata store of cluster %s recovered by an operator: %d partitions, %d records given up",
            plan.cluster_id,
            len(plan.partitions),
            sum(one.loses for one in plan.partitions),
        )
