"""The command line against a real broker that `comet up` started: processes, pipes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comet.processes.child import Child, started

COMET = [sys.executable, "-m", "comet.cli"]
TIMEOUT_S = 60


@dataclass(frozen=True)
class Up:
    """A broker that runs for a module's tests."""

    address: str
    data: Path

    def run(self, *words: str, feed: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*COMET, *words],
            input=feed,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | {"COMET_BOOTSTRAP": self.address},
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return done

    def json(self, *words: str, feed: bytes = b"") -> object:
        return json.loads(self.run(*words, "--json", feed=feed).stdout)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMET, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"COMET_BOOTSTRAP": self.address},
        )


@contextmanager
def serving(*words: str) -> Iterator[tuple[Child, dict[str, Any]]]:
    """A broker, and what it prints when it is up."""
    command = [*COMET, "up", *words, "--port", "0", "--no-gateway", "--json"]
    with started(Child("comet up", command, piped=True)) as broker:
        yield broker, json.loads(broker.line(TIMEOUT_S))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("up") / "data"
    with serving("--data", str(data)) as (broker, told):
        yield Up(told["address"], data)
        broker.signal(signal.SIGINT)
        assert broker.wait(TIMEOUT_S) == 0


def test_lines_go_in_and_come_out(up: Up) -> None:
    up.run("topic", "create", "lines")
    sent = up.json("produce", "lines", feed=b"one\ntwo\n\nfour")
    assert isinstance(sent, dict) and sent["records"] == 4
    assert up.run("consume", "lines", "--no-follow").stdout == b"one\ntwo\n\nfour\n"
    assert up.run("consume", "lines", "--from", "1", "--until", "3").stdout == b"two\n\n"
    assert up.run("consume", "lines", "--from", "earliest", "--count", "1").stdout == b"one\n"
    assert up.run("consume", "lines", "--from", "latest", "--no-follow").stdout == b""
    assert up.run("consume", "lines", "--from", "-1h", "--no-follow", "--format", "raw").stdout == b"onetwofour"


def test_keys_headers_and_json(up: Up) -> None:
    up.run("topic", "create", "keyed", "--partitions", "3")
    lines = b"".join(b'k%d\t{"n": %d}\n' % (n % 5, n) for n in range(100))
    report = up.run("produce", "keyed", "--key-separator", "\\t", "--header", "source=test", feed=lines).stderr.decode()
    assert report.startswith("100 records")
    shown = up.run("consume", "keyed", "--no-follow", "--json").stdout.splitlines()
    records = [json.loads(line) for line in shown]
    assert sorted(record["value"]["n"] for record in records) == list(range(100))
    assert all(record["headers"] == [{"name": "source", "value": "test"}] for record in records)
    assert len({(record["key"], record["partition"]) for record in records}) == 5
    one = records[0]["partition"]
    only = up.run("consume", "keyed", "--no-follow", "--partition", str(one), "--format", "key-value").stdout
    assert len(only.splitlines()) == sum(record["partition"] == one for record in records)


def test_what_is_refused_is_refused_by_line(up: Up) -> None:
    up.run("topic", "create", "strict")
    done = up.run("produce", "strict", "--json-lines", feed=b"{}\n{\n", code=2)
    assert b"line 2 is not JSON" in done.stderr
    keyed = ("produce", "strict", "--json-lines", "--key-separator", "\\t")
    up.run(*keyed, feed=b"ACME\t{}\n")
    done = up.run(*keyed, feed=b"ACME\t{}\nACME\t{\n", code=2)
    assert b"line 2 is not JSON" in done.stderr
    done = up.run("produce", "strict", "--partition", "7", feed=b"x\n", code=3)
    assert b"PARTITION_NOT_FOUND" in done.stderr
    up.run("topic", "alter", "strict", "--set", "record_bytes_max=1KiB")
    done = up.run("produce", "strict", feed=b"x" * 2000, code=1)
    assert b"RECORD_TOO_LARGE" in done.stderr and b"hint: " in done.stderr


