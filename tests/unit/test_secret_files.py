"""Files of keys and passwords: on the disk before they are used, and for their owner alone."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from comet import Bootstrap, Keyring
from comet.errors import InvalidArgument
from comet.security.files import read_secret, write_file
from comet.wire.bearer import read_token
from comet.wire.pasted import check_path
from comet.wire.tls import TlsFiles


def test_the_data_is_synced_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "secret", list[tuple[bool, bool]]()
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
    )
    write_file(path, b"x", secret=True)
    assert synced == [(False, False), (True, True)]


def test_a_secret_is_for_its_owner_and_of_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_file(path, b"12345", secret=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path, 5) == b"12345"
    with pytest.raises(InvalidArgument, match="larger than 4 bytes"):
        read_secret(path, 4)
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="open to others"):
        read_secret(path, 5)
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_secret(tmp_path / "none", 5)


@pytest.mark.parametrize(
    ("mode", "owner", "own", "taken"),
    [
        (0o440, 0, 10001, True),  # as Kubernetes mounts it, with an fsGroup
        (0o444, 0, 10001, False),
        (0o460, 0, 10001, False),
        (0o440, 0, 0, False),  # root needs no group to read its own file
        (0o440, 7, 10001, False),
        (0o400, 10001, 10001, True),
    ],
)
def test_a_group_may_read_what_root_has_mounted_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, own: int, taken: bool
) -> None:
    path = tmp_path / "secret"
    write_file(path, b"12345")
    path.chmod(mode)
    found = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 10001, 5, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda descriptor: found)
    monkeypatch.setattr(os, "geteuid", lambda: own)
    if taken:
        assert read_secret(path, 5) == b"12345"
    else:
        with pytest.raises(InvalidArgument, match="open to others"):
            read_secret(path, 5)


ACCESS_KEY = "comet_3f9a51c07d42_" + 43 * "x"
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"
RING = f"k1 {base64.b64encode(bytes(range(32))).decode()}"


@pytest.mark.parametrize(
    ("secret", "use"),
    [
        (ACCESS_KEY, lambda text: Bootstrap("a", access_key=text)),
        (ACCESS_KEY, lambda text: Bootstrap("a", access_key=text, token="file")),
        (JWT, lambda text: Bootstrap("a", token=text)),
        (JWT, lambda text: read_token(Path(text))),
        (PEM, lambda text: Bootstrap("a", cert="cert.pem", key=text)),
        (PEM, lambda text: TlsFiles(key=Path(text))),
        (RING, Keyring.from_file),
    ],
    ids=["key", "key and token", "token", "token, read", "private key", "private key of a server", "keyring"],
)  # fmt: skip
def test_a_secret_in_place_of_its_file_is_refused_and_not_shown(secret: str, use: Callable[[str], object]) -> None:
    with pytest.raises(InvalidArgument, match="itself was given: write it to a file") as error:
        use(secret)
    assert secret.splitlines()[-1] not in repr(error.value) and secret.rsplit(maxsplit=1)[-1] not in str(error.value)


@pytest.mark.parametrize(
    "path", ["comet.token", "/etc/comet/app.prod.token", "comet_keys/eyJ.jwt", "C:\\keys\\k1 a.pem"]
)
def test_the_path_of_a_file_is_no_secret(path: str) -> None:
    check_path(path, "token")
