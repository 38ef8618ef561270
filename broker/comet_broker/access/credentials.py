"""What clients present with each call and stream in place of certificates: access keys, and tokens of an issuer.

    authorization: Bearer … ─┬─► AccessKeys ─┬─► CredentialHolder ─► AccessControl ─► ClientAccess
                             └─► Tokens ─────┘

A broker that takes one of them, or both, refuses all other calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from comet.errors import CometError, CredentialsRefused, Unavailable
from comet.wire.bearer import HEADER, SCHEME, id_of, is_token
from comet_broker.access.holder import CredentialHolder
from comet_broker.access.keys import AccessKeys
from comet_broker.access.tokens import Tokens
from comet_broker.ports import Clock

log = logging.getLogger(__name__)

EXPIRY_S: Final = 1.0  # between looks for streams whose credential has expired
WARNING_US: Final = 60_000_000  # between lines about refused calls

Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]]"
Refused: TypeAlias = Callable[[str, CometError], None]  # takes the address of the peer, and the reason


class Credentials:
    """Owned by the broker; on its loop. Of neither kind: callers present none."""

    def __init__(self, keys: AccessKeys, tokens: Tokens | None, clock: Clock) -> None:
        self.on_tick: list[Callable[[int], None]] = []  # called with the time, for what has expired
        self.on_refused: list[Refused] = []
        self._keys = keys
        self._tokens = tokens
        self._clock = clock
        self.refused = 0  # calls
        self._last_refusal = ""
        self._warned = 0  # of the refused
        self._warned_us = -WARNING_US

    @property
    def required(self) -> bool:
        return self._keys.taken or self._tokens is not None

    def holder(self, metadata: Metadata | None, address: str = "") -> CredentialHolder:
        """Of what a call presents. Raises CredentialsRefused, and Unavailable if it cannot be told yet."""
        try:
            return self._holder(metadata or ())
        except (CredentialsRefused, Unavailable) as error:
            if isinstance(error, CredentialsRefused):
                self.refused += 1
                self._last_refusal = error.message
            for callback in self.on_refused:
                callback(address, error)
            raise

    def _holder(self, metadata: Metadata) -> CredentialHolder:
        given = next((value for name, value in metadata if name == HEADER), None)
        if given is None:
            message = f"this broker requires {self._taken}, and the call has none"
            raise CredentialsRefused(message, details={"reason": "missing"})
        text = given.decode("ascii", errors="replace") if isinstance(given, bytes) else given
        if text.startswith(SCHEME):
            text = text.removeprefix(SCHEME)
            if self._keys.taken and id_of(text) is not None:
                return self._keys.holder(text)
            if self._tokens is not None and is_token(text):
                return self._tokens.holder(text)
        raise CredentialsRefused(f"what the call presents is not {self._taken}")

    @property
    def _taken(self) -> str:
        kinds = {"an access key": self._keys.taken, "a token": self._tokens is not None}
        return " or ".join(kind for kind, taken in kinds.items() if taken)

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_S)
            self.expire()
            self.warn_of_refusals()

    def expire(self) -> None:
        now_us = self._clock.wall_us()
        for callback in self.on_tick:
            callback(now_us)

    def warn_of_refusals(self) -> None:
        now_us = self._clock.wall_us()
        if self.refused == self._warned or 0 <= now_us - self._warned_us < WARNING_US:
            return
        log.warning("%d calls were refused, the last: %s", self.refused - self._warned, self._last_refusal)
        self._warned, self._warned_us = self.refused, now_us
