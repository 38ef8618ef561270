"""`comet import kafka` against a real broker of Comet and librdkafka's mock cluster, which speaks Kafka's protocol."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

import comet
from comet.cli.consume import POLL_S
from comet.kafka.block import KafkaRecords, PartitionBlock
from comet.kafka.copier import CopyOptions, KafkaCopier
from tests import waiting
from tests.integration.test_cli_flows import TIMEOUT_S, Up, serving

PARTITIONS = 4  # of topics in the mock cluster


class Kafka:
    """A cluster of one broker in this process, and a producer."""

    def __init__(self) -> None:
        self._cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 3})
        brokers = self._cluster.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.address = ",".join(f"{one.host}:{one.port}" for one in brokers)
        self.producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0, "log_level": 3})

    def write(self, topic: str, values: list[bytes | None], **fields: Any) -> None:
        """Writes values to the partitions in turn, unless one is given."""
        for number, value in enumerate(values):
            self.producer.produce(topic, value, **{"partition": number % PARTITIONS} | fields)
            self.producer.poll(0)
        assert self.producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("up") / "data"
    with serving("--data", str(data)) as (_, told):
        yield Up(told["address"], data)


def copy(up: Up, kafka: Kafka, *words: str, code: int = 0) -> Any:
    done = up.run("import", "kafka", *words, "--from", kafka.address, code=code)
    return done.stderr.decode()


async def records(up: Up, topic: str) -> list[comet.Record[bytes]]:
    """All committed records of a topic."""
    found: list[comet.Record[bytes]] = []
    async with comet.Admin(up.address) as admin, comet.Consumer(up.address, topic, start="earliest") as consumer:
        ends = await admin.offsets(topic, "latest")
        while any(consumer.positions().get(at, 0) < end for at, end in ends.items()):
            batch = await consumer.get_batch(timeout_s=POLL_S)
            found += batch.records() if batch is not None else []
    return found


def values_of(up: Up, topic: str) -> Counter[bytes]:
    return Counter(one.value for one in asyncio.run(records(up, topic)))


def numbered(first: int, end: int, size: int = 0) -> list[bytes | None]:
    return [b"%08d" % number + b"." * size for number in range(first, end)]


async def test_all_fields_of_records_arrive(up: Up, kafka: Kafka) -> None:
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None)]
    kafka.write("fields", [b"one", None, b""], key=b"k", headers=headers, timestamp=1_700_000_000_123, partition=2)
    kafka.write("fields", [b"no key"], partition=0)
    kafka.write("fields", [b"empty key"], key=b"", partition=1)
    said = await asyncio.to_thread(copy, up, kafka, "fields")
    assert "fields: created with 4 partitions" in said
    found: dict[Any, Any] = {(one.partition, one.value): one for one in await records(up, "fields")}
    assert sorted(at for at, _ in found) == [0, 1, 2, 2, 2]
    for value in (b"one", None, b""):
        one = found[2, value]
        assert (one.key, one.timestamp_us) == (b"k", 1_700_000_000_123_000)
        assert one.headers == [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", b"")]
    assert found[0, b"no key"].key is None and found[0, b"no key"].headers == []
    assert found[1, b"empty key"].key == b""


def test_an_import_carries_on_where_it_stopped(up: Up, kafka: Kafka) -> None:
    kafka.write("resumed", numbered(0, 100))
    assert "100 records" in copy(up, kafka, "resumed")
    again = copy(up, kafka, "resumed")
    assert "0 records" in again and "4 partitions carried on" in again
    kafka.write("resumed", numbered(100, 107))
    assert "7 records" in copy(up, kafka, "resumed", "--start", "latest")
    assert values_of(up, "resumed") == Counter(numbered(0, 107))
    up.run("topic", "delete", "resumed", "--yes")
    assert "107 records" in copy(up, kafka, "resumed")  # another topic of that name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_imports_lose_and_repeat_nothing(up: Up, kafka: Kafka) -> None:
    sent = numbered(0, 60_000, size=150)
    kafka.write("killed", sent)

    async def end() -> int:
        async with comet.Admin(up.address) as admin:
            return sum((await admin.offsets("killed", "latest")).values())

    async def kill_after_progress(running: Any) -> None:
        try:
            before = await end()
        except comet.TopicNotFound:
            before = 0

        async def moved() -> bool:
            try:
                return running.poll() is not None or await end() > before
            except comet.TopicNotFound:
                return running.poll() is not None

        assert await waiting.until_answered(moved, within_s=TIMEOUT_S, every_s=0.01)
        running.kill()

    ends = []
    for _ in range(4):
        running = up.start("import", "kafka", "killed", "--from", kafka.address)
        asyncio.run(kill_after_progress(running))
        running.communicate(timeout=TIMEOUT_S)
        ends.append(running.returncode)
    assert -signal.SIGKILL in ends
    copy(up, kafka, "killed")
    found = asyncio.run(records(up, "killed"))
    assert Counter(one.value for one in found) == Counter(sent)
    for partition in range(PARTITIONS):
        order = [one.value for one in found if one.partition == partition]
        assert order == sorted(order)


def test_following_goes_on_until_it_is_interrupted(up: Up, kafka: Kafka) -> None:
    kafka.write("followed", numbered(0, 10))
    running = up.start("import", "kafka", "followed", "--from", kafka.address, "--follow")

    async def arrived(end: int) -> bool:
        async def all_there() -> bool:
            try:
                return len(await records(up, "followed")) == end
            except comet.TopicNotFound:
                return False

        return await waiting.until_answered(all_there, within_s=TIMEOUT_S)

    assert asyncio.run(arrived(10))
    kafka.write("followed", numbered(10, 20))
    assert asyncio.run(arrived(20))
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 128 + signal.SIGINT
    assert b"20 records" in said and b"Traceback" not in said


@pytest.mark.slow
def test_two_imports_at_once_copy_each_record_once(up: Up, kafka: Kafka) -> None:
    kafka.write("twice", numbered(0, 8))
    copy(up, kafka, "twice")
    both = [up.start("import", "kafka", "twice", "--from", kafka.address, "--follow") for _ in range(2)]
    sent = 8
    for _ in range(5):
        kafka.write("twice", numbered(sent, sent + 2_000))
        sent += 2_000

        async def arrived() -> bool:
            async def all_there() -> bool:
                return len(await records(up, "twice")) >= sent  # noqa: B023

            return await waiting.until_answered(all_there, within_s=TIMEOUT_S)

        assert asyncio.run(arrived())
    for one in both:
        if one.poll() is None:
            one.send_signal(signal.SIGINT)
        _, said = one.communicate(timeout=TIMEOUT_S)
        assert one.returncode == 128 + signal.SIGINT or b"another import copies topic 'twice'" in said
    assert values_of(up, "twice") == Counter(numbered(0, sent))


@pytest.fixture
async def two_copiers(up: Up) -> AsyncIterator[tuple[KafkaCopier, KafkaCopier]]:
    """Two imports of topic `shared` that have no reader: a test hands records over."""
    options = CopyOptions(comet.Earliest())

    def made() -> KafkaCopier:
        copier = KafkaCopier(up.address, cast(Any, None), options, tell=print, progress=print)
        copier._aligned["shared"] = True
        return copier

    async with comet.Admin(up.address) as admin, made() as first, made() as second:
        await admin.create_topic("shared")
        yield first, second
        await admin.delete_topic("shared")


def block(name: str) -> PartitionBlock:
    return PartitionBlock("shared", range(1), f"import-kafka-{name}")


def part(end: int) -> KafkaRecords:
    values = numbered(0, end)
    none = [None] * end
    return KafkaRecords("shared", 0, list(range(end)), [*none], values, [*none], [*none])


@pytest.mark.parametrize("end", [2, 4])
async def test_an_import_that_was_overtaken_ends(
    up: Up, two_copiers: tuple[KafkaCopier, KafkaCopier], end: int
) -> None:
    first, second = two_copiers
    ours, theirs = block(f"overtaken-{end}"), block(f"overtaken-{end}")
    await first._commit(ours, [], {0: 0})
    theirs.next = theirs.read(await second._note_of(theirs))
    await second._commit(theirs, [part(3)], {0: 3})
    with pytest.raises(comet.Forbidden, match="another import copies topic 'shared'"):
        await first._commit(ours, [part(end)], {0: end})
    assert [one.value for one in await records(up, "shared")] == numbered(0, 3)


async def test_records_that_are_committed_already_are_not_written_again(
    up: Up, two_copiers: tuple[KafkaCopier, KafkaCopier]
) -> None:
    """As after a commit of which the answer is lost."""
    first, second = two_copiers
    ours, theirs = block("repeated"), block("repeated")
    await first._commit(ours, [], {0: 0})
    theirs.next = theirs.read(await second._note_of(theirs))
    await second._commit(theirs, [part(3)], {0: 3})
    await first._commit(ours, [part(3)], {0: 3})
    assert (ours.next, [one.value for one in await records(up, "shared")]) == ({0: 3}, numbered(0, 3))


def test_a_start_of_now_is_kept_for_the_next_run(up: Up, kafka: Kafka) -> None:
    kafka.write("late", numbered(0, 5))
    assert "0 records" in copy(up, kafka, "late", "--start", "latest")
    kafka.write("late", numbered(5, 8))
    assert "3 records" in copy(up, kafka, "late")
    assert values_of(up, "late") == Counter(numbered(5, 8))


def test_other_numbers_of_partitions_go_by_key(up: Up, kafka: Kafka) -> None:
    up.run("topic", "create", "narrow", "--partitions", "2")
    for key in range(20):
        kafka.write("narrow", [b"a%d" % key, b"b%d" % key], key=b"%d" % key, partition=key % PARTITIONS)
    assert "4 partitions in Kafka, 2 in Comet" in copy(up, kafka, "narrow")
    found = asyncio.run(records(up, "narrow"))
    assert {one.partition for one in found} == {0, 1} and len(found) == 40
    for key in range(20):
        assert [one.value for one in found if one.key == b"%d" % key] == [b"a%d" % key, b"b%d" % key]


def test_foreign_records_are_not_mixed_by_accident(up: Up, kafka: Kafka) -> None:
    up.run("topic", "create", "mixed", "--partitions", "4")
    up.run("produce", "mixed", feed=b"here before\n")
    kafka.write("mixed", numbered(0, 4))
    assert "--append" in copy(up, kafka, "mixed", code=2)
    assert "4 records" in copy(up, kafka, "mixed", "--append")
    assert values_of(up, "mixed") == Counter([b"here before", *numbered(0, 4)])


def test_a_topic_that_is_created_gets_the_given_settings(up: Up, kafka: Kafka) -> None:
    kafka.write("settled", numbered(0, 1))
    assert "retention: forever" in copy(up, kafka, "settled", "--set", "retention_ms=none")


def test_a_record_that_is_too_large_names_the_setting(up: Up, kafka: Kafka) -> None:
    up.run("topic", "create", "small", "--partitions", "4", "--set", "record_bytes_max=1KiB")
    kafka.write("small", [b"a", b"x" * 2_000, b"c"], partition=0)
    said = copy(up, kafka, "small", code=1)
    assert "offset 1 of partition 0 of 'small' in Kafka" in said
    assert "comet topic alter small --set record_bytes_max=2000" in said
    assert values_of(up, "small") == Counter()
    up.run("topic", "alter", "small", "--set", "record_bytes_max=2000")
    assert "3 records" in copy(up, kafka, "small")


def test_an_offset_that_kafka_removed_is_told(up: Up, kafka: Kafka) -> None:
    kafka.write("removed", numbered(0, 4))
    copy(up, kafka, "removed")
    kafka.write("removed", numbered(4, 12, size=900_000), partition=0)  # the mock keeps 5 MiB of a partition
    said = copy(up, kafka, "removed")
    assert "removed: partition 0: Kafka removed offsets 1 to " in said
    last = numbered(11, 12, size=900_000)[0]
    assert values_of(up, "removed")[last or b""] == 1


def test_what_is_wrong_is_said_with_the_next_step(up: Up, kafka: Kafka, tmp_path: Path) -> None:
    kafka.write("there", numbered(0, 1))
    said = copy(up, kafka, "absent", code=3)
    assert "Kafka has no topic 'absent'" in said and "topics of that Kafka cluster: " in said
    assert "TOPIC_NOT_FOUND" in copy(up, kafka, "there", "--no-create", code=3)
    assert "internal" in copy(up, kafka, "__consumer_offsets", code=2)
    assert "give earliest, latest or a time" in copy(up, kafka, "there", "--start", "17", code=2)

    file = tmp_path / "client.properties"
    file.write_text("sasl.password=secret\nno equals sign\n")
    file.chmod(0o644)
    assert "chmod 600" in copy(up, kafka, "there", "--config", str(file), code=2)
    file.chmod(0o600)
    said = copy(up, kafka, "there", "--config", str(file), code=2)
    assert "line 2" in said and "no equals" not in said
    file.write_text("no.such.property=1\n")
    assert "no.such.property" in copy(up, kafka, "there", "--config", str(file), code=2)
    file.write_text("client.id=importer\n# a comment\n\ngroup.id=ignored\n")
    assert "1 record" in copy(up, kafka, "the*", "--config", str(file))


@pytest.mark.slow
def test_a_kafka_that_does_not_answer_is_named(up: Up) -> None:
    done = up.run("import", "kafka", "any", "--from", "127.0.0.1:1", "--json", code=4)
    assert b"no broker of Kafka answers at 127.0.0.1:1" in done.stderr and b"--config" in done.stderr
    assert len(done.stderr.splitlines()) == 1  # without the log of each attempt
