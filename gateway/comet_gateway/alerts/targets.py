"""Targets of webhooks: which URLs and addresses a gateway calls for the author of a rule.

URL ─► http or https, a host, no user ─► all of its addresses ─► each is public, or in `alert_networks`
    ─► the connection goes to a checked address: another answer of the name's server later changes nothing
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from comet.errors import InvalidArgument
from comet_gateway.http.problems import Problem

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

URL_CHARS_MAX: Final = 2_000
PORTS: Final = {"http": 80, "https": 443}
ADDRESSES_MAX: Final = 8  # of one name
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_IPV4_COMPATIBLE: Final = IPv6Network("::/96")


class ForbiddenTarget(Exception):
    """The webhook is not called; the text says why, and which setting allows it."""


def split_url(url: str) -> SplitResult:
    """The parts of a webhook's URL. Raises Problem."""
    try:
        if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise ValueError("use printable ASCII without spaces")
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Problem("VALIDATION", f"channels: the webhook's url is not valid: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise Problem("VALIDATION", "channels: the webhook's url must begin with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc or parts.fragment:
        raise Problem("VALIDATION", "channels: the webhook's url must have no user, password or #fragment")
    return parts


def networks_of(words: Sequence[str]) -> tuple[Network, ...]:
    """The networks of the setting. Raises InvalidArgument."""
    try:
        return tuple(map(ip_network, words))
    except ValueError as error:
        raise InvalidArgument(f"alert_networks: {error}; write networks as 10.1.0.0/16") from None


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet, also where an IPv4 address is inside of one of IPv6."""
    if isinstance(address, IPv6Address):
        inside = _inside(address)
        if inside is not None:
            return is_public(inside)
        # Python's own tables of what is global differ between its versions.
        if address.is_site_local or address in _NAT64_LOCAL or address.teredo is not None:
            return False
    return address.is_global and not (
        address.is_multicast or address.is_unspecified or address.is_reserved or address.is_loopback
    )


def _inside(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _IPV4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


async def addresses_of(
    host: str, port: int, allowed: Sequence[Network], resolve: Resolve = system_resolve
) -> list[str]:
    """The checked addresses of a host, to which alone to connect. Raises ForbiddenTarget if any of them is not allowed:
    a name with a private address among others is an attempt to get there. Raises OSError."""
    texts = list(dict.fromkeys(await resolve(host, port)))[:ADDRESSES_MAX]
    for text in texts:
        address = ip_address(text.partition("%")[0])
        plain = _inside(address) if isinstance(address, IPv6Address) else None
        if is_public(address) or any((plain or address) in network for network in allowed):
            continue
        raise ForbiddenTarget(
            f"{host} has an address that is not public; an operator allows networks of such addresses "
            "with the gateway's setting alert_networks"
        )
    if not texts:
        raise OSError(f"{host} has no address")
    return texts
