"""`comet context ...`: the clusters that the command line knows by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from comet.cli._connection import complete_context
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Json
from comet.cli._output import note, print_fields, print_json, print_table
from comet.client.contexts import NO_CONTEXT, changed_contexts, check_name, check_settings, read_contexts
from comet.client.default_cluster import ClusterChoice, connection_of
from comet.errors import InvalidArgument
from comet.settings.client import CONTEXT_VARIABLE, PATHS, VARIABLES

app = typer.Typer(
    help="Name clusters and their credentials; choose the one that commands talk to.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_context)]
_OAUTH: Final = {"oauth_url", "oauth_id", "oauth_secret"}


def _file(flag: str, about: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=about)


@app.command("add")
@guarded
def add(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    addresses: Annotated[
        str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster.")
    ],
    ca: Annotated[str | None, _file("--ca", "The authority of the brokers' certificates.")] = None,
    cert: Annotated[str | None, _file("--cert", "This client's certificate, with --key.")] = None,
    key: Annotated[str | None, _file("--key", "The key of the certificate.")] = None,
    access_key: Annotated[str | None, _file("--access-key", "This client's access key.")] = None,
    token: Annotated[str | None, _file("--token", "This client's token (JWT).")] = None,
    oauth_url: Annotated[
        str | None,
        typer.Option("--oauth-url", metavar="URL", help="The issuer's token endpoint, to fetch tokens there."),
    ] = None,
    oauth_id: Annotated[
        str | None, typer.Option("--oauth-id", metavar="ID", help="This client's id at the issuer.")
    ] = None,
    oauth_secret: Annotated[str | None, _file("--oauth-secret", "This client's secret at the issuer.")] = None,
    oauth_scope: Annotated[str | None, typer.Option("--oauth-scope", help="The scope of the tokens.")] = None,
    oauth_audience: Annotated[str | None, typer.Option("--oauth-audience", help="The audience of the tokens.")] = None,
    oauth_auth: Annotated[
        str | None, typer.Option("--oauth-auth", metavar="basic|post", help="The place of id and secret. [basic]")
    ] = None,
    oauth_ca: Annotated[str | None, _file("--oauth-ca", "The authority of the issuer's certificate.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of this name.")] = False,
    json_output: Json = False,
) -> None:
    """Add a context: the addresses of a cluster, and the files that this client presents there."""
    from comet.client.bootstrap import Bootstrap, parse_addresses

    check_name(name)
    given = {
        "bootstrap": ",".join(parse_addresses(addresses)), "ca": ca, "cert": cert, "key": key,
        "access_key": access_key, "token": token, "oauth_url": oauth_url, "oauth_id": oauth_id,
        "oauth_secret": oauth_secret, "oauth_scope": oauth_scope, "oauth_audience": oauth_audience,
        "oauth_auth": oauth_auth, "oauth_ca": oauth_ca,
    }  # fmt: skip
    settings = {
        setting: str(Path(value).expanduser().absolute()) if setting in PATHS else value
        for setting, value in given.items()
        if value
    }
    check_settings(name, settings)
    _check_credential(settings)
    Bootstrap.named_by({VARIABLES[setting]: value for setting, value in settings.items()}, settings["bootstrap"])
    with changed_contexts() as contexts:
        if name in contexts.settings and not replace:
            raise InvalidArgument(f"context {name!r} exists; replace it with --replace, or choose another name")
        contexts.settings[name] = settings
        contexts.current = name if use else contexts.current
    if json_output:
        print_json({"context": name, "current": contexts.current == name, "file": str(contexts.file)})
    elif contexts.current == name:
        print(f"added context {name}, which is the current one")
    else:
        print(f"added context {name}; make it the current one: comet context use {name}")


@app.command("use")
@guarded
def use(name: Name, json_output: Json = False) -> None:
    """Make a context the current one, for commands without --context. With the name none, no context is current."""
    with changed_contexts() as contexts:
        if name != NO_CONTEXT:
            contexts.of(name, "NAME")
        contexts.current = "" if name == NO_CONTEXT else name
    if json_output:
        print_json({"current": contexts.current or None})
    else:
        print(f"the current context is {contexts.current or NO_CONTEXT}")
    if (os.environ.get(CONTEXT_VARIABLE) or name) != name:
        note(f"{CONTEXT_VARIABLE} names another one, and overrides it: unset {CONTEXT_VARIABLE}")


@app.command("list")
@guarded
def list_(json_output: Json = False) -> None:
    """List the contexts."""
    contexts = read_contexts()
    if json_output:
        items = [
            {"context": name, "current": name == contexts.current, **settings}
            for name, settings in contexts.settings.items()
        ]
        print_json(items)
        return
    if not contexts.settings:
        note("no contexts yet; add one: comet context add NAME --bootstrap HOST:PORT")
        return
    rows = [
        ["*" if name == contexts.current else "", name, settings["bootstrap"], _presents(settings)]
        for name, settings in contexts.settings.items()
    ]
    print_table(["current", "context", "bootstrap", "presents"], rows)


@app.command("show")
@guarded
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_context)] = None,
    json_output: Json = False,
) -> None:
    """Show what commands use, and the source of each value; with a name, as with --context NAME."""
    found = connection_of(os.environ, read_contexts, default=DEFAULT_BOOTSTRAP, context=name)
    if json_output:
        print_json(_document(found))
        return
    print_fields({"context": f"{found.context} ({found.context_source})" if found.context else NO_CONTEXT})
    print()
    print_table(["setting", "value", "source"], [[one.name, one.value, one.source] for one in found.values])
    if found.overridden:
        note(f"{', '.join(found.overridden)} in the environment overrides context {found.context}")


@app.command("remove")
@guarded
def remove(name: Name, json_output: Json = False) -> None:
    """Remove a context. The files that it names stay."""
    with changed_contexts() as contexts:
        contexts.of(name, "NAME")
        del contexts.settings[name]
        was_current = contexts.current == name
        contexts.current = "" if was_current else contexts.current
    if json_output:
        print_json({"context": name, "current": contexts.current or None})
    else:
        print(f"removed context {name}" + ("; no context is current now" if was_current else ""))


def _check_credential(settings: Mapping[str, str]) -> None:
    """Raises InvalidArgument for two credentials, and for half of one."""
    given = [one for one in ("access_key", "token", "oauth_url") if one in settings]
    if len(given) > 1:
        raise InvalidArgument(f"a client presents one credential: give {_flag(given[0])} or {_flag(given[1])}")
    for needed in _OAUTH if any(one.startswith("oauth_") for one in settings) else ():
        if needed not in settings:
            raise InvalidArgument(f"client credentials need {', '.join(map(_flag, sorted(_OAUTH)))}")


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _presents(settings: Mapping[str, str]) -> str:
    """The credential of a context, as a word."""
    words = {"cert": "certificate", "access_key": "access key", "token": "token", "oauth_url": "client credentials"}
    return ", ".join(word for setting, word in words.items() if setting in settings) or "nothing"


def _document(found: ClusterChoice) -> dict[str, Any]:
    return {
        "context": found.context or None,
        "source": found.context_source or None,
        "settings": {one.name: {"value": one.value, "source": one.source} for one in found.values},
        "overridden": list(found.overridden),
    }
