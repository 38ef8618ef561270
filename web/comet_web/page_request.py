"""The request for a page: its address and the user. Immutable; built by the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

VIEWER: Final = 1
OPERATOR: Final = 2
ADMIN: Final = 3
ROLE_NAMES: Final = {VIEWER: "viewer", OPERATOR: "operator", ADMIN: "admin"}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request. `matches` is the compiled filter of the page's main table, `filter_problem` why there is none."""

    path: str = "/"  # without the gateway's root path
    params: Mapping[str, str] = field(default_factory=dict)  # path parameters
    query: Mapping[str, str] = field(default_factory=dict)
    now_us: int = 0
    principal: str = "anyone"
    role: int = ADMIN
    open: bool = True  # no login required
    matches: Callable[[str], bool] | None = None
    filter_problem: str = ""
    whole: bool = False  # the main table without paging, for CSV
    first: bool = False  # the first HTML of a page, not an update

    def may(self, role: int) -> bool:
        return self.role >= role

    def refusal(self, role: int) -> str:
        """Why the user's role does not suffice; empty: it does."""
        return (
            ""
            if self.may(role)
            else f"needs the role {ROLE_NAMES[role]}; you are {ROLE_NAMES.get(self.role, 'not logged in')}"
        )

    def link(self, **changed: str | int | None) -> str:
        """The address of this page with a changed query; None removes a parameter."""
        query = {**self.query, **{name: None if value is None else str(value) for name, value in changed.items()}}
        text = urlencode({name: value for name, value in query.items() if value not in (None, "")})
        return f"{self.path}?{text}" if text else self.path


def path(*parts: str | int) -> str:
    """An address of the dashboard from its parts, each quoted as one path segment."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)
