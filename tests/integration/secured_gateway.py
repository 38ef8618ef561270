"""A gateway with users before a broker with rules, access keys and an audit log, all on this loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from comet.types import AUDIT_TOPIC
from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.auth import new_token
from tests.integration.live_gateway import PATIENCE_S, Gateway, serving
from tests.integration.test_access_keys import Keyed, keyed
from tests.waiting import until_answered


@dataclass
class Secured:
    """The broker, the gateway, and the tokens of its users, by role."""

    broker: Keyed
    gateway: Gateway
    tokens: dict[str, str]

    def headers(self, role: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[role]}"}

    def client(self, role: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.gateway.url, headers=self.headers(role), timeout=PATIENCE_S)


@asynccontextmanager
async def secured(
    folder: Path, *, key: str = "", limits: Limits | None = None, **settings: Any
) -> AsyncIterator[Secured]:
    """The gateway is a superuser, or presents an access key of the principal `key`. `settings` are the broker's.

    Ready once the log is there."""
    made = {role: new_token(role, role) for role in ("viewer", "operator", "admin")}
    tokens = folder / "tokens.toml"
    tokens.write_text("".join(row for _, row in made.values()))
    async with keyed(folder, **settings) as broker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COMET_CLIENT_CA", str(broker.ca))
            presented = broker.admin_key if not key else (await broker.key("gateway.key", key))[0]
            patch.setenv("COMET_CLIENT_ACCESS_KEY", str(presented))
            config = GatewayConfig(
                bootstrap=broker.server.address,
                port=0,
                tokens_file=str(tokens),
                limits=limits or Limits(),
                drain_s=5,
            )
            async with serving(config) as server:
                gateway = Gateway(broker.server.address, server.url, server)

                async def written() -> bool:
                    return any(topic.name == AUDIT_TOPIC for topic in await broker.admin.list_topics())

                assert await until_answered(written, within_s=PATIENCE_S)
                yield Secured(broker, gateway, {role: token for role, (token, _) in made.items()})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    """One for a module that imports it."""
    async with secured(tmp_path_factory.mktemp("secured")) as found:
        yield found
