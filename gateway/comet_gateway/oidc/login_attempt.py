"""A login that has begun in a browser: a signed cookie that lasts ten minutes. Pure and stateless.

    cookie = a1.<body>.<proof>              the parts in base64url, without padding
    body   = began u64 s | seed, 32 bytes | the path to go to after the login
    proof  = HMAC-SHA256(key, "attempt" body)

State, nonce and PKCE verifier are HMACs of the seed, so the cookie shows none of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import Final

from comet_gateway.http import base64url

COOKIE: Final = "comet_oidc"
ATTEMPT_S: Final = 600
COOKIE_CHARS_MAX: Final = 3_600  # of the 4,096 that a browser keeps with name and attributes
_HEAD: Final = struct.Struct(">Q32s")
_VERSION: Final = "a1"
_SKEW_S: Final = 60  # between the clocks of two gateways


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """State, nonce and verifier of one login, and its end."""

    seed: bytes
    began_s: int
    wanted: str
    key: bytes

    @property
    def state(self) -> str:
        return self._derived(b"state")

    @property
    def nonce(self) -> str:
        return self._derived(b"nonce")

    @property
    def verifier(self) -> str:
        return self._derived(b"verifier")

    @property
    def challenge(self) -> str:
        """The verifier's digest (S256), for the first request."""
        return base64url.encode(hashlib.sha256(self.verifier.encode()).digest())

    @property
    def cookie(self) -> str:
        body = _HEAD.pack(self.began_s, self.seed) + self.wanted.encode()
        return ".".join((_VERSION, base64url.encode(body), base64url.encode(_proof(self.key, body))))

    def _derived(self, label: bytes) -> str:
        return base64url.encode(hmac.digest(self.key, label + b"\0" + self.seed, "sha256"))


def begun(wanted: str, now_s: float, key: bytes) -> LoginAttempt:
    return LoginAttempt(secrets.token_bytes(32), int(now_s), wanted, key)


def read(text: str, now_s: float, key: bytes) -> LoginAttempt | None:
    """The login of a cookie; None if it is invalid or over."""
    parts = text.split(".") if len(text) <= COOKIE_CHARS_MAX else []
    if len(parts) != 3 or parts[0] != _VERSION:
        return None
    body, proof = base64url.decode(parts[1]), base64url.decode(parts[2])
    if body is None or proof is None or len(body) < _HEAD.size or not hmac.compare_digest(_proof(key, body), proof):
        return None
    began_s, seed = _HEAD.unpack_from(body)
    if not began_s - _SKEW_S <= now_s < began_s + ATTEMPT_S:
        return None
    return LoginAttempt(seed, began_s, body[_HEAD.size :].decode(), key)


def _proof(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"attempt\0" + body, "sha256")
