"""Records of shared groups without a session: leased by one call, settled by another, from wherever that comes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

from comet._client import Addresses, Client
from comet._record import HeaderList
from comet._transport import Connect
from comet.errors import CometError
from comet.types import StartLike


class LeasedRecord(NamedTuple):
    """One record, leased to whoever has its token. `attempt` counts how often it was given out, from 1."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: HeaderList
    attempt: int
    token: str


class Leases:
    """Leases records of shared groups and settles them, with nothing to keep in between but the tokens."""

    def __init__(
        self, addresses: Addresses, *, name: str = "", connect: Connect | None = None, random: Random | None = None
    ) -> None:
        self._client = Client(addresses, name=name, connect=connect, random=random)

    async def lease(
        self,
        group: str,
        topic: str,
        *,
        records_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        lease_ms: int = 30_000,
        attempts_max: int = 5,
        dead_letter: str = "",
        by_key: bool = False,
        start: StartLike = "latest",
    ) -> list[LeasedRecord]:
        """Up to so many records for `lease_ms`; waits for the first up to `wait_ms`.
        The rest is the group's; the first one in decides it."""
        raise NotImplementedError

    async def ack(self, tokens: Sequence[str]) -> list[CometError | None]:
        """They are done. For each None once that is kept, or LeaseExpired, or what kept the broker from it."""
        raise NotImplementedError

    async def nack(self, tokens: Sequence[str], *, delay_ms: int = 0) -> list[CometError | None]:
        """They are to be given out again, not before `delay_ms` are over; after too many attempts they are
        dead letters."""
        raise NotImplementedError

    async def reject(self, tokens: Sequence[str], *, reason: str = "") -> list[CometError | None]:
        """They are never to be given out again: they go to the dead-letter topic, or are dropped where there is
        none."""
        raise NotImplementedError

    async def extend(self, tokens: Sequence[str]) -> list[CometError | None]:
        """They take longer: their leases begin anew."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
