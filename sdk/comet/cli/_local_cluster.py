"""A cluster on this machine: etcd and some brokers, each a separate process, in one folder.

    FOLDER/etcd            etcd's data                 FOLDER/etcd.log        its output
    FOLDER/etcd.password   the password of its users, which brokers get in their environment
    FOLDER/broker-1        the first broker's data     FOLDER/broker-1.log    ...

For `comet up --brokers`, the benchmark and tests: each may be killed and restarted. They end with this process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from comet.cli._local_etcd import USER, etcd_command, password_of, password_required
from comet.errors import CometError, InvalidArgument, Unavailable
from comet.processes.child import Child, python_module, stop_in_order
from comet.processes.ports import LOCALHOST, HeldPorts, listening

START_S_MAX: Final = 60.0
POLL_S: Final = 0.02
REPLICAS: Final = 3  # by default, if there are so many brokers
NO_ETCD: Final = "etcd does not answer"  # in the last line of a broker that ends for this reason


class LocalCluster:
    """A context manager: entering starts the cluster, leaving stops it, one process after the other."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        *,
        host: str = LOCALHOST,
        port: int = 0,
        metrics_port: int = 0,
        settings: Mapping[str, str] | None = None,
        own_settings: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """`port` is the first broker's; the others get the next ones; 0: any free ports. The same holds for
        `metrics_port`, but 0 is none. `settings` are those of every broker, by name; `own_settings` those of each."""
        self.folder = folder
        self._held = HeldPorts(2 + (brokers if port == 0 else 0))
        client, peer, *others = self._held.numbers
        command = etcd_command(folder / "etcd", client, peer)
        self.etcd = _child(folder, "etcd", command, f"{LOCALHOST}:{client}", _environment())
        self._brokers_environment = _environment()  # `start` adds the password for etcd
        ports = others or [port + number for number in range(brokers)]
        if ports[-1] > 65535:
            raise InvalidArgument(f"{brokers} brokers need the ports {port} to {ports[-1]}, and the last port is 65535")
        common = {"etcd": self.etcd.address, "host": host, "default_replicas": str(min(brokers, REPLICAS))} | dict(
            settings or {}
        )
        self.brokers = [
            _child(
                folder,
                name := f"broker-{number}",
                _broker_command(
                    common
                    | {"id": str(number), "port": str(ports[number - 1]), "data": str(folder / name)}
                    | ({"metrics_port": str(metrics_port + number - 1)} if metrics_port else {})
                    | (dict(own_settings[number - 1]) if own_settings else {})
                ),
                f"{LOCALHOST if host == '0.0.0.0' else host}:{ports[number - 1]}",  # noqa: S104 - compared, not bound
                self._brokers_environment,
            )
            for number in range(1, brokers + 1)
        ]

    @property
    def members(self) -> list[Child]:
        return [self.etcd, *self.brokers]

    @property
    def addresses(self) -> str:
        """The brokers' addresses, as clients take them."""
        return ",".join(broker.address for broker in self.brokers)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Waits until all brokers know each other, or until `enough()` is true."""
        if (self.folder / "metadata.db").exists():
            raise InvalidArgument(f"{self.folder} holds the data of a single broker; give another folder: --data DIR")
        for broker in self.brokers:
            if listening(broker.address):
                hint = {"hint": "choose other ports: --port N; the brokers use N, N+1 and so on"}
                raise Unavailable(f"{broker.address} is in use", details=hint)
        self.folder.mkdir(parents=True, exist_ok=True)
        password = password_of(self.folder / "etcd.password")
        self._brokers_environment.update(COMET_ETCD_USER=USER, COMET_ETCD_PASSWORD=password)
        self._start_etcd()
        self._wait(lambda: enough() or password_required(self.etcd.address, password), [self.etcd])
        for broker in self.brokers:
            broker.start()
        self.wait_registered(enough)

    def _start_etcd(self) -> None:
        assert self.etcd.log is not None
        self.etcd.log.touch()
        self.etcd.log.chmod(0o600)  # etcd logs a slow authentication with its token
        self.etcd.start()

    def wait_registered(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Waits until each broker knows all brokers."""
        for broker in self.brokers:
            self._wait(lambda: enough() or _registered(broker.address) == len(self.brokers), self.members)  # noqa: B023

    def _wait(self, ready: Callable[[], bool], needed: list[Child]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not ready():
            for member in needed:
                if member.ended is not None and NO_ETCD in member.last_line():
                    member.start()  # etcd runs, but stalled for longer than a broker waits
                elif member.ended is not None:
                    raise member.ended_early(" before the cluster was up")
            if time.monotonic() > deadline:
                hint = {"hint": f"see the logs in {self.folder}"}
                raise Unavailable(f"the cluster was not up after {START_S_MAX:.0f} s", details=hint)
            time.sleep(POLL_S)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stops one broker after the other, so that each can hand over its leaderships, and etcd last."""
        stop_in_order({member: number for number, member in enumerate(self.members)}, hurry)


def _registered(address: str) -> int:
    """The number of brokers that the one at `address` knows; 0 while it does not answer."""
    import comet

    async def count() -> int:
        async with comet.Admin(address, timeout_ms=1_000) as admin:
            return len((await admin.describe_cluster()).brokers)

    try:
        return comet.run(count())
    except CometError:
        return 0


def _broker_command(settings: Mapping[str, str]) -> list[str]:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if value]
    return python_module("comet.cli", "broker", *words)


def _child(folder: Path, name: str, command: list[str], address: str, environment: Mapping[str, str]) -> Child:
    return Child(name, command, log=folder / f"{name}.log", address=address, environment=environment)


def _environment() -> dict[str, str]:
    """Settings for the user's own broker or etcd do not apply to these."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COMET_", "ETCD_"))}