def test_several_topics_are_made_listed_and_deleted_at_once(up: Up) -> None:
    made = up.run("topic", "create", "many-1", "many-2", "many-3", "many-1", "--partitions", "2")
    assert made.stdout.decode().splitlines() == [f"created many-{n} with 2 partitions" for n in (1, 2, 3)]
    up.run("topic", "create", "many-4", "many-1", code=1)
    again: Any = up.json("topic", "create", "many-4", "many-5", "--if-missing")
    assert [one["name"] for one in again] == ["many-4", "many-5"]
    up.run("produce", "many-2", "--partition", "1", feed=b"a\nb\nc\n")
    up.run("group", "reset", "lister", "--to", "earliest", "--topic", "many-2", "--yes")
    listed = {line.split()[0]: line.split() for line in up.run("topic", "list").stdout.decode().splitlines()}
    assert listed["topic"] == ["topic", "partitions", "replicas", "records", "size", "retention", "state"]
    assert (listed["many-2"][3], listed["many-1"][3], listed["many-2"][-1]) == ("3", "0", "ok")
    groups = {line.split()[0]: line.split() for line in up.run("group", "list").stdout.decode().splitlines()}
    assert groups["group"][:6] == ["group", "kind", "state", "members", "lag", "age"]
    assert groups["lister"][4] == "3"

    plan = up.run("topic", "delete", "many-[12]", "--dry-run").stdout.decode().splitlines()
    assert [line.split()[:3] for line in plan[1:]] == [["many-1", "2", "0"], ["many-2", "2", "3"]]
    asked = up.run("topic", "delete", "many-*", feed=b"n\n", code=1)
    assert b"Delete 5 topics? 3 records. This cannot be undone." in asked.stderr and b"lister" in asked.stdout
    assert b"no topic matches 'none-*'" in up.run("topic", "delete", "many-1", "none-*", "--yes", code=3).stderr
    deleted = up.run("topic", "delete", "many-[1-4]", "many-5", "--yes").stdout.decode().splitlines()
    assert [line.split()[1] for line in deleted] == [f"many-{n}:" for n in range(1, 6)]
    missing = up.run("topic", "delete", "many-1", code=3).stderr
    assert b"does not exist" in missing and b"create" not in missing
    up.run("topic", "create", "json-1", "json-2")
    documents: Any = up.json("topic", "delete", "json-*", "--yes")
    assert [(one["topic"], one["dry_run"]) for one in documents] == [("json-1", False), ("json-2", False)]


def test_csv_keys_of_fields_and_templates(up: Up, tmp_path: Path) -> None:
    up.run("topic", "create", "rows")
    file = tmp_path / "rows.csv"
    file.write_bytes(b'symbol,price,note\r\nA,1.50,"a, b"\r\nB,2,\r\n')
    sent: Any = up.json("produce", "rows", "--csv", "--file", str(file), "--key-field", "symbol")
    assert (sent["records"], sent["bytes"]) == (2, 79)
    up.run("produce", "rows", "--key-field", "id", feed=b'{"id": 7}\n{"id": "x"}\n')
    shown = up.run("consume", "rows", "--no-follow", "-f", "%k=%v\\n").stdout
    assert shown == (
        b'A={"symbol":"A","price":1.50,"note":"a, b"}\nB={"symbol":"B","price":2,"note":null}\n'
        b'7={"id": 7}\nx={"id": "x"}\n'
    )
    assert b"line 3 has 1 cells" in up.run("produce", "rows", "--csv", feed=b"a,b\n1,2\n3\n", code=2).stderr
    assert b"line 2 opens a quotation" in up.run("produce", "rows", "--csv", feed=b'a\n"1\n', code=2).stderr
    assert b"line 2 has no id" in up.run("produce", "rows", "--key-field", "id", feed=b'{"id": 7}\n{}\n', code=2).stderr
    up.run("topic", "create", "generated")
    words = ("--template", '{"n": %d, "side": "%{buy|sell}"}', "--count", "2500", "--key-field", "side", "--seed", "7")
    made: Any = up.json("produce", "generated", *words)
    assert made["records"] == 2500
    lines = [json.loads(line) for line in up.run("consume", "generated", "--no-follow", "--json").stdout.splitlines()]
    assert [line["value"]["n"] for line in lines] == list(range(2500))
    assert all(line["key"] == line["value"]["side"] for line in lines)
    assert {line["key"] for line in lines} == {"buy", "sell"}
    assert b"%d number of the record" in up.run("produce", "generated", "--template", "%q", code=2).stderr
    for wrong in (
        ["--count", "3"],
        ["--template", "x", "--csv"],
        ["--csv", "-k", ","],
        ["--key-field", "a", "-k", ","],
    ):
        up.run("produce", "generated", *wrong, code=2)


