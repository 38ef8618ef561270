"""The description of the API is complete, and its examples are what they are examples of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from tempfile import NamedTemporaryFile
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Route

from comet_gateway import GatewayConfig, create_app
from comet_gateway.http import sessions
from comet_gateway.http.auth import ROLES, Role, new_token
from comet_gateway.http.origins import EXPOSED_HEADERS
from comet_gateway.http.problems import EVERYWHERE, KINDS
from comet_gateway.openapi import TAGS, operations
from comet_gateway.schemas.common import Int64, int64_between
from comet_gateway.schemas.topics import TopicCreation


def _with_tokens() -> dict[str, Any]:
    with NamedTemporaryFile("w") as tokens:
        tokens.write(new_token("me", "admin")[1])
        tokens.flush()
        return create_app(GatewayConfig(tokens_file=tokens.name)).openapi()


FOREIGN = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}  # a link on another site
DOCUMENT = _with_tokens()
OPERATIONS = {f"{method.upper()} {path}": operation for path, method, operation in operations(DOCUMENT)}


def test_it_is_openapi_and_refers_to_nothing_that_is_not_there() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    assert DOCUMENT["servers"] == [{"url": "/", "description": "This gateway."}]
    for reference in set(re.findall(r'"\$ref": "(#/[^"]+)"', json.dumps(DOCUMENT))):
        found: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            assert step in found, reference
            found = found[step]


def test_every_route_for_programs_is_in_it() -> None:
    routes = [route for route in create_app().router.routes if isinstance(route, Route)]
    pages = {route.path_format for route in routes if not route.include_in_schema}
    assert not [path for path in pages if path.startswith("/v1")]
    expected = {f"{method} {path}" for method, path in ROLES if method != "WS" and path not in pages}
    assert set(OPERATIONS) == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_says_all_there_is_to_say(name: str) -> None:
    operation = OPERATIONS[name]
    method, path = name.split(" ")
    open_to_all = ROLES[method, path] is Role.ANYONE
    assert operation["operationId"]
    assert operation["description"]
    assert len(operation["tags"]) == 1
    assert operation["tags"][0] in TAGS
    assert operation["security"] == ([] if open_to_all else [{"bearer": []}])
    assert any(status.startswith("2") for status in operation["responses"])
    for code in EVERYWHERE:
        if not (open_to_all and code in ("UNAUTHENTICATED", "FORBIDDEN", "PROVIDER_UNAVAILABLE")):
            answer = operation["responses"][str(KINDS[code].status)]
            assert "application/problem+json" in answer["content"], (name, code)
            assert code in answer["description"], (name, code)
    for answer in operation["responses"].values():
        assert "X-Request-Id" in answer["headers"]
    for name_in_path in re.findall(r"{(\w+)}", path):
        assert any(one["name"] == name_in_path and one["in"] == "path" for one in operation["parameters"])


def test_pages_of_listed_origins_may_read_every_header_that_is_described() -> None:
    answers = (answer for operation in OPERATIONS.values() for answer in operation["responses"].values())
    described = {name.lower() for answer in answers for name in answer.get("headers", {})}
    assert {"comet-more", "comet-cursor", "retry-after", "location"} <= described
    assert described <= set(EXPOSED_HEADERS.decode().split(", "))


def _asked_for(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema of what a client may send, those it is made of too."""

    def inside(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, list):
            for one in node:
                yield from inside(one)
        elif isinstance(node, dict):
            if "$ref" in node:
                yield from inside(DOCUMENT["components"]["schemas"][node["$ref"].rpartition("/")[2]])
            elif isinstance(node.get("type"), str):
                yield node
            for name, one in node.items():
                if name not in ("example", "examples", "default"):
                    yield from inside(one)

    for parameter in operation.get("parameters", ()):
        yield from inside(parameter["schema"])
    yield from inside(operation.get("requestBody"))


def test_numbers_that_are_asked_for_have_bounds() -> None:
    found = [schema for operation in OPERATIONS.values() for schema in _asked_for(operation)]
    numbers = [schema for schema in found if schema["type"] in ("integer", "number")]
    assert len(numbers) > 50
    for schema in numbers:
        assert "minimum" in schema and ("maximum" in schema or "exclusiveMaximum" in schema), schema
    assert not any("ge" in schema or "le" in schema for schema in found), "no words of JSON Schema"


@pytest.mark.parametrize(
    ("operation", "name", "wrong"),
    [
        ("GET /v1/topics", "limit", -5),
        ("GET /v1/topics", "limit", 1_001),
        ("GET /v1/groups/{group}/lag", "points", 0),
        ("GET /v1/brokers/{broker}", "broker", 0),
        ("GET /v1/topics/{topic}/stream", "buffer", 1_000_001),
        ("GET /v1/topics/{topic}/stream", "partitions", "0,"),
        ("GET /v1/topics/{topic}/partitions/{partition}/records", "offset", "9223372036854775808"),
    ],
)
def test_what_would_be_refused_does_not_fit(operation: str, name: str, wrong: Any) -> None:
    (parameter,) = [one for one in OPERATIONS[operation]["parameters"] if one["name"] == name]
    assert not jsonschema_rs.is_valid(parameter["schema"], wrong)


_NUMBERS = [str(number) for at in (0, 9, 10, 10**18, 2**63 - 1, 2**63, 10**19, 10**20) for number in (at, at + 1)]


