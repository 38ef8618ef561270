"""`comet search`, `export` and templates of `consume` against a real broker that `comet up` started."""

from __future__ import annotations

import csv
import json
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
    found = up.run("consume", orders, "--no-follow", "--where", 'n >= 990 and side = "buy"', "-f", "%k %h %v\\n").stdout
    assert sorted(found.splitlines()) == [
        b'k%d source=test {"n": %d, "side": "buy"}' % (n % 7, n)
        for n in sorted((990, 992, 994, 996, 998), key=lambda n: n % 7)
    ]
    two = ("consume", orders, "--from", "earliest", "--count", "2", "--where", "n>500", "--where", "side=sell")
    assert all(n > 500 and n % 2 for n in numbers(up.run(*two).stdout))
    refused = up.run("consume", orders, "--where", "n >> 5", code=USAGE)
    assert b"at character 4" in refused.stderr and b"hint: conditions are such as" in refused.stderr
    assert b"%o offset" in up.run("consume", orders, "--format", "%q", code=USAGE).stderr


def test_a_member_prints_and_commits_matches_alone(up: Up, orders: str) -> None:
    words = ("consume", orders, "--group", "matching", "--from", "earliest", "--count", "1", "--where", "side=sell")
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
    wanted = ("--where", "side=buy", "--where", "n<200")
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
