"""The etcd of a cluster on this machine: its command line, and the password that it requires.

    FOLDER/etcd.password    of etcd's user root, random, made at the first start

The password is on the disk before etcd gets it, and etcd requires it from the last step on. Each step may be repeated,
so the next start completes one that was killed, and adds the password to an etcd that was started without.
"""

from __future__ import annotations

import http.client
import json
import secrets
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument, Unavailable
from comet.processes.ports import LOCALHOST
from comet.security.files import read_secret, write_file

USER: Final = "root"  # etcd requires a user and a role of this name
PASSWORD_BYTES: Final = 32
PASSWORD_FILE_BYTES_MAX: Final = 1024
CALL_S_MAX: Final = 2.0
# What etcd's answers say.
NOT_ENABLED: Final = "authentication is not enabled"
REFUSED: Final = "authentication failed"
REPEATED: Final = "already exists"


def etcd_command(folder: Path, client: int, peer: int) -> list[str]:
    """A single member on the loopback. The election timeout is short, as there are no other members."""
    from comet_broker.metadata.etcd_binary import EtcdNotFound, find_etcd

    try:
        etcd = find_etcd()
    except EtcdNotFound as error:
        raise Unavailable("several brokers need etcd, which was not found", details={"hint": str(error)}) from None
    at, peers = f"http://{LOCALHOST}:{client}", f"http://{LOCALHOST}:{peer}"
    options = {
        "name": "local",
        "data-dir": str(folder),
        "listen-client-urls": at,
        "advertise-client-urls": at,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"local={peers}",
        "heartbeat-interval": "50",
        "election-timeout": "500",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "bcrypt-cost": "4",  # the lowest: no search finds a random password, however fast its hash is
        "logger": "zap",
        "log-level": "warn",
    }
    return [str(etcd), *(word for name, value in options.items() for word in (f"--{name}", value))]


def password_of(file: Path) -> str:
    """The password in the file, which is made if it is missing."""
    if not file.exists():
        write_file(file, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode(), secret=True)
    password = read_secret(file, PASSWORD_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    if not password:
        raise InvalidArgument(f"{file} holds no password")
    return password


def password_required(address: str, password: str) -> bool:
    """Makes etcd require the password of its user root. False if that has to be tried again, as etcd does not answer.

    Raises InvalidArgument if etcd requires another password."""
    try:
        failure = _call(address, "authenticate", {"name": USER, "password": password})
        if NOT_ENABLED in failure:
            failures = (_call(address, path, request) for path, request in password_steps(password))
            return all(not one or REPEATED in one for one in failures)
    except (OSError, http.client.HTTPException):
        return False
    if REFUSED in failure:
        hint = "its data folder and etcd.password do not belong together: put back the one that was replaced"
        raise InvalidArgument(f"etcd at {address} requires another password", details={"hint": hint})
    return not failure


def password_steps(password: str) -> list[tuple[str, dict[str, str]]]:
    """The calls that make etcd require it, in this order. The second one is for a user of an earlier password."""
    user = {"name": USER, "password": password}
    return [
        ("user/add", user),
        ("user/changepw", user),
        ("role/add", {"name": USER}),
        ("user/grant", {"user": USER, "role": USER}),
        ("enable", {}),
    ]


def _call(address: str, path: str, request: dict[str, str]) -> str:
    """Calls etcd's JSON API of authentication. The answer's text if the call failed, else empty."""
    connection = http.client.HTTPConnection(address, timeout=CALL_S_MAX)
    try:
        connection.request("POST", f"/v3/auth/{path}", json.dumps(request))
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        return "" if answer.status == http.HTTPStatus.OK else text or answer.reason
    finally:
        connection.close()
