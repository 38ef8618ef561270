"""Files of certificates, keys and passwords: replaced whole, and secrets for their owner alone."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from comet.errors import InvalidArgument


def write_file(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Replaces the file whole, and syncs it. A secret is readable by its owner alone from the first byte on."""
    new = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror or error}") from None


def read_secret(path: Path, bytes_max: int, *, owned: bool = False) -> bytes:
    """The content of a file. Refuses a file that others may read or write, and with `owned` one of another user.

    Kubernetes mounts a secret as root's, for the group of the pod to read: such a file is not open to others."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            # Others may have the right to execute it, which reads nothing: Spark gives it to all files that it ships.
            mounted = os.name != "nt" and found.st_uid == 0 != os.geteuid()
            if os.name != "nt" and stat.S_IMODE(found.st_mode) & (0o026 if mounted else 0o066):
                raise InvalidArgument(f"{path} is open to others: run chmod 600 {path}, or make a new secret")
            if owned and os.name != "nt" and found.st_uid != os.geteuid():
                raise InvalidArgument(f"{path} belongs to another user, with id {found.st_uid}: give it to this one")
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > bytes_max:
        raise InvalidArgument(f"{path} is larger than {bytes_max} bytes")
    return data


def _sync_folder(folder: Path) -> None:
    """Makes a new name survive a power failure."""
    if os.name == "nt":
        return  # it has no descriptors of folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
