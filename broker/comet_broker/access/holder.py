"""The holder of what a client presents: an access key or a token."""

from __future__ import annotations

from typing import NamedTuple


class CredentialHolder(NamedTuple):
    """`credential` is what can be taken away: the id of a key, or of the key that signed a token."""

    principal: str
    credential: str
    expires_us: int = 0  # 0: never
    roles: tuple[str, ...] = ()  # of a token, beside those that are granted