def test_a_topic_lives_and_dies(up: Up) -> None:
    up.run("topic", "create", "mayfly", "--partitions", "2", "--set", "retention_ms=7d", "--set", "flush=always")
    up.run("topic", "create", "mayfly", code=1)
    again = up.run("topic", "create", "mayfly", "--if-missing")
    assert b"exists already" in again.stderr and b"created" not in again.stdout
    up.run("topic", "alter", "mayfly", "--set", "retention_bytes=1GiB", "--partitions", "3")
    described = up.json("topic", "describe", "mayfly")
    assert isinstance(described, dict)
    assert described["config"]["retention_ms"] == "604800000" and described["config"]["flush"] == "always"
    assert described["config"]["retention_bytes"] == str(1 << 30) and len(described["partitions"]) == 3
    assert (described["sources"]["retention_bytes"], described["sources"]["segment_ms"]) == ("topic", "built-in")
    assert described["defaults"]["retention_bytes"] == "-1"
    assert re.search(r"retention_bytes +1GiB +topic +none", up.run("topic", "describe", "mayfly").stdout.decode())
    done = up.run("topic", "alter", "mayfly", "--unset", "retention-bytes", "--flush", "os", "--segment-ms", "1h")
    assert done.stdout == b"mayfly: flush=os, segment_ms=1h, retention_bytes=none\n"
    assert re.search(r"retention_bytes +none +built-in +none", up.run("topic", "describe", "mayfly").stdout.decode())
    plan = ("topic", "alter", "mayfly", "--retention-ms", "1h", "--partitions", "4", "--dry-run")
    shown = up.run(*plan)
    assert shown.stdout.split() == [
        *(b"topic", b"mayfly", b"retention_ms", b"7d", b"->", b"1h", b"partitions", b"3", b"->", b"4")
    ]
    assert b"Retention deletes 0 records (0 B) at its next check" in shown.stderr
    planned: Any = up.json(*plan)
    assert (planned["dry_run"], planned["records"], planned["config"]["retention_ms"]) == (True, 0, "3600000")
    unchanged: Any = up.json("topic", "describe", "mayfly")
    assert (unchanged["config"]["retention_ms"], len(unchanged["partitions"])) == ("604800000", 3)
    up.run("topic", "alter", "mayfly", "--unset", "flush", "--flush", "os", code=2)
    up.run("topic", "alter", "mayfly", "--set", "flush=os", "--flush", "os", code=2)
    up.run("topic", "alter", "mayfly", code=2)
    assert "mayfly" in up.run("topic", "list").stdout.decode()
    up.run("produce", "mayfly", "--partition", "1", feed=b"a\nb\nc\n")
    asked = up.run("topic", "delete-records", "mayfly", "--partition", "1", "--before", "2", feed=b"n\n", code=1)
    assert b"Delete records of mayfly? 2 records of mayfly/1, which then starts at offset 2. " in asked.stderr
    done = up.run("topic", "delete-records", "mayfly", "--partition", "1", "--before", "2", "--yes")
    assert done.stdout == b"deleted 2 records: mayfly/1 starts at offset 2\n"
    assert up.run("consume", "mayfly", "--no-follow").stdout == b"c\n"
    done = up.run("topic", "delete", "mayfly", feed=b"n\n", code=1)
    assert b"Delete mayfly? 1 record (304 B) in 3 partitions. This cannot be undone. " in done.stderr
    effect: Any = up.json("topic", "delete", "mayfly", "--dry-run")
    assert (effect["dry_run"], effect["records"], effect["groups"]) == (True, "1", [])
    up.run("topic", "delete", "mayfly", "--yes")
    up.run("topic", "describe", "mayfly", code=3)
    up.run("consume", "mayfly", code=3)


def test_a_consumer_follows_until_interrupted(up: Up) -> None:
    up.run("topic", "create", "live")
    with up.start("consume", "live", "--from", "earliest") as consumer:
        try:
            assert consumer.stdout is not None and consumer.stderr is not None
            for number in range(3):
                up.run("produce", "live", feed=b"%d\n" % number)
                assert consumer.stdout.readline() == b"%d\n" % number
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(TIMEOUT_S) == 130
            assert consumer.stderr.read() == b""
        finally:
            consumer.kill()  # one that does not end must not be waited for


