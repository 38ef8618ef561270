"""`comet apply` with a broker: twice the same, there and back, killed in between, two at once."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import comet
from comet.cli._commands import app
from comet.cli.apply.applied import Applied, AppliedStore
from comet.types import APPLIED_TOPIC
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow

FILE = """
name: trading
topics:
  orders:
    partitions: 4
    settings:
      retention_ms: 7d
      flush: always
  quotes:
rules:
  - allow client:billing read,describe topic orders
roles:
  role:finance: [client:billing]
quotas:
  client:billing: {bytes_in: 10MiB, requests: 200}
  "*": {streams: 100}
"""
PLAN = """\
+ topic orders (4 partitions, retention_ms 7d, flush always)
+ topic quotes (1 partition)
+ rule allow client:billing describe,read topic orders
+ role role:finance of client:billing
+ quota client:billing bytes_in 10MiB, requests 200
+ quota * streams 100
"""


class Cluster:
    """A broker, and a file that is applied to it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.file = folder / "cluster.yaml"
        self.file.write_text(FILE)

    def apply(self, *words: str, code: int = 0, feed: str | None = None) -> Result:
        source = () if "--export" in words else ("-f", str(self.file) if feed is None else "-")
        done = CliRunner().invoke(app, ["apply", *source, *words, "--bootstrap", self.address], input=feed)
        assert done.exit_code == code, (words, done.output)
        return done

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))

    def act(self, act: Any) -> Any:
        async def run() -> Any:
            async with comet.Admin(self.address) as admin:
                return await act(admin)

        return asyncio.run(run())

    def topics(self) -> dict[str, comet.TopicInfo]:
        return {topic.name: topic for topic in self.act(lambda admin: admin.list_topics())}


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with comet.testing.broker() as broker:
        yield Cluster(broker.address, tmp_path)


def test_the_second_run_changes_nothing(cluster: Cluster) -> None:
    shown = cluster.apply("--dry-run")
    assert shown.stdout == PLAN and "6 changes; nothing was changed" in shown.stderr
    assert cluster.topics() == {}, "a dry run makes nothing, not even the record of what is made"
    assert cluster.apply("--dry-run", "--exit-code", code=2).stdout == PLAN
    assert cluster.apply().stdout == PLAN
    made = cluster.topics()
    assert (made["orders"].partition_count, made["orders"].config.flush.value) == (4, "always")
    for words in ((), ("--dry-run",), ("--dry-run", "--exit-code"), ("--prune",)):
        again = cluster.apply(*words)
        assert again.stdout == "" and "no changes: the cluster has all that" in again.stderr
    assert json.loads(cluster.apply("--json").stdout)["changes"] == []
    assert cluster.topics() == made


def test_a_drift_is_shown_and_ended(cluster: Cluster) -> None:
    cluster.apply()

    async def drift(admin: comet.Admin) -> None:
        await admin.alter_topic("orders", unset=["flush"], retention_ms=3_600_000, segment_ms=60_000)
        await admin.delete_topic("quotes")
        await admin.access.set_quota("*", streams=7)
        await admin.create_topic("other")

    cluster.act(drift)
    shown = cluster.apply("--dry-run", "--exit-code", code=2)
    assert shown.stdout == (
        "+ topic quotes (1 partition)\n"
        "~ topic orders retention_ms 1h -> 7d, flush interval (default) -> always, segment_ms 1m -> default\n"
        "~ quota * streams 7 -> 100\n"
    )
    found = json.loads(cluster.apply("--json").stdout)
    assert [(one["sign"], one["kind"], one["name"]) for one in found["changes"]] == [
        ("+", "topic", "quotes"),
        ("~", "topic", "orders"),
        ("~", "quota", "*"),
    ]
    assert cluster.apply("--dry-run").stdout == "" and "other" in cluster.topics()


def test_an_export_makes_the_same_cluster_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    cluster.apply()
    cluster.act(lambda admin: admin.create_topic("no", partitions=2, retention_bytes=-1, min_insync=1))
    text = cluster.apply("--export").stdout
    assert "__applied" not in text and "'no':" in text and text.startswith("topics:\n")
    assert cluster.apply(feed=text).stdout == ""
    with comet.testing.broker() as broker:
        other = Cluster(broker.address, tmp_path)
        assert other.apply("--export").stdout == "topics: {}\n"
        other.apply(feed=text)
        assert other.apply("--export").stdout == text


def test_prune_deletes_what_the_name_made_after_a_question(cluster: Cluster) -> None:
    cluster.act(lambda admin: admin.create_topic("quotes"))
    cluster.apply()
    cluster.edit("  quotes:\n", "")  # made by another client
    cluster.edit("  orders:", "  kept:")
    cluster.edit("  - allow client:billing read,describe topic orders\n", "  - deny * delete topic kept\n")
    cluster.edit('  "*": {streams: 100}\n', "")
    cluster.edit("name: trading", "name: another")
    assert not [line for line in cluster.apply("--prune", "--dry-run").stdout.splitlines() if line[0] == "-"]
    cluster.edit("name: another", "name: trading")
    plain = cluster.apply()
    assert "topic orders is not declared any more: --prune deletes it" in plain.stderr and "orders" in cluster.topics()
    refused = cluster.apply("--prune", code=1)
    assert "! topic orders is deleted: 0 records" in refused.stderr and "orders" in cluster.topics()
    assert "stdin has the file: give --yes" in cluster.apply("--prune", code=1, feed=cluster.file.read_text()).stderr
    done = cluster.apply("--prune", "--yes")
    assert done.stdout == (
        "- rule allow client:billing describe,read topic orders\n- quota *\n- topic orders (4 partitions)\n"
    )
    assert set(cluster.topics()) == {"kept", "quotes", APPLIED_TOPIC}
    assert cluster.apply("--prune").stdout == ""


