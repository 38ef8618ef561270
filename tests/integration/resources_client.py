"""A gateway without a network, whose brokers are the test's own: what the tests of resources run against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx

import comet
from comet_gateway import create_app
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.brokers.leader_transfer import LeaderJob
from tests.integration.local_cluster import LocalCluster


class Api:
    """What a test says to a gateway, and the documents that it answers."""

    def __init__(self, client: httpx.AsyncClient, admin: comet.Admin) -> None:
        self.client = client
        self.admin = admin

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **query: Any) -> Any:
        """The document, if the status is the one that is expected."""
        params = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        answer = await self.client.request(method, f"/v1{path}", json=body, params=params)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        if status >= 400:
            assert answer.headers["content-type"].startswith("application/problem+json")
        return answer.json()

    async def get(self, path: str, **query: Any) -> Any:
        return await self.ask("GET", path, **query)

    async def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return await self.ask("POST", path, body, **query)

    async def delete(self, path: str, **query: Any) -> Any:
        return await self.ask("DELETE", path, **query)


@asynccontextmanager
async def api(addresses: str | list[str], **settings: Any) -> AsyncIterator[Api]:
    app = create_app()
    async with comet.Admin(addresses, **settings) as admin:
        leaders = LeaderJob(admin)
        app.state.backend = SimpleNamespace(admin=admin, catalog=Catalog(admin), leaders=leaders)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Api(client, admin)
        await leaders.close()


@asynccontextmanager
async def cluster_api(cluster: LocalCluster, **settings: Any) -> AsyncIterator[Api]:
    async with api(cluster.addresses, connect=cluster.network.connect, **settings) as one:
        yield one
