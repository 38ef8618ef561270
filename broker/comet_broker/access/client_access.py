"""What one caller may do, by the rules.

    call or frame ─► its needs (access.needs) ─► check ─► denied: TopicNotFound, GroupNotFound, Forbidden

What a caller may not describe does not exist for it. Owned by a call or a stream; on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias
from urllib.parse import unquote

from comet.errors import CometError, Forbidden, GroupNotFound, TopicNotFound
from comet.settings.hosts import is_loopback
from comet.types import AUDIT_TOPIC, SCHEDULES_TOPIC
from comet_broker.core.rules import Kind, Operation

Need: TypeAlias = "tuple[Operation, Kind, str]"
Allows: TypeAlias = "Callable[[ClientAccess, Operation, Kind, str], bool]"

ANONYMOUS: Final = "anonymous"  # a caller without a certificate
OF_BROKERS: Final = {AUDIT_TOPIC: "the audit log", SCHEDULES_TOPIC: "the topic of schedules"}
_BY_BROKERS_ALONE: Final = frozenset({"write", "create", "delete"})  # in these topics


class AccessWatch(Protocol):
    """Notes what clients are denied, and what they may do."""

    def denied(self, access: ClientAccess, need: Need, error: CometError) -> None: ...
    def used(self, access: ClientAccess, need: Need) -> None: ...


class ClientAccess:
    """The access of one principal. Not `enforced`: it may do everything, and nothing is checked."""

    __slots__ = ("_allows", "address", "credential", "enforced", "expires_us", "principal", "roles", "via", "watch")

    def __init__(
        self,
        principal: str = ANONYMOUS,
        allows: Allows | None = None,
        *,
        credential: str = "",
        expires_us: int = 0,
        roles: tuple[str, ...] = (),
        address: str = "",
        via: str = "",
        watch: AccessWatch | None = None,
    ) -> None:
        self.principal = principal
        self.address = address  # of the peer, as gRPC writes it
        self.via = via  # the gateway that acts for it; empty: none
        self.watch = watch  # None: nothing is noted, as for other brokers
        self.credential = credential  # see access.holder; empty: a certificate, or nothing
        self.expires_us = expires_us  # the end of that credential; 0: none
        self.roles = roles  # of a token, beside those that are granted
        self.enforced = allows is not None
        self._allows = allows

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return self._allows is None or self._allows(self, operation, kind, name)

    def check(self, needs: Iterable[Need]) -> None:
        """Raises the error for the first that is not allowed."""
        allowed: list[Need] = []
        for need in needs:
            if not self.allows(*need):
                error = self._denied(*need)
                if self.watch is not None:
                    self.watch.denied(self, need, error)
                raise error
            allowed.append(need)
        if self.watch is not None:
            for need in allowed:
                self.watch.used(self, need)

    def _denied(self, operation: Operation, kind: Kind, name: str) -> CometError:
        if kind == "topic" and not self.allows("describe", kind, name) and operation != "create":
            return TopicNotFound(f"topic {name!r} does not exist")
        if kind == "group" and operation != "read" and not self.allows("describe", kind, name):
            return GroupNotFound(f"group {name!r} does not exist")
        if is_by_brokers_alone(operation, kind, name):
            return Forbidden(f"only brokers write {OF_BROKERS[name]}: no client may {operation} topic {name!r}")
        what = "the cluster" if kind == "cluster" else f"{kind} {name!r}"
        return Forbidden(
            f"{self.principal} may not {operation} {what}",
            details={
                "hint": f"an administrator can allow it: comet acl add {self.principal} {operation} {kind} {name}"
            },
        )


def is_by_brokers_alone(operation: Operation, kind: Kind, name: str) -> bool:
    """Whether no client may do it, by no rule and as no superuser."""
    return name in OF_BROKERS and kind == "topic" and operation in _BY_BROKERS_ALONE


EVERYTHING: Final = ClientAccess()
_CALLER: ContextVar[ClientAccess] = ContextVar("caller", default=EVERYTHING)
_PEER: ContextVar[str] = ContextVar("peer", default="")


def caller() -> ClientAccess:
    """The access of the call that is being answered: unary, or of metadata on a stream."""
    return _CALLER.get()


def caller_is_local() -> bool:
    """Whether the call that is being answered came from this machine."""
    return is_local(_PEER.get())


def set_caller(access: ClientAccess, peer: str) -> None:
    """Called in the task of the call."""
    _CALLER.set(access)
    _PEER.set(peer)


def is_local(peer: str) -> bool:
    """Whether a peer, as gRPC writes it, calls over loopback or a Unix socket.

    >>> is_local("ipv4:127.0.0.1:54321"), is_local("ipv6:%5B::1%5D:54321"), is_local("unix:uid=0,pid=1")
    (True, True, True)
    >>> is_local("ipv4:10.0.0.7:54321"), is_local("ipv6:%5Bfe80::1%5D:54321")
    (False, False)
    """
    scheme, _, address = unquote(peer).partition(":")
    return scheme == "unix" or (scheme in {"ipv4", "ipv6"} and is_loopback(address.rpartition(":")[0]))
