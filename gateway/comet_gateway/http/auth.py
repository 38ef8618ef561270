"""Authentication by bearer tokens, and the roles that routes require.

    [[token]]                    the tokens file, TOML; `comet gateway token NAME --role ROLE` prints such a row
    name = "grafana"             the name in the audit log
    role = "viewer"              viewer reads, operator also writes and works in groups, admin also deletes
    sha256 = "…"                 of the token; the token itself is not stored

A token, also one of the identity provider (JWT), comes as `Authorization: Bearer <token>`; from a page's WebSocket,
which can send no headers, as one of its subprotocols, `comet.bearer.<token in base64url>`, beside `comet.v1`. Never in
a URL: URLs end in logs.
In a browser, people log in with their token once, or at their identity provider (see the folder `oidc`), and have a
session (see `sessions`).
ROLES is the one table of required roles; each route of the application has its row there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import tomllib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from time import monotonic, time
from typing import Final, NamedTuple

from comet.admin.acts import OPERATIONS, Act, Operation
from comet.errors import CredentialsRefused, InvalidArgument, Unavailable
from comet_gateway.http import sessions
from comet_gateway.http.problems import Problem
from comet_gateway.http.sessions import Visit
from comet_gateway.http.throttle import AddressThrottle, remember
from comet_web.pages import PAGES

TOKENS_MAX: Final = 1_000
TOKEN_BYTES_MAX: Final = 512
JWT_BYTES_MAX: Final = 8 * 1024
LOGGED_OUT_MAX: Final = 10_000  # sessions that ended before their expiry, kept in memory
SUBPROTOCOL: Final = "comet.bearer."
_PREFIX: Final = "comet_"  # so that secret scanners find tokens in code
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Role(IntEnum):
    """Roles; each includes those before it."""

    ANYONE = 0  # without a token
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a token, or a user. At `scope["comet.principal"]` of each admitted request and WebSocket."""

    name: str
    role: Role
    broker_roles: tuple[str, ...] = ()  # of a user, by its token: role:finance; beside those that brokers grant

    def require(self, role: Role) -> None:
        """Checks the role. Raises FORBIDDEN."""
        if self.role < role:
            needed, own = role.name.lower(), self.role.name.lower()
            raise Problem("FORBIDDEN", f"this needs the role {needed}; {self.name} has {own}")


class UserOfToken(NamedTuple):
    """The user of a token (JWT) of the identity provider, and the time from which on it is not taken."""

    principal: Principal
    end_s: float


ANONYMOUS: Final = Principal("anyone", Role.ANYONE)
UNRESTRICTED: Final = Principal("anyone", Role.ADMIN)  # without configured tokens, on loopback only


def _template(path: str) -> str:
    """The path as ROLES has it."""
    return path.replace(":path}", "}")


def roles_of_acts(rows: Iterable[tuple[Act, Operation]]) -> dict[tuple[str, str], Role]:
    """The roles of these operations."""
    return {(route.method, route.path): Role[act.role.upper()] for act, route in rows}


