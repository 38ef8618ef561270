"""Unix sockets of the wire: paths of any length, and the process at the other end, on Linux.

An address has room for 107 bytes of a path. A longer one is named by a descriptor of its folder: /proc/self/fd/N/NAME.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from comet.errors import Unavailable

IS_SUPPORTED: Final = hasattr(socket, "SO_PEERCRED") and hasattr(os, "O_PATH")
ADDRESS_BYTES_MAX: Final = 107
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred
_ROOT: Final = 0


class PeerProcess(NamedTuple):
    """The process that made or accepted the other end, as the kernel says it."""

    pid: int
    uid: int

    @property
    def is_own(self) -> bool:
        """Whether it runs under the user of this process, or as root."""
        return is_own(self.uid)


def is_own(uid: int) -> bool:
    return uid in (os.geteuid(), _ROOT)


def peer_process(connection: socket.socket) -> PeerProcess:
    """Raises OSError."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return PeerProcess(pid, uid)


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A name of the path that an address has room for. Raises OSError."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """A connection to a process of this user, or of root. Does not wait. Raises Unavailable, which says why not."""
    connection = None
    try:
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode):
            raise Unavailable(f"{path} is not a socket")
        if not is_own(found.st_uid):
            raise Unavailable(f"{path} belongs to the user {found.st_uid}, not to this one or root")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        with address_of(path) as address:
            connection.connect(address)
        peer = peer_process(connection)
        if not peer.is_own:
            raise Unavailable(f"a process of the user {peer.uid} listens on {path}, not of this one or root")
    except BlockingIOError:
        error = Unavailable(f"too many connections to {path} wait to be accepted")
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else None
        error = Unavailable(f"cannot connect to {path}: {reason or failure}")
    except Unavailable as refused:
        error = refused
    else:
        return connection
    if connection is not None:
        connection.close()
    raise error
