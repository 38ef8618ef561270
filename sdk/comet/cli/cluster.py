"""`comet cluster`: who is in the cluster and how much it holds."""

from __future__ import annotations

from typing import Annotated

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from comet.cli._output import print_fields, print_json, print_table


@guarded
async def cluster(
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Every number the broker that answers keeps of itself, as JSON.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Show the brokers of the cluster."""
    import comet

    async with comet.Admin(bootstrap) as admin:
        if statistics:
            print_json(await admin.statistics())
            return
        found = await admin.describe_cluster()
    if json_output:
        brokers = [
            {"id": broker.id, "host": broker.host, "port": broker.port, "version": broker.version}
            for broker in found.brokers
        ]
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller,
                "topics": found.topics,
                "partitions": found.partitions,
                "brokers": brokers,
            }
        )
        return
    print_fields({"cluster": found.cluster_id, "topics": found.topics, "partitions": found.partitions})
    print()
    print_table(
        ["broker", "address", "version", "role"],
        [
            [
                broker.id,
                f"{broker.host}:{broker.port}",
                broker.version,
                "controller" if broker.id == found.controller else "",
            ]
            for broker in found.brokers
        ],
    )
