"""The quotas of this cluster, as this broker keeps its clients within them.

    metadata store ─► cluster/quotas ─► ClusterView ─► Quotas ─► the ClientUsage of each principal
                                                                   ├─ bytes in, requests  its streams are read later
                                                                   ├─ bytes out           its deliveries are sent later
                                                                   └─ streams             no more are opened

Nothing that a client has sent is refused because of a rate: it waits, and the client is told for how long. Unary calls
that would wait longer than CALL_WAIT_S are refused, to be repeated.

The streams and calls of a principal at one broker share its quota. Owned by the broker; on its loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from comet.errors import LimitExceeded
from comet_broker.core.cluster import ClusterState
from comet_broker.core.quotas import NO_QUOTA, Quota, QuotaTable, TokenBucket
from comet_broker.core.rules import ALL
from comet_broker.ports import Clock

log = logging.getLogger(__name__)

CALL_WAIT_S: Final = 5.0  # of a unary call
USAGES_MAX: Final = 10_000  # beyond, those that are idle are forgotten
LISTED_MAX: Final = 100  # principals with statistics of their own
SMALL_BYTES: Final = 4_096  # frames that are no batches, up to this size, are taken also in debt: heartbeats, credit

Carries: TypeAlias = Literal["nothing", "in", "out"]  # the direction of the records of a unary call


class ClientUsage:
    """What one principal uses of this broker, and may use."""

    __slots__ = ("_clock", "_in", "_out", "_requests", "limited", "principal", "quota", "streams", "throttled_s")

    def __init__(self, principal: str, quota: Quota, clock: Clock) -> None:
        now = clock.monotonic()
        self.principal = principal
        self.quota = quota
        self.limited = quota is not NO_QUOTA
        self.streams = 0  # open ones
        self.throttled_s = 0.0  # that its streams and calls have waited, in all
        self._clock = clock
        self._in = TokenBucket(quota.bytes_in, now)
        self._out = TokenBucket(quota.bytes_out, now)
        self._requests = TokenBucket(quota.requests, now)

    def set_quota(self, quota: Quota) -> None:
        now = self._clock.monotonic()
        self.quota = quota
        self.limited = quota is not NO_QUOTA
        self._in.set_rate(quota.bytes_in, now)
        self._out.set_rate(quota.bytes_out, now)
        self._requests.set_rate(quota.requests, now)

    @property
    def idle(self) -> bool:
        """Whether a new one would be the same."""
        now = self._clock.monotonic()
        return not self.streams and all(one.is_full(now) for one in (self._in, self._out, self._requests))

    # ---- streams

    def open_stream(self) -> None:
        """Counts one more stream. Raises LimitExceeded."""
        if 0 < self.quota.streams <= self.streams:
            raise LimitExceeded(
                f"{self.principal} has {self.streams} streams at this broker, the limit of its quota; close one",
                retry_after_ms=1_000,
            )
        self.streams += 1

    def close_stream(self) -> None:
        self.streams -= 1

    def received(self, size: int, *, batch: bool) -> bool:
        """Counts a frame; whether nothing more is to be read for a while. Nothing is while requests are in debt. A
        batch may take the bytes into debt; once another one comes before that is paid, nothing is read until it is."""
        now = self._clock.monotonic()
        in_debt = self._in.debt_s(now) > 0
        self._in.take(size, now)
        self._requests.take(1, now)
        return (in_debt and (batch or size > SMALL_BYTES)) or self._requests.debt_s(now) > 0

    def read_later_s(self) -> float:
        """The time until more is to be read."""
        now = self._clock.monotonic()
        return max(self._in.debt_s(now), self._requests.debt_s(now))

    def sent(self, size: int) -> None:
        self._out.take(size, self._clock.monotonic())

    def send_later_s(self) -> float:
        """The time until more is to be sent."""
        return self._out.debt_s(self._clock.monotonic())

    # ---- unary calls

    async def admit(self, carries: Carries) -> None:
        """Waits until a call may begin. Raises LimitExceeded if that would take too long."""
        now = self._clock.monotonic()
        self._requests.take(1, now)  # before it waits, so that calls take turns
        wait_s = self._requests.debt_s(now)
        if carries == "in":
            wait_s = max(wait_s, self._in.debt_s(now))
        elif carries == "out":
            wait_s = max(wait_s, self._out.debt_s(now))
        if wait_s > CALL_WAIT_S:
            self._requests.take(-1, now)
            raise LimitExceeded(
                f"{self.principal} has used up its quota at this broker; repeat the request",
                retry_after_ms=round(wait_s * 1000),
            )
        if wait_s > 0:
            await self.wait(wait_s)

    def call_received(self, size: int) -> None:
        self._in.take(size, self._clock.monotonic())

    async def wait(self, wait_s: float) -> None:
        self.throttled_s += wait_s
        await asyncio.sleep(wait_s)


class Quotas:
    """All usages, by principal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revision = 0
        self._quotas: Mapping[str, Quota] = {}
        self._usages: dict[str, ClientUsage] = {}
        self._forgotten_s = 0.0  # throttled time of forgotten ones

    def usage(self, principal: str) -> ClientUsage:
        """The one usage of a principal, for as long as it is not idle."""
        found = self._usages.get(principal)
        if found is None:
            if len(self._usages) >= USAGES_MAX:
                self._forget_idle()
            found = self._usages[principal] = ClientUsage(principal, self._quota_of(principal), self._clock)
        return found

    def limited(self, principal: str) -> ClientUsage | None:
        """The usage of a principal that has a quota."""
        if not self._quotas:
            return None
        found = self.usage(principal)
        return found if found.limited else None

    def _quota_of(self, principal: str) -> Quota:
        return self._quotas.get(principal) or self._quotas.get(ALL) or NO_QUOTA

    def _forget_idle(self) -> None:
        idle = [one for one in self._usages.values() if one.idle]
        for one in idle:
            self._forgotten_s += one.throttled_s
            del self._usages[one.principal]

    def moved(self, state: ClusterState) -> None:
        """Follows the view."""
        found = state.quotas
        revision = 0 if found is None else found.mod_revision
        if revision == self._revision:
            return
        self._revision = revision
        try:
            table = QuotaTable() if found is None else QuotaTable.decode(found.value)
        except msgspec.DecodeError as error:
            log.error("the quotas cannot be read, so the earlier ones stay in force: %s", error)
            return
        self._quotas = table.by_principal()
        for usage in self._usages.values():
            usage.set_quota(self._quota_of(usage.principal))

    def statistics(self) -> dict[str, Any]:
        """The principals that were throttled most, each with what it uses now."""
        throttled = sorted((one for one in self._usages.values() if one.throttled_s), key=attrgetter("throttled_s"))
        listed = throttled[: -LISTED_MAX - 1 : -1]
        others_s = self._forgotten_s + sum(one.throttled_s for one in throttled[:-LISTED_MAX])
        return {
            "throttled": [
                {"principal": one.principal, "seconds": one.throttled_s, "streams": one.streams} for one in listed
            ],
            "others_throttled_s": others_s,
        }
