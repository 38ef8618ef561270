"""One rule for defaults: where reading starts, and where the address comes from. The table is in docs/sdk.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.errors import InvalidArgument, SerdeError
from comet.handlers.options import handler_options
from comet.settings.client import VARIABLES
from comet.spark.options import SourceOptions
from comet.values.record import Record

CONTEXTS = """
current = "now"
[context.now]
bootstrap = "now:1"
[context.other]
bootstrap = "other:1"
"""


def default_of(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


@pytest.mark.parametrize(
    "start",
    [
        comet.ConsumerOptions().start,
        comet.GroupOptions().start,
        comet.ShareOptions().start,
        handler_options("", None, None, {})[1].start,
        handler_options("g", None, None, {})[1].start,
        handler_options("g", None, None, {"shared": True})[1].start,
        default_of(comet.ShareClient.acquire, "start"),
        default_of(comet.sync.ShareClient.acquire, "start"),
    ],
)
def test_all_that_follows_a_topic_starts_at_the_latest_record(start: Any) -> None:
    assert start == "latest"


@pytest.mark.parametrize(
    "function",
    [comet.read, comet.Reader.fetch, comet.Reader.read, comet.Reader.read_merged, comet.sync.Reader.read],
)
def test_all_that_reads_a_range_starts_at_the_earliest_record(function: Callable[..., Any]) -> None:
    assert default_of(function, "start") == "earliest"


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A user with two contexts and no variables."""
    for name in ("COMET_CONTEXT", *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "comet/contexts.toml"
    file.parent.mkdir(mode=0o700)
    file.write_text(CONTEXTS)
    file.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return monkeypatch


CLIENTS: list[Callable[..., Any]] = [
    comet.Producer,
    comet.Admin,
    comet.Reader,
    comet.ShareClient,
    comet.TransactionalProducer,
    lambda address=None: comet.Consumer(address, "quotes"),
    lambda address=None: comet.GroupConsumer(address, "quotes", group="g"),
    lambda address=None: comet.ShareConsumer(address, "quotes", group="g"),
]


def bootstrap_of(client: Any) -> tuple[str, ...]:
    found = getattr(client, "_client", None) or client._writer.client
    return tuple(found.bootstrap)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_address_comes_from_the_first_place_that_has_one(
    client: Callable[..., Any], variables: pytest.MonkeyPatch
) -> None:
    assert bootstrap_of(client()) == ("now:1",), "the current context"
    variables.setenv("COMET_CONTEXT", "other")
    assert bootstrap_of(client()) == ("other:1",), "the named context"
    variables.setenv("COMET_BOOTSTRAP", "variable:1,variable:2")
    assert bootstrap_of(client()) == ("variable:1", "variable:2"), "the variable"
    assert bootstrap_of(client("argument:1")) == ("argument:1",), "the argument"
    variables.delenv("COMET_BOOTSTRAP")
    variables.setenv("COMET_CONTEXT", "none")
    assert bootstrap_of(client()) == ("localhost:9092",), "the default"


def test_apps_and_tables_take_the_address_from_the_same_places(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("COMET_CONTEXT", "other")
    assert bootstrap_of(comet.App().producer) == ("other:1",)
    assert str(comet.Bootstrap.of(comet.read("quotes")._addresses)) == "other:1"
    assert default_of(comet.write_frame, "bootstrap") is None


def test_the_files_of_a_context_go_with_its_address(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("comet-nothing")
    (tmp_path / "comet/contexts.toml").write_text(
        f'current = "a"\n[context.a]\nbootstrap = "a:1"\naccess_key = "{key}"\n'
    )
    with pytest.raises(InvalidArgument, match="access key"):  # it is read, and refused
        comet.App()
    assert str(comet.Bootstrap.of("b:1")) == "b:1", "an argument leaves contexts out"


def test_an_unknown_context_names_the_variable(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("COMET_CONTEXT", "nowhere")
    with pytest.raises(InvalidArgument, match=r"unknown context 'nowhere' \(COMET_CONTEXT\); use one of now, other"):
        comet.Producer()


def test_a_consumer_without_a_topic_says_where_to_name_it() -> None:
    with pytest.raises(InvalidArgument, match="no topic given"):
        comet.Consumer("quotes")


def test_a_key_that_was_text_is_text_again() -> None:
    record = Record("quotes", 0, 0, "Zürich".encode(), b"", 0, [])
    assert record.key_text == "Zürich"
    assert record._replace(key=None).key_text is None
    with pytest.raises(SerdeError, match="the key is not text"):
        _ = record._replace(key=b"\xff").key_text


def test_a_source_of_spark_follows_the_rule() -> None:
    assert SourceOptions().starting is None, "earliest for batches, latest for streams"
