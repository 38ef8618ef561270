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
    from collections.abc import Mapping, Sequence

    from comet_bench.harness import Suite
    from comet_bench.report import Result

CLUSTER: Final = "cluster"
CORES: Final = "cores"
GROUPS: Final = "groups"
GATEWAY: Final = "gateway"
SECURITY: Final = "security"
SPARK: Final = "spark"
TABLES: Final = "tables"
TRACES: Final = "traces"


@guarded
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="What to measure, or 'cluster', 'cores', 'groups', 'gateway', 'security', 'spark', 'tables', 'traces'",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller loads, one run each: about 1.5 minutes in all.")
    ] = False,
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
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport", metavar="NAME", help="Of streams: auto, wire or grpc; both: in turn, side by side."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the benchmarks, and end.")] = False,
) -> None:
    """Measure speed, latency and memory, beside the machine's own limits."""
    import signal

    _check_installed()
    from comet_bench import machine, report, transports

    signal.signal(signal.SIGTERM, _ended)
    suites = _suites()
    if list_:
        about = [(kind, *row) for kind, suite in suites.items() for row in suite.about.items()]
        print_table(["name", "what"], [[f"{kind}: {name}" if kind else name, what] for kind, name, what in about])
        return
    kind, chosen = _chosen(suites, names or [], bootstrap)
    suite = suites[kind]
    sizes = suite.sizes(quick=quick, runs=runs)
    found = transports.run_suite(
        suite, chosen or list(suite.about), sizes, transport, address=bootstrap, folder=data, show=_show
    )
    _present(report.document(machine.describe() | dict(suite.facts(sizes)), found), json_file)


def _suites() -> dict[str, Suite]:
    """By the word after `comet bench`; that of one broker has none."""
    from comet_bench.broker import broker_bench
    from comet_bench.cluster import cluster_bench
    from comet_bench.cores import cores_bench
    from comet_bench.gateway import gateway_bench
    from comet_bench.groups import groups_bench
    from comet_bench.security import security_bench
    from comet_bench.spark import spark_bench
    from comet_bench.tables import tables_bench
    from comet_bench.traces import traces_bench

    return {
        "": broker_bench.SUITE,
        CLUSTER: cluster_bench.SUITE,
        CORES: cores_bench.SUITE,
        GROUPS: groups_bench.SUITE,
        GATEWAY: gateway_bench.SUITE,
        SECURITY: security_bench.SUITE,
        SPARK: spark_bench.SUITE,
        TABLES: tables_bench.SUITE,
        TRACES: traces_bench.SUITE,
    }


def _chosen(suites: Mapping[str, Suite], names: Sequence[str], bootstrap: str | None) -> tuple[str, Sequence[str]]:
    """The suite that the words name, and its benchmarks; none: all."""
    kind = names[0] if names and names[0] in suites else ""
    undivided = [name for name in names if name in suites and suites[name].undivided]
    if undivided and (len(names) > 1 or bootstrap is not None):
        word = undivided[0]
        raise InvalidArgument(f"the {word} benchmark runs alone and starts its own brokers: comet bench {word}")
    chosen = names[1:] if kind else names
    for name in chosen:
        if name not in suites[kind].about:
            of_what = f" of {kind}" if kind else ""
            raise InvalidArgument(f"unknown benchmark{of_what} {name!r}; use {', '.join(suites[kind].about)}")
    if suites[kind].starts_brokers and bootstrap is not None:
        raise InvalidArgument(f"the {kind} benchmark starts its own brokers: leave --bootstrap out")
    return kind, chosen


def _check_installed() -> None:
    if importlib.util.find_spec("comet_bench") is None:
        note("error: comet bench is not installed: pip install ./bench in a checkout of Comet")
        raise typer.Exit(ERROR)


def _ended(*_: object) -> None:
    """Ends the process with its clean-up: the started servers would outlive it."""
    raise SystemExit(143)


def _present(document: dict[str, Any], json_file: str | None) -> None:
    from comet_bench import report, transports

    if json_file == "-":
        print(json.dumps(document, indent=2))
        return
    if json_file is not None:
        Path(json_file).write_text(json.dumps(document, indent=2) + "\n")
    found = document["machine"]
    print(f"{found['cpu']}, {found['cores']} cores, Linux {found['kernel']}, Python {found['python']}")
    pairs = report.pairs(document["results"])
    if pairs:
        print_table(report.PAIR_COLUMNS, [row for name, pair in pairs.items() for row in report.pair_rows(name, *pair)])
    paired = {f"{name}_{transport}" for name in pairs for transport in transports.PAIR}
    rows = [report.table_row(name, found) for name, found in document["results"].items() if name not in paired]
    if rows:
        print_table(report.COLUMNS, rows)


def _show(runs: int, name: str, run: int, result: Result | None) -> None:
    """Prints one line a run to stderr, so that a long benchmark does not seem to hang."""
    if result is None:
        note(f"{name} {run}/{runs} ...")
    else:
        note(f"{name} {run}/{runs} " + "  ".join(f"{field}={value:,.6g}" for field, value in result.items()))
