"""Files of keys and passwords: on the disk before they are used, and for their owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from comet.errors import InvalidArgument
from comet.security.files import read_secret, write_file


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
