"""`comet security ...`: the certificates of a cluster, made by an authority in a folder, and keys of encryption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import Json
from comet.cli._output import note, print_json, print_table
from comet.units import count

if TYPE_CHECKING:
    from comet.security.certificates import Issued

DEFAULT_FOLDER: Final = Path("comet-security")
ADMIN: Final = "admin"
GATEWAY: Final = "gateway"

app = typer.Typer(help="Make and show certificates and keys.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder of the authority and its certificates.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="A name or address of the broker's machine; may repeat. [this one's]"),
]
Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until the certificate expires.")]


@app.command("init")
@guarded
def init(
    folder: Folder = DEFAULT_FOLDER,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=999, help="Number of brokers.")] = 1,
    cluster: Annotated[str, typer.Option("--cluster", help="The brokers' setting `cluster`.")] = "comet",
    hosts: Hosts = None,
    days: Days = 365,
    access_keys: Annotated[
        bool, typer.Option("--access-keys", help="Clients present access keys, in place of certificates.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Make an authority, certificates of brokers and an administrator, and the lines of configuration."""
    from comet.security.access_keys import add_access_key
    from comet.security.certificates import Authority

    authority = Authority.create(folder, cluster)
    names = hosts or own_hosts()
    issued = [authority.issue_broker(number, names, days) for number in range(1, brokers + 1)]
    admin = add_access_key(folder, ADMIN) if access_keys else authority.issue_client(ADMIN, days)
    if json_output:
        certificates = issued if isinstance(admin, Path) else [*issued, admin]
        key = {"access_key": str(admin)} if isinstance(admin, Path) else {}
        print_json({"ca": str(authority.ca), "hosts": names, "certificates": [*map(_document, certificates)], **key})
        return
    print(_next_steps(authority.ca, issued, admin), flush=True)


@app.command("broker")
@guarded
def broker(
    number: Annotated[int, typer.Argument(min=1, help="The broker's id.")],
    folder: Folder = DEFAULT_FOLDER,
    hosts: Hosts = None,
    days: Days = 365,
    json_output: Json = False,
) -> None:
    """Issue the certificate of a broker, or replace it; a running broker takes the new one without a restart."""
    from comet.security.certificates import Authority

    _show(Authority.open(folder).issue_broker(number, hosts or own_hosts(), days), json_output)


@app.command("client")
@guarded
def client(
    name: Annotated[str, typer.Argument(help="Name of the client.")],
    folder: Folder = DEFAULT_FOLDER,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name or address of a gateway, which shows it to browsers too; may repeat."
        ),
    ] = None,
    days: Days = 365,
    json_output: Json = False,
) -> None:
    """Issue the certificate of a client, or replace it; its next connection uses the new one."""
    from comet.security.certificates import Authority

    _show(Authority.open(folder).issue_client(name, days, hosts=hosts or ()), json_output)


@app.command("access-key")
@guarded
def access_key(
    name: Annotated[str, typer.Argument(help="Name of the client.")],
    folder: Folder = DEFAULT_FOLDER,
    json_output: Json = False,
) -> None:
    """Make an access key of a client in the brokers' file; `comet key create` makes one in a running cluster."""
    from comet.security.access_keys import add_access_key, brokers_file

    file = add_access_key(folder, name)
    if json_output:
        print_json({"access_key": str(file), "access_keys": str(brokers_file(folder))})
    else:
        print(f"{file}; brokers that read {brokers_file(folder)} take it within two seconds")


@app.command("show")
@guarded
def show(folder: Folder = DEFAULT_FOLDER, json_output: Json = False) -> None:
    """Show the certificates of a folder, and which expire soon."""
    from comet.security.certificates import certificates_in

    found = certificates_in(folder)
    if json_output:
        print_json([_document(one) for one in found])
        return
    now = datetime.now(UTC)
    rows = [[one.name, one.cert, f"{one.expires:%Y-%m-%d}", (one.expires - now).days] for one in found]
    print_table(["name", "file", "expires", "days"], rows)
    soon = [one.name for one in found if one.expires_soon]
    if soon:
        note(f"expires soon: {', '.join(soon)}; replace with comet security broker | client")


@app.command("key")
@guarded
def key(
    file: Annotated[Path, typer.Argument(help="File of the keys.")],
    key_id: Annotated[str, typer.Option("--id", metavar="ID", help="Id of the new key. [today's date]")] = "",
    json_output: Json = False,
) -> None:
    """Make a key for end-to-end encryption, or add one: the last is the primary, the others decrypt older values."""
    from comet.encryption.keys import add_key

    ids = add_key(file, key_id or f"{datetime.now(UTC):%Y-%m-%d}")
    if json_output:
        print_json({"file": str(file), "keys": ids, "primary": ids[-1]})
    else:
        print(f"{file}: primary key {ids[-1]}, {len(ids)} in all. Without the file, the values are lost: keep a copy.")


