"""An identity provider (OpenID Connect) as a real HTTP server: with PKCE, and with faults that a test sets."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT: Final = "comet-dashboard"
SECRET: Final = "s3cret:with/odd chars%"
RSA: Final = rsa.generate_private_key(65537, 2048)
Claims = dict[str, Any]


class IdentityProvider:
    """Serves one client. `claims` are those of the user who logs in next."""

    def __init__(self) -> None:
        self.url = ""
        self.secret = SECRET  # empty: a public client
        self.claims: Claims = {"sub": "248289761001", "preferred_username": "ann", "groups": ["platform"]}
        self.keys = {"one": RSA}
        self.discovery: Claims = {}  # replaces parts of the metadata
        self.changed: Claims = {}  # replaces claims of the ID token; None: without it
        self.sign: Callable[[Claims], str] = lambda claims: jwt.encode(
            claims, self.keys["one"], "RS256", {"kid": "one"}
        )
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}  # by path, in place of the real one
        self.padding: dict[str, int] = {}  # spaces before the real one
        self.silent: set[str] = set()  # paths without an answer
        self.requests: list[str] = []
        self.bodies: list[str] = []
        self.issued: list[str] = []  # codes and tokens
        self._codes: dict[str, dict[str, str]] = {}
        self.stopped = Event()

    def authorize(self, location: str, **changed: str) -> str:
        """The URL of the answer to a browser that comes with this one, and whose user logs in."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(location).query, strict_parsing=True).items()}
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT), query
        assert query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(24)
        self._codes[code] = query
        self.issued.append(code)
        answer = {"code": code, "state": query["state"], "iss": self.url, **changed}
        return f"{query['redirect_uri']}?{urlencode({name: text for name, text in answer.items() if text})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, Claims]:
        """The answer of the token endpoint."""
        query = self._codes.pop(form.get("code", ""), None)
        if query is None or query["redirect_uri"] != form.get("redirect_uri"):
            return 400, {"error": "invalid_grant", "error_description": "<b>no such code</b>"}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        if not self._is_client(form, authorization):
            return 401, {"error": "invalid_client"}
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": query["nonce"],
            **self.claims, **self.changed,
        }  # fmt: skip
        text = self.sign({name: value for name, value in claims.items() if value is not None})
        access = secrets.token_urlsafe(24)
        self.issued += [text, access]
        return 200, {"id_token": text, "access_token": access, "token_type": "Bearer", "expires_in": 300}

    def api_token(self, audience: str, **changed: Any) -> str:
        """A token for the API of a gateway."""
        now = time.time()
        claims = {"iss": self.url, "aud": audience, "iat": now, "exp": now + 300, **self.claims, **changed}
        return self.sign({name: value for name, value in claims.items() if value is not None})

    def _is_client(self, form: dict[str, str], authorization: str) -> bool:
        if not self.secret:
            return not authorization and form.get("client_id") == CLIENT
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return (unquote(name), unquote(secret)) == (CLIENT, self.secret)

    def metadata(self) -> Claims:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "authorization_response_iss_parameter_supported": True,
            **self.discovery,
        }

    def jwks(self) -> Claims:
        rows = [
            {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig", "alg": "RS256"}
            for kid, key in self.keys.items()
        ]
        return {"keys": rows}


class _Handler(BaseHTTPRequestHandler):
    provider: IdentityProvider

    def do_GET(self) -> None:
        provider, path = self.provider, urlsplit(self.path).path
        if self._is_told(path):
            return
        documents = {"/.well-known/openid-configuration": provider.metadata, "/keys": provider.jwks}
        if path == "/authorize":
            self._answer(302, b"", {"location": provider.authorize(self.path)})
        elif path in documents:
            self._answer(200, json.dumps(documents[path]()).encode(), {"content-type": "application/json"})
        else:
            self._answer(404, b"", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.provider.bodies.append(body)
        if self._is_told(self.path):
            return
        form = {name: values[0] for name, values in parse_qs(body).items()}
        status, answer = self.provider.token(form, self.headers.get("authorization", ""))
        self._answer(status, json.dumps(answer).encode(), {"content-type": "application/json"})

    def _is_told(self, path: str) -> bool:
        """Whether a test has another answer."""
        self.provider.requests.append(path)
        if path in self.provider.silent:
            self.provider.stopped.wait()
            return True
        if path in self.provider.answers:
            self._answer(*self.provider.answers[path])
            return True
        return False

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        body = b" " * self.provider.padding.get(urlsplit(self.path).path, 0) + body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            return  # the client has seen enough

    def log_message(self, format: str, *words: Any) -> None:  # noqa: A002 - the server calls it so
        """Nothing: tests look at `requests`."""


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """One for each test of a module that imports it."""
    with identity_provider() as found:
        yield found


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Runs one on loopback."""
    provider = IdentityProvider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield provider
    finally:
        provider.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
