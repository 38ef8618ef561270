"""Data folders of earlier versions: a broker of this one opens them, and readers find all that was there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import comet
from comet.wire.version import VERSION
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.golden import make_data

FOLDERS = sorted(make_data.FOLDER.glob("data_*.tar.xz"))


def test_this_version_keeps_what_it_writes() -> None:
    assert f"data_{VERSION}.tar.xz" in {file.name for file in FOLDERS}, "python -m tests.golden.make_data"


@pytest.mark.parametrize("file", FOLDERS, ids=lambda file: file.name)
async def test_a_data_folder_is_read(file: Path, tmp_path: Path) -> None:
    expected = json.loads(file.with_suffix("").with_suffix(".json").read_text())
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    for start in range(2):  # the second one reads what the first has written on top
        async with Server(BrokerConfig(data=tmp_path / "data", port=0, drain_grace_ms=0)) as server:
            assert await make_data.facts(server.address) == expected, f"start {start}"


@pytest.mark.parametrize("file", FOLDERS, ids=lambda file: file.name)
async def test_it_is_written_on(file: Path, tmp_path: Path) -> None:
    """Idempotency keys, transactional ids and offsets continue."""
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    async with Server(BrokerConfig(data=tmp_path / "data", port=0, drain_grace_ms=0)) as server:
        before = (await make_data.facts(server.address))["topics"]["plain"]
        async with comet.Producer(server.address) as producer:
            (receipt,) = await producer.publish_once("plain", [make_data.ONCE], idempotency_key=make_data.IMPORT)
            assert receipt.duplicate
            added = await producer.publish("plain", b"new")
        async with (
            comet.TransactionalProducer(server.address, "ledger") as ledger,
            ledger.transaction() as transaction,
        ):
            await transaction.send("plain", b"also new")
        after = (await make_data.facts(server.address))["topics"]["plain"]
        assert after[: len(before)] == before and added.offset > before[-1][1]
        assert [record[4] for record in after[len(before) :]] == ["new", "also new"]
