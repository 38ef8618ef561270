"""The Unix socket of the wire: a file in the data folder, for clients on this machine.

    folder 0700, socket 0600 ─► the kernel names the caller's user ─► the broker's own or root, else refused

The file is made and removed while this process holds the lock of the data folder. One that a killed broker has left is
replaced. A file of another kind stays, and the broker serves TCP only.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from pathlib import Path
from typing import Final

from comet.errors import Forbidden
from comet.wire import unix_socket

log = logging.getLogger(__name__)

NAME: Final = "wire.sock"
_FOLDER_MODE: Final = 0o700
_SOCKET_MODE: Final = 0o600


class UnixSocket:
    """Owned by a listener. The lock of the folder is held from `listen` to `remove`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / NAME
        self._made: tuple[int, int] | None = None  # device and number of the file

    def listen(self, backlog: int) -> socket.socket | None:
        """None: there is none here, which is logged, and clients use TCP."""
        try:
            return self._listen(backlog)
        except (OSError, ValueError) as error:
            self.remove()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            log.warning("the wire has no Unix socket, and local clients use TCP: %s: %s", self.path, reason)
            return None

    def _listen(self, backlog: int) -> socket.socket:
        if not unix_socket.IS_SUPPORTED:
            raise OSError("this system does not name the user of a caller")
        str(self.path).encode()  # clients are told it as text
        _close_to_others(self.path.parent)
        self._remove_stale()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            with unix_socket.address_of(self.path) as address:
                listening.bind(address)
            made = self.path.lstat()
            self._made = made.st_dev, made.st_ino
            self.path.chmod(_SOCKET_MODE)  # nothing connects before `listen`
            listening.listen(backlog)
        except BaseException:
            listening.close()
            raise
        return listening

    def _remove_stale(self) -> None:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError("another file has its name")
        self.path.unlink()

    def remove(self) -> None:
        """Removes the file, if it is still the one that `listen` made."""
        made, self._made = self._made, None
        if made is None:
            return
        try:
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == made:
                self.path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot remove %s: %s", self.path, error.strerror or error)


def _close_to_others(folder: Path) -> None:
    """Takes the folder from other users, if it is this user's."""
    found = folder.stat()
    if stat.S_IMODE(found.st_mode) & ~_FOLDER_MODE and found.st_uid == os.geteuid():
        folder.chmod(_FOLDER_MODE)


def admit(accepted: socket.socket) -> str:
    """The name of an accepted caller. Raises Forbidden for other users than the broker's own and root."""
    peer = unix_socket.peer_process(accepted)
    if not peer.is_own:
        raise Forbidden(
            f"this Unix socket is for the user {os.geteuid()} and root, and user {peer.uid} called: connect over TCP"
        )
    return f"unix:uid={peer.uid},pid={peer.pid}"
