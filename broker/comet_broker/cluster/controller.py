"""The controller's role: every broker tries to hold it, one does, and carries out the decisions of `core.controller`.

    view changes ─► wake ─┬─ cluster/controller is free ─► put it, under this broker's lease
                          └─ this broker holds it ─► decide ─► compare-and-swap ─► view changes …

Every change compares the role's own key as well, so a controller that was stopped and does not know its successor yet
can change nothing. A change that fails was overtaken: the view will show by what, and is checked again. The same holds
for a change whose answer got lost: the view shows it if it was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any, Final

from comet.errors import Closed, CometError
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import (
    BROKERS,
    CONTROLLER,
    DRAINS,
    NO_BROKER,
    ControllerRecord,
    PartitionId,
    partition_of,
)
from comet_broker.core.controller import Change, decide, orphans
from comet_broker.failures import Failures, Kind
from comet_broker.metadata.store import Compare, LeaseLost, MetadataStore, Put, StoreUnavailable
from comet_broker.ports import Clock

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
BROKEN_S: Final = 1.0
CHECK_S: Final = 5.0  # interval of checks of everything, with or without changes
REASONS_BYTES_MAX: Final = 2_000  # of one line in the log


class Controller:
    """Owned by the broker. `run` is one task, for as long as the broker lives."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore,
        view: ClusterView,
        membership: Membership,
        clock: Clock,
        failures: Failures,
    ) -> None:
        self.changes = 0
        self.overtaken = 0
        self.failures = 0  # unexpected errors
        self._failures = failures
        self._undecided: set[str] = set()  # partitions without a decision, after an error
        self._rebalance_s = config.rebalance_ms / 1000
        self._return_s = 0.0 if membership.exclusive else config.session_ms / 1000
        self._store = store
        self._view = view
        self._membership = membership
        self._clock = clock
        self._role = 0  # the mod_revision under which this broker holds the role; 0: it does not
        self._broker_epoch = 0  # of this broker when it took the role
        self._written = 0  # the revision of this controller's last change; it decides only on a view that shows it
        self._tps: set[PartitionId] | None = None  # changed since the last decision; None: possibly all
        self._leaderless: dict[PartitionId, float] = {}  # since when
        self._quiet_since = clock.monotonic()
        self._checked_at = -math.inf  # the time of the last check of everything
        self._patience = (False, False)
        self._waited: set[PartitionId] = set()  # partitions without a leader for longer than `session_ms`
        self._wake = asyncio.Event()
        view.listen(self._changed)
        membership.on_lost.append(self._step_down)
        membership.on_registered.append(self._wake.set)

    def acting(self) -> bool:
        """Whether this broker holds the role, as far as it knows."""
        return self._role != 0

    def statistics(self) -> dict[str, Any]:
        return {
            "acting": self.acting(),
            "changes": self.changes,
            "overtaken": self.overtaken,
            "failures": self.failures,
            "orphans": len(orphans(self._view.state)) if self.acting() else 0,
        }

    # ---- changes of the view

    def _changed(self, keys: Sequence[str]) -> None:
        if any(key.startswith((BROKERS, DRAINS)) for key in keys):
            self._quiet_since = self._clock.monotonic()
        for key in keys:
            tp = partition_of(key)
            if tp is not None:
                self._check_leader(tp)
            if tp is None or self._tps is None:
                self._tps = None
            else:
                self._tps.add(tp)
        self._wake.set()

    def _check_leader(self, tp: PartitionId) -> None:
        found = self._view.state.partitions.get(tp)
        if found is not None and found.value.leader == NO_BROKER:
            self._leaderless.setdefault(tp, self._clock.monotonic())
        else:
            self._leaderless.pop(tp, None)

    def _step_down(self) -> None:
        if self._role:
            log.warning("this broker is no longer the controller")
        for name in self._undecided:
            self._failures.clear(Kind.PARTITION, name)
        self._undecided.clear()
        self._role = 0
        self._wake.set()

    # ---- acting

    async def run(self) -> None:
        wait_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                wait_s = await self._turn()
            except Closed:
                return
            except (StoreUnavailable, LeaseLost) as error:
                log.info("the outcome of the controller's last change is unknown: %s", error)
                wait_s = await self._delay()
            except CometError as error:
                log.error("the controller cannot make its changes: %s", error)
                wait_s = await self._delay()
            except Exception as error:  # noqa: BLE001 - reported and retried
                self.failures += 1
                self._failures.note(Kind.TASK, "controller", error, "a turn", passing=True)
                await asyncio.sleep(BROKEN_S)
                wait_s = await self._delay()

    async def _delay(self) -> float:
        """Pauses before the store is asked again, however often the view changes."""
        await asyncio.sleep(RETRY_S)
        self._tps = None
        return 0.0

    async def _turn(self) -> float:
        """Takes the role if it is free, and acts if this broker has it. Returns the time until the next turn."""
        if not await self._hold():
            return CHECK_S
        if self._view.state.revision < self._written:
            return CHECK_S  # the view will wake this task
        now = self._clock.monotonic()
        quiet_s = now - self._quiet_since
        patience = (quiet_s >= self._rebalance_s, quiet_s >= self._return_s)
        waited = {tp for tp, since in self._leaderless.items() if now - since >= self._return_s}
        if patience != self._patience or waited - self._waited or now - self._checked_at >= CHECK_S:
            self._patience, self._checked_at, self._tps = patience, now, None
        self._waited = waited
        tps, self._tps = self._tps, set()
        rebalance, last_resort = patience
        undecided: dict[PartitionId, Exception] = {}
        changes = decide(
            self._view.state,
            rebalance=rebalance,
            last_resort=last_resort,
            only=tps,
            waited=waited,
            undecided=undecided,
        )
        self._note_undecided(tps, undecided)
        for change in changes:
            try:
                await self._make(change)
            except (Closed, StoreUnavailable, LeaseLost):
                raise
            except Exception as error:  # noqa: BLE001 - a change that fails must not stop the others
                self.failures += 1
                self._failures.note(Kind.TASK, "controller", error, f"the change: {change.reason}"[:200], passing=True)
        due_s = [at - quiet_s for at in (self._return_s, self._rebalance_s) if at > quiet_s]
        due_s += [since + self._return_s - now for tp, since in self._leaderless.items() if tp not in waited]
        return max(0.0, min([CHECK_S, *due_s]))

    def _note_undecided(self, tps: set[PartitionId] | None, undecided: dict[PartitionId, Exception]) -> None:
        """Notes partitions whose decision raises an error. They stay as they are, and are shown until it raises
        none."""
        names = {topic.value.id: name for name, topic in self._view.state.topics.items()} if undecided else {}
        found = {
            f"{names.get(topic_id, topic_id)}/{index} (its leader)": error
            for (topic_id, index), error in undecided.items()
        }
        for name, error in found.items():
            self.failures += 1
            self._failures.note(Kind.PARTITION, name, error, "choosing a leader")
        if tps is None:  # all were checked
            for name in self._undecided - found.keys():
                self._failures.clear(Kind.PARTITION, name)
            self._undecided = set()
        self._undecided |= found.keys()

    async def _hold(self) -> bool:
        membership = self._membership
        if not membership.broker_epoch or not membership.alive():
            return False
        mine = ControllerRecord(membership.broker_id, membership.broker_epoch)
        holder = self._view.state.controller
        if self._role:
            if self._view.state.revision < self._role or (holder == mine and self._broker_epoch == mine.broker_epoch):
                return True
            self._step_down()
        if holder is not None and holder != mine:
            return False
        return await self._take(mine)

    async def _take(self, mine: ControllerRecord) -> bool:
        result = await self._store.transact(
            [Compare(CONTROLLER, 0)], [Put(CONTROLLER, mine.encode(), self._membership.lease)]
        )
        role = result.revision
        if not result.applied:
            item = await self._store.get(CONTROLLER)
            if item is None or ControllerRecord.decode(item.value) != mine:
                return False
            role = item.mod_revision  # the lost answer was a success
        if self._membership.broker_epoch != mine.broker_epoch:
            return False  # the registration ended meanwhile
        self._role = role
        self._broker_epoch = mine.broker_epoch
        self._tps = None
        self._quiet_since = self._clock.monotonic()
        log.info("this broker is the controller now")
        if lost := orphans(self._view.state):
            log.warning(
                "%d partitions belong to no topic and no tombstone, for example %s; they are kept", len(lost), lost[0]
            )
        return True

    async def _make(self, change: Change) -> None:
        """Makes the whole change at once; if something has changed meanwhile, the parts that are possible alone."""
        if not self._role or not self._membership.alive():
            return
        result = await self._store.transact((*change.compares, Compare(CONTROLLER, self._role)), change.operations)
        if result.applied:
            self.changes += 1
            self._written = result.revision
            log.info("controller: %s", change.reason[:REASONS_BYTES_MAX])
            return
        self.overtaken += 1
        for part in change.parts:
            await self._make(part)
