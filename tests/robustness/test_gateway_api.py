"""Whatever fits the OpenAPI of a live gateway, and much that does not, is answered as the OpenAPI says: nothing
undocumented, and no bug behind a 500."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

import comet
from comet_gateway import create_app
from tests.robustness import api_hooks
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.process import broker

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    allow_header_conformance,
    negative_data_rejection,
    unsupported_method,
]
CHAIN_CHECKS: Final = [check for check in CHECKS if check is not negative_data_rejection]
ROOT: Final = Path(__file__).parents[2]
WAIT_MS_MAX: Final = 50  # of this gateway: a case that asks for more is refused, and none waits
ENDLESS: Final = "/v1/topics/{topic}/stream"  # has tests of its own: its answer does not end


REFUSALS: Final = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429]
DOCUMENT: Final = create_app().openapi()
schema = schemathesis.openapi.from_dict(
    DOCUMENT,
    config=schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}),
)
SETTINGS: Final = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("api")
    with broker(folder / "data") as running:
        one = GatewayProcess(folder / "gateway", [running.address], "--wait-ms-max", f"{WAIT_MS_MAX}ms")
        one.launch()
        try:
            asyncio.run(_prepare(one))
            yield one
            assert not one.complaints(), one.said()
        finally:
            one.kill()


async def _prepare(one: GatewayProcess) -> None:
    await one.ready()
    async with comet.Admin(one.broker) as admin, comet.Producer(one.broker) as producer:
        await admin.create_topic("quotes", partitions=2, flush="os")
        for number in range(20):
            await producer.publish("quotes", {"symbol": "EURUSD", "bid": number}, key=f"k{number % 3}")
        await admin.reset_group("engine", "earliest", topics=["quotes"])


# Refusals of requests that the document allows, as OpenAPI cannot say why. It says so in text where it can.
BY_STATE: Final = (  # of the cluster
    r"KEY_REUSED .*",
    r".* has the keys .*: revoke the one that is not used any more",
    r".* replicas need as many brokers, and .* are alive",
    r".* can never be met with .* replicas",
    r".* partitions; their number can only grow",
    r".* group '.*' is a consumer group; use another name",
    r".* or an offset up to .*, not .*",
    r".* schedule '.*' is paused: resume it first",
    r".* topic '.*' has .* partitions, and no .*",
    r".* the schedule has no (next time: .*|time before its end)",
)
OPAQUE: Final = (
    r"MALFORMED_CURSOR .*",
    r"MALFORMED_TOKEN .*",
    r"MALFORMED_FILTER .*",
    r".* invalid schedule at .*",
)  # texts with a grammar
OF_SEVERAL: Final = (  # members or parameters that do not go together
    r".* offset and .* of partition .*: give only one",
    r".* start and cursor.*: give only one",
    r".* an offset is valid in one partition only: .*",
    r".* kind .* has no operation .*",
    r".* the name in a rule of kind cluster is '\*', not .*",
    r".* is both set and unset; choose one",
    r".* name each partition once",
    r".* is named twice",
    r".* the calendar is called .*, not .*: use one name",
    r".* session .* (closes before it opens|follows .*|opens before session .*|is from .* to .*)",
    r".* the breaks of session .* are not one after another within it",
    r".* known_until .* is before the last session, .*",
    r".* If-Match and If-None-Match exclude each other: .*",
    r".* a quota limits something: .*",
    r".* an idempotency key needs acks=1 or .*",
    r".* a prefix of ids needs a topic",
    r".* late=skip needs late_max_ms, .*",
    r".* late_max_ms goes with late=skip",
    r".* a delayed record has either delay or due",
    r".* `timestamp_us` of a delayed record is the time when it is due: .*",
    r".* an idempotency key is for records without a delay: .*",
    r".* a schedule that is due once has neither end nor fires_max",
    r".* a rule of the kind .* (needs it|has none; leave it out|has only above)",
    r".* threshold: give 0 or more for a rule of the kind .*",
    r".* channels: an e-mail needs a recipient in `to`",
    r".* NDJSON is written as it arrives, so it cannot have an idempotency key",
    r".* If-None-Match takes only \*, and does not go with If-Match",
)
OF_TEXT: Final = (  # that no regular expression of JSON Schema can say, or of this gateway's settings
    r".* is not a (principal|role): .*",
    r".* is a role: name a principal .*",
    r".* a role has no roles: .*",
    r".* bytes_(in|out) is 0 \(no limit\), or at least 1024, .*",
    r".* rate must be at most .* at this gateway, .*",
    r".* name: use printable characters",
    r".* calendar zone: no time zone .*",
    r".* (a session|known_until) takes a date such as .*",
    r".* (open|close|break) of session .* takes a time such as .*",
    r".* topic: .* is internal; name a topic of your own",
    r".* no schedule writes to .*: Comet alone writes it",
    r".* channels: .* is not an e-mail address .*",
    r".* channels: the webhook's url .*",
    r".* greater than or equal to -9223372036854775808",  # which FastAPI writes as a float
    rf".* wait_ms must be .* {WAIT_MS_MAX}.*",
)
UNSAID: Final = re.compile("|".join((*BY_STATE, *OPAQUE, *OF_SEVERAL, *OF_TEXT)), re.DOTALL)
allowed = schemathesis.openapi.from_dict(
    DOCUMENT,
    config=schemathesis.Config.from_dict(
        {"generation": {"mode": "positive"}, "phases": {"coverage": {"enabled": False}}}
    ),
)


def _allowed_test_of(path: str, method: str) -> Any:
    @allowed.include(path=path, method=method).parametrize()
    @settings(SETTINGS, max_examples=40)
    def test(gateway: GatewayProcess, case: schemathesis.Case[Any]) -> None:
        """A request that the document allows is refused for a reason of the list alone."""
        answer = case.call(base_url=gateway.url, timeout=30)
        if answer.status_code in (400, 422):
            problem = answer.json()
            assert UNSAID.fullmatch(f"{problem['code']} {problem['detail']}"), (problem, case.as_curl_command())

    return test


def _test_of(path: str, method: str) -> Any:
    @schema.include(path=path, method=method).parametrize()
    @SETTINGS
    def test(gateway: GatewayProcess, case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=gateway.url, checks=CHECKS, timeout=30)

    return test


# A function for each operation: all tests that schemathesis makes of one function have the same id, and xdist runs only
# one test of each id.
for path, methods in DOCUMENT["paths"].items():
    for method in methods:
        if path != ENDLESS:
            words = re.sub(r"\W+", "_", f"{method} {path}").strip("_")
            globals()[f"test_answers_are_documented_{words}"] = _test_of(path, method.upper())
            globals()[f"test_allowed_requests_are_taken_{words}"] = _allowed_test_of(path, method.upper())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chains_of_calls_along_the_links_are_answered_as_documented(gateway: GatewayProcess, tmp_path: Path) -> None:
    # What a chain can do next depends on what is there by then, which only schemathesis' own runner puts up with.
    command = [
        sys.executable, "-m", "schemathesis.cli", "--no-color", "run", f"{gateway.url}/openapi.json",
        "--phases", "stateful", "--checks", ",".join(check.__name__ for check in CHAIN_CHECKS),
        "--max-examples", "40", "--seed", "1", "--exclude-path", ENDLESS, "--request-timeout", "30",
    ]  # fmt: skip
    surroundings = os.environ | {
        "SCHEMATHESIS_HOOKS": api_hooks.__name__,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    ended = subprocess.run(command, check=False, cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2_000:]
    assert re.search(r"[1-9]\d+ generated", ended.stdout) and "API Links" in ended.stdout, ended.stdout
