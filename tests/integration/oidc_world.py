"""A gateway whose users log in at an identity provider, without a broker, for tests of logins and of tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from comet_gateway import GatewayConfig, create_app
from comet_gateway.http.auth import Gatekeeper, Principal
from comet_gateway.oidc.login_flow import LoginFlow
from tests.identity_provider import CLIENT, SECRET, IdentityProvider

OWN = "http://127.0.0.1:8080"


class OidcWorld:
    """A gateway with a provider."""

    def __init__(self, provider: IdentityProvider, folder: Path, **settings: Any) -> None:
        self.provider = provider
        self.secret = folder / "client.secret"
        self.secret.write_text(SECRET + "\n")
        self.secret.chmod(0o600)
        given: dict[str, Any] = {
            "oidc_issuer": provider.url,
            "oidc_client_id": CLIENT,
            "oidc_client_secret_file": str(self.secret),
            "oidc_roles": ("admin=platform", "viewer=*"),
            "oidc_name_claim": "preferred_username",
        }
        self.config = GatewayConfig(**{**given, **settings})
        self.app = create_app(self.config)
        now = time.monotonic()
        for reading in (self.flow._provider._metadata, self.flow._provider._keys):
            reading._clock = lambda: now  # it stands still, so a pause ends when a test says so

    @property
    def keeper(self) -> Gatekeeper:
        keeper: Gatekeeper = self.app.state.gatekeeper
        return keeper

    @property
    def flow(self) -> LoginFlow:
        flow: LoginFlow = self.app.state.oidc
        return flow

    @asynccontextmanager
    async def browser(self, base: str = OWN) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=base) as client:
            yield client

    def visitor(self, browser: httpx.AsyncClient) -> Principal | None:
        cookie = browser.cookies.get("comet_session") or browser.cookies.get("__Host-comet_session")
        found = self.keeper.visit(cookie) if cookie else None
        return found[1] if found else None
