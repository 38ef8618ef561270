"""Access keys in a folder, with which a cluster begins; later ones are made by `comet key create`.

access-keys.toml    digests, for the brokers' setting `access_keys`
admin.access-key    the key of client:admin, for its owner alone
"""

from __future__ import annotations

from pathlib import Path

from comet.errors import InvalidArgument
from comet.security.certificates import check_client_name
from comet.security.files import write_file
from comet.wire.bearer import digest_of, id_of, make_access_key


def brokers_file(folder: Path) -> Path:
    return folder / "access-keys.toml"


def add_access_key(folder: Path, name: str) -> Path:
    """Makes a key of client:NAME, and adds its digest to the brokers' file. Returns the file of the key. Raises
    InvalidArgument."""
    check_client_name(name)
    file, known = folder / f"{name}.access-key", brokers_file(folder)
    if file.exists():
        raise InvalidArgument(f"{file} exists: remove it to make another key, and its [[key]] in {known}")
    try:
        before = known.read_bytes() if known.exists() else b""
    except OSError as error:
        raise InvalidArgument(f"cannot read {known}: {error.strerror or error}") from None
    text = make_access_key()
    row = f'[[key]]\nprincipal = "client:{name}"\nid = "{id_of(text)}"\nsha256 = "{digest_of(text).hex()}"\n'
    write_file(file, f"{text}\n".encode(), secret=True)
    write_file(known, before + row.encode())
    return file