@pytest.mark.parametrize(
    "number", [*_NUMBERS, *(f"-{one}" for one in _NUMBERS), "", "-", "+1", "1.0", "\u0661", "0x1", " 1"]
)
def test_numbers_of_64_bits_fit_where_they_are_taken(number: str) -> None:
    taken: TypeAdapter[int] = TypeAdapter(Int64)
    values: list[int | str] = [number]
    if number.removeprefix("-").isdecimal():
        values.append(int(number))
    for value in values:
        try:
            assert taken.validate_python(value) == int(value)
        except ValidationError:
            fits = False
        else:
            fits = True
        assert jsonschema_rs.is_valid(taken.json_schema(), value) is fits, value
        if isinstance(value, str) and fits:
            assert abs(int(value)) < 2**63


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (-1, 7), (3, 3), (9, 10), (64, 1500), (99, 100), (123, 987), (5, 1234)]
)
def test_bounds_are_those_of_the_schema_for_numbers_and_for_text(low: int, high: int) -> None:
    taken: TypeAdapter[int] = TypeAdapter(int64_between(low, high))
    schema = taken.json_schema()
    for value in range(-20, 1600):
        fits = low <= value <= high
        for given in (value, str(value)):
            assert jsonschema_rs.is_valid(schema, given) is fits, given
            try:
                assert taken.validate_python(given) == value and fits
            except ValidationError:
                assert not fits, given


@pytest.mark.parametrize("number", [3.0, 3.5, 1e30, -0.0])
def test_whole_numbers_are_whole_however_they_are_written(number: float) -> None:
    body = {"name": "quotes", "partitions": number}
    try:
        assert TopicCreation.model_validate(body).partitions == number
    except ValidationError:
        fits = False
    else:
        fits = True
    assert fits is (number == 3.0)
    assert jsonschema_rs.is_valid(TopicCreation.model_json_schema(), body) is fits


def test_operation_ids_differ() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)


def _examples(node: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Each example, with its schema: of bodies, of parameters, and within schemas."""
    if isinstance(node, list):
        for number, one in enumerate(node):
            yield from _examples(one, f"{where}/{number}")
    elif isinstance(node, dict):
        if "schema" in node:
            if "example" in node:
                yield where, node["schema"], node["example"]
            if isinstance(node.get("examples"), dict):
                yield from ((f"{where}/{name}", node["schema"], one["value"]) for name, one in node["examples"].items())
        elif isinstance(node.get("examples"), list):
            schema = {name: value for name, value in node.items() if name != "examples"}
            yield from ((f"{where}/{number}", schema, one) for number, one in enumerate(node["examples"]))
        for name, value in node.items():
            if name not in ("example", "examples", "const", "default", "enum"):
                yield from _examples(value, f"{where}/{name}")


def test_every_example_fits_its_schema() -> None:
    found = list(_examples(DOCUMENT, ""))
    assert len(found) > 20
    wrong = []
    for where, schema, example in found:
        validator = jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
        wrong += [f"{where}: {error.message}" for error in validator.iter_errors(example)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dashboard", [True, False])
async def test_the_page_asks_nobody_else(dashboard: bool) -> None:
    transport = httpx.ASGITransport(create_app(GatewayConfig(dashboard=dashboard)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "<script>" not in page.text
        assert " style=" not in page.text
        addresses = re.findall(r'<(?:script|link)\b[^>]*?(?:src|href)="([^"]+)"', page.text)
        assert len(addresses) >= 4
        for address in addresses:
            assert "//" not in address
            answer = await client.get(f"/{address.removeprefix('/')}")
            assert answer.status_code == 200, address
            assert answer.content
        assert (await client.get("/docs/..%2fapp.py")).status_code == 404
        document = (await client.get("/openapi.json")).json()
        assert document["paths"].keys() == DOCUMENT["paths"].keys()
        # This one wants no tokens, and says so.
        assert "securitySchemes" not in document["components"]
        assert not any(operation["security"] for _, _, operation in operations(document))


async def test_the_page_can_be_switched_off() -> None:
    transport = httpx.ASGITransport(create_app(GatewayConfig(docs=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        assert (await client.get("/docs")).status_code == 404
        assert (await client.get("/docs/docs.js")).status_code == 404
        assert (await client.get("/openapi.json")).status_code == 200


async def test_the_frame_of_the_page_has_the_entries_of_its_user() -> None:
    token, row = new_token("ann", "viewer")
    with NamedTemporaryFile("w") as tokens:
        tokens.write(row)
        tokens.flush()
        app = create_app(GatewayConfig(tokens_file=tokens.name))
    visit, _ = app.state.gatekeeper.log_in("127.0.0.1", token)
    cookie = sessions.session_cookie(visit, app.state.gatekeeper.wall(), tls=False).decode().partition(";")[0]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8080") as client:
        anyone = (await client.get("/docs")).text
        assert 'href="/topics"' not in anyone
        assert 'href="/login"' in anyone
        for headers in ({"cookie": f"{cookie}x"}, {"cookie": cookie, **FOREIGN}):
            assert 'href="/topics"' not in (await client.get("/docs", headers=headers)).text
        own = (await client.get("/docs", headers={"cookie": cookie})).text
        assert 'href="/topics"' in own
        assert 'href="/access"' not in own
        assert ">ann<" in own