def own_hosts() -> list[str]:
    """The names of this machine in a certificate."""
    import socket

    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


@dataclass(frozen=True, slots=True)
class SecuredFolder:
    """What `comet up --secure` gives to its processes and prints for clients."""

    brokers: Sequence[dict[str, str]]  # the settings of each
    admin: Mapping[str, str]  # variables of the administrator
    gateway: Mapping[str, str]  # variables of the gateway


def secured_folder(folder: Path, brokers: int, hosts: Sequence[str]) -> SecuredFolder:
    """The settings of brokers and clients of a data folder: with the certificates that are in its folder `security`, or
    new ones. New ones are for the given hosts and this machine's names. Administrator and gateway are superusers, so
    rules hold for all others; the gateway may act for its users."""
    from comet.security.certificates import Authority, certificates_in

    at = folder / "security"
    authority = Authority.open(at) if at.exists() else Authority.create(at, "comet")
    present = {one.name: one for one in certificates_in(at)}
    names = list(dict.fromkeys([*own_hosts(), *(host for host in hosts if host)]))

    def broker(number: int) -> Issued:
        return present.get(f"broker-{number}") or authority.issue_broker(number, names)

    def client(name: str) -> Issued:
        return present.get(name) or authority.issue_client(name)

    rules = {"superusers": f"client:{ADMIN},client:{GATEWAY}", "gateways": f"client:{GATEWAY}"}
    settings = [broker_settings(authority.ca, broker(number)) | rules for number in range(1, brokers + 1)]
    return SecuredFolder(settings, *(client_variables(authority.ca, client(name)) for name in (ADMIN, GATEWAY)))


def _show(issued: Issued, json_output: bool) -> None:
    if json_output:
        print_json(_document(issued))
    else:
        print(f"{issued.cert} and {issued.key}, until {issued.expires:%Y-%m-%d}")


def _document(issued: Issued) -> dict[str, Any]:
    return {
        "name": issued.name,
        "cert": str(issued.cert),
        "key": str(issued.key),
        "expires": issued.expires.isoformat(),
        "expires_soon": issued.expires_soon,
    }


def broker_settings(ca: Path, issued: Issued, access_keys: Path | None = None) -> dict[str, str]:
    """The settings of a broker that uses the certificate on both listeners. With `access_keys` its clients present keys
    in place of certificates."""
    paths = {"ca": ca, "cert": issued.cert, "key": issued.key}
    found = {f"{side}_{kind}": str(path.resolve()) for side in ("clients", "brokers") for kind, path in paths.items()}
    if access_keys is not None:
        del found["clients_ca"]
        found["access_keys"] = str(access_keys.resolve())
    return found


def client_variables(ca: Path, credential: Issued | Path) -> dict[str, str]:
    """The environment of a client that uses the certificate, or the access key in a file."""
    own = (
        {"ACCESS_KEY": credential} if isinstance(credential, Path) else {"CERT": credential.cert, "KEY": credential.key}
    )
    return {f"COMET_CLIENT_{kind}": str(path.resolve()) for kind, path in {"CA": ca, **own}.items()}


def _next_steps(ca: Path, brokers: list[Issued], admin: Issued | Path) -> str:
    from comet.security.access_keys import brokers_file

    by_key = isinstance(admin, Path)
    made = count(len(brokers) + (not by_key), "certificate") + f" until {brokers[0].expires:%Y-%m-%d}"
    key = f", and {admin}" if by_key else ""
    lines = [f"Made {ca}, {made}{key}. Keep ca.key away from the brokers.", ""]
    for one in brokers:
        lines.append(f"# in the settings file of {one.name}, comet broker --config FILE")
        settings = broker_settings(ca, one, brokers_file(ca.parent) if by_key else None)
        lines += [f'{name} = "{value}"' for name, value in settings.items()]
        lines += [f'superusers = ["client:{ADMIN}"]'] if by_key else []
        lines.append("")
    lines.append("# in the environment of clients, the gateway and this command line")
    lines += [f"export {name}={value}" for name, value in client_variables(ca, admin).items()]
    another = (
        "access key: comet key create client:NAME" if by_key else f"certificate: comet security client NAME {ca.parent}"
    )
    lines += ["", f"Another client's {another}"]
    return "\n".join(lines)
