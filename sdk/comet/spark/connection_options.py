"""The options of a connection to brokers: shared by source and sink. Pure, until the files are looked up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from comet.client.bootstrap import Addresses, Bootstrap
from comet.encryption.keyring import Keyring
from comet.spark.parsing import Table, number, text

FILES: Final = ("ca", "cert", "key", "access_key", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Brokers' addresses, the files of TLS, of an access key or token, and of the keys of end-to-end encryption: paths
    on the machine of each executor, or of files shipped by Spark. Options never hold a secret: Spark shows them."""

    bootstrap: str = "localhost:9092"
    ca: str = ""  # without any of the five, those that the environment names
    cert: str = ""
    key: str = ""
    access_key: str = ""
    token: str = ""
    keyring: str = ""  # read by executors only
    timeout_ms: int = 30_000

    @property
    def connection(self) -> ConnectionOptions:
        """These options alone. Equal ones can share a connection."""
        return ConnectionOptions(**{one.name: getattr(self, one.name) for one in fields(ConnectionOptions)})

    def addresses(self) -> Addresses:
        """For a client in this process. Raises InvalidArgument for files that are missing or do not fit together."""
        files: dict[str, Any] = {name: _local(getattr(self, name)) for name in FILES}
        return Bootstrap(self.bootstrap, **files) if any(files.values()) else self.bootstrap

    def encryption(self) -> Keyring | None:
        """The keys, for a client in this process. Raises InvalidArgument if it cannot be read, or is open to others."""
        path = _local(self.keyring)
        return None if path is None else Keyring.from_file(path)


CONNECTION_OPTIONS: Final[Table] = {
    "bootstrap": ("bootstrap", text),
    "ca": ("ca", text),
    "cert": ("cert", text),
    "key": ("key", text),
    "accessKey": ("access_key", text),
    "token": ("token", text),
    "keyring": ("keyring", text),
    "timeoutMs": ("timeout_ms", number(1)),
}


def _local(given: str) -> Path | None:
    """The file on this machine. A relative path that the working folder does not have is one of `spark-submit --files`
    or `SparkContext.addFile`, which Spark puts in a folder of each machine."""
    if not given:
        return None
    path = Path(given).expanduser()
    if path.is_absolute() or path.exists():
        return path
    from pyspark import SparkFiles

    try:
        return Path(SparkFiles.get(given))
    except AssertionError:  # a process without Spark has none
        return path
