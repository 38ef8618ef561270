"""The command palette's entries, of the names that the user may see."""

from __future__ import annotations

from typing import Final

import msgspec

from comet.types import is_internal_topic
from comet_gateway.dashboard.facts import cluster
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Role
from comet_gateway.http.topic_roles import TOPIC_ROLES
from comet_web.document import Document
from comet_web.page_request import PageRequest
from comet_web.pages import Page
from comet_web.views import palette

# For its address and role: it has no document.
PALETTE: Final = Page("palette", "/palette", "", "nothing", lambda _, page: Document(page.now_us, ""), interval_s=0)


async def answer(sources: Sources, request: PageRequest) -> bytes:
    """The entries as JSON. Internal topics are found by queries that begin as their names do."""
    known = await cluster(sources, request)
    internal = request.query.get("q", "").lstrip().startswith("_")
    names = {
        palette.TOPIC: [
            name
            for name in known.topics
            if (internal or not is_internal_topic(name)) and request.may(int(TOPIC_ROLES.get(name, Role.ANYONE)))
        ],
        palette.GROUP: list(known.groups),
        palette.BROKER: [str(broker.id) for broker in known.brokers],
    }
    return msgspec.json.encode(palette.view(names, request))
