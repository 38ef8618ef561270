"""`comet group` and `comet consume --group` against a real broker that `comet up` started."""

from __future__ import annotations

import json
import signal
from typing import Any

from comet.cli._exit import NOT_FOUND
from tests.integration.test_cli_flows import TIMEOUT_S, Up, up

__all__ = ["up"]  # the fixture


def filled(up: Up, topic: str, records: int) -> None:
    up.run("topic", "create", topic, "--partitions", "2")
    for partition in ("0", "1"):
        up.run("produce", topic, "--partition", partition, feed=b"x\n" * records)


def committed(up: Up, group: str) -> dict[int, int]:
    found: Any = up.json("group", "describe", group)
    return {one["partition"]: int(one["committed"]) for one in found["partitions"]}


def test_a_member_goes_on_where_its_group_is(up: Up) -> None:
    filled(up, "read", 50)
    part = up.run("consume", "read", "--group", "reader", "--from", "earliest", "--count", "30")
    assert part.stdout == b"x\n" * 30
    assert sum(committed(up, "reader").values()) == 30
    up.run("consume", "read", "--group", "reader", "--count", "70")
    assert committed(up, "reader") == {0: 50, 1: 50}
    listed: Any = up.json("group", "list")
    (one,) = [one for one in listed if one["name"] == "reader"]
    assert (one["kind"], one["state"], one["members"], one["topics"]) == ("consumer", "empty", 0, ["read"])


def test_a_reset_is_shown_asked_about_and_done(up: Up) -> None:
    filled(up, "again", 10)
    up.run("group", "reset", "resetter", "--to", "latest", "--topic", "again", "--yes")
    plan: Any = up.json("group", "reset", "resetter", "--shift", "-3", "--dry-run")
    assert plan["dry_run"] and [one["skipped"] for one in plan["partitions"]] == ["-3", "-3"]
    asked = up.run("group", "reset", "resetter", "--to", "earliest", "--topic", "again:1", feed=b"n\n", code=1)
    assert b"10 read again" in asked.stderr and b"again" in asked.stdout
    assert committed(up, "resetter") == {0: 10, 1: 10}
    done = up.run("group", "reset", "resetter", "--to", "earliest", "--topic", "again:1", feed=b"y\n")
    assert b"group resetter: 1 partition set; 0 records skipped, 10 read again" in done.stdout
    assert committed(up, "resetter") == {0: 10, 1: 0}
    far: Any = up.json("group", "reset", "resetter", "--to", "99", "--topic", "again:1", "--yes")
    assert far["partitions"][0]["after"] == "10" and "beyond the log end offset" in far["partitions"][0]["note"]


def test_lag_is_shown_now_and_over_time(up: Up) -> None:
    filled(up, "late", 10)
    up.run("group", "reset", "laggard", "--to", "4", "--topic", "late", "--yes")
    now = up.run("group", "lag", "laggard").stdout.decode().splitlines()
    assert [line.split()[5] for line in now] == ["lag", "6", "6"]
    with up.start("group", "lag", "laggard", "--history", "--watch", "--json") as watching:
        assert watching.stdout is not None
        seen: dict[str, Any] = {"history": []}
        while not seen["history"]:
            seen = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        assert watching.wait(TIMEOUT_S) == 130
    assert [one["lag"] for one in seen["now"]] == ["6", "6"]
    assert (seen["history"][-1]["topic"], seen["history"][-1]["lag"]) == ("late", "12")
    drawn = up.run("group", "lag", "laggard", "--history").stdout.decode()
    assert "█" in drawn and "committed" in drawn


def test_a_group_with_members_is_described_and_left_alone(up: Up) -> None:
    filled(up, "busy", 5)
    with up.start("consume", "busy", "--group", "worker", "--from", "earliest") as member:
        assert member.stdout is not None
        assert [member.stdout.readline() for _ in range(10)] == [b"x\n"] * 10
        described = up.run("group", "describe", "worker").stdout.decode()
        assert "busy 0-1" in described and "stable" in described
        for words in (("reset", "worker", "--to", "latest", "--yes"), ("delete", "worker", "--yes")):
            refused = up.run("group", *words, code=1)
            assert b"GROUP_NOT_EMPTY" in refused.stderr and b"comet group describe" in refused.stderr
        member.send_signal(signal.SIGINT)
        assert member.wait(TIMEOUT_S) == 130
    assert sum(committed(up, "worker").values()) == 10, "what was printed is committed as it leaves"
    asked = up.run("group", "delete", "worker", feed=b"n\n", code=1).stderr
    assert asked.startswith(b"Delete group worker? Committed offsets in ")
    done = up.run("group", "delete", "worker", "--yes").stdout
    assert done.startswith(b"deleted group worker: committed offsets in ")
    missing = up.run("group", "describe", "worker", code=NOT_FOUND)
    assert b"comet group list" in missing.stderr
