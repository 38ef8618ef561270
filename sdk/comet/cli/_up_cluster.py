"""`comet up --brokers N`: starts a cluster on this machine, restarts its processes, and ends them in order.

A process that dies or is killed is restarted. The command itself holds no data; if it is killed, all its processes
end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from comet.cli._gateway_process import GatewayProcess, banner, restarting
from comet.cli._local_cluster import REPLICAS, LocalCluster
from comet.cli._output import exports, print_json
from comet.processes.signals import StopSignals
from comet.settings.client import BOOTSTRAP_VARIABLE


def up_cluster(
    cluster: LocalCluster,
    gateway: GatewayProcess | None = None,
    *,
    ephemeral: bool,
    as_json: bool,
    variables: Mapping[str, str],
) -> None:
    """Runs until a signal; a second one kills what is still running. `variables` are those that clients need."""
    from comet_broker.storage.files import RealFiles

    signals = StopSignals()
    cluster.folder.mkdir(parents=True, exist_ok=True)
    lock = RealFiles(cluster.folder)
    lock.lock()  # two commands in one folder would start two etcds on the same data
    with signals.installed():
        try:
            cluster.start(lambda: signals.stops > 0)
            url = None if gateway is None or signals.stops else gateway.start(lambda: signals.stops > 0)
            if not signals.stops:
                _announce(cluster, url, variables, ephemeral=ephemeral, as_json=as_json)
            keeper = restarting([*cluster.members, *([gateway.child] if gateway is not None and url else [])])
            while not signals.stops:
                signals.wait(keeper.check(time.monotonic()))
        finally:
            stops = signals.stops
            if gateway is not None:
                gateway.child.stop(hurry=lambda: signals.stops > max(stops, 1))
            cluster.stop(hurry=lambda: signals.stops > max(stops, 1))
            lock.unlock()


def _announce(
    cluster: LocalCluster, url: str | None, variables: Mapping[str, str], *, ephemeral: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "address": cluster.brokers[0].address,
                "brokers": [
                    {"id": number, "address": broker.address, "pid": broker.pid}
                    for number, broker in enumerate(cluster.brokers, 1)
                ],
                "etcd": {"address": cluster.etcd.address, "pid": cluster.etcd.pid},
                "gateway": url,
                "data": str(cluster.folder),
                "ephemeral": ephemeral,
                "environment": dict(variables),
            }
        )
        return
    count, first = len(cluster.brokers), cluster.brokers[0]
    addresses = [broker.address for broker in cluster.brokers]
    steps = {
        "comet cluster": "brokers and leaders",
        "comet topic create quotes": f"{min(count, REPLICAS)} replicas of each partition",
        "comet consume quotes": "in a second terminal",
        "comet produce quotes": "in a third: one record a line",
        f"kill -9 {first.pid}": f"{first.name} fails over, and is restarted",
    }
    width = max(map(len, steps))
    where = "\n".join(
        [
            f"{count} brokers at {', '.join(addresses)}",
            f"data in {cluster.folder}{' (deleted on exit)' if ephemeral else ''}, etcd at {cluster.etcd.address}",
        ]
    )
    print(
        f"{banner(url, where)}\n\n"
        # All of them: a command that knows one broker alone fails while that one is down.
        + exports({BOOTSTRAP_VARIABLE: ",".join(addresses), **variables})
        + "".join(f"  {step.ljust(width)}   {what}\n" for step, what in steps.items())
        + f"\n{count} brokers on one machine share one disk and one power supply: for trials and tests only.\n"
        "For production see `comet broker --help` and docs/operating.md. Ctrl-C stops everything.",
        flush=True,
    )
