"""The provider's tokens (JWT) at the API: `Authorization: Bearer <token>` with the audience `oidc_audience`.

A verified token is remembered by its digest until it expires or its key is gone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from time import time
from typing import Final, NamedTuple

from comet.errors import CredentialsRefused
from comet.security.signed_tokens import LEEWAY_S, TokenVerifier, UnknownSigningKey, VerifiedToken
from comet.security.signing_keys import SigningKeys
from comet_gateway.http.auth import Principal, UserOfToken
from comet_gateway.http.throttle import remember
from comet_gateway.oidc.client import NotAdmitted, OidcClient
from comet_gateway.oidc.provider import Provider

REMEMBERED_MAX: Final = 10_000


class _Remembered(NamedTuple):
    user: UserOfToken
    kid: str
    key: str  # its text


class ApiTokens:
    """Belongs to one application; used on its loop."""

    def __init__(self, client: OidcClient, provider: Provider, wall: Callable[[], float] = time) -> None:
        self.wall = wall
        self._client = client
        self._provider = provider
        self._verifier = TokenVerifier(client.issuer, client.audience, lone_key=True)
        self._known: OrderedDict[bytes, _Remembered] = OrderedDict()

    async def user(self, text: str) -> UserOfToken:
        """The user of a token. Raises CredentialsRefused, and Unavailable while the provider's keys are not known."""
        digest = hashlib.sha256(text.encode()).digest()
        keys = await self._provider.keys()
        known = self._known.get(digest)
        if known is None or _text_of(keys, known.kid) != known.key:
            known = await self._verified(text, keys)
            remember(self._known, digest, known, REMEMBERED_MAX)
        if known.user.end_s <= self.wall():
            raise CredentialsRefused("the token has expired")
        return known.user

    async def _verified(self, text: str, keys: SigningKeys) -> _Remembered:
        try:
            token = self._verifier.verify(text, keys, self.wall())
        except UnknownSigningKey as unknown:
            keys = await self._newer_keys(unknown.issued_s)
            try:
                token = self._verifier.verify(text, keys, self.wall())
            except UnknownSigningKey as error:
                raise CredentialsRefused(str(error)) from None
        return _Remembered(UserOfToken(self._principal(token), token.end_s), token.kid, _text_of(keys, token.kid))

    async def _newer_keys(self, issued_s: float | None) -> SigningKeys:
        """A token that is older than the keys has none of them, so strangers cause few requests to the provider."""
        older = issued_s is not None and issued_s + LEEWAY_S < self.wall() - self._provider.keys_age_s()
        return await self._provider.keys(again=not older)

    def _principal(self, token: VerifiedToken) -> Principal:
        try:
            return self._client.principal(token.claims)
        except NotAdmitted as error:
            raise CredentialsRefused(str(error)) from None


def _text_of(keys: SigningKeys, kid: str) -> str:
    key = keys.get(kid)
    return "" if key is None else key.text