def test_a_file_without_a_name_prunes_nothing_and_remembers_nothing(cluster: Cluster) -> None:
    cluster.edit("name: trading\n", "")
    assert "give it one (name: NAME) for --prune" in cluster.apply("--prune", code=1).stderr
    assert "give it one (name: NAME) for --adopt" in cluster.apply("--adopt", code=1).stderr
    cluster.apply()
    assert set(cluster.topics()) == {"orders", "quotes"}


def test_what_is_there_already_can_be_adopted(cluster: Cluster) -> None:
    cluster.act(lambda admin: admin.create_topic("quotes"))
    cluster.apply("--adopt")
    cluster.edit("  quotes:\n", "")
    assert cluster.apply("--prune", "--yes").stdout == "- topic quotes (1 partition)\n"


def test_a_retention_that_deletes_records_asks(cluster: Cluster) -> None:
    cluster.apply()

    cluster.edit("flush: always", "segment_bytes: 64KiB")
    cluster.apply()

    async def filled(_: comet.Admin) -> None:
        async with comet.Producer(cluster.address) as producer:
            for _count in range(50):
                await producer.publish("orders", bytes(8_192), partition=0)

    cluster.act(filled)
    cluster.edit("retention_ms: 7d", "retention_bytes: 64KiB")
    refused = cluster.apply(code=1)
    assert re.search(r"! topic orders: retention deletes \d+ records ", refused.stderr), refused.stderr
    assert cluster.topics()["orders"].config.retention_bytes == -1
    cluster.apply("--yes")
    assert cluster.topics()["orders"].config.retention_bytes == 64 << 10


def test_a_refused_file_changes_nothing_and_names_every_problem(cluster: Cluster) -> None:
    cluster.apply()
    cluster.edit("partitions: 4", "partitions: 2")
    cluster.edit("  quotes:\n", "  quotes: {replicas: 3}\n  first: {}\n  wide: {replicas: 3}\n")
    refused = cluster.apply(code=1)
    assert "has 3 problems:" in refused.stderr and "line 5: topic 'orders' has 4 partitions" in refused.stderr
    assert set(cluster.topics()) == {"orders", "quotes", APPLIED_TOPIC}
    problem = json.loads(cluster.apply("--json", code=1).stderr)["error"]
    assert problem["code"] == "INVALID_ARGUMENT"
    cluster.file.write_text("topics: [")
    cluster.apply("--dry-run", "--exit-code", code=1)


def test_a_run_that_was_killed_is_finished_by_the_next(cluster: Cluster) -> None:
    """After it has stored what it is about to make, and has made one of the topics."""

    async def killed() -> None:
        store = AppliedStore(cluster.address, "trading")
        await store.read()
        await store.write(Applied({"orders": "", "quotes": "", "gone": ""}))

    asyncio.run(killed())
    cluster.act(lambda admin: admin.create_topic("orders", partitions=4))
    cluster.act(lambda admin: admin.create_topic("gone"))
    shown = cluster.apply()
    assert "topic gone may be of a run that was interrupted" in shown.stderr
    assert "+ topic quotes" in shown.stdout and "~ topic orders retention_ms" in shown.stdout
    cluster.file.write_text("name: trading\ntopics: {}\n")
    cluster.apply("--prune", "--yes")
    assert set(cluster.topics()) == {"gone", APPLIED_TOPIC}


def test_of_two_runs_at_once_one_fails_and_has_nothing_to_do_afterwards(cluster: Cluster) -> None:
    async def twice() -> None:
        first, second = AppliedStore(cluster.address, "trading"), AppliedStore(cluster.address, "trading")
        assert await first.read() == await second.read() == Applied()
        await first.write(Applied({"orders": ""}))
        with pytest.raises(comet.RevisionMismatch, match="another run with the name 'trading'") as caught:
            await second.write(Applied({"quotes": ""}))
        assert caught.value.details["hint"] == "run comet apply again"
        await first.write(Applied({"orders": "00"}))

    asyncio.run(twice())
    cluster.apply()
    assert cluster.apply("--dry-run").stdout == ""


def test_the_example_of_the_guide_can_be_applied(cluster: Cluster) -> None:
    guide = (ROOT / "docs/guides/gitops.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    one_broker = re.sub(r"^ *(replicas|min_insync): .*\n", "", text, flags=re.MULTILINE)
    cluster.apply(feed=one_broker)
    assert cluster.apply("--dry-run", "--exit-code", feed=one_broker).stdout == ""
    refused = cluster.apply(code=1, feed=text).stderr
    assert "apply moves none" in refused, "the example itself is for three brokers"