_VIEWER, _OPERATOR, _ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN
# (method, route) -> role. "WS": a WebSocket; its frames are checked one by one.
ROLES: Final[Mapping[tuple[str, str], Role]] = {
    ("GET", "/livez"): Role.ANYONE,
    ("GET", "/readyz"): Role.ANYONE,
    ("GET", "/docs"): Role.ANYONE,
    ("GET", "/docs/{file}"): Role.ANYONE,
    ("GET", "/openapi.json"): Role.ANYONE,
    ("GET", "/login"): Role.ANYONE,
    ("POST", "/login"): Role.ANYONE,
    ("GET", "/login/oidc"): Role.ANYONE,
    ("GET", "/login/oidc/callback"): Role.ANYONE,
    ("POST", "/logout"): Role.ANYONE,
    ("GET", "/metrics"): _VIEWER,
    ("GET", "/about/diagnostics.json"): _ADMIN,  # everything about the gateway, in one file for support
    # the dashboard
    **{("GET", path): Role(page.role) for page in PAGES for path in map(_template, (page.path, page.csv)) if path},
    ("GET", "/palette"): _VIEWER,
    ("GET", "/static/{version}/{path}"): Role.ANYONE,
    ("WS", "/v1/ws"): _VIEWER,
    ("GET", "/v1/ws/schema"): Role.ANYONE,
    ("GET", "/v1/topics/{topic}/stream"): _VIEWER,
    # records
    ("POST", "/v1/topics/{topic}/records"): _OPERATOR,
    ("GET", "/v1/topics/{topic}/records"): _VIEWER,
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): _VIEWER,
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records/{offset}/value"): _VIEWER,
    ("GET", "/v1/topics/{topic}/search"): _VIEWER,
    ("GET", "/v1/topics/{topic}/export"): _VIEWER,
    # keys
    ("GET", "/v1/kv/{topic}"): _VIEWER,
    ("GET", "/v1/kv-history/{topic}"): _VIEWER,
    ("GET", "/v1/kv/{topic}/{key}"): _VIEWER,
    ("PUT", "/v1/kv/{topic}/{key}"): _OPERATOR,
    ("DELETE", "/v1/kv/{topic}/{key}"): _OPERATOR,
    # acts of administration
    **roles_of_acts(OPERATIONS.values()),
    # topics
    ("GET", "/v1/topic-settings"): _VIEWER,
    ("GET", "/v1/topics/{topic}/offsets"): _VIEWER,
    # groups
    ("GET", "/v1/groups/{group}/offsets"): _VIEWER,
    ("PUT", "/v1/groups/{group}/offsets"): _OPERATOR,
    ("POST", "/v1/groups/{group}/acquire"): _OPERATOR,
    ("POST", "/v1/groups/{group}/ack"): _OPERATOR,
    ("POST", "/v1/groups/{group}/nack"): _OPERATOR,
    ("POST", "/v1/groups/{group}/reject"): _OPERATOR,
    ("POST", "/v1/groups/{group}/extend"): _OPERATOR,
    # dead letters
    ("GET", "/v1/dead-letters"): _VIEWER,
    ("GET", "/v1/dead-letters/{topic}"): _VIEWER,
    ("POST", "/v1/dead-letters/{topic}/redrive"): _OPERATOR,
    ("POST", "/v1/dead-letters/{topic}/discard"): _OPERATOR,
    # alerts
    ("GET", "/v1/alerts"): _VIEWER,
    ("POST", "/v1/alerts"): _OPERATOR,
    ("GET", "/v1/alerts/{alert}"): _VIEWER,
    ("PUT", "/v1/alerts/{alert}"): _OPERATOR,
    ("DELETE", "/v1/alerts/{alert}"): _OPERATOR,
    ("POST", "/v1/alerts/{alert}/mute"): _OPERATOR,
    ("POST", "/v1/alerts/{alert}/acknowledge"): _OPERATOR,
    ("POST", "/v1/alerts/{alert}/test"): _OPERATOR,
    ("GET", "/v1/alert-history"): _VIEWER,
    # schedules
    ("GET", "/v1/schedules/next"): _VIEWER,
    # the cluster
    ("GET", "/v1/leaders"): _VIEWER,
    ("POST", "/v1/leaders/move"): _ADMIN,
    ("POST", "/v1/leaders/stop"): _ADMIN,
}  # fmt: skip
# Changes that are the normal work, thousands a second, and stored in the topic's or group's log anyway.
UNAUDITED: Final[frozenset[tuple[str, str]]] = frozenset({
    ("POST", "/v1/topics/{topic}/records"),
    ("PUT", "/v1/kv/{topic}/{key}"),
    ("DELETE", "/v1/kv/{topic}/{key}"),
    ("PUT", "/v1/groups/{group}/offsets"),
    ("POST", "/v1/groups/{group}/acquire"),
    ("POST", "/v1/groups/{group}/ack"),
    ("POST", "/v1/groups/{group}/nack"),
    ("POST", "/v1/groups/{group}/reject"),
    ("POST", "/v1/groups/{group}/extend"),
})  # fmt: skip
# A login, though its method is that of a read. Its query holds a code, and stays out of the audit log.
AUDITED_READS: Final[frozenset[tuple[str, str]]] = frozenset({("GET", "/login/oidc/callback")})


