"""What is public is documented, method by method; tests/tidy runs the examples."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import comet
import comet.sync


@pytest.mark.parametrize("name", [name for name in comet.__all__ if inspect.isclass(getattr(comet, name))])
def test_every_public_class_and_method_is_documented(name: str) -> None:
    cls: Any = getattr(comet, name)
    assert cls.__doc__, name
    for method, function in vars(cls).items():
        if not method.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            assert function.__doc__ or method in {"values", "keys", "offsets", "headers"}, f"{name}.{method}"


@pytest.mark.parametrize(
    "cls",
    [
        comet.Producer,
        comet.Consumer,
        comet.GroupConsumer,
        comet.ShareConsumer,
        comet.Admin,
        comet.App,
        comet.Record,
    ],
)
def test_every_method_of_the_main_classes_has_an_example(cls: Any) -> None:
    assert ">>>" in (cls.__doc__ or "")
    without = [
        name
        for name, function in vars(cls).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and name not in {"close", "start", "stop", "run", "serve"}  # shown by the example of the class
        and ">>>" not in (function.__doc__ or "")
    ]
    assert not without


def test_every_asynchronous_class_has_a_synchronous_twin() -> None:
    """An App and its test run handlers, which may be synchronous; a Scan and a Replay are read either way."""
    asynchronous = {
        name
        for name in comet.__all__
        if inspect.isclass(cls := getattr(comet, name))
        for member in ("__aenter__", "__aiter__", "__await__", "close")
        if member in dir(cls) and (member.startswith("__a") or inspect.iscoroutinefunction(getattr(cls, member)))
    }
    assert asynchronous - set(dir(comet.sync)) == {"AppTest", "Replay", "Scan"}


@pytest.mark.parametrize("name", [name for name in comet.sync.__all__ if inspect.isclass(getattr(comet.sync, name))])
def test_a_synchronous_twin_has_all_methods_of_its_class(name: str) -> None:
    def public(cls: type[Any]) -> set[str]:
        return {member for member in dir(cls) if not member.startswith("_") and callable(getattr(cls, member))}

    # Transactions take the asynchronous consumer behind the twin, and call these; gateways are asynchronous.
    left_out = {
        "GroupConsumer": {"offsets_to_commit", "were_committed"},
        "Admin": {"acting_for"},
        "Producer": {"acting_for"},
    }
    missing = public(getattr(comet, name)) - public(getattr(comet.sync, name))
    assert missing == left_out.get(name, set())


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    import_module("comet.entities")  # a module that is loaded is not shown
    shown = [name for name in dir(comet) if not name.startswith("__")]
    assert shown == sorted(comet.__all__)
    assert "__version__" in dir(comet)
    assert {"App", "Router", "TopicNotFound", "testing", "sync"} <= set(shown)


CLIENTS: list[Any] = [
    comet.Admin, comet.App, comet.Consumer, comet.GroupConsumer, comet.Producer, comet.Reader, comet.ShareClient,
    comet.ShareConsumer, comet.TransactionalProducer, comet.sync.Admin, comet.sync.Consumer, comet.sync.GroupConsumer,
    comet.sync.Producer, comet.sync.Reader, comet.sync.ShareClient, comet.sync.ShareConsumer,
    comet.sync.TransactionalProducer,
]  # fmt: skip


@pytest.mark.parametrize("cls", CLIENTS, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_signature_names_nothing_that_only_simulations_pass(cls: Any) -> None:
    named = inspect.signature(cls).parameters
    assert not named.keys() & {"connect", "random", "clock_us", "stopwatch"}
    assert next(iter(named.values())).default is None, "the address is optional"


@pytest.mark.parametrize("cls", CLIENTS, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_misspelled_option_is_refused_by_its_name(cls: Any) -> None:
    consumer = issubclass(cls, comet.Consumer | comet.sync.Consumer)
    group = {"group": "g"} if "group" in inspect.signature(cls).parameters else {}
    with pytest.raises(TypeError, match="nmae"):
        cls("localhost:9092", *["quotes"] * (consumer or bool(group)), **group, nmae="x")
