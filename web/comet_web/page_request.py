"""Who looks at which page, and how: all that an address says. Immutable; the gateway makes it."""

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
    """`matches` is the filter of the page's main table, ready to be asked, and `filter_problem` why there is none."""

    path: str = "/"  # without what the gateway is mounted under
    params: Mapping[str, str] = field(default_factory=dict)  # the parts of the path that vary
    query: Mapping[str, str] = field(default_factory=dict)
    now_us: int = 0
    who: str = "anyone"
    role: int = ADMIN
    open: bool = True  # nobody needs to log in
    matches: Callable[[str], bool] | None = None
    filter_problem: str = ""
    whole: bool = False  # the main table in one piece, for CSV
    first: bool = False  # what a page begins with, and no look that follows

    def may(self, role: int) -> bool:
        return self.role >= role

    def refusal(self, role: int) -> str:
        """Why somebody may not do something; empty: they may."""
        return (
            ""
            if self.may(role)
            else f"needs the role {ROLE_NAMES[role]}; you are {ROLE_NAMES.get(self.role, 'not logged in')}"
        )

    def link(self, **changed: str | int | None) -> str:
        """This page, with another query: None takes a parameter away."""
        query = {**self.query, **{name: None if value is None else str(value) for name, value in changed.items()}}
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.path}?{urlencode(kept)}" if kept else self.path


def path(*parts: str | int) -> str:
    """An address of ours, made of its parts; whatever a part holds, it stays one part."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)