class TokenFile:
    """The tokens of one file. Immutable; a reload creates another one."""

    def __init__(self, rows: list[tuple[bytes, Principal]]) -> None:
        self._rows = rows
        self._keys = {
            principal.name: sessions.key_of(digest, principal.name, principal.role.name) for digest, principal in rows
        }
        self.by_name = {principal.name: principal for _, principal in rows}

    @classmethod
    def load(cls, path: Path) -> TokenFile:
        """Parses a tokens file. Raises InvalidArgument, never with a secret in it."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read().decode()
            if mode & _WRITABLE_BY_OTHERS:
                raise InvalidArgument(
                    f"the tokens file {path} may be changed by others than its owner (mode {mode:o}):"
                    f" run chmod 600 {shlex.quote(str(path))}"
                )
            table = tomllib.loads(text)
        except OSError as error:
            raise InvalidArgument(f"cannot read the tokens file {path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} is not valid TOML: {error}") from None
        found = table.get("token")
        if set(table) != {"token"} or not isinstance(found, list) or not 0 < len(found) <= TOKENS_MAX:
            raise InvalidArgument(f"{path} must consist of 1 to {TOKENS_MAX} [[token]] tables")
        rows = [_row(path, number, one) for number, one in enumerate(found, 1)]
        names = [principal.name for _, principal in rows]
        if len(set(names)) < len(names):
            raise InvalidArgument(f"{path}: two tokens have the same name; names must be unique for the audit log")
        return cls(rows)

    def principal_of(self, token: str) -> Principal | None:
        """The owner of a token, None if unknown. Compares with all of them, in constant time."""
        digest, found = hashlib.sha256(token.encode()).digest(), None
        for expected, principal in self._rows:
            if hmac.compare_digest(expected, digest):
                found = principal
        return found

    def key_of(self, name: str) -> bytes | None:
        """The key that signs the sessions of this token."""
        return self._keys.get(name)


def _row(path: Path, number: int, one: object) -> tuple[bytes, Principal]:
    where = f"{path}: token {number}"
    if not isinstance(one, dict) or set(one) != {"name", "role", "sha256"}:
        raise InvalidArgument(f"{where} must have name, role and sha256, and nothing else")
    name, role, digest = one["name"], one["role"], one["sha256"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"{where}: name must be up to 64 letters, digits and . _ @ -")
    if role not in ("viewer", "operator", "admin"):
        raise InvalidArgument(f"{where}: role must be viewer, operator or admin, not {role!r}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidArgument(f"{where}: sha256 must be 64 lower-case hexadecimal digits: the digest, not the token")
    return bytes.fromhex(digest), Principal(name, Role[role.upper()])


def new_token(name: str, role: str) -> tuple[str, str]:
    """Creates a token, and its row for the tokens file."""
    token = _PREFIX + secrets.token_urlsafe(32)
    row = f'[[token]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
    _row(Path("token"), 1, tomllib.loads(row)["token"][0])
    return token, row


def bearer(headers: Mapping[bytes, bytes], subprotocols: list[str] | None = None) -> str | None:
    """The token of a request, None if it has none. Raises UNAUTHENTICATED if it is malformed."""
    given = headers.get(b"authorization")
    if given is not None:
        scheme, _, token = given.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Problem("UNAUTHENTICATED", "the Authorization header holds no bearer token")
        return _bounded(token.strip())
    for one in subprotocols or ():
        if one.startswith(SUBPROTOCOL):
            text = one.removeprefix(SUBPROTOCOL)
            try:
                token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
            except (binascii.Error, ValueError):
                raise Problem("UNAUTHENTICATED", f"the text after {SUBPROTOCOL} is not a token in base64url") from None
            return _bounded(token)
    return None


def _bounded(token: str) -> str:
    most = JWT_BYTES_MAX if is_jwt(token) else TOKEN_BYTES_MAX
    if len(token) > most:
        raise Problem("UNAUTHENTICATED", f"the token is longer than {most} characters")
    return token


def is_jwt(token: str) -> bool:
    """Whether it has the form of a JWT; tokens of the file have no dots."""
    return token.count(".") == 2


class AuthenticatedConnection:
    """A long-lived connection, valid as long as its token or session. Created by the task that runs it."""

    def __init__(self, good: Callable[[TokenFile], bool], session: bytes = b"") -> None:
        self.good = good
        self.session = session  # its id
        self.over = False
        self._task = asyncio.current_task()

    def end(self) -> None:
        self.over = True
        if self._task is not None:
            self._task.cancel()


class Gatekeeper:
    """Checks tokens and sessions, and throttles addresses that send wrong tokens. One for an application.

    `user_key` signs the sessions of users of the identity provider; None: without one. `user_of_token` verifies its
    tokens for the API; None: they are unknown tokens."""

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
        *,
        user_key: bytes | None = None,
    ) -> None:
        self._path = Path(path).expanduser() if path else None
        self._tokens = TokenFile.load(self._path) if self._path else None
        self._user_key = user_key
        self.user_of_token: Callable[[str], Awaitable[UserOfToken]] | None = None
        self.wall = wall
        self._throttle = AddressThrottle("wrong tokens", clock)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()  # (address, name) with a valid token before
        self._connections: set[AuthenticatedConnection] = set()
        self._logged_out: OrderedDict[bytes, None] = OrderedDict()  # ids

    @property
    def open(self) -> bool:
        """Whether neither a token nor a session is needed."""
        return self._tokens is None and self._user_key is None

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def refused(self) -> int:
        """Wrong tokens so far."""
        return self._throttle.failures

    def reload(self) -> None:
        """Reads the file again, and ends connections whose token has changed.

        Raises InvalidArgument if the file is wrong; the tokens then stay as they were."""
        if self._path is None:
            return
        self._tokens = TokenFile.load(self._path)
        for connection in list(self._connections):
            if not connection.good(self._tokens):
                connection.end()

    def add(self, connection: AuthenticatedConnection) -> None:
        """Registers a long-lived connection; `remove` when it is over."""
        self._connections.add(connection)

    def remove(self, connection: AuthenticatedConnection) -> None:
        self._connections.discard(connection)

    def known(self) -> list[Principal]:
        """The owners of the tokens."""
        return [] if self._tokens is None else list(self._tokens.by_name.values())

    def log_in(self, address: str, token: str) -> tuple[Visit, Principal]:
        """Creates a session for the owner of a token. Raises as `principal` does."""
        principal = self.principal(address, token)
        assert self._tokens is not None, "without tokens there is no login"
        key = self._tokens.key_of(principal.name)
        assert key is not None
        return Visit(sessions.begun(principal.name, self.wall()), key), principal

    def log_in_user(self, principal: Principal, life_s: int) -> Visit:
        """Creates a session for a user of the identity provider."""
        assert self._user_key is not None, "without a provider there are no users"
        session = sessions.begun_by_user(
            principal.name, int(principal.role), self.wall(), life_s, principal.broker_roles
        )
        return Visit(session, self._user_key)

    def visit(self, cookie: str) -> tuple[Visit, Principal] | None:
        """The session of a cookie and its owner; None if it is not valid, or over."""
        tokens = self._tokens
        visit = sessions.read(cookie, tokens.key_of if tokens else _no_key, self.wall(), self._user_key)
        if visit is None or visit.session.id in self._logged_out:
            return None
        session = visit.session
        if session.role:
            return visit, Principal(session.name, Role(session.role), session.broker_roles)
        assert tokens is not None, "its key came from the tokens file"
        return visit, tokens.by_name[session.name]

    def log_out(self, visit: Visit) -> None:
        """Ends the session and its connections on this gateway; on others it ends at its expiry."""
        remember(self._logged_out, visit.session.id, None, LOGGED_OUT_MAX)
        for connection in list(self._connections):
            if connection.session == visit.session.id:
                connection.end()

    def principal(self, address: str, token: str | None) -> Principal:
        """The owner of a token. Raises UNAUTHENTICATED; TOO_MANY_REQUESTS if the address is throttled."""
        if self.open:
            return UNRESTRICTED
        if token is None:
            return ANONYMOUS
        return self._admitted(address, None if self._tokens is None else self._tokens.principal_of(token))

    async def user(self, address: str, token: str) -> UserOfToken:
        """The user of a token of the identity provider. Raises as `principal` does, and PROVIDER_UNAVAILABLE."""
        assert self.user_of_token is not None
        found, reason = None, ""
        try:
            found = await self.user_of_token(token)
        except CredentialsRefused as error:
            reason = error.message
        except Unavailable as error:
            raise Problem("PROVIDER_UNAVAILABLE", error.message) from None
        self._admitted(address, None if found is None else found.principal, reason)
        assert found is not None, "else it was not admitted"
        return found

    def _admitted(self, address: str, found: Principal | None, reason: str = "unknown token") -> Principal:
        left_s = self._throttle.left_s(address)
        if left_s and (found is None or (address, found.name) not in self._known):
            # Right tokens are refused, too, or guessing would not be slowed down; known owners are not locked out.
            raise Problem(
                "TOO_MANY_REQUESTS",
                "too many wrong tokens from this address",
                retry_after_ms=max(1, round(left_s * 1000)),
            )
        if found is None:
            self._throttle.failed(address)
            raise Problem("UNAUTHENTICATED", reason)
        remember(self._known, (address, found.name), None)
        return found


def _no_key(_: str) -> None:
    """The key of a session's token without a tokens file."""