def test_a_line_typed_goes_out_before_the_next(up: Up) -> None:
    up.run("topic", "create", "typed")
    with up.start("produce", "typed", "--quiet") as producer:
        assert producer.stdin is not None
        for number in range(2):
            producer.stdin.write(b"%d\n" % number)
            producer.stdin.flush()
            seen = up.run("consume", "typed", "--from", str(number), "--count", "1").stdout
            assert seen == b"%d\n" % number
        producer.stdin.close()
        assert producer.wait(TIMEOUT_S) == 0


def test_until_a_time_that_is_still_to_come(up: Up) -> None:
    up.run("topic", "create", "timed")
    up.run("produce", "timed", feed=b"in time\n")
    soon = time.time() + 3
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(soon)) + f".{int(soon % 1 * 1e6):06}Z"
    with up.start("consume", "timed", "--from", "earliest", "--until", when) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.read() == b"in time\n"
        assert time.time() >= soon
        assert consumer.wait(TIMEOUT_S) == 0


def test_a_reader_that_has_had_enough_is_no_error(up: Up) -> None:
    up.run("topic", "create", "long")
    up.run("produce", "long", feed=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000)
    with up.start("consume", "long", "--no-follow") as consumer:
        assert consumer.stdout is not None and consumer.stderr is not None
        assert consumer.stdout.readline() == b"x" * 99 + b"\n"
        consumer.stdout.close()
        assert consumer.wait(TIMEOUT_S) == 0
        assert consumer.stderr.read() == b""


def test_an_endless_producer_stays_small(up: Up) -> None:
    """What waits for its acknowledgement is bounded, not what was read."""
    up.run("topic", "create", "endless", "--set", "retention_bytes=64MiB", "--set", "segment_bytes=16MiB")
    chunk = (b"z" * 999 + b"\n") * 1000
    with up.start("produce", "endless", "--json") as producer:
        assert producer.stdin is not None and producer.stdout is not None
        for _ in range(300):
            producer.stdin.write(chunk)
        peak = next(
            int(line.split()[1])
            for line in Path(f"/proc/{producer.pid}/status").read_text().splitlines()
            if "VmHWM" in line
        )
        producer.stdin.close()
        assert json.loads(producer.stdout.read())["records"] == 300_000
        assert producer.wait(TIMEOUT_S) == 0
    assert peak < 250_000, f"{peak} kB for 300 MB of input"


def write_for_ever(descriptor: int) -> None:
    """Until nobody reads any more; the test's own time limit is the end of for ever."""
    while True:
        os.write(descriptor, b"more\n")


def test_a_producer_does_not_wait_for_the_end_of_input_to_fail(up: Up) -> None:
    up.run("topic", "create", "doomed")
    with up.start("produce", "doomed") as producer:
        assert producer.stdin is not None and producer.stderr is not None
        os.write(producer.stdin.fileno(), b"first\n")
        assert up.run("consume", "doomed", "--from", "earliest", "--count", "1").stdout == b"first\n"
        up.run("topic", "delete", "doomed", "--yes")
        with pytest.raises(BrokenPipeError):
            write_for_ever(producer.stdin.fileno())
        assert producer.wait(TIMEOUT_S) == 3
        assert b"TOPIC_NOT_FOUND" in producer.stderr.read()


def test_a_file_is_sent_whole(up: Up, tmp_path: Path) -> None:
    up.run("topic", "create", "file")
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    up.run("produce", "file", "--file", str(path), "--compression", "zstd")
    assert up.run("consume", "file", "--no-follow").stdout == path.read_bytes()
    # Both ends lie within batches, as does the count.
    part = b"".join(b"%d\n" % number for number in range(100, 120))
    assert up.run("consume", "file", "--from", "100", "--until", "120").stdout == part
    assert up.run("consume", "file", "--from", "100", "--count", "20").stdout == part


