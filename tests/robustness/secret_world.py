"""Marked secrets: processes that have them, what these write, show and pass on, and the search for each in it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jwt
import psutil
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

import comet
from comet.security.access_keys import add_access_key, brokers_file
from comet.security.certificates import Authority
from comet.wire.bearer import id_of, read_access_key
from comet_gateway.http.auth import new_token
from tests.integration.test_cli_flows import COMET
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import BrokerProcess, free_port

ISSUER: Final = "https://login.example"


@dataclass
class Secrets:
    """Each by its name: texts, of which a part is enough to find it. And all that was seen, by where."""

    texts: dict[str, str] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, text: str) -> str:
        self.texts[name] = text
        return text

    def add_pem(self, path: Path) -> None:
        """A line of its base64 is unique."""
        lines = [line for line in path.read_text().splitlines() if not line.startswith("-")]
        self.add(f"private key {path.name}", lines[1])

    def saw(self, where: str, data: bytes) -> None:
        self.seen[where] = self.seen.get(where, b"") + data

    def look_at_processes(self) -> None:
        """The arguments of all that run, which every user of the machine may read."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                self.saw("arguments of processes", "\0".join(process.cmdline()).encode())

    def look_at_files(self, folder: Path, own: Collection[Path]) -> None:
        """All below the folder but the files of secrets, and those in such folders."""
        for path in folder.rglob("*"):
            if path.is_file() and path not in own and not any(parent in own for parent in path.parents):
                self.saw(f"file {path.relative_to(folder)}", path.read_bytes())

    def found_in(self, data: bytes) -> list[str]:
        return [name for name, text in self.texts.items() if _part(text).encode() in data]

    def leaks(self) -> dict[str, list[str]]:
        """The names of the secrets that were seen, by where."""
        for name, text in self.texts.items():
            assert name in self.found_in(f"... {text} ...".encode()), "the search finds what is there"
        return {where: names for where, data in self.seen.items() if (names := self.found_in(data))}


def _part(text: str) -> str:
    """What no public text has: of an access key the part behind its id, of a token its signature."""
    return text.split("_", 2)[-1] if id_of(text) is not None else text.rpartition(".")[2]


class World:
    """Processes with marked secrets, and what they were seen to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = Secrets()
        self.arguments: set[str] = set()
        self.security = folder / "security"
        authority = Authority.create(self.security, "comet")
        issued = authority.issue_broker(1, ["127.0.0.1", "localhost"])
        self.ca = authority.ca
        for key in (*self.security.glob("*.key"), issued.key):
            self.secrets.add_pem(key)
        self.admin_key = add_access_key(self.security, "admin")
        self.secrets.add("access key of the administrator", read_access_key(self.admin_key))
        self.signing = ec.generate_private_key(ec.SECP256R1())
        jwk = {**ECAlgorithm.to_jwk(self.signing.public_key(), as_dict=True), "kid": "one"}
        self.file("jwks.json", json.dumps({"keys": [jwk]}))
        self.metrics_token = self.secrets.add("token of metrics", "metrics-token-8f1c2a77d09b")
        settings = {
            "clients_cert": issued.cert, "clients_key": issued.key,
            "brokers_ca": authority.ca, "brokers_cert": issued.cert, "brokers_key": issued.key,
            "access_keys": brokers_file(self.security),
            "jwt_issuer": ISSUER, "jwt_audience": "comet", "jwt_keys": folder / "jwks.json",
            "metrics_token": self.metrics_token, "log_level": "debug",
        }  # fmt: skip
        rows = [f'{name} = "{value}"' for name, value in settings.items()]
        self.metrics_port, brokers_port = free_port(), free_port()
        rows += ['superusers = ["client:admin", "user:root"]', f"metrics_port = {self.metrics_port}"]
        rows += [f"brokers_port = {brokers_port}"]
        config = self.file("broker.toml", "\n".join(rows))
        self.broker = BrokerProcess(folder / "data", options=("--config", str(config)))
        self.token, row = new_token("ann", "admin")
        self.secrets.add("token of the gateway", self.token)
        self.tokens_file = self.file("tokens.toml", row)
        self.gateway: GatewayProcess | None = None

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def jwt(self, name: str, *, seconds: float = 600.0, key: ec.EllipticCurvePrivateKey | None = None) -> Path:
        claims = {"iss": ISSUER, "aud": "comet", "sub": name, "exp": time.time() + seconds}
        text = jwt.encode(claims, key or self.signing, "ES256", {"kid": "one"})
        self.secrets.add(f"token of {name}", text)
        return self.file(f"{name}.token", text)

    def bootstrap(self, **files: Any) -> comet.Bootstrap:
        return comet.Bootstrap(self.broker.address, ca=self.ca, **files)

    def command(self, *words: str, key: Path | None = None, public: bool = True) -> str:
        """Runs `comet …`; what it says is searched, if that is not a secret by intent."""
        environ = {
            **os.environ,
            "COMET_BOOTSTRAP": self.broker.address,
            "COMET_CLIENT_CA": str(self.ca),
            "COMET_CLIENT_ACCESS_KEY": str(key or self.admin_key),
        }
        self.arguments.add(" ".join(words))
        done = subprocess.run([*COMET, *words], capture_output=True, env=environ, timeout=60, check=False)
        self.saw(f"errors of comet {words[0]}", done.stderr)
        if public:
            self.saw(f"output of comet {words[0]}", done.stdout)
        return done.stdout.decode()

    def saw(self, where: str, data: bytes) -> None:
        self.secrets.saw(where, data)

    def look_at_files(self) -> None:
        """All that the broker and the gateway have written."""
        own = {self.folder / "broker.toml", *self.folder.glob("*.token"), *self.folder.glob("*.access-key")}
        self.secrets.look_at_files(self.folder, {*own, self.folder / "keyring", self.security})
