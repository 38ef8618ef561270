"""Unary calls from this broker to others, for example requests that are forwarded to a leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from comet.errors import Timeout, Unavailable
from comet_broker.ports import Network, PeerChannel

M = TypeVar("M", bound=Message)

CHANNELS_MAX: Final = 64


@dataclass(slots=True, eq=False)
class _Shared:
    """A channel shared by the calls to one address. Once given up, it takes no new calls and is closed after the
    last."""

    channel: PeerChannel
    calls: int = 0


class Peers:
    """One channel per address, opened when it is first needed. Owned by the broker."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._channels: dict[str, _Shared] = {}
        self._given_up: set[_Shared] = set()

    async def call(self, address: str, method: str, request: Message, response: type[M], timeout_s: float) -> M:
        """The other broker's answer; raises the CometError that it returned."""
        shared = self._channels.get(address)
        if shared is None:
            shared = self._channels[address] = _Shared(self._network.connect(address))
        shared.calls += 1
        try:
            if len(self._channels) > CHANNELS_MAX:
                await self._give_up(next(iter(self._channels)))
            answer = await shared.channel.unary(method, request, response, timeout_s)
        except (Timeout, Unavailable):
            # Later calls get a new connection: this one may be dead without an error, as where a firewall has dropped
            # it. Those under way may have reached the other broker.
            if self._channels.get(address) is shared:
                await self._give_up(address)
            raise
        finally:
            shared.calls -= 1
            if not shared.calls and shared in self._given_up:
                self._given_up.discard(shared)
                await shared.channel.close()
        assert isinstance(answer, response)
        return answer

    async def _give_up(self, address: str) -> None:
        shared = self._channels.pop(address)
        if shared.calls:
            self._given_up.add(shared)
        else:
            await shared.channel.close()

    async def close(self) -> None:
        every = [*self._channels.values(), *self._given_up]
        self._channels.clear()
        self._given_up.clear()
        for shared in every:
            await shared.channel.close()
