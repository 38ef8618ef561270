"""The AsyncAPI document of an app: its structure, and that every reference leads somewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

import comet
from comet.errors import InvalidArgument


@comet.model
class Leg:
    symbol: str
    amount: float = 1.0


@comet.model
class Order:
    legs: list[Leg]
    note: str | None = None


class Account(pydantic.BaseModel):
    owner: str
    legs: list[Position] = []


class Position(pydantic.BaseModel):
    symbol: str


def described() -> dict[str, Any]:
    app = comet.App("one:1,two:2", name="trading")
    router = comet.Router(prefix="eu.")

    @app.on("orders", group="desk", delivery="at_least_once", dead_letter="orders-failed")
    async def place(order: comet.Record[Order]) -> None:
        """Places an order.

        At once.
        """

    @app.on("orders")
    async def count(orders: list[Order]) -> None: ...

    @app.on("raw")
    async def raw(value: bytes) -> None: ...

    @app.on("words")
    async def words(word: str) -> None: ...

    @router.on("accounts", group="desk", shared=True)
    async def account(account: Account) -> None: ...

    app.include(router)
    return app.asyncapi(version="2.1.0", description="What the desk does.")


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def at(document: dict[str, Any], reference: str) -> Any:
    assert reference.startswith("#/")
    found: Any = document
    for step in reference[2:].split("/"):
        found = found[step]
    return found


def test_the_document_has_the_parts_that_asyncapi_3_requires() -> None:
    document = described()
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "trading", "version": "2.1.0", "description": "What the desk does."}
    assert document["servers"] == {
        "broker-1": {"host": "one:1", "protocol": "comet"}, "broker-2": {"host": "two:2", "protocol": "comet"},
    }  # fmt: skip
    topics = ["orders", "orders-failed", "raw", "words", "eu.accounts"]
    assert {name: one["address"] for name, one in document["channels"].items()} == {name: name for name in topics}
    for operation in document["operations"].values():
        assert operation["action"] in {"send", "receive"}
        assert operation["summary"]
        channel = at(document, operation["channel"]["$ref"])
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")
            assert message["$ref"].rpartition("/")[2] in channel["messages"]
    for name in (*document["operations"], *document["channels"], *document["components"]["messages"]):
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"), name
    json.dumps(document)


def test_every_reference_leads_somewhere() -> None:
    document = described()
    found = list(references(document))
    assert len(found) > 15
    for reference in found:
        assert at(document, reference) is not None


def test_operations_tell_the_group_and_the_first_line_of_the_docstring() -> None:
    operations = described()["operations"]
    assert operations["place-orders"] == {
        "action": "receive",
        "summary": "Places an order.",
        "channel": {"$ref": "#/channels/orders"},
        "messages": [{"$ref": "#/channels/orders/messages/Order"}],
        "x-comet-group": "desk",
        "x-comet-delivery": "at_least_once",
    }
    assert operations["place-orders-failed"]["action"] == "send"
    assert operations["count-orders"]["x-comet-batch"]
    assert operations["account-eu.accounts"]["x-comet-shared"]


def test_models_are_schemas() -> None:
    components = described()["components"]
    assert set(components["schemas"]) == {"Order", "Leg", "Account", "Position"}
    assert components["schemas"]["Leg"]["required"] == ["symbol"]
    assert components["schemas"]["Order"]["properties"]["legs"] == {
        "type": "array", "items": {"$ref": "#/components/schemas/Leg"},
    }  # fmt: skip
    messages = components["messages"]
    assert messages["Order"]["payload"] == {"$ref": "#/components/schemas/Order"}
    assert messages["bytes"]["contentType"] == "application/octet-stream"
    assert messages["text"]["contentType"] == "text/plain"


def test_two_handlers_of_one_name_are_two_operations() -> None:
    app = comet.App()
    for _ in range(2):

        @app.on("words")
        def handle(word: str) -> None: ...

    document = app.asyncapi()
    assert list(document["operations"]) == ["handle-words", "handle-words-2"]
    assert document["info"] == {"title": "comet app", "version": "1.0.0"}


def test_a_type_without_a_schema_is_refused_by_its_name() -> None:
    class Odd: ...

    app = comet.App()
    app.on("odd", type=Odd)(lambda value: None)
    with pytest.raises(InvalidArgument, match=r"Odd.* has no JSON schema"):
        app.asyncapi()
