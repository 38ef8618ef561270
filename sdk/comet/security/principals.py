"""Names of principals and roles, and the roles that a token brings."""

from __future__ import annotations

import re
from typing import Final

from comet.errors import CredentialsRefused

ROLE: Final = "role:"  # with which the names of roles begin
ROLES_MAX: Final = 256  # of one principal
_NAME: Final = re.compile(r"[a-z]+:[^\s*]{1,256}")


def is_name(text: str) -> bool:
    """Whether a principal or role can have the name.

    >>> is_name("client:billing"), is_name("billing"), is_name("role:Platform Team")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None and text.isprintable()


def is_role(text: str) -> bool:
    """Whether a rule can be for it."""
    return text.startswith(ROLE) and is_name(text)


def roles_of(value: object, claim: str) -> tuple[str, ...]:
    """The roles in a claim of a token: in a list, or in a text with spaces between them. Those that no rule can name
    are left out. Raises CredentialsRefused for other values and too many roles: without one of them a rule that denies
    would not hold.

    >>> roles_of(["finance", "Platform Team"], "groups")
    ('role:finance',)
    """
    words = value.split() if isinstance(value, str) else value
    if words is None:
        return ()
    if not isinstance(words, list) or len(words) > ROLES_MAX:
        raise CredentialsRefused(f"the {claim} of the token is not a list of up to {ROLES_MAX} roles")
    return tuple(sorted({f"{ROLE}{one}" for one in words if isinstance(one, str) and is_role(f"{ROLE}{one}")}))
