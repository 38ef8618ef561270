"""The authorization code flow with PKCE, from the button to the user.

    GET /login/oidc            ─► state, nonce, challenge ─► the provider, where the user logs in
    GET /login/oidc/callback   ─► cookie, state, iss ─► code and verifier ─► ID token ─► claims ─► name and role

The provider's texts are neither shown nor logged, but for error codes; codes, tokens and the secret never are.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final
from urllib.parse import urlencode

from comet.errors import CredentialsRefused, Unavailable
from comet.security.signed_tokens import TokenVerifier, UnknownSigningKey, VerifiedToken, seconds_of
from comet_gateway.http.auth import Principal
from comet_gateway.http.throttle import AddressThrottle, remember
from comet_gateway.oidc import login_attempt
from comet_gateway.oidc.client import NotAdmitted, OidcClient
from comet_gateway.oidc.login_attempt import LoginAttempt
from comet_gateway.oidc.provider import Provider

log = logging.getLogger(__name__)

USED_MAX: Final = 10_000  # logins that have ended, kept in memory for ATTEMPT_S or until there are more
CODE_CHARS_MAX: Final = 4_096
_ERROR: Final = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a login fails: the status of the answer and the text on the login page."""

    status: int
    text: str


# By the word in the address of the login page.
REFUSALS: Final[Mapping[str, Refusal]] = {
    "expired": Refusal(403, "The login has expired, or began in another browser or tab. Try again."),
    "used": Refusal(403, "This login was used already. Try again."),
    "cancelled": Refusal(403, "The login was cancelled, or your provider does not let you in."),
    "provider": Refusal(502, "Your provider has refused the login. The log of the gateway has the reason."),
    "away": Refusal(503, "Your provider cannot be reached, or answers with an error. Try again in a moment."),
    "invalid": Refusal(403, "Your provider's answer is not valid. The log of the gateway has the reason."),
    "no_role": Refusal(403, "You are known to your provider, but have no role here. Ask the operator of this gateway."),
    "roles": Refusal(
        403, "Your provider lists more groups of yours than a session holds. Ask your gateway's operator."
    ),
    "throttled": Refusal(429, "Too many failed logins from your address. Try again in a minute."),
}


class LoginRefused(Exception):
    """Ends a login. `word` is a key of REFUSALS."""

    def __init__(self, word: str, wanted: str = "/", retry_after_s: float = 0) -> None:
        super().__init__(word)
        self.word = word
        self.wanted = wanted
        self.retry_after_s = retry_after_s

    @property
    def refusal(self) -> Refusal:
        return REFUSALS[self.word]


class LoginFlow:
    """Belongs to one application; used on its loop."""

    def __init__(self, client: OidcClient, provider: Provider, wall: Callable[[], float] = time) -> None:
        self.client = client
        self.wall = wall
        self._provider = provider
        self._verifier = TokenVerifier(client.issuer, client.client_id, lone_key=True)
        self._throttle = AddressThrottle("failed logins by OpenID Connect")
        self._used: OrderedDict[bytes, None] = OrderedDict()  # seeds

    async def close(self) -> None:
        await self._provider.close()

    async def begin(self, address: str, redirect_url: str, wanted: str) -> tuple[LoginAttempt, str]:
        """A new login, and the URL at the provider. Raises LoginRefused."""
        self._check_throttle(address, wanted)
        try:
            metadata = await self._provider.metadata()
        except Unavailable as error:
            raise self._refused("away", address, error.message, wanted) from None
        attempt = login_attempt.begun(wanted, self.wall(), self.client.key)
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.client.client_id,
                "redirect_uri": redirect_url,
                "scope": self.client.scope,
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": attempt.challenge,
                "code_challenge_method": "S256",
            }
        )
        endpoint = metadata.authorization_endpoint
        return attempt, f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    async def finish(
        self, address: str, cookie: str, answer: Mapping[str, str], redirect_url: str
    ) -> tuple[Principal, str]:
        """The user of the provider's answer, and the path to go to. Raises LoginRefused."""
        self._check_throttle(address)
        attempt = login_attempt.read(cookie, self.wall(), self.client.key)
        if attempt is None or not _same(attempt.state, answer.get("state", "")):
            raise self._failed("expired", address, "its state is not that of a login of this browser")
        if attempt.seed in self._used:
            raise self._failed("used", address, "its answer came before", attempt.wanted)
        remember(self._used, attempt.seed, None, USED_MAX)
        code = await self._code(address, attempt, answer)
        try:
            token = await self._verified(await self._provider.id_token(code, attempt.verifier, redirect_url))
            self._check(token, attempt)
            return self.client.principal(token.claims), attempt.wanted
        except Unavailable as error:
            raise self._refused("away", address, error.message, attempt.wanted) from None
        except CredentialsRefused as error:
            raise self._failed("invalid", address, error.message, attempt.wanted) from None
        except NotAdmitted as error:
            raise self._refused(error.word, address, str(error), attempt.wanted) from None

    async def _code(self, address: str, attempt: LoginAttempt, answer: Mapping[str, str]) -> str:
        """The code of the answer. Raises LoginRefused."""
        issuer = answer.get("iss")
        try:
            metadata = await self._provider.metadata()
        except Unavailable as error:
            raise self._refused("away", address, error.message, attempt.wanted) from None
        if issuer != self.client.issuer and (issuer is not None or metadata.sends_issuer):
            raise self._failed("invalid", address, "its answer is of another issuer", attempt.wanted)
        if "error" in answer:
            word = answer["error"] if _ERROR.fullmatch(answer["error"]) else "an unknown error"
            kind = "cancelled" if word == "access_denied" else "provider"
            raise self._refused(kind, address, f"the provider answers {word}", attempt.wanted)
        code = answer.get("code", "")
        if not 0 < len(code) <= CODE_CHARS_MAX:
            raise self._failed("invalid", address, "its answer has no code", attempt.wanted)
        return code

    async def _verified(self, text: str) -> VerifiedToken:
        """Raises CredentialsRefused, Unavailable."""
        try:
            return self._verifier.verify(text, await self._provider.keys(), self.wall())
        except UnknownSigningKey:
            keys = await self._provider.keys(again=True)
        try:
            return self._verifier.verify(text, keys, self.wall())
        except UnknownSigningKey as error:
            raise CredentialsRefused(str(error)) from None

    def _check(self, token: VerifiedToken, attempt: LoginAttempt) -> None:
        """The checks of an ID token beside those of any token. Raises CredentialsRefused."""
        claims: dict[str, Any] = token.claims
        if token.end_s <= self.wall():
            raise CredentialsRefused("the ID token has expired")
        if seconds_of(claims, "iat") is None:
            raise CredentialsRefused("the ID token has no iat")
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not _same(nonce, attempt.nonce):
            raise CredentialsRefused("the ID token was made for another login: its nonce differs")
        several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
        if ("azp" in claims or several) and claims.get("azp") != self.client.client_id:
            raise CredentialsRefused("the ID token was made for another client: its azp differs")

    def _check_throttle(self, address: str, wanted: str = "/") -> None:
        if left_s := self._throttle.left_s(address):
            raise LoginRefused("throttled", wanted, left_s)

    def _failed(self, word: str, address: str, reason: str, wanted: str = "/") -> LoginRefused:
        """A refusal that counts against the address."""
        self._throttle.failed(address)
        return self._refused(word, address, reason, wanted)

    def _refused(self, word: str, address: str, reason: str, wanted: str) -> LoginRefused:
        log.warning("login by OpenID Connect refused: %s, from %s", reason, address, extra={"address": address})
        return LoginRefused(word, wanted)


def _same(one: str, other: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))
