"""The slots that this broker coordinates: claimed in the metadata store, loaded, served, and given up.

    cluster/coordinators/<slot>      the slot's owner: broker, broker epoch, epoch       (all brokers follow it)
    coordination/<slot>/head         the last write of that coordinator                 (see journal)
    coordination/<slot>/...          its groups, offsets and transactions             (read once, when it is claimed)

    unclaimed ─► claim (compare-and-swap of owner and head) ─► load ─► ready ─► lost: another claims it

A slot that was never needed has no owner; the first request for it makes the broker claim it that `slots.chosen` names.
When the owner dies, or the chosen broker comes back, the chosen broker claims it at once. The previous owner learns it
from the store, and cannot write any more even before it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from comet.errors import Closed, CometError, CoordinatorLoading, Draining, NotCoordinator, Unavailable
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.view import ClusterView
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.journal import Head, Journal, slot_prefix
from comet_broker.coordination.logs import Logs
from comet_broker.coordination.markers import Markers
from comet_broker.coordination.slot import Slot
from comet_broker.core import slots
from comet_broker.core.cluster import (
    BROKERS,
    COORDINATORS,
    BrokerRecord,
    CoordinatorRecord,
    Versioned,
    coordinator_key,
)
from comet_broker.env import Env
from comet_broker.failures import Guard, Kind
from comet_broker.metadata.store import Compare, KeyValue, Put, StoreUnavailable

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
LOADING_MS: Final = 20  # after which a retry is worth it
FAILED_MS: Final = 1_000  # the same, for a slot that has failed
FAILED_S: Final = 1.0  # before a failed slot is claimed again; twice that the next time, up to
FAILED_S_MAX: Final = 30.0
FAILED_CALM_S: Final = 60.0  # after which a failure counts as the first
EARLY_S: Final = 0.01  # that a timer may ring before its time


@dataclass(frozen=True, slots=True)
class FailedSlot:
    """A slot given up after an unexpected error: it is claimed again, with all its state from the store."""

    reason: str
    pause_s: float
    until: float


class Coordinator:
    """Owned by the broker; on the loop's thread."""

    def __init__(
        self,
        env: Env,
        *,
        store: StoreGuard,
        view: ClusterView,
        membership: Membership,
        draining: Callable[[], bool],
        logs: Logs,
        markers: Callable[[], Markers],
    ) -> None:
        self._env = env
        self._store = store
        self._view = view
        self._membership = membership
        self._draining = draining
        self._context = SlotContext(
            env,
            view,
            store,
            logs,
            markers,
            lag_series=lambda: sum(slot.groups.lag.series_count for slot in self.ready_slots()),
        )
        self._slots: dict[int, Slot] = {}
        self._claiming: dict[int, asyncio.Task[None]] = {}
        self._failed: dict[int, FailedSlot] = {}
        self._closed = False

    def start(self) -> None:
        """Starts to claim slots. The broker is a member of the cluster by then."""
        self._view.listen(self._moved)
        self._claim_chosen(self._view.state.coordinators)

    def close(self, error: CometError) -> None:
        self._closed = True
        for task in self._claiming.values():
            task.cancel()
        self.give_up(error)

    def give_up(self, error: CometError) -> None:
        """Gives up all slots: this broker may have been replaced."""
        held, self._slots = self._slots, {}
        for slot in held.values():
            slot.close(error)

    # ---- owners of slots

    def chosen(self, number: int) -> int | None:
        """The broker that should have the slot, as far as this one knows."""
        state = self._view.state
        willing = [broker for broker, found in state.brokers.items() if not found.value.draining]
        return slots.chosen(number, willing or state.brokers)

    def owner(self, number: int) -> int | None:
        """The broker that has the slot, if it is alive."""
        found = self._view.state.coordinators.get(number)
        if found is None or self._view.state.broker_epoch(found.value.broker) != found.value.broker_epoch:
            return None
        return found.value.broker

    def whereabouts(self, number: int) -> tuple[int, BrokerRecord]:
        """The broker to ask for a slot. It may have to claim the slot first."""
        broker = self.owner(number) or self.chosen(number)
        found = None if broker is None else self._view.state.brokers.get(broker)
        if broker is None or found is None:
            raise Unavailable("no live broker can coordinate now; retry", retry_after_ms=100)
        return broker, found.value

    # ---- the slots that are here

    def of(self, name: str) -> Slot:
        """The slot of a group or transactional id, ready to use. Raises NotCoordinator or CoordinatorLoading."""
        return self.slot(slots.slot_of(name))

    def slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is not None and slot.ready and self._membership.alive():
            return slot
        if self._draining():
            raise Draining("this broker is about to stop", retry_after_ms=LOADING_MS)
        if self._store.reason:
            raise CoordinatorLoading(self._store.reason, retry_after_ms=LOADING_MS)
        me = self._env.me
        failed = self._failed.get(number)
        if failed is not None and slot is None and failed.until > self._env.clock.monotonic():
            raise Unavailable(
                f"slot {number} has failed on broker {me}, its coordinator: {failed.reason}. It is claimed again within"
                f" {failed.pause_s:g} s, or at once by: comet cluster resume --broker {me}",
                retry_after_ms=FAILED_MS,
            )
        if slot is None and (self.owner(number) or self.chosen(number)) == me:
            self._claim(number)
        if slot is not None or number in self._claiming:
            raise CoordinatorLoading(
                "the coordinator is loading its groups and transactions", retry_after_ms=LOADING_MS
            )
        owner = self.owner(number) or self.chosen(number)
        details = {} if owner in (None, me) else self._view.whereabouts(owner or 0)
        raise NotCoordinator(f"broker {owner} coordinates slot {number}", details=details, retry_after_ms=LOADING_MS)

    def ready_slots(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.ready]

    def unready(self) -> list[int]:
        """Slots in use that are not known to be served: their owner is dead, or it is this broker and is not ready."""
        ready = {slot.number for slot in self.ready_slots()} if self._membership.alive() else set()
        me = self._env.me
        return [
            number
            for number in self._view.state.coordinators
            if (owner := self.owner(number)) is None or (owner == me and number not in ready)
        ]

    def lag(self) -> int:
        """The total lag of the groups here, in records."""
        return sum(slot.groups.lag.total for slot in self.ready_slots())

    def statistics(self) -> list[dict[str, Any]]:
        """The statistics of each slot here."""
        found: list[dict[str, Any]] = []
        for slot in self.ready_slots():
            with self._env.failures.guard(Kind.SLOT, str(slot.number), "statistics"):
                found.append({**slot.groups.statistics(), **slot.transactions.statistics()})
        return found

    # ---- claiming

    def _moved(self, keys: Sequence[str]) -> None:
        """Follows the view: slots may be lost, or to be claimed."""
        if self._closed:
            return
        for number, slot in list(self._slots.items()):
            found = self._view.state.coordinators.get(number)
            if found is not None and found.value.epoch > slot.epoch:
                self._lost(number, slot, NotCoordinator(f"broker {found.value.broker} coordinates slot {number} now"))
        for slot in list(self._slots.values()):
            with self._guard(slot.number, "following the cluster"):
                slot.groups.topics.view_moved(keys)
                slot.transactions.view_moved(keys)
        if any(key.startswith(BROKERS) for key in keys):
            self._claim_chosen(self._view.state.coordinators)
        else:
            numbers = (key.removeprefix(COORDINATORS) for key in keys if key.startswith(COORDINATORS))
            named = {int(number) for number in numbers if number.isdecimal()}
            known = self._view.state.coordinators
            self._claim_chosen({number: known[number] for number in named if number in known})

    def _claim_chosen(self, found: dict[int, Versioned[CoordinatorRecord]]) -> None:
        me, broker_epoch = self._env.me, self._membership.broker_epoch
        for number, record in found.items():
            mine = record.value.broker == me and record.value.broker_epoch == broker_epoch
            if not mine and self.chosen(number) == me and self._membership.alive():
                self._claim(number)

    def _lost(self, number: int, slot: Slot, error: CometError) -> None:
        if self._slots.get(number) is slot:
            del self._slots[number]
        log.info("no longer coordinates slot %d: %s", number, error, extra={"slot": number})
        slot.close(error)

    def _claim(self, number: int) -> None:
        if number in self._claiming or number in self._slots or self._closed or self._draining():
            return
        task = self._env.tasks.spawn(self._claim_later(number), f"claim slot {number}")
        self._claiming[number] = task
        task.add_done_callback(lambda _: self._claiming.pop(number, None))

    async def _claim_later(self, number: int) -> None:
        """Claims and loads the slot, unless another broker should have it by then."""
        while not self._closed and self._membership.broker_epoch:
            try:
                if await self._try_to_claim(number):
                    return
            except StoreUnavailable as error:
                log.warning("slot %d waits for the metadata store: %s", number, error, extra={"slot": number})
                await asyncio.sleep(RETRY_S)
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - retried after a pause
                self._halt(number, error, "claiming")
                return

    # ---- slots that fail

    def _guard(self, number: int, step: str) -> Guard:
        return self._env.failures.guard(Kind.SLOT, str(number), step, lambda error: self._halt(number, error, step))

    def _halt(self, number: int, error: Exception, step: str, slot: Slot | None = None) -> None:
        """Gives the slot up after an unexpected error that concerns all of it. This broker claims a new epoch after a
        pause, which grows each time. The store has everything that is committed."""
        now = self._env.clock.monotonic()
        before = self._failed.get(number)
        pause_s = FAILED_S if before is None or now - before.until > FAILED_CALM_S else min(
            2 * before.pause_s, FAILED_S_MAX
        )  # fmt: skip
        reason = self._env.failures.note(Kind.SLOT, str(number), error, step, passing=True)
        self._failed[number] = FailedSlot(reason, pause_s, now + pause_s)
        if slot is None or self._slots.get(number) is slot:
            slot = self._slots.pop(number, None)
        if slot is not None:
            slot.close(NotCoordinator(f"slot {number} has failed on this broker: {reason}", retry_after_ms=FAILED_MS))
        asyncio.get_running_loop().call_later(pause_s, self._claim_again, number)

    def _claim_again(self, number: int) -> None:
        failed = self._failed.get(number)
        if failed is not None and failed.until <= self._env.clock.monotonic() + EARLY_S and self._wanted(number):
            self._claim(number)

    def _wanted(self, number: int) -> bool:
        return self._membership.alive() and self.chosen(number) == self._env.me

    async def resume(self) -> int:
        """Resumes what has failed: slots at once, groups and transactional ids from the store. Returns how many were
        started. Raises StoreUnavailable."""
        failed, self._failed = self._failed, {}
        count = 0
        for number in failed:
            self._env.failures.clear(Kind.SLOT, str(number))
            if number not in self._slots and self._wanted(number):
                count += 1
                self._claim(number)
        for slot in self.ready_slots():
            count += await slot.groups.resume() + await slot.transactions.resume()
        return count

    # ---- loading

    async def _try_to_claim(self, number: int) -> bool:
        """True when there is nothing more to do: this broker has claimed the slot, or another one."""
        me, broker_epoch = self._env.me, self._membership.broker_epoch
        key, head_key = coordinator_key(number), slot_prefix(number) + "head"
        item, head = await self._store.get(key), await self._store.get(head_key)
        record = None if item is None else CoordinatorRecord.decode(item.value)
        if self.chosen(number) != me:
            return True
        mine = CoordinatorRecord(broker=me, broker_epoch=broker_epoch, epoch=1 if record is None else record.epoch + 1)
        floor = 0 if head is None else Head.decode(head.value).generation_floor
        first = Head(broker=me, epoch=mine.epoch, sequence=0, generation_floor=floor)
        result = await self._store.transact(
            [Compare(key, 0 if item is None else item.mod_revision),
             Compare(head_key, 0 if head is None else head.mod_revision)],
            [Put(key, mine.encode()), Put(head_key, first.encode())],
        )  # fmt: skip
        if not result.applied:
            return False
        await self._load(number, mine, first, head_key, result.revision)
        return True

    async def _load(self, number: int, mine: CoordinatorRecord, first: Head, head_key: str, revision: int) -> None:
        journal = Journal(
            self._store,
            key=head_key,
            head=first,
            revision=revision,
            tasks=self._env.tasks,
            lost=lambda error: self._lost(number, slot, error),
            halt=lambda error: self._halt(number, error, "writing", slot),
        )
        slot = self._slots[number] = Slot(SlotClaim(number, mine.epoch, journal), self._context)
        items: Sequence[KeyValue] = ()
        while slot.closed is None:
            try:
                items = (await self._store.range(slot.claim.prefix)).items
                break
            except StoreUnavailable as error:
                log.warning("slot %d waits for the metadata store: %s", number, error, extra={"slot": number})
                await asyncio.sleep(RETRY_S)
        head = next((item for item in items if item.key == head_key), None)
        if slot.closed is None and (head is None or head.mod_revision != revision):
            # Another broker has claimed it since, or the store is a different one: it does not show this claim.
            self._lost(
                number,
                slot,
                CoordinatorLoading(f"the claim of slot {number} is gone; retry", retry_after_ms=LOADING_MS),
            )
        elif slot.closed is None and self._membership.broker_epoch == mine.broker_epoch:
            slot.load([item for item in items if item.key != head_key])
            log.info(
                "coordinates slot %d in epoch %d, with %d keys",
                number,
                mine.epoch,
                len(items) - 1,
                extra={"slot": number},
            )
        else:
            self._lost(number, slot, NotCoordinator(f"this broker was replaced while it loaded slot {number}"))
