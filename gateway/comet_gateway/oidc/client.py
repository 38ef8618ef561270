"""This gateway as a client of its identity provider, by the settings `oidc_…`, and what a user's claims give.

    oidc_roles = ["admin=platform", "operator=streams", "viewer=*"]
                  a user gets the highest role of which a value is in the claim `oidc_roles_claim`; * is any user

A user is `oidc:NAME` in the audit log, in shares and on pages. Names of tokens have no colon, so neither can pass for
the other. With `user_rules` all values of that claim are also its roles at the brokers, as in a token that it presents
there: "finance" is role:finance.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from comet.errors import CredentialsRefused, InvalidArgument, pip_install
from comet.security.fetch import is_private
from comet.security.files import read_secret
from comet.security.principals import roles_of
from comet.security.signed_tokens import claim_of
from comet.wire.acting import BYTES_MAX, USER
from comet_gateway.config import GatewayConfig
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.sessions import USER_LINES_BYTES_MAX

CALLBACK: Final = "/login/oidc/callback"
PREFIX: Final = "oidc:"
NAME_BYTES_MAX: Final = 128
ROLES_BYTES_MAX: Final = 2_400  # of a user's roles at brokers, which its session and each call for it hold
SECRET_BYTES_MAX: Final = 1_024
CLAIM_VALUES_MAX: Final = 1_000  # of the claim with roles
_ROLES: Final = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}
_ANY: Final = "*"
_EMAIL: Final = "email"  # providers let users type it: it counts once it is verified

assert len(PREFIX) + NAME_BYTES_MAX + 1 + ROLES_BYTES_MAX <= USER_LINES_BYTES_MAX
assert len(USER) + NAME_BYTES_MAX + 1 + ROLES_BYTES_MAX <= BYTES_MAX


class NotAdmitted(Exception):
    """A user of the provider who may not log in. `word` is a key of `login_flow.REFUSALS`."""

    def __init__(self, reason: str, word: str = "no_role") -> None:
        super().__init__(reason)
        self.word = word


@dataclass(frozen=True, slots=True)
class OidcClient:
    """The settings, checked. Immutable."""

    issuer: str
    client_id: str
    secret: str  # empty: a public client
    audience: str  # of tokens at the API; empty: it takes none
    redirect_url: str  # empty: derived from each request
    scope: str
    name_claim: str
    roles_claim: str
    roles: tuple[tuple[Role, str], ...]
    session_s: int
    user_rules: bool  # brokers get the user's roles
    key: bytes  # of its sessions and logins

    @property
    def host(self) -> str:
        """The provider's name for the button."""
        return urlsplit(self.issuer).hostname or ""

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        """The user of verified claims. Raises NotAdmitted."""
        name = self._claim(claims, self.name_claim)
        if not isinstance(name, str) or not _is_name(name):
            raise NotAdmitted(f"the claim {self.name_claim} holds no usable name")
        given = self._claim(claims, self.roles_claim)
        values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        found = {value for value in values[:CLAIM_VALUES_MAX] if isinstance(value, str)} | {_ANY}
        role = max((role for role, value in self.roles if value in found), default=None)
        if role is None:
            raise NotAdmitted(f"{PREFIX}{name} has no role: no value of {self.roles_claim} is in oidc_roles")
        return Principal(PREFIX + name, role, self._broker_roles(name, given) if self.user_rules else ())

    def _broker_roles(self, name: str, value: object) -> tuple[str, ...]:
        """All of them or NotAdmitted: without one of them a rule that denies would not hold."""
        try:
            found = roles_of(value, self.roles_claim)
        except CredentialsRefused as error:
            raise NotAdmitted(f"{PREFIX}{name}: {error.message}", "roles") from None
        size = len("\n".join(found).encode())
        if size > ROLES_BYTES_MAX:
            raise NotAdmitted(
                f"{PREFIX}{name}: the {len(found)} roles in {self.roles_claim} take {size} bytes, and a session has "
                f"room for {ROLES_BYTES_MAX}: let the provider send fewer groups to this client",
                "roles",
            )
        return found

    def _claim(self, claims: Mapping[str, Any], name: str) -> object:
        if name == _EMAIL and claims.get("email_verified") is not True:
            raise NotAdmitted("the provider has not verified the email of this user (email_verified)")
        return claim_of(claims, name)


