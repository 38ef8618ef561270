"""Links to the dashboards of other clusters: the setting `clusters`, checked. Pure.

All gateways of a team can have the same list. The entry with a gateway's own `cluster_name` is where the user is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from comet.errors import InvalidArgument

CLUSTERS_MAX: Final = 50
NAME_CHARACTERS_MAX: Final = 60
_BLANK: Final = re.compile(r"[\s\x00-\x20\x7f\\]")


class ClusterLink(NamedTuple):
    name: str
    url: str
    here: bool = False


@cache
def cluster_links(rows: tuple[str, ...], own: str) -> Sequence[ClusterLink]:
    """The links, in the order of the setting. Raises InvalidArgument."""
    if len(rows) > CLUSTERS_MAX:
        raise InvalidArgument(f"clusters has {len(rows)} entries, more than {CLUSTERS_MAX}")
    found = [cluster_link(row) for row in rows]
    if len({link.name for link in found}) < len(found):
        raise InvalidArgument("clusters has a name twice: names must be unique")
    return tuple(link._replace(here=link.name == own) for link in found)


def cluster_link(row: str) -> ClusterLink:
    """The link of one entry. Raises InvalidArgument.

    >>> cluster_link("prod=https://comet.example.com/")
    ClusterLink(name='prod', url='https://comet.example.com/', here=False)
    """
    name, _, url = (part.strip() for part in row.partition("="))
    wrong = InvalidArgument(
        f"{row[:200]!r} is not a cluster: write name=url, such as prod=https://comet.example.com; the URL has http or"
        " https and a host, and no user, query or fragment"
    )
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or _BLANK.search(url):
        raise wrong
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise wrong from None
    if not known or "@" in parts.netloc or "?" in url or "#" in url:
        raise wrong
    return ClusterLink(name, url)
