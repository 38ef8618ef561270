"""The command `comet tui`. Textual is imported when it runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Keyring, keyring_of
from comet.errors import InvalidArgument, pip_install


@guarded
async def tui(keyring: Keyring = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Watch topics, groups and brokers live in the terminal. The key ? lists all keys, q ends."""
    if find_spec("textual") is None:
        raise InvalidArgument("comet tui needs textual", details={"hint": pip_install("tui")})
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # textual draws on stderr
        hint = "in scripts: comet topic list --json, comet group list --json, comet cluster --json"
        raise InvalidArgument("comet tui needs a terminal", details={"hint": hint})
    import asyncio
    import signal
    from contextlib import AsyncExitStack

    from comet.cli.tui.app import CometTui
    from comet.cli.tui.figures import cluster_tables
    from comet.cli.tui.queries import ClusterQueries, reader

    async with AsyncExitStack() as stack:
        queries = ClusterQueries(bootstrap)
        stack.push_async_callback(queries.close)
        records = await stack.enter_async_context(reader(bootstrap, keyring_of(keyring)))
        first = cluster_tables(await queries.snapshot())  # fails at once if no broker answers
        app = CometTui(bootstrap, queries, records, first)
        # Else the terminal would stay as the app has set it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
        if (error := await app.run_async()) is not None:
            raise error
