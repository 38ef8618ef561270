"""`comet demo`: a broker, a feed of quotes, working groups, analytics with Spark, the dashboard, and a live table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from comet.cli._guard import guarded
from comet.cli._output import note, print_json


@guarded
def demo(
    rate: Annotated[
        float, typer.Option("--rate", min=1, max=200_000, help="Quotes a second, on average, of the synthetic market.")
    ] = 1000.0,
    duration: Annotated[
        float | None,
        typer.Option("--duration", min=0.1, metavar="SECONDS", help="End after this time; else at Ctrl-C."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same market.")] = None,
    provider: Annotated[
        str, typer.Option("--provider", help="synthetic, replay, coinbase, binance or alpaca.")
    ] = "synthetic",
    symbols: Annotated[
        str, typer.Option("--symbols", metavar="A,B", help="The symbols; default: the provider's.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="CSV or Parquet, for --provider replay.")
    ] = None,
    pace: Annotated[
        float | None, typer.Option("--pace", min=0, help="Speed relative to the file's times; 0: as fast as possible.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Use this broker; else one is started.")
    ] = None,
    gateway_port: Annotated[
        int,
        typer.Option(
            "--gateway-port", min=0, max=65535, help="The dashboard's port; another if it is in use, 0 for any."
        ),
    ] = 8080,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark", help="Analytics with Spark. [on, if the demo starts the broker and Java is installed]"
        ),
    ] = None,
    install_spark: Annotated[
        str | None,
        typer.Option(
            "--install-spark",
            metavar="COMMAND",
            help="Run this command if Spark or Java is missing, while quotes already move. `make demo` has one.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write one-minute bars here, by date.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print a summary as JSON at the end.")] = False,
) -> None:
    """Show live quotes and Spark's analytics of them, here and in the dashboard, without any setup."""
    from comet_demo.launcher import Options, run

    quote_table = run(
        Options(
            market={
                "provider": provider,
                "rate": rate,
                "seed": seed,
                "symbols": symbols or None,
                "file": file and file.resolve(),
                "pace": pace,
            },
            duration_s=duration,
            bootstrap=bootstrap,
            gateway_port=gateway_port,
            spark=spark,
            install_spark=tuple(shlex.split(install_spark or "")),
            parquet=parquet,
            quiet=json_output,
        )
    )
    if json_output:
        print_json({"events": quote_table.events, "symbols": len(quote_table.lines)})
    else:
        note(f"{quote_table.events:,} events of {len(quote_table.lines)} symbols")
