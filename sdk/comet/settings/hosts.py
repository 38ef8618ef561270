"""The host names that a server answers to: the check of the Host header, against DNS rebinding.

A web page may point a name of its own at a server that only this machine reaches. So a request must name an address,
which cannot be pointed elsewhere, localhost, which this machine resolves, or a name that the server knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address


class HostNames:
    """The names of one server; "*" stands for any. Immutable."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def knows(self, host: bytes) -> bool:
        """Whether a Host header names the server.

        >>> [HostNames(["broker-1"]).knows(host) for host in (b"broker-1:9095", b"[::1]", b"evil.example")]
        [True, True, False]
        """
        name = _name(host.decode("latin-1"))
        if not name:
            return False
        known = "*" in self._names or name in self._names
        return known or name == "localhost" or name.endswith(".localhost") or is_address(name)


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach the host.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    name = host.removeprefix("[").removesuffix("]")
    return name == "localhost" or (is_address(name) and ip_address(name).is_loopback)


def _name(host: str) -> str:
    """The host name without the port; empty if malformed."""
    name, colon, port = (host, "", "") if host.endswith("]") else host.rpartition(":")
    if not colon:
        name, port = host, "0"
    if not port.isdecimal():
        return ""
    return name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
