"""The options of a connection to brokers: shared by source and sink. Pure, until the files are looked up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from comet.client.bootstrap import Addresses, Bootstrap
from comet.spark.parsing import Table, number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Brokers' addresses, and the files of TLS: paths on the machine of each executor, or of files shipped by Spark."""

    bootstrap: str = "localhost:9092"
    ca: str = ""  # without any of the three, those that the environment names
    cert: str = ""
    key: str = ""
    timeout_ms: int = 30_000

    @property
    def connection(self) -> ConnectionOptions:
        """These options alone. Equal ones can share a connection."""
        return ConnectionOptions(
            bootstrap=self.bootstrap, ca=self.ca, cert=self.cert, key=self.key, timeout_ms=self.timeout_ms
        )

    def addresses(self) -> Addresses:
        """For a client in this process. Raises InvalidArgument for files that are missing or do not fit together."""
        if not (self.ca or self.cert or self.key):
            return self.bootstrap
        return Bootstrap(self.bootstrap, ca=_local(self.ca), cert=_local(self.cert), key=_local(self.key))


CONNECTION_OPTIONS: Final[Table] = {
    "bootstrap": ("bootstrap", text),
    "ca": ("ca", text),
    "cert": ("cert", text),
    "key": ("key", text),
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
