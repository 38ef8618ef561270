"""The gateway's own certificate, read again once a second: a replaced one needs no restart, and ends no connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

REREAD_S: Final = 1.0
log = logging.getLogger(__name__)


class Certificate:
    """Each handshake gets the newest certificate. While new files do not fit together the earlier ones stay in use.

    A context that serves is never changed: with the certificate of one pair and the key of another, handshakes fail.
    Owned by the server; used on its loop.
    """

    def __init__(self, cert: str, key: str, load: Callable[[], ssl.SSLContext]) -> None:
        """`load` makes a context with the files. Raises OSError, which includes SSLError."""
        self._files = Path(cert), Path(key)
        self._load = load
        self._seen = self._read()
        self._newest = load()

    def serve(self, context: ssl.SSLContext) -> None:
        """Takes over the handshakes of this context."""

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._newest

        context.sni_callback = choose  # called for clients that name no server, too

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self.reread()

    async def reread(self) -> None:
        try:
            found = await asyncio.to_thread(self._read)
            if found == self._seen:
                return
            self._seen = found  # files that do not fit are tried again after the next change
            self._newest = await asyncio.to_thread(self._load)
        except OSError as error:
            log.warning("the earlier certificate stays in use: cannot use %s with %s: %s", *self._files, error)
        else:
            log.warning("new certificate in use: %s", self._files[0])

    def _read(self) -> list[bytes]:
        return [path.read_bytes() for path in self._files]
