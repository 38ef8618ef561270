"""Unary calls from this broker to others: forwarding what only a leader can do."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import Message

from comet.errors import Unavailable
from comet_broker.ports import Network, PeerChannel

M = TypeVar("M", bound=Message)

CHANNELS_MAX: Final = 64


class Peers:
    """One channel per address, made when it is first needed. Owned by the broker."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._channels: dict[str, PeerChannel] = {}

    async def call(self, address: str, method: str, request: Message, response: type[M], timeout_s: float) -> M:
        """The other broker's answer, or the CometError it gave."""
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX:
                await self._drop(next(iter(self._channels)))
            channel = self._channels[address] = self._network.connect(address)
        try:
            answer = await channel.unary(method, request, response, timeout_s)
        except Unavailable:
            if self._channels.get(address) is channel:
                await self._drop(address)
            raise
        assert isinstance(answer, response)
        return answer

    async def _drop(self, address: str) -> None:
        channel = self._channels.pop(address)
        await channel.close()

    async def close(self) -> None:
        while self._channels:
            await self._drop(next(iter(self._channels)))