def _is_name(name: str) -> bool:
    """Whether it can stand in a log and on a page: not empty, bounded, visible, without spaces at its ends."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= NAME_BYTES_MAX and name.isprintable() and name == name.strip()


def oidc_client_of(config: GatewayConfig) -> OidcClient | None:
    """None: users log in with tokens only. Raises InvalidArgument."""
    if not config.oidc_issuer:
        if config.oidc_client_id or config.oidc_roles or config.oidc_client_secret_file or config.oidc_audience:
            raise InvalidArgument(
                "oidc_client_id, oidc_roles, oidc_client_secret_file and oidc_audience need oidc_issuer"
            )
        return None
    _check(config)
    roles = tuple(_role(word) for word in config.oidc_roles)
    secret = _secret(config.oidc_client_secret_file) if config.oidc_client_secret_file else ""
    # All that decides who is admitted: sessions end when it changes.
    admits = json.dumps([
        config.oidc_issuer, config.oidc_client_id, config.oidc_name_claim, config.oidc_roles_claim,
        config.oidc_session_s, sorted(config.oidc_roles),
    ])  # fmt: skip
    key = hmac.digest(secret.encode() or secrets.token_bytes(32), b"comet oidc\0" + admits.encode(), "sha256")
    return OidcClient(
        issuer=config.oidc_issuer,
        client_id=config.oidc_client_id,
        secret=secret,
        audience=config.oidc_audience,
        redirect_url=config.oidc_redirect_url,
        scope=" ".join(dict.fromkeys(("openid", *config.oidc_scopes))),
        name_claim=config.oidc_name_claim,
        roles_claim=config.oidc_roles_claim,
        roles=roles,
        session_s=int(config.oidc_session_s),
        user_rules=config.user_rules,
        key=key,
    )


def _check(config: GatewayConfig) -> None:
    if not is_private(config.oidc_issuer) or urlsplit(config.oidc_issuer).query:
        raise InvalidArgument(f"oidc_issuer must be an https URL, not {config.oidc_issuer!r}")
    if not config.oidc_client_id or not config.oidc_roles:
        raise InvalidArgument(
            "oidc_issuer needs oidc_client_id and oidc_roles: without oidc_roles no user has a role",
            details={"hint": "for example oidc_roles = admin=platform,viewer=*"},
        )
    if config.oidc_audience == config.oidc_client_id:
        raise InvalidArgument(
            "oidc_audience must differ from oidc_client_id: that is the audience of ID tokens, which are for the login"
        )
    if not config.oidc_name_claim or not config.oidc_roles_claim:
        raise InvalidArgument("oidc_name_claim and oidc_roles_claim must not be empty")
    url = config.oidc_redirect_url
    if url and (not is_private(url) or not urlsplit(url).path.endswith(CALLBACK) or urlsplit(url).query):
        raise InvalidArgument(f"oidc_redirect_url must be an https URL that ends with {CALLBACK}, not {url!r}")
    if not url and "*" in config.hosts:
        raise InvalidArgument("hosts = * lets a request name any host: set oidc_redirect_url")
    if not config.dashboard:
        raise InvalidArgument("oidc_issuer is for the login of the dashboard, and dashboard = no")
    try:
        import jwt  # noqa: F401 - whether it is there
    except ImportError:
        raise InvalidArgument(f"OpenID Connect needs the package pyjwt: {pip_install('security')}") from None


def _role(word: str) -> tuple[Role, str]:
    name, equals, value = word.partition("=")
    if name not in _ROLES or not equals or not value:
        raise InvalidArgument(
            f"oidc_roles: {word!r} is not a role and a value, such as admin=platform; roles are {', '.join(_ROLES)}"
        )
    return _ROLES[name], value


def _secret(path: str) -> str:
    try:
        text = read_secret(Path(path).expanduser(), SECRET_BYTES_MAX).decode().strip()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the client secret in {path} is not a text") from None
    if not text:
        raise InvalidArgument(f"the client secret in {path} is empty")
    return text
