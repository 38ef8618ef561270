"""The tokens (JWT) that this broker takes: those of one issuer, signed with its keys.

    token ─► known? ─► its principal
      └► header ─► the key of its kid ─► signature, issuer, audience ─► times ─► claim ─► its principal, remembered

The issuer's keys are read again each five minutes, and sooner for a token that is newer than they are; from a URL at
most every 30 s, also if strangers present such tokens all the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from comet.errors import CredentialsRefused, InvalidArgument, Unavailable, pip_install
from comet.security.fetch import is_private
from comet.security.principals import roles_of
from comet.security.signed_tokens import LEEWAY_S, TokenVerifier, UnknownSigningKey, claim_of
from comet.security.signing_keys import SigningKeys, is_url, read_signing_keys
from comet.wire.acting import USER
from comet_broker.access.holder import CredentialHolder
from comet_broker.config import BrokerConfig
from comet_broker.core.rules import check_principal
from comet_broker.ports import Clock, Worker

log = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
PAUSE_S: Final = 30.0  # between two requests to the issuer
FILE_PAUSE_S: Final = 1.0
REMEMBERED_MAX: Final = 10_000
_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken, by the settings `jwt_…`."""

    issuer: str
    audience: str
    keys: str  # a URL or a file
    claim: str  # that names the principal: "ann" is user:ann
    roles: str  # the claim with its roles: "finance" is role:finance; empty: none

    def check(self) -> None:
        """Raises InvalidArgument."""
        if not (self.issuer and self.audience and self.keys and self.claim):
            raise InvalidArgument(
                "jwt_issuer, jwt_audience and jwt_keys belong together: the issuer of tokens, their audience, its keys"
            )
        if is_url(self.keys) and not is_private(self.keys):  # others could replace the keys on the way
            raise InvalidArgument(f"jwt_keys must be an https URL, or a file, not {self.keys!r}")
        try:
            import jwt  # noqa: F401 - whether it is there
        except ImportError:
            raise InvalidArgument(f"tokens need the package pyjwt: {pip_install('security')}") from None


def issuer_of(config: BrokerConfig) -> Issuer | None:
    """None: no tokens are taken. Raises InvalidArgument."""
    given = Issuer(config.jwt_issuer, config.jwt_audience, config.jwt_keys, config.jwt_claim, config.jwt_roles)
    if not (given.issuer or given.audience or given.keys):
        return None
    given.check()
    return given


class Tokens:
    """Owned by the broker; on its loop."""

    def __init__(self, issuer: Issuer, clock: Clock, read: Callable[[str], SigningKeys] = read_signing_keys) -> None:
        self.on_ended: list[Callable[[frozenset[str]], None]] = []  # takes the ids of credentials of lost keys
        self._issuer = issuer
        self._clock = clock
        self._read = read
        self._verifier = TokenVerifier(issuer.issuer, issuer.audience)
        self._keys: SigningKeys = {}
        self._read_us = 0  # when the last reading that succeeded began
        self._problem = ""
        self._wanted = asyncio.Event()  # a token is newer than the keys
        self._known: OrderedDict[bytes, CredentialHolder] = OrderedDict()

    def holder(self, text: str) -> CredentialHolder:
        """Of a token. Raises CredentialsRefused, and Unavailable while the keys may be too old to tell."""
        digest = hashlib.sha256(text.encode()).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._verified(text)
            self._known[digest] = found
            if len(self._known) > REMEMBERED_MAX:
                self._known.popitem(last=False)
        if found.expires_us <= self._clock.wall_us():
            message = f"the token of {found.principal} has expired: its client needs a new one"
            raise CredentialsRefused(message, details={"reason": "expired"})
        return found

    def _verified(self, text: str) -> CredentialHolder:
        try:
            token = self._verifier.verify(text, self._keys, self._clock.wall_us() / _MICRO)
        except UnknownSigningKey as unknown:
            raise self._unknown_key(unknown.issued_s) from None
        principal, end_us = self._principal(token.claims), int(token.end_s * _MICRO)
        return CredentialHolder(principal, f"kid:{token.kid}", end_us, self._roles(token.claims))

    def _unknown_key(self, issued_s: float | None) -> CredentialsRefused | Unavailable:
        """A token that was signed before the keys were read has none of them. A newer one may come again."""
        if self._read_us and issued_s is not None and (issued_s + LEEWAY_S) * _MICRO < self._read_us:
            return CredentialsRefused("the token is not valid: it is signed with none of the issuer's keys")
        self._wanted.set()
        why = self._problem or "the token may be signed with a newer key of its issuer, and they are read again"
        return Unavailable(why, retry_after_ms=200)

    def _principal(self, claims: dict[str, Any]) -> str:
        value = claims.get(self._issuer.claim)
        principal = f"{USER}{value}"
        try:
            if not isinstance(value, str):
                raise InvalidArgument("it is not a text")
            check_principal(principal)
        except InvalidArgument as error:
            raise CredentialsRefused(f"the token has no usable {self._issuer.claim}: {error.message}") from None
        return principal

    def _roles(self, claims: dict[str, Any]) -> tuple[str, ...]:
        claim = self._issuer.roles
        return roles_of(claim_of(claims, claim), claim) if claim else ()

    # ---- the issuer's keys

    async def follow(self, worker: Worker) -> None:
        """Reads the keys again. Runs until it is cancelled."""
        pause_s = PAUSE_S if is_url(self._issuer.keys) else FILE_PAUSE_S
        while True:
            self._wanted.clear()
            await self.reread(worker)
            await asyncio.sleep(pause_s)
            if not self._problem and is_url(self._issuer.keys):
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S - pause_s):
                        await self._wanted.wait()

    async def reread(self, worker: Worker) -> None:
        """While they cannot be read, the earlier ones stay in use."""
        begin_us = self._clock.wall_us()
        try:
            found = await worker.run(lambda: self._read(self._issuer.keys))
        except Unavailable as error:
            if error.message != self._problem:
                log.warning("%s", error)
            self._problem = error.message
            return
        self._problem, self._read_us = "", begin_us
        before, self._keys = self._keys, found
        texts = {kid: key.text for kid, key in found.items()}
        gone = frozenset(f"kid:{kid}" for kid, key in before.items() if texts.get(kid) != key.text)
        if gone:
            self._known.clear()
            for callback in self.on_ended:
                callback(gone)
