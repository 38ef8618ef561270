"""The file of `comet apply`: what it says, and the problems that are named with their lines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

import comet
from comet.admin.rules import AccessCheck
from comet.cli.apply import yaml_tree
from comet.cli.apply.acting import check
from comet.cli.apply.applied import Applied
from comet.cli.apply.cluster_file import read_cluster_file
from comet.cli.apply.declaration import Current, limits_of
from comet.cli.apply.plan import plan_changes
from comet.errors import CometError, DataLoss, Forbidden, InvalidArgument, LimitExceeded
from comet.settings.topic import Flush, TopicDefaults

TEXT = """# what the cluster has
name: trading
topics:
  orders:
    partitions: 4
    replicas: 3
    settings:
      retention_ms: 7d
      flush: always
      retention-bytes: none
      min_insync: 2
  quotes:
rules:
  - allow client:billing read,describe topic orders*
  - deny * delete topic orders
roles:
  role:finance: [client:billing, client:ann]
quotas:
  client:billing: {bytes_in: 10MiB, requests: 200}
  "*": {streams: 100}
"""


MOVED = (
    "line 6: topic 'orders' has 2 replicas, not 3, and apply moves none: "
    "comet topic move orders PARTITION --to ID,ID,..."
)


def read(text: str) -> object:
    return read_cluster_file("cluster.yaml", text.encode())


def refused(text: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        read(text)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value.message


def test_a_file_has_topics_rules_roles_and_quotas() -> None:
    found = read_cluster_file("cluster.yaml", TEXT.encode())
    assert found.name == "trading"
    orders = found.topics["orders"]
    assert (orders.partitions, orders.replicas, orders.lines["retention_ms"]) == (4, 3, 8)
    assert orders.settings == {
        "retention_ms": 7 * 24 * 3600 * 1000,
        "flush": Flush.ALWAYS,
        "retention_bytes": -1,
        "min_insync": 2,
    }
    assert (found.topics["quotes"].partitions, found.topics["quotes"].settings) == (None, {})
    assert list(found.rules) == ["allow client:billing describe,read topic orders*", "deny * delete topic orders"]
    assert list(found.members) == ["role:finance of client:billing", "role:finance of client:ann"]
    assert {name: limits_of(quota) for name, quota in found.quotas.items()} == {
        "client:billing": {"bytes_in": 10 << 20, "requests": 200},
        "*": {"streams": 100},
    }


# Unquoted words that YAML 1.1 does not take as text, and numbers that it reads in another way than people.
@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("topics:\n  no: {}", 2, "a name is text, not a truth value (no): put it in quotes"),
        ("topics:\n  ON:\n", 2, "not a truth value (ON)"),
        ("topics:\n  123:\n", 2, "not a number (123)"),
        ("topics:\n  2026-11-30:\n", 2, "not a date (2026-11-30)"),
        ("topics:\n  ~: {}\n", 2, "a name is text"),
        ("topics:\n  <<: {}\n", 2, "a name is text, not a merge key"),
        ("topics:\n  [a, b]: {}\n", 2, "a name is text, not a list"),
        ("name: yes\n", 1, "text is needed, not a truth value (yes)"),
        ("name: 12\n", 1, "put it in quotes"),
        ("name: a b\n", 1, "invalid name 'a b'"),
        ("name:\n", 1, "text is needed, not empty"),
        ("topics:\n  t: {partitions: 010}\n", 2, "write 010 as a decimal number"),
        ("topics:\n  t: {partitions: 1_0}\n", 2, "write 1_0 as a decimal number"),
        ("topics:\n  t: {partitions: 1:30}\n", 2, "write 1:30 as a decimal number"),
        ("topics:\n  t: {partitions: 0x10}\n", 2, "write 0x10 as a decimal number"),
        ("topics:\n  t: {partitions: off}\n", 2, "partitions has a value, not a truth value (off)"),
        ("topics:\n  t: {partitions: }\n", 2, "partitions has a value, not empty"),
        ("topics:\n  t: {partitions: 0}\n", 2, "partitions must be from 1 to 1000, not 0"),
        ("topics:\n  t: {partitions: 1001}\n", 2, "partitions must be from 1 to 1000, not 1001"),
        ("topics:\n  t: {partitions: 1.5}\n", 2, "partitions"),
        ("topics:\n  t: {replicas: 16}\n", 2, "replicas must be from 1 to 15, not 16"),
        ("topics:\n  t: {settings: {flush: on}}\n", 2, "flush has a value, not a truth value (on)"),
        ("topics:\n  t: {settings: {flush: often}}\n", 2, "flush must be always, interval or os, not 'often'"),
        ("topics:\n  t: {settings: {retention_ms: 7 days}}\n", 2, "invalid duration '7 days'"),
        ("topics:\n  t: {settings: {retention: 7d}}\n", 2, "unknown setting 'retention'; did you mean"),
        (
            "topics:\n  t:\n    settings:\n      flush: os\n      flush: os\n",
            5,
            "'flush' is given twice, first in line 4",
        ),
        ("topics:\n  t: {settings: {segment_ms: 1d, segment-ms: 2d}}\n", 2, "segment_ms is given twice"),
        ("topics:\n  t: {settings: {segment_bytes: 1}}\n", 2, "segment_bytes must be a whole number from"),
        ("topics:\n  a b: {}\n", 2, "'a b' is not a valid topic name"),
        ("topics:\n  __audit: {}\n", 2, "internal topic"),
        ("topics:\n  t: {}\n  t: {}\n", 3, "'t' is given twice, first in line 2"),
        ("topics:\n  t: {partition: 3}\n", 2, "has no field 'partition'; did you mean partitions?"),
        ("topics: [t]\n", 1, "topics is a mapping of names to topics, not a list"),
        ("topics:\n  t: 4\n", 2, "topic 't' is a mapping of partitions, replicas, settings, not a number (4)"),
        ("topic:\n  t: {}\n", 1, "the file has no field 'topic'; did you mean topics?"),
        ("- a\n", 1, "the file is a mapping of name, topics, rules, roles, quotas, not a list"),
        ("rules: {}\n", 1, "rules: a list of lines, as comet acl export prints them, not a mapping"),
        ("rules:\n  - client:a may read topic t\n", 2, "a rule is allow or deny"),
        ("rules:\n  - allow client:a fly topic t\n", 2, "'fly' is not a list of operations"),
        ("rules:\n  - allow client:a create group g\n", 2, "kind group has no operation 'create'"),
        ("rules:\n  - allow a read topic t\n", 2, "'a' is not a principal"),
        ("rules:\n  - yes\n", 2, "text is needed, not a truth value (yes)"),
        ("rules:\n  - deny * read topic t\n  - deny * read topic t\n", 3, "is given twice, first in line 2"),
        ("rules:\n- allow * read,write topic t\n- allow * write,read topic t\n", 3, "is given twice, first in line 2"),
        ("roles:\n  finance: [client:a]\n", 2, "a member of a role is"),
        ("roles:\n  role:f: [role:g]\n", 2, "roles have no roles"),
        ("roles:\n  role:f: client:a\n", 2, "a list of principals, not text (client:a)"),
        ("roles:\n  role:f: [client:a, client:a]\n", 2, "given twice"),
        ("quotas:\n  a: {requests: 1}\n", 2, "'a' is not a principal"),
        ("quotas:\n  client:a: {}\n", 2, "a quota limits something"),
        ("quotas:\n  client:a: {bytes_in: 5}\n", 2, "bytes_in is 0 (no limit), or at least 1024, not 5"),
        ("quotas:\n  client:a: {streams: 9007199254740993}\n", 2, "streams is from 0 to"),
        ("quotas:\n  client:a: {byte_in: 5kB}\n", 2, "did you mean bytes_in?"),
        ("quotas:\n  *: {streams: 1}\n", 2, "not YAML: while scanning an alias"),
        ("topics: &x {}\n", 1, "&x is an anchor"),
        ("topics:\n  a: *x\n", 2, "*x is an alias"),
        ("topics: !!python/object:os.system {}\n", 1, "is a tag, which is not taken"),
        ("topics: !!str t\n", 1, "is a tag, which is not taken"),
        ("name: a\n---\nname: b\n", 2, "a second document begins"),
        ("topics: {a: {b: {c: {d: {e: {f: {g: {h: {}}}}}}}}}\n", 1, "nested deeper than 8 levels"),
        ("topics:\n\tt: {}\n", 2, "not YAML"),
        ("topics: {t: {}\n", 2, "not YAML"),
    ],
)
def test_a_problem_is_named_with_its_line(text: str, line: int, why: str) -> None:
    message = refused(text)
    assert f"line {line}: " in message and why in message, message


def test_all_problems_are_named_at_once_in_the_order_of_the_file() -> None:
    text = "name: no\ntopics:\n  on: {}\n  t:\n    partitions: none\n    what: 1\nrules: [x]\n"
    message = refused(text)
    lines = message.splitlines()
    assert lines[0] == "cluster.yaml has 5 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 1", "line 3", "line 5", "line 6", "line 7"]


def test_a_message_shows_a_limited_number_of_problems() -> None:
    message = refused("topics:\n" + "".join(f"  {number}: {{}}\n" for number in range(1_000)))
    assert len(message.splitlines()) == 2 + yaml_tree.PROBLEMS_SHOWN_MAX
    assert message.endswith(f"and {1_000 - yaml_tree.PROBLEMS_SHOWN_MAX} more")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    message = refused(text)
    assert "empty" in message or "not empty" in message


@pytest.mark.parametrize("in_c", [True, False])
def test_a_hostile_file_is_refused_in_bounded_memory(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + one)}: &{chr(98 + one)} [{', '.join(['*' + chr(97 + one)] * 9)}]\n" for one in range(9)
    )
    assert "is an anchor" in refused(bomb)
    assert "nested deeper" in refused("[" * 10 + "]" * 10)
    assert "nest" in refused("[" * 100_000)
    assert "more than 1 MiB" in refused("x" * (yaml_tree.BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        read_cluster_file("f", b"name: \xff\n")
    with pytest.raises(InvalidArgument, match="is not YAML"):
        read_cluster_file("f", b"name: \x01\n")


def test_changes_that_cannot_be_made_are_named_with_their_lines() -> None:
    parts = tuple(comet.PartitionInfo(one, 1, 0, (1, 2), (1, 2)) for one in range(6))
    now = Current(
        {"orders": comet.TopicInfo("orders", bytes(16), parts, comet.TopicConfig(), 0)},
        defaults=TopicDefaults(replicas=2),
        brokers=2,
    )
    text = TEXT.replace("  quotes:", "  quotes: {replicas: 3}\n  slow: {settings: {min_insync: 3}}")
    plan = plan_changes(read_cluster_file("f", text.encode()), now, Applied())
    assert [str(one) for one in plan.problems] == [
        "line 5: topic 'orders' has 6 partitions; their number can only grow",
        MOVED,
        "line 12: 3 replicas need as many brokers, and 2 are alive",
        "line 13: min_insync=3 can never be met with 2 replicas",
    ]


def test_steps_are_in_an_order_that_never_allows_more_than_before_and_after() -> None:
    read_all = "allow client:a read topic *"
    first = read_cluster_file("f", f"name: n\nrules: [{read_all}, deny client:a read topic a]\n".encode())
    plan = plan_changes(first, Current(), Applied())
    assert [str(step) for step in plan.steps] == ["+ rule deny client:a read topic a", f"+ rule {read_all}"]
    now = Current(rules=first.rules)
    plan = plan_changes(read_cluster_file("f", b"name: n\ntopics: {}\n"), now, plan.after({}), prune=True)
    assert [str(step) for step in plan.steps] == [f"- rule {read_all}", "- rule deny client:a read topic a"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"topics":[],"rules":[],"roles":[],"quotas":[]}', b"\xff", b"1"])
def test_a_damaged_record_of_what_was_made_is_named(data: bytes) -> None:
    with pytest.raises(DataLoss, match="__applied"):
        Applied.decode(data)


def test_what_was_made_is_stored_whole_or_refused() -> None:
    made = Applied({"a": "ff", "b": ""}, frozenset({"r"}), frozenset({"m"}), frozenset({"q"}))
    assert Applied.decode(made.encode()) == made
    with pytest.raises(LimitExceeded, match="are stored"):
        Applied({f"{number:0249}": "" for number in range(4_000)}).encode()


class AskedAdmin:
    """comet.Admin of a client that may create topics and no more, or that may do all."""

    def __init__(self, *, all_allowed: bool) -> None:
        self.access = self
        self.needs: list[tuple[str, str, str]] = []
        self._all_allowed = all_allowed

    async def check(self, needs: list[tuple[str, str, str]]) -> AccessCheck:
        assert len(needs) <= 1_000
        self.needs += needs
        errors: list[CometError | None] = [
            None if self._all_allowed or need[0] == "create" else Forbidden("client:ci lacks " + " ".join(need))
            for need in needs
        ]
        return AccessCheck(tuple(errors), 1)

    async def add_partitions(self, name: str, total: int, *, dry_run: bool) -> None:
        assert dry_run
        raise LimitExceeded(f"{name} would have {total} partitions, and the cluster too many")


def test_rights_and_limits_are_asked_for_before_anything_is_changed() -> None:
    part = comet.PartitionInfo(0, 1, 0, (1, 2, 3), (1, 2, 3))
    now = Current({"quotes": comet.TopicInfo("quotes", bytes(16), (part,), comet.TopicConfig(), 0)}, brokers=3)
    text = TEXT.replace("  quotes:", "  quotes:\n    partitions: 9\n").encode()
    plan = plan_changes(read_cluster_file("f", text), now, Applied())
    admin: Any = AskedAdmin(all_allowed=False)
    refused = [str(one) for one in asyncio.run(check(admin, plan.steps)).problems]
    assert refused[0] == "line 13: topic quotes: client:ci lacks alter topic quotes"
    assert len(refused) == 7 and refused[1].endswith("client:ci lacks alter cluster *")
    assert admin.needs[0] == ("create", "topic", "orders")
    admin = AskedAdmin(all_allowed=True)
    (problem,) = asyncio.run(check(admin, plan.steps)).problems
    assert str(problem) == "line 13: topic 'quotes': quotes would have 9 partitions, and the cluster too many"
