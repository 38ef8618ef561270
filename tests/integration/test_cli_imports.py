"""What commands import that ask a broker and get its answer: the time of a short command is that of its imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integration.test_cli_flows import TIMEOUT_S, Up, up

__all__ = ["up"]  # the fixture

# Of streams, records, options that most commands do not have, and a terminal.
STREAMS = ("comet.client.connection", "comet.wire.wire_stream", "comet.records", "crc32c", "importlib.metadata")
CREDENTIALS = (
    "comet.wire.bearer",
    "comet.wire.tls",
    "comet.security.token_source",
    "comet.security.client_credentials",
)
RESULTS = ("comet.admin.access", "comet.admin.history", "comet.admin.recovery", "comet.groups")
OTHERS = ("pydantic", "rich", "numpy", "pyarrow", "tomllib", "google.rpc", "comet_broker", "comet_gateway", "comet_web")
PROBE = """
import comet.cli, sys
try:
    comet.cli.main(sys.argv[1:])
except SystemExit as end:
    print(end.code or 0, *sys.modules, file=sys.stderr)
"""

APPLY = ("pydantic", "rich", "numpy", "pyarrow", "tomllib", "comet_gateway", "comet_web", "comet.producer")
UNARY = (*STREAMS, *CREDENTIALS, *RESULTS, *OTHERS, "json")


@pytest.mark.parametrize(
    ("words", "forbidden", "own_max"),
    [
        ("topic list", (*UNARY, "msgspec", "comet.admin.results", "comet.cli.cluster"), 62),
        ("topic describe quotes", (*UNARY, "msgspec", "comet.admin.results", "comet.cli.cluster"), 62),
        ("topic create quotes --partitions 1 --if-missing", ("pydantic", *STREAMS, *CREDENTIALS, *RESULTS), 62),
        ("group list", (*UNARY, "msgspec", "comet.admin.results", "comet.cli.topic"), 62),
        ("cluster", (*UNARY, "comet.cli.topic"), 62),
        ("apply --export", APPLY, 75),
        ("produce quotes --count 1 --template x", (*RESULTS, *OTHERS, "comet.consumer"), 119),
        ("consume quotes --no-follow --count 1 --from earliest", (*OTHERS, "comet.producer", "comet.groups"), 114),
    ],
)
def test_a_command_imports_the_modules_that_it_needs(
    up: Up, words: str, forbidden: tuple[str, ...], own_max: int
) -> None:
    up.run("topic", "create", "quotes", "--if-missing")
    ended = subprocess.run(
        [sys.executable, "-c", PROBE, *words.split()],
        input=b"",
        capture_output=True,
        check=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"COMET_BOOTSTRAP": up.address},
    )
    code, *modules = ended.stderr.decode().splitlines()[-1].split()
    assert code == "0", ended.stderr
    assert "grpc" in modules
    assert not set(modules) & set(forbidden)
    own = [module for module in modules if module.partition(".")[0] == "comet"]
    assert len(own) <= own_max, sorted(own)
