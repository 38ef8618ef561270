"""Quotas of what principals share: long-lived connections, replays, group members, requests that wait.

A principal takes at most its share of each, and the last ones are kept for administrators. So neither one principal nor
all those without the role admin can shut an administrator out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from starlette.types import Scope

from comet_gateway.config import Limits
from comet_gateway.http.auth import UNRESTRICTED, Principal, Role
from comet_gateway.http.problems import Problem

ADMIN_PERCENT: Final = 10  # of each limit, kept for administrators


class Holder(NamedTuple):
    """A client. `name` is that of its token, or its address without tokens."""

    name: str
    address: str
    is_admin: bool


def holder_of(scope: Scope) -> Holder:
    """The client of an admitted request or WebSocket."""
    principal: Principal = scope["comet.principal"]
    address = client_address(scope)
    name = address if principal is UNRESTRICTED else principal.name
    return Holder(name, address, principal.role >= Role.ADMIN)


def client_address(scope: Scope) -> str:
    """The client's address."""
    client = scope.get("client")
    return client[0] if client else ""


class Quota:
    """How much of one limit is taken, and by which principals. Belongs to one application; used on its loop."""

    def __init__(self, what: str, limit: str, limits: Limits, turned_away: Counter[str]) -> None:
        """`what` is shown in refusals; `limit` is the name of the limit on all of them."""
        self._what = what
        self._limit = limit
        self._most: int = getattr(limits, limit)
        self._of_one = -(-self._most * limits.principal_share_percent // 100)
        self._for_others = self._most - self._most * ADMIN_PERCENT // 100
        self._turned_away = turned_away
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self, holder: Holder) -> None:
        """Takes one. Raises OVERLOADED, TOO_MANY_REQUESTS; otherwise `give_back` follows."""
        if self.taken >= self._most:
            raise self._full(f"limit of {self._most} {self._what} reached")
        if not holder.is_admin and self.taken >= self._for_others:
            raise self._full(f"the last {self._most - self.taken} of {self._most} {self._what} are for administrators")
        if self._held[holder.name] >= self._of_one:
            self._turned_away["principal_share_percent"] += 1
            raise Problem(
                "TOO_MANY_REQUESTS",
                f"{holder.name!r} has {self._of_one} of {self._most} {self._what}, its share",
                hint="End some of them, or raise the gateway's `principal_share_percent`.",
                more={"limit": "principal_share_percent", "share": self._of_one},
            )
        self._held[holder.name] += 1
        self.taken += 1

    def give_back(self, holder: Holder) -> None:
        self.taken -= 1
        self._held[holder.name] -= 1
        if not self._held[holder.name]:
            del self._held[holder.name]

    @contextmanager
    def held(self, holder: Holder) -> Iterator[None]:
        """Holds one. Raises as `take` does."""
        self.take(holder)
        try:
            yield
        finally:
            self.give_back(holder)

    def _full(self, detail: str) -> Problem:
        self._turned_away[self._limit] += 1
        return Problem("OVERLOADED", detail, more={"limit": self._limit})
