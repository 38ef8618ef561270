"""Topics that need a higher role than their routes: the audit log of the brokers, the journal of alerts, and the names
of all that `comet apply` made.

The gateway reads the audit log with its own credential, whichever user asks, so rules at the brokers cannot tell users
apart. The journal holds URLs of webhooks, which may be secrets, and a record in it is a rule. A name among those that
`comet apply` made is one that it may delete.

    a path or query of a request         guard, page_request_of
    a frame of a WebSocket               PushSession, SubscribableDashboard
    the body of a request                routes.share_groups
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from comet import patterns
from comet.types import ALERTS_TOPIC, APPLIED_TOPIC, AUDIT_TOPIC, is_internal_topic
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem

TOPIC_ROLES: Final[Mapping[str, Role]] = {
    AUDIT_TOPIC: Role.ADMIN,
    ALERTS_TOPIC: Role.ADMIN,
    APPLIED_TOPIC: Role.ADMIN,
}


def require_topic(principal: Principal, topic: object) -> None:
    """Checks that the user's role suffices for a topic. Raises FORBIDDEN."""
    needed = TOPIC_ROLES.get(topic, Role.ANYONE) if isinstance(topic, str) else Role.ANYONE
    if principal.role < needed:
        own = principal.role.name.lower()
        raise Problem("FORBIDDEN", f"topic {topic!r} needs the role {needed.name.lower()}; {principal.name} has {own}")


def require_pattern(principal: Principal, pattern: str) -> None:
    """Checks that for each topic that a valid pattern may match. Internal ones match a pattern only if it begins as
    their names do. Raises FORBIDDEN."""
    if is_internal_topic(pattern):
        expression = patterns.compiled(pattern)
        for topic in TOPIC_ROLES:
            if expression.fullmatch(topic):
                require_topic(principal, topic)
