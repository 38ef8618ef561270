"""What the contract suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comet_broker.metadata.etcd import calls
from tests.etcd import Etcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests, each of which has a prefix of its own."""
    server = Etcd.start(tmp_path_factory.mktemp("etcd"))
    yield server
    server.remove()


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """An etcd that stands still for a while is no etcd that is not reachable: a broker says so after a second."""
    options = {**dict(calls.OPTIONS), "grpc.min_reconnect_backoff_ms": 30_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "OPTIONS", tuple(options.items()))
        yield