def test_a_keyring_encrypts_and_decrypts(up: Up, tmp_path: Path) -> None:
    a, b = (str(tmp_path / name) for name in ("a.keys", "b.keys"))
    up.run("security", "key", a, "--id", "a")
    up.run("security", "key", b, "--id", "b")
    up.run("topic", "create", "sealed")
    up.run("produce", "sealed", "--keyring", a, feed=b"one\ntwo\n")
    up.run("produce", "sealed", "--keyring", b, "--key-separator", ":", "--header", "h=1", feed=b"k:three\n")
    up.run("produce", "sealed", feed=b"four\n")
    whole = ("consume", "sealed", "--no-follow")
    done = up.run(*whole, "--keyring", a, code=1)
    assert done.stdout == b"one\ntwo\n"
    assert b"record 2 of sealed/0: value cannot be decrypted: the keyring does not have the key 'b'" in done.stderr
    assert b"give a file that has its key" in done.stderr
    assert up.run(*whole, "--keyring", b, "--from", "2", "--until", "3").stdout == b"three\n"
    done = up.run(*whole, "--keyring", b, "--from", "3", code=1)
    assert done.stdout == b"" and b"read it without --keyring" in done.stderr
    for form in ("value", "raw", "key-value"):
        done = up.run(*whole, "--format", form, code=1)
        assert done.stdout == b"", "ciphertext must not be printed"
        assert b"record 0 of sealed/0: its value is encrypted with key 'a'" in done.stderr
    shown = [json.loads(line) for line in up.run(*whole, "--json").stdout.splitlines()]
    assert [(one.get("encrypted"), one.get("text"), one["key"]) for one in shown] == [
        ("a", None, None), ("a", None, None), ("b", None, "k"), (None, "four", None),
    ]  # fmt: skip
    assert not any("base64" in one for one in shown)


def test_an_undecrypted_record_is_not_committed(up: Up, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    up.run("security", "key", keys, "--id", "a")
    up.run("topic", "create", "member")
    up.run("produce", "member", "--keyring", keys, feed=b"one\ntwo\n")
    member = ("consume", "member", "--group", "g", "--from", "earliest")
    assert up.run(*member, code=1).stdout == b""
    assert up.run(*member, "--count", "1", "--keyring", keys).stdout == b"one\n"
    assert up.run(*member, code=1).stdout == b""
    assert up.run(*member, "--count", "1", "--keyring", keys).stdout == b"two\n"


def test_a_keyring_that_others_may_read_is_refused(up: Up, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    up.run("security", "key", str(keys), "--id", "a")
    keys.chmod(0o644)
    up.run("topic", "create", "open")
    for words in (("consume", "open", "--no-follow"), ("produce", "open")):
        assert b"open to others: run chmod 600" in up.run(*words, "--keyring", str(keys), feed=b"x\n", code=2).stderr
        assert b"cannot read" in up.run(*words, "--keyring", "none", feed=b"x\n", code=2).stderr
    assert up.run("consume", "open", "--no-follow").stdout == b""


def test_the_cluster_describes_itself(up: Up) -> None:
    found = up.json("cluster")
    assert isinstance(found, dict)
    (broker,) = found["brokers"]
    assert f"{broker['host']}:{broker['port']}" == up.address and found["controller"] == broker["id"]
    assert up.address in up.run("cluster").stdout.decode()
    assert isinstance(json.loads(up.run("cluster", "--statistics").stdout), dict)


def test_a_second_broker_on_the_folder_or_port_is_told_so(up: Up, tmp_path: Path) -> None:
    done = up.run("up", "--data", str(up.data), "--port", "0", "--no-gateway", code=1)
    assert b"DATA_FOLDER_TAKEN" in done.stderr and b"hint: " in done.stderr
    port = up.address.rpartition(":")[2]
    done = up.run("up", "--data", str(tmp_path), "--port", port, "--no-gateway", code=4)
    assert b"cannot listen" in done.stderr


def test_data_survives_a_restart_and_an_ephemeral_broker_leaves_nothing(tmp_path: Path) -> None:
    for feed, expected in ((b"first\n", b"first\n"), (b"second\n", b"first\nsecond\n")):
        with serving("--data", str(tmp_path / "data")) as (broker, told):
            up = Up(told["address"], tmp_path)
            up.run("topic", "create", "kept", "--if-missing")
            up.run("produce", "kept", feed=feed)
            assert up.run("consume", "kept", "--no-follow").stdout == expected
            broker.signal(signal.SIGTERM)
            assert broker.wait(TIMEOUT_S) == 0
    with serving("--ephemeral") as (broker, told):
        folder = Path(told["data"])
        assert folder.is_dir()
        broker.signal(signal.SIGTERM)
        assert broker.wait(TIMEOUT_S) == 0
    assert not folder.exists()
