"""What the demo's job says itself, and what it lets nobody else say."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from py4j import protocol  # type: ignore[import-untyped]
from py4j.java_gateway import GatewayClient, GatewayParameters  # type: ignore[import-untyped]

from comet.spark import local
from comet_demo.analytics import spark_job


@pytest.fixture
def filters() -> Iterator[None]:
    before = list(logging.root.filters)
    yield
    logging.root.filters[:] = before


class Gone:
    """A connection to a Java that dies while it is asked."""

    def send_command(self, command: str) -> str:
        raise protocol.Py4JNetworkError(f"no answer to {command}", when=protocol.ERROR_ON_RECEIVE)

    def close(self, reset: bool) -> None:
        """There is nothing of it."""


@pytest.mark.usefixtures("filters")
def test_a_java_that_dies_while_it_is_asked_is_not_told_of_in_tracebacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    local._hush_py4j()
    client = GatewayClient(gateway_parameters=GatewayParameters(port=1))
    monkeypatch.setattr(client, "_get_connection", Gone)
    assert client.send_command("a call") == protocol.ERROR
    assert "Traceback" not in caplog.text
    logging.warning("another word")  # noqa: LOG015 - as py4j does it
    assert "another word" in caplog.text


@pytest.mark.parametrize(("window_s", "begin_s"), [(1, 1_234_567), (60, 1_234_560), (300, 1_234_500), (0, 1_234_567)])
def test_a_query_begins_where_a_window_does(window_s: float, begin_s: int) -> None:
    assert spark_job.begin_ms(1_234_567.89, window_s) == begin_s * 1000


@pytest.mark.parametrize(
    "folder", ["/var/lib/quotes", "hdfs:///quotes", "hdfs://host:8020/quotes", "s3a://bucket", "a/b"]
)
def test_a_checkpoint_is_where_spark_finds_it(folder: str) -> None:
    assert spark_job.below(folder, "stats") == spark_job.below(f"{folder}/", "stats") == f"{folder}/stats"
