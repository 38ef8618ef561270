"""Importing from Kafka, the pure parts: positions in notes, names and patterns, properties, settings."""

from __future__ import annotations

import pytest

from comet import limits
from comet.errors import InvalidArgument, StoreDamaged, TopicNotFound
from comet.kafka.block import PARTITIONS, Chunk, KafkaRecords, PartitionBlock, blocks_of
from comet.kafka.topic_config import (
    chosen_topics,
    parse_properties,
    retention_text,
    settings_of,
    size_hint,
)
from comet.settings.topic import TopicConfig
from comet.types import TOPIC_NAME

LARGEST = (1 << 63) - 1


def test_a_note_is_read_as_it_was_written_and_fits() -> None:
    block = PartitionBlock("t", range(12, 24), "id", dict.fromkeys(range(12, 24), LARGEST))
    assert len(block.note()) <= limits.TRANSACTION_NOTE_BYTES_MAX
    assert block.read(block.note()) == block.next
    begun = PartitionBlock("t", range(3), "id", {1: 0})
    assert (begun.note(), begun.note({1: 5, 2: 7})) == (b"next - 0 -", b"next - 5 7")
    assert begun.read(b"next - 5 7") == {1: 5, 2: 7} and begun.read(b"") == {}


def test_partitions_that_were_added_in_kafka_are_not_begun() -> None:
    assert PartitionBlock("t", range(4), "id").read(b"next 5 6") == {0: 5, 1: 6}


@pytest.mark.parametrize("note", [b"batch 7 rows 3", b"next", b"next 1x", b"next " + b"9" * 20, b"next -1"])
def test_a_note_of_another_writer_is_refused(note: bytes) -> None:
    with pytest.raises(StoreDamaged):
        PartitionBlock("t", range(2), "id").read(note)


def test_ids_tell_clusters_topics_and_blocks_apart_and_are_valid() -> None:
    name = "x" * 249
    made = [
        *blocks_of("a", name, 30, b"1"),
        *blocks_of("b", name, 30, b"1"),
        *blocks_of("a", name, 30, b"2"),
        *blocks_of("a", "x" * 248 + "y", 30, b"1"),
    ]
    ids = {block.transactional_id for block in made}
    assert len(ids) == len(made) == 12 and all(TOPIC_NAME.fullmatch(one) for one in ids)
    covered = [at for block in made[:3] for at in block.partitions]
    assert covered == list(range(30)) and max(len(block.partitions) for block in made) == PARTITIONS


def test_a_chunk_gives_each_block_its_parts() -> None:
    chunk = Chunk({(topic, at): KafkaRecords(topic, at) for topic in "ab" for at in (0, 11, 12)})
    first, second = blocks_of("c", "a", 13, b"")
    assert [(one.topic, one.partition) for one in chunk.of(first)] == [("a", 0), ("a", 11)]
    assert [(one.topic, one.partition) for one in chunk.of(second)] == [("a", 12)]


def test_names_and_patterns_choose_topics() -> None:
    topics = ["orders", "eu.a", "eu.b", "__offsets", "odd[1]"]
    assert chosen_topics(["eu.*", "orders", "eu.a"], topics) == ["eu.a", "eu.b", "orders"]
    assert "__offsets" not in chosen_topics(["*"], topics)
    assert chosen_topics(["odd[1]"], ["odd[1]"]) == ["odd[1]"]
    with pytest.raises(TopicNotFound) as refused:
        chosen_topics(["us.*"], topics)
    assert "eu.a, eu.b" in refused.value.details["hint"]
    with pytest.raises(InvalidArgument, match="internal"):
        chosen_topics(["__offsets"], topics)


def test_properties_keep_their_values_and_errors_keep_secrets() -> None:
    text = "\n# comment\nsasl.password = a=b # c\nclient.id=\n"
    assert parse_properties(text, "f") == {"sasl.password": "a=b # c", "client.id": ""}
    with pytest.raises(InvalidArgument, match="f, line 2") as refused:
        parse_properties("a=b\nhunter2\n", "f")
    assert "hunter2" not in str(refused.value)


def test_settings_follow_kafka() -> None:
    assert settings_of({}) == {}
    assert settings_of({"retention.ms": "-1", "retention.bytes": "5"}) == {"retention_ms": -1, "retention_bytes": 5}
    compacted = {"cleanup.policy": "compact", "retention.ms": "60000"}
    assert settings_of(compacted) == {"cleanup_policy": "compact"}
    lags = {"delete.retention.ms": "5", "min.compaction.lag.ms": str(1 << 62)}
    assert settings_of(compacted | lags) == {
        "cleanup_policy": "compact", "delete_retention_ms": 5, "min_compaction_lag_ms": 10 * 366 * 24 * 3600 * 1000
    }  # fmt: skip
    both = {"cleanup.policy": "compact,delete", "retention.ms": "60000"}
    assert settings_of(both) == {"cleanup_policy": "compact-delete", "retention_ms": 60_000}
    assert settings_of({"max.message.bytes": "1048588"}) == {}  # Kafka's default holds no larger record than Comet's
    assert settings_of({"max.message.bytes": "2000000"}) == {"record_bytes_max": 2_000_000}
    assert settings_of({"max.message.bytes": "90000000"}) == {"record_bytes_max": 7 << 20}  # the highest


def test_what_is_told_names_settings() -> None:
    assert retention_text(TopicConfig(retention_ms=-1)) == "forever"
    assert retention_text(TopicConfig(retention_bytes=1 << 20)) == "retention_ms=7d, retention_bytes=1MiB"
    assert "--set record_bytes_max=2000" in size_hint("t", 2000)
    assert "7MiB" in size_hint("t", 8 << 20)
