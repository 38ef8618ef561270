"""Which module may import which distribution, and when. The order of packages, and cycles: `lint-imports`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

import pytest

from tests.tidy.tree import Import, Source, imports, sources

SERVERS = ("comet_broker", "comet_gateway", "comet_testing", "comet_web", "comet_demo")
# What reaches outside the process, waits, or differs from one run to the next.
IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "fcntl",
    "grpc",
    "http",
    "io",
    "locale",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "platform",
    "queue",
    "random",
    "resource",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
STANDARD = set(sys.stdlib_module_names)


def _within(module: str, allowed: Collection[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def _top(found: Import) -> str:
    return found.module.split(".")[0]


def _offences(chosen: Callable[[Source], bool], allowed: Callable[[Import], bool]) -> list[str]:
    looked_at = [source for source in sources() if chosen(source)]
    assert looked_at, "the rule concerns no module: was something moved?"
    return [
        f"{source}:{found.line} imports {found.module}"
        for source in looked_at
        for found in imports(source)
        if not allowed(found)
    ]


def test_the_foundations_need_only_the_standard_library_and_the_codecs() -> None:
    own = (
        "comet.entities",
        "comet.errors",
        "comet.patterns",
        "comet.settings.topic",
        "comet.types",
        "comet.units",
        "comet.records",
        "comet.wire.expiry",
        "comet.wire.frames",
    )
    wheels = {"crc32c", "lz4", "zstandard"}

    def allowed(found: Import) -> bool:
        # Arrow is for those who have it: the module that makes its types is imported when one is asked for.
        lazy = _top(found) == "pyarrow" or _within(found.module, [arrow])
        return found.lazy if lazy else _top(found) in STANDARD | wheels or _within(found.module, own)

    arrow = "comet.records._arrow"
    assert not _offences(lambda source: source.within(*own) and not source.within(arrow), allowed)


def test_the_sdk_starts_servers_only_when_asked() -> None:
    """Of the SDK, only the command line and the test helper import a server, and not at their top."""

    def launches(source: Source) -> bool:
        return source.within("comet.cli", "comet.testing")

    assert not _offences(launches, lambda found: found.lazy or _top(found) not in SERVERS)


def test_the_broker_knows_only_the_shared_parts_of_the_sdk() -> None:
    shared = (
        "comet.admin.acts",
        "comet.entities",
        "comet.errors",
        "comet.filters",
        "comet.patterns",
        "comet.processes.descriptors",
        "comet.processes.logs",
        "comet.types",
        "comet.records",
        "comet.schedules",
        "comet.security.fetch",
        "comet.security.principals",
        "comet.security.signed_tokens",
        "comet.security.signing_keys",
        "comet.wire.acting",
        "comet.wire.bearer",
        "comet.wire.calendar_protobuf",
        "comet.wire.contents",
        "comet.wire.corrupt",
        "comet.wire.expiry",
        "comet.wire.frames",
        "comet.wire.framing",
        "comet.wire.liveness",
        "comet.wire.protobuf",
        "comet.wire.record_ttl",
        "comet.wire.tls",
        "comet.wire.transport",
        "comet.wire.tuning",
        "comet.wire.unix_socket",
        "comet.wire.version",
        "comet.wire.wire_protocol",
        "comet.units",
        "comet.settings",
        "comet.v1",
    )

    def allowed(found: Import) -> bool:
        return _top(found) != "comet" or _within(found.module, shared)  # its public names are for clients

    # Brokers reach each other over the client's channel, with replication added.
    peers = "comet_broker.rpc.network"
    assert not _offences(lambda source: source.within("comet_broker") and not source.within(peers), allowed)
    assert not _offences(
        lambda source: source.within(peers),
        lambda found: allowed(found) or _within(found.module, ["comet.wire.grpc_channel", "comet.wire.wire_stream"]),
    )


def test_only_the_server_knows_the_composition_root_of_the_broker() -> None:
    """Every other part is given what it needs."""
    root = "comet_broker.broker"
    assert not _offences(
        lambda source: source.within("comet_broker") and not source.within("comet_broker.server"),
        lambda found: not _within(found.module, [root]),
    )


def test_the_broker_imports_nothing_for_types_alone() -> None:
    """Such an import hides a cycle from the interpreter. A type is named by a protocol, or stands in a lower module."""
    assert [source for source in sources() if source.within("comet_broker") and "TYPE_CHECKING" in source.text] == []


@pytest.mark.parametrize(
    "pure", ["comet_broker.core", "comet_broker.metadata.keyspace", "comet_broker.metadata.history"]
)
def test_decisions_are_made_without_the_world(pure: str) -> None:
    ours = (
        "comet.errors",
        "comet.patterns",
        "comet.settings.topic",
        "comet.types",
        "comet.records",
        "comet.security.principals",
        "comet.wire.expiry",
        "comet.wire.frames",
        "comet_broker.core",
        "comet_broker.limits",
        "comet_broker.ports",
        "comet_broker.metadata.decoders",
        "comet_broker.metadata.store",
        "comet_broker.metadata.keyspace",
    )

    def allowed(found: Import) -> bool:
        return _top(found) in STANDARD - IMPURE or _within(found.module, ours) or _top(found) in {"crc32c", "msgspec"}

    assert not _offences(lambda source: source.within(pure), allowed)


def test_the_broker_takes_clock_and_chance_as_arguments() -> None:
    """`random.Random` may be named, to say what is taken; only the process itself makes one, or reads a clock."""
    adapters = ("comet_broker.system", "comet_broker.server", "comet_broker.__main__")

    def allowed(found: Import) -> bool:
        return found.module == "random.Random" or _top(found) not in {"time", "random", "secrets", "uuid", "datetime"}

    assert not _offences(lambda source: source.within("comet_broker") and not source.within(*adapters), allowed)


def test_the_gateway_is_a_user_of_the_sdk_like_any_other() -> None:
    """It uses the public names, as a program of a user does."""

    def allowed(found: Import) -> bool:
        private = any(part.startswith("_") for part in found.module.split(".")[1:])
        return not (_top(found) == "comet" and private)

    assert not _offences(lambda source: source.within("comet_gateway"), allowed)


def test_the_gateway_runs_on_any_asgi_server() -> None:
    """Only what makes it a process of its own knows which one that is."""
    adapters = (
        "comet_gateway.server",
        "comet_gateway.http.uvicorn_http",
        "comet_gateway.http.uvicorn_websocket",
        "comet_gateway.__main__",
    )

    def allowed(found: Import) -> bool:
        return _top(found) not in {"uvicorn", "uvloop", "httptools", "websockets", "grpc"}

    assert not _offences(lambda source: source.within("comet_gateway") and not source.within(*adapters), allowed)
    assert not _offences(
        lambda source: source.within("comet_gateway") and not source.within(*adapters),
        lambda found: not _within(found.module, adapters),
    )


def test_only_the_source_knows_spark() -> None:
    """And those parts of the demo that are a job for Spark; they are users of the source like any other. Some
    modules are for such jobs; the search for a Java, `local`, and reports of queries are for all programs."""
    spark, jobs = ("comet.spark", "pyspark_comet"), ("comet_demo.analytics", "comet_demo.analytics.spark_job")
    measured = ("comet_bench.spark.reads", "comet_bench.spark.sources")
    outside = (*spark, *jobs, *measured)
    assert not _offences(lambda source: not source.within(*outside), lambda found: _top(found) != "pyspark")
    for_all = ("comet.spark.local", "comet.spark.query_reports")
    for_jobs = (*for_all, "comet.spark.query_supervisor", "comet.spark.update_writer", "comet.spark.joins")
    assert not _offences(
        lambda source: not source.within(*spark, *measured, *jobs),
        lambda found: _within(found.module, for_all) or not _within(found.module, spark),
    )
    assert not _offences(
        lambda source: source.within(*jobs),
        lambda found: _within(found.module, for_jobs) or not _within(found.module, spark),
    )


def test_only_the_spans_know_opentelemetry() -> None:
    """They are imported where a program has a tracer provider. Others name its types, or import it when they run."""
    spans = ("comet.tracing.spans", "comet_bench.traces.clients")

    def allowed(found: Import) -> bool:
        return _top(found) != "opentelemetry" or found.lazy

    assert not _offences(lambda source: not source.within(*spans), allowed)
    assert not _offences(
        lambda source: not source.within(*spans, "comet_gateway.http.server_spans", "comet.tracing.options"),
        lambda found: _top(found) != "opentelemetry",
    )


def test_pages_are_made_of_facts_alone() -> None:
    """Views decide the content of pages without I/O. Entities of a cluster are facts."""

    def allowed(found: Import) -> bool:
        top = _top(found)
        entities = _within(found.module, ["comet.entities", "comet.wire.expiry"])
        return (
            entities
            or top in {"comet_web", "jinja2"}
            or (top in STANDARD and top not in IMPURE - {"datetime", "urllib"})
        )

    views = [source for source in sources() if source.within("comet_web") and not source.within("comet_web.render")]
    assert views
    assert not _offences(lambda source: source in views, allowed)


def test_only_adapters_know_grpc() -> None:
    adapters = (
        "comet_broker.rpc",
        "comet_broker.metadata.etcd",
        "comet_broker.server",
        "comet.wire.grpc_channel",
        "comet_bench",
        "comet.cli",
    )

    def allowed(found: Import) -> bool:
        return not _top(found).startswith(("grpc", "aetcd"))

    assert not _offences(lambda source: not source.within(*adapters), allowed)


def test_only_the_files_port_touches_the_disk() -> None:
    """Besides SQLite's own file, whose checks and copies live next to it, a Unix socket's, which has no content, and
    /proc, which is on none."""
    allowed_modules = (
        "comet_broker.storage.files",
        "comet_broker.metadata.examine",
        "comet_broker.metadata.etcd_binary",
        "comet_broker.rpc.unix_socket",
        "comet_broker.server",
        "comet_broker.system",
        "comet_broker.__main__",
    )

    def allowed(found: Import) -> bool:
        return _top(found) not in {"os", "io", "shutil", "tempfile", "fcntl", "mmap"}

    assert not _offences(lambda source: source.within("comet_broker") and not source.within(*allowed_modules), allowed)


def test_nobody_forks() -> None:
    """A fork copies gRPC's threads in whatever state they are."""
    forking = ("os.fork", "multiprocessing.Process", "multiprocessing.Pool", "multiprocessing.pool", "pty.fork")
    assert not _offences(lambda source: True, lambda found: not _within(found.module, forking))
    for source in sources():
        assert "os.fork(" not in source.text, source
        assert 'get_context("fork")' not in source.text, source
