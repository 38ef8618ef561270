"""What one caller may do, by the rules.

    call or frame ─► its needs (access.needs) ─► check ─► denied: TopicNotFound, GroupNotFound, Forbidden

What a caller may not describe does not exist for it. Owned by a call or a stream; on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final, TypeAlias

from comet.errors import CometError, Forbidden, GroupNotFound, TopicNotFound
from comet_broker.core.rules import Kind, Operation

Need: TypeAlias = "tuple[Operation, Kind, str]"
Allows: TypeAlias = Callable[[str, Operation, Kind, str], bool]  # the first: a principal

ANONYMOUS: Final = "anonymous"  # a caller without a certificate


class ClientAccess:
    """The access of one principal. Not `enforced`: it may do everything."""

    __slots__ = ("_allows", "credential", "enforced", "expires_us", "principal")

    def __init__(
        self, principal: str = ANONYMOUS, allows: Allows | None = None, *, credential: str = "", expires_us: int = 0
    ) -> None:
        self.principal = principal
        self.credential = credential  # see access.holder; empty: a certificate, or nothing
        self.expires_us = expires_us  # the end of that credential; 0: none
        self.enforced = allows is not None
        self._allows = allows

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return self._allows is None or self._allows(self.principal, operation, kind, name)

    def check(self, needs: Iterable[Need]) -> None:
        """Raises the error for the first that is not allowed."""
        for need in needs:
            if not self.allows(*need):
                raise self._denied(*need)

    def _denied(self, operation: Operation, kind: Kind, name: str) -> CometError:
        if kind == "topic" and not self.allows("describe", kind, name) and operation != "create":
            return TopicNotFound(f"topic {name!r} does not exist")
        if kind == "group" and operation != "read" and not self.allows("describe", kind, name):
            return GroupNotFound(f"group {name!r} does not exist")
        what = "the cluster" if kind == "cluster" else f"{kind} {name!r}"
        return Forbidden(
            f"{self.principal} may not {operation} {what}",
            details={
                "hint": f"an administrator can allow it: comet acl add {self.principal} {operation} {kind} {name}"
            },
        )


EVERYTHING: Final = ClientAccess()
_CALLER: ContextVar[ClientAccess] = ContextVar("caller", default=EVERYTHING)


def caller() -> ClientAccess:
    """The access of the unary call that is being answered."""
    return _CALLER.get()


def set_caller(access: ClientAccess) -> None:
    """Called by a transport in the task of the call."""
    _CALLER.set(access)
