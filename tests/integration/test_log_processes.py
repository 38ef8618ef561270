"""Real processes with `log_format = json`: every line on stderr is one JSON object, also of hostile names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import websockets.exceptions
import websockets.sync.client

from comet_gateway.http.auth import new_token

TIMEOUT_S: Final = 30
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"
FORGED: Final = '%0A{"ts":"forged"}%0D%1B[2J%C2%9B%E2%80%A8'
COMET: Final = (sys.executable, "-m", "comet.cli")

pytestmark = [pytest.mark.timeout(120)]


class Process:
    """A command of Comet, and its lines on stderr once it has ended."""

    def __init__(self, started: subprocess.Popen[str], stderr: Path) -> None:
        self._started = started
        self._stderr = stderr
        assert started.stdout is not None
        self.first = started.stdout.readline()
        assert self.first, stderr.read_text()

    def end(self) -> list[str]:
        self._started.send_signal(signal.SIGTERM)
        assert self._started.wait(TIMEOUT_S) == 0, self._stderr.read_text()
        return self._stderr.read_text().splitlines()


@contextmanager
def process(stderr: Path, *words: str, **environ: str) -> Iterator[Process]:
    with (
        stderr.open("w") as file,
        subprocess.Popen(
            [*COMET, *words], stdout=subprocess.PIPE, stderr=file, text=True, env=os.environ | environ
        ) as started,
    ):
        try:
            yield Process(started, stderr)
        finally:
            if started.poll() is None:
                started.kill()


def failed(*words: str, **environ: str) -> list[str]:
    done = subprocess.run(
        [*COMET, *words], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | environ, check=False
    )
    assert done.returncode != 0
    return done.stderr.splitlines()


def events(lines: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines]
    for event in found:
        assert isinstance(event["msg"], str) and event["ts"].endswith("Z") and event["logger"], event
        assert event["level"] in {"debug", "info", "warning", "error", "critical"}
    return found


def ask(url: str, token: str) -> None:
    """Requests that succeed and that fail, and hostile ones."""
    ours = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        assert http.post("/v1/topics", headers=ours, json={"name": "quotes"}).status_code == httpx.codes.CREATED
        assert http.get(f"/v1/topics/{FORGED}", headers=ours).status_code >= httpx.codes.BAD_REQUEST
        traced = {**ours, "x-request-id": "r-17", "traceparent": TRACEPARENT}
        assert http.delete("/v1/topics/none", headers=traced).status_code == httpx.codes.NOT_FOUND
        for number in range(11):
            wrong = {"authorization": "Bearer wrong", "x-request-id": f"w-{number}", "traceparent": TRACEPARENT}
            answer = http.get("/v1/topics", headers=wrong)
        assert answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    with pytest.raises(websockets.exceptions.InvalidStatus):
        websockets.sync.client.connect(url.replace("http", "ws", 1) + "/v1/ws" + FORGED)


def test_every_line_of_a_broker_and_a_gateway_is_json(tmp_path: Path) -> None:
    token, row = new_token("ann", "admin")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(row)
    tokens.chmod(0o600)
    level = ("--log-level", "debug")
    with process(
        tmp_path / "broker.err", "broker", "--id", "7", "--data", str(tmp_path / "data"), "--port", "0",
        "--log-format", "json", *level,
    ) as broker:  # fmt: skip
        address = broker.first.split(" is up at ")[1].split(",")[0]
        words = ("gateway", "--bootstrap", address, "--port", "0", "--tokens-file", str(tokens), *level)
        with process(tmp_path / "gateway.err", *words, COMET_LOG_FORMAT="json") as gateway:
            url = gateway.first.split()[4]
            ask(url, token)
            (busy,) = events(failed("gateway", "--port", url.rpartition(":")[2], COMET_LOG_FORMAT="json"))
            of_gateway = events(gateway.end())
        of_broker = events(broker.end())
    assert busy["code"] == "UNAVAILABLE" and "cannot listen" in busy["msg"] and "--port" in busy["hint"]

    assert {event["broker"] for event in of_broker} == {7}
    leads = next(event for event in of_broker if event["msg"].startswith("leads quotes/0"))
    assert (leads["topic"], leads["partition"], leads["level"]) == ("quotes", 0, "info")
    assert of_broker[-1]["msg"] == of_gateway[-1]["msg"] == "stopped"

    audit = "comet_gateway.audit"
    (denied,) = (event for event in of_gateway if event.get("request_id") == "r-17" and event["logger"] == audit)
    assert denied["trace_id"] == TRACE and json.loads(denied["msg"])["status"] == httpx.codes.NOT_FOUND
    (throttled,) = (event for event in of_gateway if event["msg"].startswith("address throttled"))
    assert throttled["request_id"].startswith("w-") and throttled["trace_id"] == TRACE
    assert throttled["address"] == "127.0.0.1"
    assert token not in (tmp_path / "gateway.err").read_text()


def test_comet_up_passes_the_format_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ("up", "--data", str(data), "--port", "0", "--metrics-port", "0", "--log-format", "json")
    with process(tmp_path / "up.err", *words, "--log-level", "info", "--json") as up:
        assert httpx.get(json.loads(up.first)["gateway"] + "/livez", timeout=TIMEOUT_S).status_code == httpx.codes.OK
        of_broker = events(up.end())
    assert {event["broker"] for event in of_broker} == {1}
    lines = (data / "gateway.log").read_text().splitlines()
    assert events([line for line in lines if not line.startswith("gateway is up")])[-1]["msg"] == "stopped"


def test_comet_up_shows_the_message_of_a_gateway_that_does_not_start(tmp_path: Path) -> None:
    data, missing = tmp_path / "data", str(tmp_path / "none.toml")
    words = ("up", "--data", str(data), "--port", "0", "--metrics-port", "0", "--log-format", "json", "--json")
    with process(tmp_path / "up.err", *words, COMET_GATEWAY_TOKENS_FILE=missing) as up:
        assert json.loads(up.first)["gateway"] is None
        said = [event["msg"] for event in events(up.end())]
    (line,) = (message for message in said if message.startswith("no gateway: "))
    assert line.startswith("no gateway: cannot read the tokens file") and line.endswith(
        f"see its log: {data}/gateway.log"
    )


def test_a_text_log_has_an_event_a_line(tmp_path: Path) -> None:
    with process(tmp_path / "gateway.err", "gateway", "--bootstrap", "127.0.0.1:1", "--port", "0") as gateway:
        httpx.delete(f"{gateway.first.split()[4]}/v1/topics/x{FORGED}", timeout=TIMEOUT_S)
        lines = gateway.end()
    assert lines[-1] == "stopped" and len(lines) > 1
    assert all(line[:4].isdigit() and line.isprintable() for line in lines[:-1])


def test_a_command_and_a_program_fail_with_a_line_of_json(tmp_path: Path) -> None:
    (event,) = events(failed("topic", "list", "-b", "127.0.0.1:1", COMET_LOG_FORMAT="json"))
    assert event["code"] == "UNAVAILABLE" and event["hint"]
    (line,) = failed("topic", "list", "-b", "127.0.0.1:1", "--json", COMET_LOG_FORMAT="json")
    assert json.loads(line)["error"]["code"] == "UNAVAILABLE"
    assert failed("topic", "list", COMET_LOG_FORMAT="xml")[0].startswith("error: COMET_LOG_FORMAT must be one of")
    done = subprocess.run(
        [sys.executable, "-m", "comet_demo.feed", "--provider", "replay", "--file", str(tmp_path / "none.csv")],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | {"COMET_LOG_FORMAT": "json"}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert events(done.stderr.splitlines())[-1]["code"] == "INVALID_ARGUMENT"
