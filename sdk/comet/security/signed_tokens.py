"""Verification of an issuer's tokens (JWT): signature, issuer, audience and times. Pure.

    header ─► the key of its kid ─► signature, issuer, audience ─► times

Needs the package pyjwt, which only servers that take tokens import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from comet.errors import CredentialsRefused
from comet.security.signing_keys import ALGORITHMS, SigningKeys

LEEWAY_S: Final = 30.0  # of clocks
REASON_MAX: Final = 100  # characters
_SECONDS_MAX: Final = 1e11
_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,  # the three are verified here: pyjwt reads the clock itself
    "verify_nbf": False,
    "verify_iat": False,
}


class UnknownSigningKey(Exception):
    """A token is signed with none of the known keys. `issued_s`, which is not verified, says whether it is newer."""

    def __init__(self, issued_s: float | None) -> None:
        super().__init__("the token is signed with none of the issuer's keys")
        self.issued_s = issued_s


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    kid: str
    claims: dict[str, Any]
    end_s: float  # the time from which on it is not taken; it may be over


class TokenVerifier:
    """For the tokens of one issuer to one audience.

    `lone_key`: a token without a kid is taken while the issuer has one key only, as OpenID Connect allows."""

    def __init__(self, issuer: str, audience: str, *, lone_key: bool = False) -> None:
        import jwt

        self._issuer = issuer
        self._audience = audience
        self._lone_key = lone_key
        self._jwt = jwt
        self._decoder = jwt.PyJWT({"enforce_minimum_key_length": True})

    def verify(self, text: str, keys: SigningKeys, now_s: float) -> VerifiedToken:
        """Raises CredentialsRefused, UnknownSigningKey."""
        jwt = self._jwt
        try:
            kid = jwt.get_unverified_header(text).get("kid")
            if kid is None and self._lone_key and len(keys) == 1:
                kid = next(iter(keys))
            key = keys.get(kid) if isinstance(kid, str) else None
            if key is None:
                raise UnknownSigningKey(
                    seconds_of(self._decoder.decode(text, options={"verify_signature": False}), "iat")
                )
            claims = self._decoder.decode(
                text,
                key.key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                options=_OPTIONS,
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            why = str(error)[:REASON_MAX]  # it may show parts of a header
            reason = why if why.isprintable() else type(error).__name__
            raise CredentialsRefused(f"the token is not valid: {reason}") from None
        return VerifiedToken(str(kid), claims, _end_s(claims, now_s))


def _end_s(claims: dict[str, Any], now_s: float) -> float:
    """The time from which on the token is not taken. Raises CredentialsRefused for times that do not fit."""
    end_s = seconds_of(claims, "exp")
    if end_s is None:
        raise CredentialsRefused("the token is not valid: its exp is not a time")
    for name in ("nbf", "iat"):
        begin_s = seconds_of(claims, name)
        if name in claims and (begin_s is None or begin_s > now_s + LEEWAY_S):
            raise CredentialsRefused(f"the token is not valid: its {name} is in the future")
    return end_s + LEEWAY_S


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, else by a path with dots; None: it is not there.

    >>> claim_of({"realm_access": {"roles": ["finance"]}}, "realm_access.roles")
    ['finance']
    """
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def seconds_of(claims: dict[str, Any], name: str) -> float | None:
    """A time in a token; None: it has none that makes sense."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _SECONDS_MAX else None  # neither nan nor infinite, nor too long for a float
