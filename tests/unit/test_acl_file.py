"""Files of rules and expectations: what they say, and which are refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from comet.admin.rules import ResourceKind, RoleMember, Rule, RuleOperation
from comet.cli._acl_file import lines_of, read_acl_file
from comet.cli._commands import app
from comet.errors import InvalidArgument

TEXT = """
# who may read invoices
allow client:billing describe,read topic invoices-*
deny * delete topic invoices-*      # never
role role:finance client:ann

client:billing may read topic invoices-1
client:billing may not write topic invoices-1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "rules.txt").write_text(TEXT)
    return tmp_path / "rules.txt"


def test_a_file_has_rules_and_expectations(file: Path) -> None:
    found = read_acl_file(file)
    assert list(map(str, found.rules)) == [
        "allow client:billing describe,read topic invoices-*",
        "deny * delete topic invoices-*",
    ]
    assert list(map(str, found.members)) == ["role:finance of client:ann"]
    assert [(one.line, str(one)) for one in found.expectations] == [
        (7, "client:billing may read topic invoices-1"),
        (8, "client:billing may not write topic invoices-1"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("allow client:a read topic", "a rule is allow or deny"),
        ("client:a can read topic t", "neither a rule"),
        ("client:a may topic t", "neither a rule"),
        ("client:a may not read topic", "'not' is not a list of operations"),
        ("client:a may read,write topic t", "has one operation"),
        ("client:a may read topics t", "not a kind"),
        ("client:a may fly topic t", "not a list of operations"),
        ("allow client:a read,fly topic t", "not a list of operations"),
        ("role role:a", "a member of a role is"),
        ("role client:a role:a", "a member of a role is"),
        ("role role:a ann", "a member of a role is"),
        ("role role:a role:b", "roles have no roles"),
    ],
)
def test_a_line_that_says_nothing_is_named(line: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text(f"allow client:a read topic t\n{line}\n")
    with pytest.raises(InvalidArgument, match=rf"rules.txt, line 2: .*{why}"):
        read_acl_file(tmp_path / "rules.txt")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("g, client:ann, admins", "a member of a role is"),
        ("g, role:a, role:b", "roles have no roles"),
        ("g, client:ann, role:a, domain", "a policy is p"),
        ("g2, client:ann, role:a", "a policy is p"),
        ("p, client:a, topic/t", "a policy is p"),
        ("p, client:a, t, read", "the object is KIND/NAME"),
        ("p, client:a, topic/t, read, perhaps", "the effect allow or deny"),
        ("p, client:a, queue/t, read", "not a kind"),
        ("allow client:a read topic t", "a policy is p"),
    ],
)
def test_a_policy_that_no_rule_tells_is_named(line: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "policy.csv").write_text(f"p, client:a, topic/t, read\n{line}\n")
    with pytest.raises(InvalidArgument, match=rf"policy.csv, line 2: .*{why}"):
        read_acl_file(tmp_path / "policy.csv", casbin=True)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    random = Random(1)
    rules = [
        Rule(
            random.choice(("*", "client:a", "user:b@c.example", "role:a")),
            (random.choice(list(RuleOperation)),),
            random.choice(list(ResourceKind)),
            random.choice(("*", "t", "orders-*", "a.b_c-1")),
            random.random() < 0.5,
        )
        for _ in range(200)
    ]
    members = [RoleMember("role:a", "client:a"), RoleMember("role:a", "user:b@c.example")]
    for casbin in (False, True):
        path = tmp_path / str(casbin)
        path.write_text("\n".join(lines_of(rules, members, casbin=casbin)))
        found = read_acl_file(path, casbin=casbin)
        assert (list(found.rules), list(found.members)) == (rules, members)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidArgument, match="cannot read"):
            read_acl_file(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_acl_file(tmp_path / "bytes")


def test_expectations_are_checked_by_the_rules_beside_them(file: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["acl", "test", str(file)]).exit_code == 0
    file.write_text(f"{TEXT}client:other may read topic invoices-1\nclient:billing may delete topic invoices-1\n")
    failed = run(app, ["acl", "test", str(file)])
    assert failed.exit_code == 1
    assert "line 9: client:other may read topic invoices-1: no: no rule allows" in failed.stdout
    assert "line 10: client:billing may delete topic invoices-1: no: " in failed.stdout
    file.write_text("allow role:a read topic t\nrole role:a client:a\nclient:a may read topic t\n")
    assert run(app, ["acl", "test", str(file)]).exit_code == 0
    file.write_text("role role:a client:a\nclient:a may read topic t\n")
    assert "members of roles and no rule" in run(app, ["acl", "test", str(file)]).output
    file.write_text("allow client:a read topic t\n")
    assert "has no expectation" in run(app, ["acl", "test", str(file)]).output
    file.write_text("allow client:a read topic a*b\nclient:a may read topic t\n")
    assert "'*' before its end" in run(app, ["acl", "test", str(file)]).output
    file.write_text("allow client:a read topic t\nclient:a may read cluster *\n")
    assert "no operation 'read'" in run(app, ["acl", "test", str(file)]).output
