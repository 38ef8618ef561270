"""The links of the OpenAPI, followed: what an answer says can be done next can be done, with what it says to send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx
import pytest

import comet.testing
from comet_gateway import GatewayConfig, create_app

LAST: Final = ("deleteTopic", "deleteGroup")  # then what they are about is gone
Operation = tuple[str, str, Any]  # method, path, what the OpenAPI says of it


class Api:
    """A gateway, and the operations that it describes."""

    def __init__(self, client: httpx.AsyncClient, document: Any) -> None:
        self._client = client
        self._document = document
        self.operations: dict[str, Operation] = {}
        for path, found in document["paths"].items():
            for method, operation in found.items():
                self.operations[operation["operationId"]] = (method.upper(), path, operation)

    def target(self, link: Any) -> Operation:
        if "operationId" in link:
            return self.operations[link["operationId"]]
        *_, path, method = [part.replace("~1", "/").replace("~0", "~") for part in link["operationRef"].split("/")]
        return method.upper(), path, self._document["paths"][path][method]

    async def call(self, operation: Operation, parameters: dict[str, Any], body: Any) -> tuple[httpx.Response, Any]:
        """The answer, and what the expressions of its links are about."""
        method, path, description = operation
        for name in [one["name"] for one in description.get("parameters", ()) if one["in"] == "path"]:
            path = path.replace(f"{{{name}}}", str(parameters[name]))
        answer = await self._client.request(method, path, json=body)
        return answer, {"path": parameters, "body": answer.json(), "links": self._links(operation, answer.status_code)}

    @staticmethod
    def _links(operation: Operation, status: int) -> dict[str, Any]:
        found: dict[str, Any] = operation[2]["responses"][str(status)].get("links", {})
        return dict(sorted(found.items(), key=lambda item: item[0] in LAST))


def evaluated(value: Any, about: Any) -> Any:
    """With the expressions in it replaced by what they stand for."""
    if isinstance(value, dict):
        return {name: evaluated(one, about) for name, one in value.items()}
    if isinstance(value, list):
        return [evaluated(one, about) for one in value]
    if isinstance(value, str) and value.startswith("$request.path."):
        return about["path"][value.removeprefix("$request.path.")]
    if isinstance(value, str) and value.startswith("$response.body#/"):
        found = about["body"]
        for part in value.removeprefix("$response.body#/").split("/"):
            found = found[int(part)] if isinstance(found, list) else found[part]
        return found
    return value


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with comet.testing.broker() as broker:
        app = create_app(GatewayConfig(bootstrap=broker.address))
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
        ):
            yield Api(client, app.openapi())


async def follow(api: Api, operation: Operation, parameters: dict[str, Any], body: Any = None) -> set[str]:
    """Calls it, and all that its answer links to; returns the links."""
    answer, about = await api.call(operation, parameters, body)
    assert answer.is_success, (operation[:2], answer.text)
    for name, link in about["links"].items():
        target = api.target(link)
        given = evaluated(link.get("parameters", {}), about)
        answer, _ = await api.call(target, given, evaluated(link.get("requestBody"), about))
        assert answer.is_success, (operation[:2], name, answer.text)
        assert str(answer.status_code) in target[2]["responses"]
    return set(about["links"])


async def test_what_is_linked_to_can_be_done(api: Api) -> None:
    create, commit = api.operations["createTopic"], api.operations["commitOffsets"]
    followed: set[str] = set()
    followed |= await follow(api, create, {}, {"name": "quotes", "partitions": 2})
    assert {"describeTopic", "produce", "fetch", "commitOffsets", "deleteTopic"} <= followed
    topic, group = {"topic": "quotes"}, {"group": "work"}
    position = {"offsets": [{"topic": "quotes", "partition": 0, "offset": 0}]}
    for name, parameters in (("describePartition", {**topic, "partition": 1}), ("describeTopic", topic)):
        await api.call(create, {}, {"name": "quotes", "partitions": 2})
        followed |= await follow(api, api.operations[name], parameters)
    await api.call(create, {}, {"name": "quotes"})
    followed |= await follow(api, commit, group, position)
    followed |= await follow(api, api.operations["describeGroup"], group)
    for name in ("describeCluster", "describeBroker"):
        followed |= await follow(api, api.operations[name], {"broker": 1})
    mine = {"topics", "groups", "brokers"}
    linked = {
        name
        for operation in api.operations.values()
        if mine.intersection(operation[2].get("tags", ())) and not _of_leases(operation)
        for name, _ in _all_links(operation)
    }
    assert linked <= followed


def _of_leases(operation: Operation) -> bool:
    return operation[1].rpartition("/")[2] in ("lease", "ack", "nack", "reject", "extend")


def _all_links(operation: Operation) -> Iterator[tuple[str, Any]]:
    for answer in operation[2]["responses"].values():
        yield from answer.get("links", {}).items()
