"""Options of several commands, spelled and explained once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._connection import connect
from comet.settings import client

if TYPE_CHECKING:
    from comet import Admin
    from comet.encryption import keyring
    from comet.entities import TopicInfo
    from comet.types import GroupSummary

DEFAULT_BOOTSTRAP: Final = client.DEFAULT_BOOTSTRAP
COMPLETION_TIMEOUT_S: Final = 1.0

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar=client.BOOTSTRAP_VARIABLE, metavar="HOST:PORT", help="Any broker of the cluster."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")]
Keyring = Annotated[
    Path | None,
    typer.Option("--keyring", metavar="FILE", help="The keys of end-to-end encryption: comet security key FILE."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A topic setting, e.g. retention_ms=7d; may repeat."),
]


Ttl = Annotated[
    str,
    typer.Option(
        "--ttl", metavar="TIME", help="Not delivered from this time after its timestamp on: 30s, 1h; or none."
    ),
]


def ttl_ms_of(text: str) -> int | None:
    """The time to live of records; None for that of the topic. Raises InvalidArgument."""
    from comet.settings.topic import NO_LIMIT
    from comet.units import parse_duration_ms
    from comet.wire.record_ttl import check_ttl

    if not text:
        return None
    return NO_LIMIT if text == "none" else check_ttl(parse_duration_ms(text))


def keyring_of(file: Path | None) -> keyring.Keyring | None:
    """The keys of a file, which others may not read; None without one."""
    if file is None:
        return None
    import comet

    return comet.Keyring.from_file(file)


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the cluster's topics for the shell; empty if no broker answers within a second."""
    return _complete(context, incomplete, lambda admin: admin.list_topics())


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the cluster's groups, likewise."""
    return _complete(context, incomplete, lambda admin: admin.list_groups())


def _complete(
    context: typer.Context, incomplete: str, listed: Callable[[Admin], Awaitable[Sequence[TopicInfo | GroupSummary]]]
) -> list[str]:
    import asyncio

    from comet.errors import CometError

    async def names() -> list[str]:
        import comet

        async with comet.Admin(connect(context, DEFAULT_BOOTSTRAP).address) as admin:
            return [one.name for one in await listed(admin)]

    try:
        found = asyncio.run(asyncio.wait_for(names(), COMPLETION_TIMEOUT_S))
    except (CometError, OSError, TimeoutError):
        return []  # an error message would garble the line being typed
    return [name for name in found if name.startswith(incomplete)]


Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group)]
