"""Ports for child processes: whether a process listens, and ports reserved for one that is going to."""

from __future__ import annotations

import socket
import sys
import weakref
from contextlib import suppress
from typing import Final

LOCALHOST: Final = "127.0.0.1"


def listening(address: str) -> bool:
    """Whether a process takes connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
        return True
    return False


def unused(port: int) -> bool:
    """Whether localhost at this port is free in both address families, as a browser may resolve it to either. A bind
    alone does not tell: another program may answer in the other family, and on some systems a bind succeeds beside a
    socket on all addresses."""
    if any(listening(f"{host}:{port}") for host in (LOCALHOST, "[::1]")):
        return False
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOCALHOST, port))
        return True
    return False


class HeldPorts:
    """Free ports, reserved while this object lives: the system assigns them to no other process, before the listener
    starts and while it restarts. A process that is given the number can still listen on it.
    Only on Linux; elsewhere the ports are free at creation, without a reservation."""

    def __init__(self, count: int) -> None:
        holders = [socket.socket() for _ in range(count)]
        for holder in holders:  # all at once, so that they differ
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the later listeners do
            holder.bind((LOCALHOST, 0))
        self.numbers = [int(holder.getsockname()[1]) for holder in holders]
        let_go = weakref.finalize(self, _close_all, holders)
        if sys.platform != "linux":
            let_go()


def _close_all(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()
