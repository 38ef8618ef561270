"""What the contract suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd import Etcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests, each of which has a prefix of its own."""
    server = Etcd.start(tmp_path_factory.mktemp("etcd"))
    yield server
    server.remove()
