"""Who calls a listener: clients, other brokers, or both; and what is believed of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc.aio
from google.protobuf.message import Message

from comet.errors import CometError, Forbidden
from comet_broker.access.client_access import EVERYTHING, ClientAccess
from comet_broker.rpc.listeners import certified_broker
from comet_broker.rpc.methods import ADMIN, COMET, Method

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CallContext(Protocol):
    """What a transport knows of a call's sender. A gRPC context is one."""

    def peer(self) -> str: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


Identify = Callable[[CallContext], int | None]


@dataclass(frozen=True, slots=True)
class Audience:
    """The callers of a listener.

    identify    the broker that the caller's certificate names; None: without a certificate. Raises Forbidden
    access      what the caller may do; other brokers may everything
    """

    clients: bool = True
    brokers: bool = True
    identify: Identify = lambda _: None
    access: Callable[[CallContext], ClientAccess] = lambda _: EVERYTHING

    def serves(self, method: Method) -> bool:
        """Whether the method exists for them. Other brokers also forward their clients' unary calls."""
        return self.brokers or method.service in (COMET, ADMIN)

    def check(self, method: Method, request: Message, caller: int | None) -> None:
        """Clears what is believed of brokers only. Raises Forbidden if the request claims to be another broker's."""
        if method.claims and caller not in (None, getattr(request, method.claims)):
            claimed = getattr(request, method.claims)
            raise Forbidden(f"the certificate is that of broker {caller}, not of broker {claimed}")
        if method.from_brokers and not self.brokers:
            request.ClearField(method.from_brokers)


def brokers_of(cluster: str, refused: Callable[[str, CometError], None]) -> Audience:
    """The other brokers of a cluster, each by its certificate. `refused` is called for others, with their address."""

    def identify(context: CallContext) -> int:
        try:
            return certified_broker(cluster, context.auth_context())
        except CometError as error:
            refused(context.peer(), error)
            raise

    return Audience(clients=False, identify=identify)
