"""`comet search`, `export`, `dead-letters` and templates of `consume` against a real broker that `comet up` started."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from comet.cli._exit import ERROR, NOT_FOUND, USAGE
from tests.integration.test_cli_flows import Up, up

__all__ = ["up"]  # the fixture

SIDES = ("buy", "sell")


@pytest.fixture(scope="module")
def orders(up: Up) -> str:
    """A topic of 1,000 orders in two partitions."""
    up.run("topic", "create", "orders", "--partitions", "2")
    lines = b"".join(b'k%d\t{"n": %d, "side": "%s"}\n' % (n % 7, n, SIDES[n % 2].encode()) for n in range(1000))
    up.run("produce", "orders", "--key-separator", "\\t", "--header", "source=test", feed=lines)
    return "orders"


def numbers(text: bytes) -> list[int]:
    return [json.loads(line)["n"] for line in text.splitlines()]


def test_consume_prints_templates_and_matches(up: Up, orders: str) -> None:
    found = up.run(
        "consume", orders, "--no-follow", "--filter", 'n >= 990 and side = "buy"', "-f", "%k %h %v\\n"
    ).stdout
    assert sorted(found.splitlines()) == [
        b'k%d source=test {"n": %d, "side": "buy"}' % (n % 7, n)
        for n in sorted((990, 992, 994, 996, 998), key=lambda n: n % 7)
    ]
    two = ("consume", orders, "--from", "earliest", "--count", "2", "--filter", "n>500", "--filter", "side=sell")
    assert all(n > 500 and n % 2 for n in numbers(up.run(*two).stdout))
    refused = up.run("consume", orders, "--filter", "n >> 5", code=USAGE)
    assert b"at character 4" in refused.stderr and b"hint: conditions are such as" in refused.stderr
    assert b"%o offset" in up.run("consume", orders, "--format", "%q", code=USAGE).stderr


def test_a_member_prints_and_commits_matches_alone(up: Up, orders: str) -> None:
    words = ("consume", orders, "--group", "matching", "--from", "earliest", "--count", "1", "--filter", "side=sell")
    seen = [numbers(up.run(*words).stdout) for _ in range(3)]
    assert all(len(one) == 1 and one[0] % 2 for one in seen) and len({one[0] for one in seen}) == 3


def test_search_finds_matches_in_order_and_says_what_it_looked_at(up: Up, orders: str) -> None:
    first = up.run("search", orders, "side = sell", "--limit", "3")
    assert numbers(first.stdout) == [1, 3, 5]
    assert b"3 records found, 1,000 looked at" in first.stderr and b"stopped at --limit 3" in first.stderr
    last = up.run("search", orders, "side=sell", "--limit", "3", "--order", "newest", "--json")
    assert [json.loads(line)["value"]["n"] for line in last.stdout.splitlines()] == [999, 997, 995]
    end = json.loads(last.stderr)["end"]
    assert (end["reason"], end["matched"], end["scanned"]) == ("limit", "3", "1000")
    whole = up.run("search", orders, "n>=998", "side=sell", "--key", "K5", "--header", "SOURCE: test", "--value", "999")
    assert numbers(whole.stdout) == [999] and b"1 record found, 1,000 looked at" in whole.stderr
    assert b"stopped" not in whole.stderr
    none = up.run("search", orders, "n=1.5")
    assert none.stdout == b"" and b"0 records found, 1,000 looked at" in none.stderr


def test_a_search_is_bounded(up: Up, orders: str) -> None:
    few = up.run("search", orders, "n<0", "--scan-max", "50", "--json")
    end = json.loads(few.stderr)["end"]
    assert end["reason"] == "budget" and 0 < int(end["scanned"]) < 200
    part = up.run("search", orders, "-p", "0", "--from", "10", "--until", "15", "-f", "%o ")
    assert part.stdout == b"10 11 12 13 14 " and b"5 looked at" in part.stderr
    assert up.run("search", orders, "--from", "-1h", "--until", "earliest").stdout == b""
    assert b"give one with --partition" in up.run("search", orders, "--from", "10", code=USAGE).stderr
    assert b"at character 3" in up.run("search", orders, "n=", code=USAGE).stderr
    up.run("search", "missing", "n=1", code=NOT_FOUND)
    up.run("search", orders, "--partition", "9", code=NOT_FOUND)


def test_exports_have_all_matches_in_each_format(up: Up, orders: str, tmp_path: Path) -> None:
    wanted = ("--filter", "side=buy", "--filter", "n<200")
    for name in ("a.csv", "a.json", "a.ndjson", "a.parquet", "a.jsonl"):
        done: Any = up.json("export", orders, str(tmp_path / name), *wanted)
        assert (done["records"], done["bytes"]) == (100, (tmp_path / name).stat().st_size)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "a.ndjson").read_text().splitlines()]
    table = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [json.loads(row["value"])["n"] for row in rows] == list(range(0, 200, 2))
    assert [row["value"] for row in lines] == [json.loads(row["value"]) for row in rows]
    assert json.loads((tmp_path / "a.json").read_text()) == lines
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "a.ndjson").read_bytes()
    assert [(row["partition"], row["offset"], row["value"].decode()) for row in table] == [
        (int(row["partition"]), int(row["offset"]), row["value"]) for row in rows
    ]
    one: Any = up.json("export", orders, str(tmp_path / "b.data"), "--format", "csv", "--limit", "3")
    assert one["records"] == 3


def test_an_export_that_fails_leaves_nothing_and_replaces_nothing(up: Up, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.csv"
    file.write_text("mine")
    assert b"--overwrite" in up.run("export", orders, str(file), code=USAGE).stderr
    assert file.read_text() == "mine"
    up.run("export", orders, str(file), "--from", "999999", "--partition", "0", "--overwrite", code=ERROR)
    assert (file.read_text(), list(tmp_path.iterdir())) == ("mine", [file])
    up.run("export", orders, str(file), "--overwrite", "--limit", "1")
    assert len(file.read_text().splitlines()) == 2 and list(tmp_path.iterdir()) == [file]
    refused = up.run("export", orders, str(tmp_path / "a.xlsx"), code=USAGE)
    assert b"NAME.csv, .json, .ndjson or .parquet" in refused.stderr
    up.run("export", orders, str(tmp_path / "missing" / "a.csv"), code=ERROR)
    up.run("export", "missing", str(tmp_path / "a.csv"), code=NOT_FOUND)
    assert list(tmp_path.iterdir()) == [file]


def dead(up: Up, topic: str, number: int, *, source: str = "sources", group: str = "work") -> None:
    told = {
        "topic": source, "partition": 0, "offset": number, "group": group, "attempts": 5,
        "reason": f"ValueError: order {number} is late",
    }  # fmt: skip
    headers = [word for name, value in told.items() for word in ("-H", f"comet-dead-letter-{name}={value}")]
    up.run("produce", topic, "-q", "-H", f"trace={number}", *headers, feed=b'{"n": %d}\n' % number)


def test_dead_letters_are_listed_shown_redriven_and_discarded(up: Up) -> None:
    up.run("topic", "create", "sources")
    up.run("topic", "create", "elsewhere")
    up.run("topic", "create", "failed")
    assert b"no dead letters in failed" in up.run("dead-letters", "list", "failed").stderr
    for number in range(4):
        dead(up, "failed", number)
    dead(up, "failed", 4, source="gone", group="other")
    listed: Any = [one for one in up.json("dead-letters", "list") if one["topic"] == "failed"]  # type: ignore[attr-defined]
    assert {(one["group"], one["cause"], one["pending"]) for one in listed} == {
        ("work", "ValueError: order # is late", 4), ("other", "ValueError: order # is late", 1),
    }  # fmt: skip
    letters: Any = up.json("dead-letters", "list", "failed", "--group", "work")
    assert [(one["offset"], one["source_offset"], one["state"]) for one in letters] == [
        (str(number), str(number), "pending") for number in (3, 2, 1, 0)
    ]
    table = up.run("dead-letters", "list", "failed", "--limit", "2").stdout.decode()
    assert "gone/0/4" in table and "0/3" in table and "0/2" not in table.replace("sources/0/2", "")
    shown = up.run("dead-letters", "show", "failed", "0/1").stdout.decode()
    assert "ValueError: order 1 is late" in shown and "trace: 1" in shown and '{"n": 1}' in shown
    one: Any = up.json("dead-letters", "show", "failed", "0/1")
    assert (one["attempts"], one["record"]["value"]) == (5, {"n": 1})
    assert b"comet dead-letters list failed" in up.run("dead-letters", "show", "failed", "0/99", code=ERROR).stderr
    up.run("dead-letters", "show", "failed", "99", code=USAGE)

    plan: Any = up.json("dead-letters", "redrive", "failed", "0/0", "--dry-run")
    assert (plan["dead_letters"], plan["targets"]) == (1, {"sources": 1})
    refused = up.run("dead-letters", "redrive", "failed", "0/0", feed=b"n\n", code=ERROR)
    assert b"Redrive 1 dead letter: 1 to sources?" in refused.stderr
    assert up.run("consume", "sources", "--no-follow").stdout == b""
    assert up.run("dead-letters", "redrive", "failed", "0/0", "--yes").stdout == b"redriven 1 dead letter\n"
    again = up.run("dead-letters", "redrive", "failed", "0/0", "--yes")
    assert b"settled before: 1 dead letter" in again.stderr
    some = up.run("dead-letters", "redrive", "failed", "--reason", "order 1", "--to", "elsewhere", "--yes")
    assert some.stdout == b"redriven 1 dead letter\n"
    rest = up.run("dead-letters", "redrive", "failed", "--all", "--yes", code=ERROR)
    assert rest.stdout == b"redriven 2 dead letters; 1 failed\n"
    assert b"failed: 0/4: topic 'gone' does not exist" in rest.stderr
    assert up.run("consume", "sources", "--no-follow").stdout == b'{"n": 0}\n{"n": 2}\n{"n": 3}\n'
    redriven = up.run("consume", "elsewhere", "--no-follow", "-f", "%v %h").stdout
    assert redriven.startswith(b'{"n": 1} trace=1,comet-redriven-from=failed/0/1')
    up.run("dead-letters", "redrive", "failed", "--all", "--to", "nowhere", "--yes", code=NOT_FOUND)
    assert (
        up.run("dead-letters", "discard", "failed", "--group", "other", "--yes").stdout == b"discarded 1 dead letter\n"
    )
    states: Any = up.json("dead-letters", "list", "failed")
    assert [one["state"] for one in states] == ["discarded", *["redriven"] * 4]
    assert {one["to"] for one in states} >= {"elsewhere/0/0", "sources/0/0"}


def test_dead_letters_are_chosen_in_one_way(up: Up) -> None:
    up.run("dead-letters", "redrive", "orders", code=USAGE)
    up.run("dead-letters", "discard", "orders", "--all", "--group", "g", code=USAGE)
    up.run("dead-letters", "redrive", "orders", "0/0", "--all", code=USAGE)
    assert b"0/99" in up.run("dead-letters", "discard", "orders", "0/99", "--yes", code=ERROR).stderr
    up.run("dead-letters", "list", "missing", code=NOT_FOUND)
    up.run("dead-letters", "list", "--group", "g", code=USAGE)


def test_delayed_records_are_printed_with_their_ids(up: Up) -> None:
    up.run("topic", "create", "reminders")
    printed = up.run("produce", "reminders", "--delay", "30d", feed=b"tea\ncup\n").stdout.decode().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{32} 20\S+\+00:00", line) for line in printed), printed
    due = ["--due", "2199-01-01T09:30:00-05:00"]
    (line,) = up.run("produce", "reminders", *due, "--json", feed=b"pot\n").stdout.splitlines()
    receipt = json.loads(line)
    assert (receipt["topic"], receipt["next_us"]) == ("reminders", "7226634600000000")
    assert up.run("produce", "reminders", "--delay", "1d", "--quiet", feed=b"jug\n").stdout == b""
    listed: Any = up.json("schedule", "list")
    assert len(listed["schedules"]) == 4
    up.run("schedule", "cancel", "reminders", printed[0].split()[0], "--yes")
    up.run("schedule", "cancel", "reminders", receipt["id"], "--yes")
    for wrong in (["--delay", "soon"], ["--delay", "5"], ["--delay", "1d", *due], ["--due", "2026-12-01T09:30"]):
        assert up.run("produce", "reminders", *wrong, feed=b"x\n", code=USAGE).stdout == b""


def test_kv_reads_and_writes_single_keys(up: Up) -> None:
    up.run("topic", "create", "prices", "--partitions", "2")
    assert up.run("kv", "create", "prices", "EURUSD", "1.08").stdout == b"revision 0\n"
    assert b"REVISION_MISMATCH" in up.run("kv", "create", "prices", "EURUSD", "1", code=ERROR).stderr
    new = up.run("kv", "put", "prices", "EURUSD", "-", "--revision", "0", "--json", feed=b'{"bid": 1.09}').stdout
    assert json.loads(new) == {"revision": 1}
    assert up.run("kv", "get", "prices", "EURUSD").stdout == b'{"bid": 1.09}\n'
    assert up.run("kv", "get", "prices", "EURUSD", "--revision", "0").stdout == b"1.08\n"
    assert up.run("kv", "keys", "prices", "EUR").stdout == b"EURUSD\n"
    up.run("kv", "delete", "prices", "EURUSD", "--revision", "0", code=ERROR)
    up.run("kv", "delete", "prices", "EURUSD")
    assert b"KEY_NOT_FOUND" in up.run("kv", "get", "prices", "EURUSD", code=NOT_FOUND).stderr
    up.run("kv", "delete", "prices", "EURUSD", code=NOT_FOUND)
    lines = [json.loads(line) for line in up.run("kv", "history", "prices", "EURUSD").stdout.splitlines()]
    assert [(one["revision"], one.get("value"), one.get("ended")) for one in lines] == [
        (2, None, 1),
        (1, {"bid": 1.09}, None),
        (0, 1.08, None),
    ]
    up.run("kv", "watch", "prices", "EUR", "--key", "EURUSD", code=USAGE)
