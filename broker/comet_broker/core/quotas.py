"""Quotas: how much each principal may use of one broker.

    principal        bytes_in    bytes_out    requests    streams
    client:billing   1,000,000   -            200         10         for it alone
    *                -           5,000,000    -           -          for each principal without a quota of its own

Pure: brokers store the table as one value, and follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from comet.errors import InvalidArgument, LimitExceeded
from comet_broker.core.cluster import Stored
from comet_broker.core.rules import ALL, check_principal

TABLE_BYTES_MAX: Final = 1 << 20  # as it is stored
BYTES_MIN: Final = 1_024  # a second
BURST_S: Final = 0.5  # of its rate, that an idle principal may use at once


class Quota(Stored, frozen=True):
    """What one principal may use: bytes and requests are per second; 0: no limit."""

    principal: str
    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    streams: int = 0  # at once
    author: str = ""  # the principal that set it
    set_us: int = 0


NO_QUOTA: Final = Quota(ALL)


class QuotaTable(Stored, frozen=True):
    """All quotas, by principal. One value in the store."""

    quotas: tuple[Quota, ...] = ()

    def with_quota(self, quota: Quota) -> Self:
        """The table with the quota in place of an earlier one of its principal. Raises LimitExceeded."""
        rest = [one for one in self.quotas if one.principal != quota.principal]
        table = msgspec.structs.replace(self, quotas=tuple(sorted((*rest, quota), key=lambda one: one.principal)))
        size = len(table.encode())
        if size > TABLE_BYTES_MAX:
            raise LimitExceeded(
                f"{len(table.quotas)} quotas take {size} bytes, and at most {TABLE_BYTES_MAX} are stored; "
                "remove some, or set one for all: *"
            )
        return table

    def without_quota(self, principal: str) -> Self:
        """The table without the quota of a principal; this one if it lacks it."""
        rest = tuple(one for one in self.quotas if one.principal != principal)
        return self if len(rest) == len(self.quotas) else msgspec.structs.replace(self, quotas=rest)

    def by_principal(self) -> Mapping[str, Quota]:
        return {one.principal: one for one in self.quotas}


def check_quota(quota: Quota) -> Quota:
    """The quota. Raises InvalidArgument."""
    if quota.principal != ALL:
        check_principal(quota.principal)
    for name, low in (("bytes_in", BYTES_MIN), ("bytes_out", BYTES_MIN), ("requests", 1), ("streams", 1)):
        value = getattr(quota, name)
        if value and value < low:
            raise InvalidArgument(f"{name} is 0 (no limit), or at least {low}, not {value}")
    if not (quota.bytes_in or quota.bytes_out or quota.requests or quota.streams):
        raise InvalidArgument(
            "a quota limits something: give bytes_in, bytes_out, requests or streams",
            details={"hint": f"to remove the quota: comet quota remove {quota.principal}"},
        )
    return quota


class TokenBucket:
    """Tokens that come at a rate. More can be taken than there are: that is the debt, which is paid in time."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate  # a second; 0: unlimited
        self._tokens = rate * BURST_S
        self._at = now

    def set_rate(self, rate: int, now: float) -> None:
        """From now on. A debt is kept as the time in which it would be paid, so that a higher rate does not forgive,
        and a lower one does not punish."""
        debt_s = self.debt_s(now)
        unlimited, self.rate = not self.rate, rate
        burst = rate * BURST_S
        self._tokens = -debt_s * rate if debt_s else burst if unlimited else min(self._tokens, burst)
        self._at = now

    def take(self, amount: int, now: float) -> None:
        if self.rate:
            self._refill(now)
            self._tokens -= amount

    def debt_s(self, now: float) -> float:
        """The time until the debt is paid; 0: there is none."""
        if not self.rate:
            return 0.0
        self._refill(now)
        return max(0.0, -self._tokens / self.rate)

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self._tokens >= self.rate * BURST_S

    def _refill(self, now: float) -> None:
        self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate * BURST_S)
        self._at = now
