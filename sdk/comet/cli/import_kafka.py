"""`comet import kafka`: copies topics of a Kafka cluster into Comet, each record once."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Settings
from comet.cli._output import note, print_json
from comet.cli._values import format_rate, parse_settings
from comet.errors import InvalidArgument, pip_install
from comet.units import count, format_bytes

if TYPE_CHECKING:
    from comet.kafka.copier import Copied, CopyOptions
    from comet.types import AtTime, Earliest, Latest

CONFIG_BYTES_MAX: Final = 64 << 10
TERMINAL_EVERY_S: Final = 0.25
LINE_EVERY_S: Final = 5.0

app = typer.Typer(help="Copy records of other systems into topics.", no_args_is_help=True)


@app.callback()
def import_() -> None:
    """Copy records of other systems into topics."""


@app.command("kafka")
@guarded
async def kafka(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names, or patterns such as 'orders.*'.")],
    from_: Annotated[str, typer.Option("--from", metavar="HOST:PORT", help="Brokers of Kafka, separated by commas.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="librdkafka's properties, for TLS and SASL; mode 600."),
    ] = None,
    start: Annotated[
        str, typer.Option("--start", help="Where a first import begins: earliest, latest or a time, e.g. -7d.")
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new records. Else: stop at the ends seen at the start.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Create missing topics, with Kafka's partitions and retention.")
    ] = True,
    append: Annotated[
        bool, typer.Option("--append", help="Copy into a topic that has records which no known import wrote.")
    ] = False,
    replicas: Annotated[
        int, typer.Option("--replicas", "-r", min=0, help="Replicas of created topics; 0: the cluster's default.")
    ] = 0,
    set_: Settings = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Copy topics of a Kafka cluster; run again, it carries on where it stopped, without duplicates."""
    if find_spec("confluent_kafka") is None:
        raise InvalidArgument("reading Kafka needs confluent-kafka", details={"hint": pip_install("kafka")})
    from comet.kafka.copier import CopyOptions

    settings = parse_settings(set_ or [])
    options = CopyOptions(
        _start(start),
        follow=follow,
        create=create,
        append=append,
        replicas=replicas,
        settings=settings,
    )
    await _copy(bootstrap, from_, _properties(config), topics, options, json_output=json_output)


async def _copy(
    bootstrap: str, kafka: str, properties: dict[str, str], words: list[str], options: CopyOptions, *, json_output: bool
) -> None:
    import asyncio

    import comet
    from comet.kafka.copier import KafkaCopier
    from comet.kafka.reader import KafkaReader
    from comet.kafka.topic_config import chosen_topics

    async with comet.Admin(bootstrap) as admin:
        await admin.list_topics()  # fails at once if no broker answers; a producer would wait
    reader = KafkaReader(kafka, properties)
    progress = CopyProgress()
    try:
        cluster = await asyncio.to_thread(reader.cluster)
        topics = chosen_topics(words, cluster.topics)
        if options.follow:
            note("Ctrl-C ends; run again, it carries on")
        async with KafkaCopier(bootstrap, reader, options, tell=progress.tell, progress=progress.show) as copier:
            try:
                await copier.run(cluster, topics)
            finally:
                progress.end(copier.copied, json_output=json_output)
    finally:
        await asyncio.to_thread(reader.close)


class CopyProgress:
    """Shows on stderr how far an import is: one line that changes on a terminal, else a line every five seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown_at = self._began
        self._records = 0
        self._width = 0

    def tell(self, text: str) -> None:
        self._clear()
        note(text)

    def show(self, copied: Copied) -> None:
        now = time.monotonic()
        elapsed = now - self._shown_at
        if elapsed < (TERMINAL_EVERY_S if self._terminal else LINE_EVERY_S):
            return
        rate = format_rate((copied.records - self._records) / elapsed)
        text = f"{count(copied.records, 'record')}, {format_bytes(copied.bytes)}, {rate}, lag {copied.lag:,}"
        self._shown_at, self._records = now, copied.records
        if self._terminal:
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)
        else:
            note(text)

    def end(self, copied: Copied, *, json_output: bool) -> None:
        """Reports the whole import, also one that failed."""
        self._clear()
        seconds = max(time.monotonic() - self._began, 1e-9)
        if json_output:
            document = {"records": copied.records, "bytes": copied.bytes, "transactions": copied.transactions}
            document |= {"carried_on": copied.carried_on, "lag": copied.lag}
            print_json(document | {"seconds": round(seconds, 3)})
            return
        carried = f"; {count(copied.carried_on, 'partition')} carried on" if copied.carried_on else ""
        note(
            f"{count(copied.records, 'record')}, {format_bytes(copied.bytes)} in {seconds:.2f} s "
            f"({format_rate(copied.records / seconds)}){carried}"
        )

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0


def _start(text: str) -> Earliest | Latest | AtTime:
    from comet.types import AtOffset, position

    found = position(text, now_us=time.time_ns() // 1000)
    if isinstance(found, AtOffset):
        raise InvalidArgument(f"--start {text}: give earliest, latest or a time; each partition has other offsets")
    return found


def _properties(file: Path | None) -> dict[str, str]:
    """The properties of a file that others may not read: it may have a password."""
    if file is None:
        return {}
    from comet.kafka.topic_config import parse_properties
    from comet.security.files import read_secret

    return parse_properties(read_secret(file, CONFIG_BYTES_MAX).decode(), str(file))
