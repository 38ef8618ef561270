"""What `comet doctor --upgrade` finds out before a new version takes over."""

from __future__ import annotations

import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from comet.cli._upgrade_checks import check_formats, check_in_sync, check_versions
from comet.entities import PartitionInfo, TopicInfo
from comet.settings.topic import TopicConfig
from comet.wire.version import VERSION
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from tests.golden.make_data import FOLDER

VERSION_AT = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tarfile.open(FOLDER / f"data_{VERSION}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_it_reads_what_it_wrote(data: Path) -> None:
    found = check_formats(data)
    assert found.status == "ok" and "segments" in found.detail
    assert check_formats(data / "nothing").detail.startswith("0 segments")


def test_a_segment_of_a_newer_version_is_named(data: Path) -> None:
    segment = next(iter(sorted(data.glob("topics/*/*/*.log"))))
    content = bytearray(segment.read_bytes())
    struct.pack_into("<I", content, VERSION_AT, 9)
    segment.write_bytes(content)
    assert check_formats(data).status == "ok", "damaged, which recovery handles"
    checked = SEGMENT_HEADER_BYTES - 4
    struct.pack_into("<I", content, checked, crc32c(bytes(content[:checked])))
    segment.write_bytes(content)
    found = check_formats(data)
    assert found.status == "fail" and segment.name in found.detail and found.advice


@pytest.mark.parametrize(
    ("running", "status"),
    [
        (["0.1.0"], "ok"),
        (["0.0.9", "0.1.7"], "ok"),
        (["0.2.1"], "ok"),
        (["0.3.0"], "fail"),
        (["1.1.0"], "fail"),
        (["?"], "fail"),
    ],
)
def test_neighbouring_versions_run_together(running: list[str], status: str) -> None:
    assert VERSION.startswith("0.1."), "the table is for this version"
    assert check_versions(list(enumerate(running))).status == status


def test_no_broker_stops_while_a_replica_is_behind() -> None:
    whole = PartitionInfo(0, leader=1, leader_epoch=4, replicas=(1, 2), in_sync=(1, 2))
    topic = TopicInfo("orders", partitions=(whole,), config=TopicConfig(), id=b"", created_us=0)
    assert check_in_sync([topic]).status == "ok"
    for wrong in (replace(whole, in_sync=(1,)), replace(whole, leader=None)):
        found = check_in_sync([replace(topic, partitions=(whole, wrong))])
        assert found.status == "fail" and "orders/0" in found.detail
    alone = replace(whole, replicas=(1,), in_sync=(1,))
    assert check_in_sync([replace(topic, partitions=(alone,))]).status == "warn"
