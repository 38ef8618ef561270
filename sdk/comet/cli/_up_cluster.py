"""`comet up --brokers N`: starts a cluster on this machine, keeps it running, and ends it in order.

A process that dies, or is killed to see what happens, is reported and started again, after a second at first and
later ones after ever longer. The command itself owns no data; when it is killed, all its processes end.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from comet.cli._local_cluster import REPLICAS, LocalCluster, Member, died
from comet.cli._output import note, print_json

DEFAULT_ADDRESS: Final = "127.0.0.1:9092"
RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 10.0
WELL_S: Final = 5.0  # what ran for so long before it died counts as well again
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Requests to stop and deaths of children, as something to wait for."""

    def __init__(self) -> None:
        self.stops = 0
        self._wake, self._written = socket.socketpair()

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._wake.setblocking(False)
        self._written.setblocking(False)
        earlier = {number: signal.signal(number, self._on_stop) for number in SIGNALS}
        earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        descriptor = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in earlier.items():
                signal.signal(number, handler)
            self._wake.close()
            self._written.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def wait(self, timeout_s: float) -> None:
        """Returns at the next signal, or after the time."""
        select.select([self._wake], [], [], timeout_s)
        try:
            while self._wake.recv(4096):
                pass
        except BlockingIOError:
            return


class Keeper:
    """Starts again what died. One for a cluster; pure but for the members that it starts."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._delay_s = dict.fromkeys(members, RESTART_S_MIN)
        self._due: dict[Member, float] = {}

    def look(self, now: float) -> float:
        """Reports deaths and starts what is due; returns how long to wait until the next start."""
        for member in self._members:
            if member not in self._due and member.ended is not None:
                if now - member.started > WELL_S:
                    self._delay_s[member] = RESTART_S_MIN
                self._due[member] = now + self._delay_s[member]
                words = f": {member.said()}" if member.ended > 0 else ""  # one that was killed had no last words
                note(f"{died(member)}{words}; it is started again in {self._delay_s[member]:.0f} s")
                self._delay_s[member] = min(self._delay_s[member] * 2, RESTART_S_MAX)
        for member in [member for member, due in self._due.items() if due <= now]:
            del self._due[member]
            member.start()
            note(f"{member.name} is started again (pid {member.pid})")
        return max(min(self._due.values(), default=now + WELL_S) - now, 0.0)


def up_cluster(cluster: LocalCluster, *, ephemeral: bool, as_json: bool) -> None:
    """Runs until a signal says to stop; a second one makes it quick."""
    from comet_broker.storage.files import RealFiles

    signals = Signals()
    cluster.folder.mkdir(parents=True, exist_ok=True)
    lock = RealFiles(cluster.folder)
    lock.lock()  # two commands on one folder would start two etcds on the same data
    with signals.installed():
        try:
            cluster.start(lambda: signals.stops > 0)
            if not signals.stops:
                _announce(cluster, ephemeral=ephemeral, as_json=as_json)
            keeper = Keeper(cluster.members)
            while not signals.stops:
                signals.wait(keeper.look(time.monotonic()))
        finally:
            asked = signals.stops
            cluster.stop(hurry=lambda: signals.stops > max(asked, 1))
            lock.unlock()


def _announce(cluster: LocalCluster, *, ephemeral: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "address": cluster.brokers[0].address,
                "brokers": [
                    {"id": number, "address": broker.address, "pid": broker.pid}
                    for number, broker in enumerate(cluster.brokers, 1)
                ],
                "etcd": {"address": cluster.etcd.address, "pid": cluster.etcd.pid},
                "data": str(cluster.folder),
                "ephemeral": ephemeral,
            }
        )
        return
    count, first = len(cluster.brokers), cluster.brokers[0]
    at = "" if first.address == DEFAULT_ADDRESS else f" -b {first.address}"
    steps = {
        f"comet cluster{at}": "who leads what",
        f"comet topic create quotes{at}": f"held by {min(count, REPLICAS)} brokers",
        f"comet consume quotes{at}": "in a second terminal",
        f"comet produce quotes{at}": "in a third: each line is a record",
        f"kill -9 {first.pid}": f"{first.name}: the others take over, and it is started again",
    }
    width = max(map(len, steps))
    print(
        f"Comet is up: {count} brokers at {', '.join(broker.address for broker in cluster.brokers)}\n"
        f"data in {cluster.folder}{' (gone on exit)' if ephemeral else ''}, etcd at {cluster.etcd.address}\n\n"
        + "".join(f"  {step.ljust(width)}   {what}\n" for step, what in steps.items())
        + f"\n{count} brokers on one machine share one disk and one power supply: good for trying out and for tests.\n"
        "For a real cluster see `comet broker --help` and docs/operating.md. Ctrl-C stops all of it.",
        flush=True,
    )
