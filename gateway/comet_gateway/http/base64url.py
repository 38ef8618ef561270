"""Base64url without padding, in one form only: so that a signed text has one spelling."""

from __future__ import annotations

import base64
import binascii


def encode(raw: bytes) -> str:
    """The text of these bytes.

    >>> encode(b"comet?")
    'Y29tZXQ_'
    """
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes | None:
    """The bytes of a text that `encode` has made; None for any other."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if encode(raw) == text else None
