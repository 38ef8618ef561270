"""Shares of what clients have in common: long-lived connections, replays, group members, requests that wait, bodies.

    principal   `principal_share_percent` of a limit; three quarters of `bodies_max`
    address     without a token, where one is needed: an eighth, and a quarter for all such addresses together
    admin       the last 10 % of each limit are for administrators

So neither one client nor all those without the role admin can shut an administrator out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from starlette.types import Scope

from comet_gateway.config import Limits
from comet_gateway.http.auth import ANONYMOUS, UNRESTRICTED, Principal, Role
from comet_gateway.http.problems import Problem

ADMIN_PERCENT: Final = 10  # of each limit, kept for administrators
ADDRESS_PERCENT: Final = 12.5  # without a token only forms of a few bytes are read
ADDRESSES_PERCENT: Final = 25  # all of them together
BODIES_PERCENT: Final = 75  # of a principal: slow bodies hold up no request that can be answered


class Holder(NamedTuple):
    """A client. `name` is that of its token, or its address without one."""

    name: str
    address: str
    is_admin: bool
    anonymous: bool = False  # where tokens are needed, and it has none


def holder_of(scope: Scope) -> Holder:
    """The client of an admitted request or WebSocket."""
    principal: Principal = scope["comet.principal"]
    address = client_address(scope)
    anonymous = principal is ANONYMOUS
    name = address if anonymous or principal is UNRESTRICTED else principal.name
    return Holder(name, address, principal.role >= Role.ADMIN, anonymous)


def client_address(scope: Scope) -> str:
    """The client's address."""
    client = scope.get("client")
    return client[0] if client else ""


class Shares:
    """How much of one limit is taken, and by which clients. Belongs to one application; used on its loop."""

    def __init__(
        self, what: str, limit: str, limits: Limits, turned_away: Counter[str], principal_percent: float | None = None
    ) -> None:
        """`what` is shown in refusals; `limit` is the name of the limit on all of them."""
        self._what = what
        self._limit = limit
        self._setting = "principal_share_percent" if principal_percent is None else limit
        self._most: int = getattr(limits, limit)
        self._of_principal = self._part(principal_percent or limits.principal_share_percent)
        self._of_address = self._part(ADDRESS_PERCENT)
        self._of_addresses = self._part(ADDRESSES_PERCENT)
        self._for_others = self._most - self._most * ADMIN_PERCENT // 100
        self._turned_away = turned_away
        self._held: Counter[tuple[str, bool]] = Counter()
        self._anonymous = 0
        self.taken = 0

    def take(self, holder: Holder) -> None:
        """Takes one. Raises OVERLOADED, TOO_MANY_REQUESTS; otherwise `give_back` follows."""
        if self.taken >= self._most:
            raise self._full(f"limit of {self._most} {self._what} reached")
        if not holder.is_admin and self.taken >= self._for_others:
            raise self._full(f"the last {self._most - self.taken} of {self._most} {self._what} are for administrators")
        if holder.anonymous and self._anonymous >= self._of_addresses:
            raise self._full(f"without a token, {self._anonymous} of {self._most} {self._what} are taken, the limit")
        share = self._of_address if holder.anonymous else self._of_principal
        if self._held[holder.name, holder.anonymous] >= share:
            self._turned_away[self._setting] += 1
            raise Problem(
                "TOO_MANY_REQUESTS",
                f"{holder.name!r} has {share} of {self._most} {self._what}, its share",
                hint=f"End some of them, or raise the gateway's `{self._setting}`.",
                more={"limit": self._setting, "share": share},
            )
        self._count(holder, 1)

    def give_back(self, holder: Holder) -> None:
        self._count(holder, -1)
        if not self._held[holder.name, holder.anonymous]:
            del self._held[holder.name, holder.anonymous]

    @contextmanager
    def held(self, holder: Holder) -> Iterator[None]:
        """Holds one. Raises as `take` does."""
        self.take(holder)
        try:
            yield
        finally:
            self.give_back(holder)

    def _count(self, holder: Holder, change: int) -> None:
        self.taken += change
        self._held[holder.name, holder.anonymous] += change
        if holder.anonymous:
            self._anonymous += change

    def _part(self, percent: float) -> int:
        return int(-(-self._most * percent // 100))

    def _full(self, detail: str) -> Problem:
        self._turned_away[self._limit] += 1
        return Problem("OVERLOADED", detail, more={"limit": self._limit})
