"""`comet bench`: measures Comet on this machine. The work is in `comet.bench`; this shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._guard import guarded
from comet.cli._output import note, print_table
from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from comet.bench.report import Result

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
        int | None, typer.Option("--runs", "-r", min=1, max=100, help="Runs of each; medians count.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON; - is stdout.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", exists=True, file_okay=False, help="Folder for the broker's data.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Measure this broker, not one of its own."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what can be measured, and end.")] = False,
) -> None:
    """Measure speed, latency and memory, with the machine's own limits beside them."""
    import signal
    from dataclasses import replace

    from comet.bench import cluster, gateway, groups, machine, report, spark
    from comet.bench.runner import run_subjects
    from comet.bench.subjects import FULL, QUICK, SUBJECTS

    signal.signal(signal.SIGTERM, _ended)
    if list_:
        print_table(
            ["name", "what"],
            [
                *([name, subject.about] for name, subject in SUBJECTS.items()),
                *([f"{CLUSTER}: {name}", about] for name, about in cluster.ABOUT.items()),
                *([f"{GROUPS}: {name}", about] for name, about in groups.ABOUT.items()),
                *([f"{GATEWAY}: {name}", about] for name, about in gateway.ABOUT.items()),
                *([f"{SPARK}: {name}", about] for name, about in spark.ABOUT.items()),
            ],
        )
        return
    if CLUSTER in (names or ()):
        if names != [CLUSTER] or bootstrap is not None:
            raise InvalidArgument("the cluster is measured by itself, on brokers of its own: comet bench cluster")
        kind = cluster.QUICK if quick else cluster.FULL
        kind = kind if runs is None else replace(kind, runs=runs)
        found = cluster.run_cluster(kind, folder=data, progress=lambda *step: _show(kind.runs, *step))
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == GROUPS:
        _check(names[1:], groups.ABOUT, " of groups")
        load = groups.QUICK if quick else groups.FULL
        load = load if runs is None else replace(load, runs=runs, pairs=runs)
        found = groups.run_groups(
            names[1:] or list(groups.ABOUT), load, address=bootstrap, folder=data,
            progress=lambda name, *step: _show(load.pairs if name in groups.COMPARED else load.runs, name, *step),
        )  # fmt: skip
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == GATEWAY:
        _check(names[1:], gateway.ABOUT, " of the gateway")
        much = gateway.QUICK if quick else gateway.FULL
        much = much if runs is None else replace(much, runs=runs, pairs=runs)
        found = gateway.run_gateway(
            names[1:] or list(gateway.ABOUT), much, address=bootstrap, folder=data,
            progress=lambda name, *step: _show(much.pairs if name in gateway.COMPARED else much.runs, name, *step),
        )  # fmt: skip
        _present(report.document(machine.describe(), found), json_file)
        return
    if names and names[0] == SPARK:
        _check(names[1:], spark.ABOUT, " of Spark")
        if bootstrap is not None:
            raise InvalidArgument("what Spark reads and writes is measured on brokers of its own: comet bench spark")
        load_of_spark = spark.QUICK if quick else spark.FULL
        load_of_spark = load_of_spark if runs is None else replace(load_of_spark, runs=runs)
        found = spark.run_spark(
            names[1:] or list(spark.ABOUT), load_of_spark, folder=data,
            progress=lambda *step: _show(load_of_spark.runs, *step),
        )  # fmt: skip
        _present(report.document(machine.describe() | spark.describe(load_of_spark), found), json_file)
        return
    _check(names or [], SUBJECTS)
    sizes = QUICK if quick else FULL
    if runs is not None:
        sizes = replace(sizes, runs=runs)
    results = run_subjects(
        names or list(SUBJECTS), sizes, address=bootstrap, folder=data, progress=lambda *step: _show(sizes.runs, *step)
    )
    _present(report.document(machine.describe(), results), json_file)


def _ended(*_: object) -> None:
    """Servers were started, which would go on without us."""
    raise SystemExit(143)


def _check(names: Sequence[str], known: Iterable[str], of_what: str = "") -> None:
    for name in names:
        if name not in known:
            raise InvalidArgument(f"there is no benchmark{of_what} {name!r}; there are {', '.join(known)}")


def _present(document: dict[str, Any], json_file: str | None) -> None:
    from comet.bench import report

    if json_file == "-":
        print(json.dumps(document, indent=2))
        return
    if json_file is not None:
        Path(json_file).write_text(json.dumps(document, indent=2) + "\n")
    found = document["machine"]
    print(f"{found['cpu']}, {found['cores']} cores, Linux {found['kernel']}, Python {found['python']}")
    print_table(report.COLUMNS, [report.table_row(name, result) for name, result in document["results"].items()])


def _show(runs: int, name: str, run: int, result: Result | None) -> None:
    """One line a run on stderr: a long benchmark must not look like a hanging one."""
    if result is None:
        note(f"{name} {run}/{runs} ...")
    else:
        note(f"{name} {run}/{runs} " + "  ".join(f"{field}={value:,.6g}" for field, value in result.items()))
