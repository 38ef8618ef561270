"""`comet doctor`: checks whether Comet can run on this machine, and gives advice for each problem."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from comet.cli._colours import colour_of, coloured
from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import print_json

_MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@guarded
def doctor(
    data: Annotated[str | None, typer.Option("--data", "-d", help="The broker's data folder.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=1, max=65535, help="The broker's port.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="The broker's address.")] = None,
    etcd: Annotated[
        str | None, typer.Option("--etcd", metavar="HOST:PORT,...", help="The members of etcd, to check them too.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="The settings file of the broker that will run here."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Running brokers, to check their cluster too."),
    ] = None,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Also check whether this version may replace the one that runs here."),
    ] = False,
    json_output: Json = False,
) -> None:
    """Check this machine: Python, packages, disk, port, clock, limits, TLS, etcd. Exit code 1 if one will not work.

    With --bootstrap also the cluster: TLS, brokers, their trust in the metadata store, failures, conflicts, leaders,
    transports.

    With --upgrade, by the new version before it is started: the formats of the data folder, and with --bootstrap the
    versions of the brokers, and whether all replicas are in sync, so that one of them may stop.

    Defaults are those of `comet broker`: the environment, then the settings file.
    """
    import os

    from comet.cli._checks import run_checks
    from comet_broker.settings import load

    flags = {"data": data, "port": port, "host": host, "etcd": etcd, "config": config}
    known = {"COMET_ID": "1"} | os.environ  # the broker's id makes no difference here
    broker = load(flags, known).config
    findings = run_checks(broker)
    if bootstrap is not None:
        from comet.cli._cluster_checks import check_cluster
        from comet.cli._tls_checks import check_connections
        from comet.cli._transport_checks import check_transports
        from comet.client.bootstrap import parse_addresses

        addresses = parse_addresses(bootstrap)
        findings += check_connections(addresses)
        findings += check_cluster(addresses)
        findings += check_transports(addresses)
    if upgrade:
        from comet.cli._upgrade_checks import check_formats, check_running

        findings.append(check_formats(broker.data))
        findings += check_running(addresses) if bootstrap is not None else []
    if json_output:
        print_json([finding.document() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = coloured(_MARK[finding.status], colour_of(finding.status), sys.stdout)
            print(f"{mark}  {finding.name.ljust(width)}  {finding.detail}")
            if finding.advice:
                print(f"      {' ' * width}  -> {finding.advice}")
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
