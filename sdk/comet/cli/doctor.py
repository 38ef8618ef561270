"""`comet doctor`: is this machine fit to run Comet, and what to do where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import print_json
from comet.cli.up import DEFAULT_DATA

_MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@guarded
def doctor(
    data: Annotated[Path, typer.Option("--data", "-d", help="The broker's data folder.")] = DEFAULT_DATA,
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="The broker's port.")] = 9092,
    host: Annotated[str, typer.Option("--host", help="The broker's address.")] = "127.0.0.1",
    json_output: Json = False,
) -> None:
    """Check this machine: Python, packages, disk, port, clock, limits. Exit code 1 if something will not work."""
    from comet.cli._checks import run_checks

    findings = run_checks(data, host, port)
    if json_output:
        print_json([finding.document() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{_MARK[finding.status]}  {finding.name.ljust(width)}  {finding.detail}")
            if finding.advice:
                print(f"      {' ' * width}  -> {finding.advice}")
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
