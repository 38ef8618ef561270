"""`comet demo`: a broker, a feed of synthetic quotes, groups that work, the dashboard, and a live table of quotes."""

from __future__ import annotations

from typing import Annotated

import typer

from comet.cli._guard import guarded
from comet.cli._output import note, print_json


@guarded
def demo(
    rate: Annotated[
        float, typer.Option("--rate", min=1, max=100_000, help="Quotes a second, outside bursts.")
    ] = 1000.0,
    duration: Annotated[
        float | None, typer.Option("--duration", min=0.1, metavar="SECONDS", help="End by itself; else Ctrl-C ends it.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same market.")] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Use this broker, not one of its own.")
    ] = None,
    gateway_port: Annotated[
        int,
        typer.Option("--gateway-port", min=0, max=65535, help="The dashboard's; another where it is taken, 0 for any."),
    ] = 8080,
    json_output: Annotated[bool, typer.Option("--json", help="Print a summary as JSON at the end.")] = False,
) -> None:
    """Watch live quotes go through Comet, here and in the dashboard: nothing to set up."""
    from comet_demo.launcher import Options, run

    board = run(
        Options(
            rate=rate, seed=seed, duration_s=duration, bootstrap=bootstrap, gateway_port=gateway_port, quiet=json_output
        )
    )
    if json_output:
        print_json({"events": board.events, "symbols": len(board.lines)})
    else:
        note(f"that was {board.events:,} events of {len(board.lines)} symbols")
