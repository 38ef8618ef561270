"""The user of a gateway, in the metadata of a call that the gateway makes for it.

    comet-acting-for-bin    the principal, and the roles of its token, a line each

Brokers take it from the principals in their setting `gateways`, and then decide by the rules for the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from comet.errors import InvalidArgument

HEADER: Final = "comet-acting-for-bin"
USER: Final = "user:"  # with which the principals of an issuer's users begin
TOKEN: Final = "token:"  # noqa: S105 - and those of the tokens of a gateway
BYTES_MAX: Final = 4096  # gRPC takes 8 KiB of all metadata of a call


class ActingFor(NamedTuple):
    """A user of a gateway. `roles` are those of its token, beside those that are granted to it."""

    principal: str
    roles: tuple[str, ...] = ()

    def metadata(self) -> tuple[str, bytes]:
        """Raises InvalidArgument if it is too long for a call."""
        text = "\n".join((self.principal, *self.roles)).encode()
        if len(text) > BYTES_MAX:
            raise InvalidArgument(
                f"the roles of {self.principal} take {len(text)} bytes, and a call has room for {BYTES_MAX}"
            )
        return HEADER, text


def acting_for(metadata: Iterable[tuple[str, str | bytes]] | None) -> ActingFor | None:
    """Of a call; None: it is the caller's own. Raises InvalidArgument."""
    found = [value for name, value in metadata or () if name == HEADER]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], bytes) or len(found[0]) > BYTES_MAX:
        raise InvalidArgument(f"a call has one {HEADER} at most, of up to {BYTES_MAX} bytes")
    try:
        principal, *roles = found[0].decode().split("\n")
    except UnicodeDecodeError:
        raise InvalidArgument(f"the {HEADER} of the call is not UTF-8") from None
    return ActingFor(principal, tuple(roles))
