"""`comet acl import`, `export` and `test` with a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import comet
from comet.cli._commands import app

pytestmark = pytest.mark.slow

POLICY = """p, role:finance, topic/invoices-*, read
p, *, topic/invoices-*, delete, deny
g, client:billing, role:finance
"""
FILE = """role role:finance client:billing
allow role:finance read topic invoices-*
deny * delete topic invoices-*
"""


def test_rules_go_in_and_come_out_as_files(tmp_path: Path) -> None:
    policy, expectations = tmp_path / "policy.csv", tmp_path / "expectations.txt"
    policy.write_text(POLICY)
    expectations.write_text("client:billing may read topic invoices-1\nclient:other may not read topic invoices-1\n")
    with comet.testing.broker() as broker:

        def run(*words: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, ["acl", *words, "--bootstrap", broker.address])
            return done.exit_code, done.stdout

        assert json.loads(run("import", str(policy), "--casbin", "--json")[1]) == {
            "rules": 2,
            "added": 2,
            "members": 1,
            "granted": 1,
        }
        assert run("export") == (0, FILE)
        (tmp_path / "rules.txt").write_text(FILE)
        assert json.loads(run("import", str(tmp_path / "rules.txt"), "--json")[1]) == {
            "rules": 2,
            "added": 0,
            "members": 1,
            "granted": 0,
        }
        casbin = run("export", "--casbin")[1]
        assert "p, role:finance, topic/invoices-*, read, allow\n" in casbin
        assert "g, client:billing, role:finance\n" in casbin
        code, said = run("test", str(expectations))
        assert code == 1 and "client:other may not read topic invoices-1: yes: " in said, "it enforces no rules"
