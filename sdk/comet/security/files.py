"""Files of certificates and keys, replaced whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from comet.errors import InvalidArgument


def write_file(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Replaces the file whole. A secret is readable by its owner alone from the first byte on."""
    new = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror or error}") from None
