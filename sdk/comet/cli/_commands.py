"""The tree of commands. `comet --help` imports all of it, so command modules import nothing heavy."""

from __future__ import annotations

from typing import Annotated

import typer

from comet import __version__
from comet.cli import (
    acl,
    bench,
    broker,
    cluster,
    consume,
    context,
    demo,
    doctor,
    gateway,
    group,
    key,
    produce,
    quota,
    role,
    security,
    topic,
    up,
)
from comet.cli._guard import reraise_all

app = typer.Typer(
    help="Comet: event streaming that a Python team installs with pip.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"comet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
) -> None:
    reraise_all(debug)


app.command("up")(up.up)
app.command("broker", context_settings=broker.PASS_ON, add_help_option=False)(broker.broker)
app.command("gateway", context_settings=broker.PASS_ON, add_help_option=False)(gateway.gateway)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(cluster.app, name="cluster")
app.add_typer(acl.app, name="acl")
app.add_typer(key.app, name="key")
app.add_typer(role.app, name="role")
app.add_typer(quota.app, name="quota")
app.add_typer(context.app, name="context")
app.add_typer(security.app, name="security")
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)
