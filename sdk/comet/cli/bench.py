"""`comet bench`: measures Comet on this machine. The benchmarks are in `comet_bench`, a separate distribution."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._exit import ERROR
from comet.cli._guard import guarded
from comet.cli._output import note, print_table
from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from comet_bench.report import Result

CLUSTER: Final = "cluster"
GROUPS: Final = "groups"
GATEWAY: Final = "gateway"
SPARK: Final = "spark"


@guarded
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="What to measure, or 'cluster', 'groups', 'gateway' or 'spark'."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller loads, one run each: under 50 s in all.")] = False,
    runs: Annotated[
        int | None, typer.Option("--runs", "-r", min=1, max=100, help="Runs of each; results are medians.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON; - is stdout.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", exists=True, file_okay=False, help="Folder for the broker's data.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Measure this broker; else one is started."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the benchmarks, and end.")] = False,
) -> None:
    """Measure speed, latency and memory, beside the machine's own limits."""
    import signal
    from dataclasses import replace

    _check_installed()
    from comet_bench import machine, report
    from comet_bench.broker.broker_bench import FULL, QUICK, SUBJECTS, run_subjects
    from comet_bench.cluster import cluster_bench
    from comet_bench.gateway import gateway_bench
    from comet_bench.groups import groups_bench
    from comet_bench.spark import spark_bench

    signal.signal(signal.SIGTERM, _ended)
    if list_:
        print_table(
            ["name", "what"],
            [
                *([name, subject.about] for name, subject in SUBJECTS.items()),
                *([f"{CLUSTER}: {name}", about] for name, about in cluster_bench.ABOUT.items()),
                *([f"{GROUPS}: {name}", about] for name, about in groups_bench.ABOUT.items()),
                *([f"{GATEWAY}: {name}", about] for name, about in gateway_bench.ABOUT.items()),
                *([f"{SPARK}: {name}", about] for name, about in spark_bench.ABOUT.items()),
            ],
        )
        return
    if CLUSTER in (names or ()):
        if names != [CLUSTER] or bootstrap is not None:
            raise InvalidArgument("the cluster benchmark runs alone and starts its own brokers: comet bench cluster")
        kind = cluster_bench.QUICK if quick else cluster_bench.FULL
        kind = kind if runs is None else replace(kind, runs=runs)
        found = cluster_bench.run_cluster(kind, folder=data, progress=lambda *step: _show(kind.runs, *step))
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == GROUPS:
        _check(names[1:], groups_bench.ABOUT, " of groups")
        load = groups_bench.QUICK if quick else groups_bench.FULL
        load = load if runs is None else replace(load, runs=runs, pairs=runs)
        found = groups_bench.run_groups(
            names[1:] or list(groups_bench.ABOUT), load, address=bootstrap, folder=data,
            progress=lambda name, *step: _show(load.pairs if name in groups_bench.COMPARED else load.runs, name, *step),
        )  # fmt: skip
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == GATEWAY:
        _check(names[1:], gateway_bench.ABOUT, " of the gateway")
        much = gateway_bench.QUICK if quick else gateway_bench.FULL
        much = much if runs is None else replace(much, runs=runs, pairs=runs)
        found = gateway_bench.run_gateway(
            names[1:] or list(gateway_bench.ABOUT), much, address=bootstrap, folder=data,
            progress=lambda name, *step: _show(
                much.pairs if name in gateway_bench.COMPARED else much.runs, name, *step
            ),
        )  # fmt: skip
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == SPARK:
        _check(names[1:], spark_bench.ABOUT, " of Spark")
        if bootstrap is not None:
            raise InvalidArgument("the Spark benchmark starts its own brokers: leave --bootstrap out")
        load_of_spark = spark_bench.QUICK if quick else spark_bench.FULL
        load_of_spark = load_of_spark if runs is None else replace(load_of_spark, runs=runs)
        found = spark_bench.run_spark(
            names[1:] or list(spark_bench.ABOUT), load_of_spark, folder=data,
            progress=lambda *step: _show(load_of_spark.runs, *step),
        )  # fmt: skip
        _present(report.document(machine.describe() | spark_bench.describe(load_of_spark), found), json_file)
        return
    _check(names or [], SUBJECTS)
    sizes = QUICK if quick else FULL
    if runs is not None:
        sizes = replace(sizes, runs=runs)
    results = run_subjects(
        names or list(SUBJECTS), sizes, address=bootstrap, folder=data, progress=lambda *step: _show(sizes.runs, *step)
    )
    _present(report.document(machine.describe(), results), json_file)


def _check_installed() -> None:
    if importlib.util.find_spec("comet_bench") is None:
        note("error: comet bench is not installed: pip install 'comet-stream[bench]', or ./bench of a checkout")
        raise typer.Exit(ERROR)


def _ended(*_: object) -> None:
    """Ends the process with its clean-up: the started servers would outlive it."""
    raise SystemExit(143)


def _check(names: Sequence[str], known: Iterable[str], of_what: str = "") -> None:
    for name in names:
        if name not in known:
            raise InvalidArgument(f"unknown benchmark{of_what} {name!r}; use {', '.join(known)}")


def _present(document: dict[str, Any], json_file: str | None) -> None:
    from comet_bench import report

    if json_file == "-":
        print(json.dumps(document, indent=2))
        return
    if json_file is not None:
        Path(json_file).write_text(json.dumps(document, indent=2) + "\n")
    found = document["machine"]
    print(f"{found['cpu']}, {found['cores']} cores, Linux {found['kernel']}, Python {found['python']}")
    print_table(report.COLUMNS, [report.table_row(name, result) for name, result in document["results"].items()])


def _show(runs: int, name: str, run: int, result: Result | None) -> None:
    """Prints one line a run to stderr, so that a long benchmark does not seem to hang."""
    if result is None:
        note(f"{name} {run}/{runs} ...")
    else:
        note(f"{name} {run}/{runs} " + "  ".join(f"{field}={value:,.6g}" for field, value in result.items()))
