"""Access rules: their checks and canonical form, the table and its limits, decisions and their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from comet.errors import InvalidArgument, LimitExceeded
from comet.security.principals import ROLES_MAX
from comet_broker.core import rules
from comet_broker.core.rules import CompiledRules, RoleMember, Rule, RuleTable, check_rule

BILLING = "client:billing"


def rule(name: str = "orders", **fields: Any) -> Rule:
    values: dict[str, Any] = {"principal": BILLING, "effect": "allow", "operations": ("read",), "kind": "topic"}
    return Rule(**{**values, "name": name, **fields})


def allow(*operations: Any, name: str = "orders", **fields: Any) -> Rule:
    return rule(name, operations=operations, **fields)


def deny(*operations: Any, name: str = "orders", **fields: Any) -> Rule:
    return rule(name, effect="deny", operations=operations, **fields)


def test_operations_are_kept_sorted_and_once() -> None:
    assert rule(operations=["write", "read", "write"]).operations == ("read", "write")
    assert rule(operations=("read", "write")) == rule(operations=("write", "read"))


def test_a_stored_rule_is_canonical_too() -> None:
    stored = b'{"rules":[["client:billing","allow",["write","read","write"],"topic","orders"]]}'
    assert RuleTable.decode(stored).rules == (rule(operations=("read", "write")),)


def test_a_table_is_the_same_after_it_was_stored() -> None:
    table = RuleTable().with_rule(rule(author="client:ann", added_us=7)).with_rule(deny("write", name="a*"))
    assert RuleTable.decode(table.encode()) == table


@pytest.mark.parametrize(
    "stored",
    [
        b'["client:billing","deny",["publish"],"topic","orders"]',
        b'["client:billing","deny",["read"],"schema","orders"]',
        b'["client:billing","forbid",["read"],"topic","orders"]',
    ],
)
def test_a_table_with_words_of_a_later_version_is_refused_as_a_whole(stored: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        RuleTable.decode(b'{"rules":[' + stored + b"]}")


def test_fields_of_a_later_version_are_ignored() -> None:
    stored = b'{"rules":[["client:billing","allow",["read"],"topic","orders","client:ann",7,"later"]],"later":1}'
    assert RuleTable.decode(stored).rules == (rule(author="client:ann", added_us=7),)


@dataclass(frozen=True)
class Refused:
    rule: Rule
    text: str


@pytest.mark.parametrize(
    "refused",
    [
        Refused(rule(effect="forbid"), "'forbid' is not an effect: use allow or deny"),
        Refused(rule(kind="schema"), "'schema' is not a kind: use topic, group, transaction or cluster"),
        Refused(
            rule(operations=()),
            "a rule needs operations: use any of read, write, create, delete, alter, describe for kind topic",
        ),
        Refused(
            rule(operations=("read", "admin")),
            "kind topic has no operation 'admin': use read, write, create, delete, alter or describe",
        ),
        Refused(
            rule(kind="group", operations=("write",)),
            "kind group has no operation 'write': use read, delete, alter or describe",
        ),
        Refused(
            rule(kind="transaction"),
            "kind transaction has no operation 'read': use write or describe",
        ),
        Refused(
            rule("*", kind="cluster", operations=("create",)),
            "kind cluster has no operation 'create': use alter or describe",
        ),
        Refused(
            rule("c1", kind="cluster", operations=("alter",)),
            "the name in a rule of kind cluster is '*', not 'c1'",
        ),
        Refused(
            rule("or*ers"),
            "'or*ers' has a '*' before its end: use an exact name, or a prefix such as 'orders*'",
        ),
        Refused(
            rule("orders**"),
            "'orders**' has a '*' before its end: use an exact name, or a prefix such as 'orders*'",
        ),
        Refused(
            rule("order book"),
            "'order book' is not a valid topic name: use 1 to 249 letters, digits, '.', '_' and '-', beginning with "
            "a letter, digit or '_'",
        ),
        Refused(
            rule(".orders*"),
            "'.orders' is not a valid topic name: use 1 to 249 letters, digits, '.', '_' and '-', beginning with "
            "a letter, digit or '_'",
        ),
        Refused(
            rule("", kind="group"),
            "'' is not a valid group name or transactional id: use 1 to 249 letters, digits, '.', '_' and '-', "
            "beginning with a letter, digit or '_'",
        ),
        Refused(
            rule("a/b", kind="transaction", operations=("write",)),
            "'a/b' is not a valid group name or transactional id: use 1 to 249 letters, digits, '.', '_' and '-', "
            "beginning with a letter, digit or '_'",
        ),
    ],
    ids=lambda refused: refused.text.split(":")[0],
)
def test_a_rule_that_cannot_match_is_refused_with_its_remedy(refused: Refused) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_rule(refused.rule)
    assert raised.value.message == refused.text


@pytest.mark.parametrize(
    "principal", ["", "billing", "client:", ":billing", "client:bill*", "**", "client:a b", "client:a\x07", "Client:a"]
)
def test_a_principal_has_a_kind_and_a_name_without_pattern(principal: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_rule(rule(principal=principal))
    assert raised.value.message == (
        f"{principal!r} is not a principal: use its kind and name in at most 256 characters, such as 'client:billing', "
        "or '*' for every client"
    )


def test_names_and_principals_have_a_longest_length() -> None:
    check_rule(rule("x" * 249, principal="client:" + "y" * 256))
    check_rule(rule("x" * 249 + "*"))
    for too_long in (rule("x" * 250), rule("x" * 250 + "*"), rule(principal="client:" + "y" * 257)):
        with pytest.raises(InvalidArgument, match=r"249|256"):
            check_rule(too_long)


@pytest.mark.parametrize("kind", rules.KINDS)
def test_every_kind_takes_all_of_its_operations_for_all_names(kind: rules.Kind) -> None:
    possible = rule("*", kind=kind, operations=rules.OPERATIONS[kind], principal="*")
    assert check_rule(possible) is possible


def test_a_rule_that_is_added_twice_is_kept_once_with_its_first_author() -> None:
    table = RuleTable().with_rule(rule(author="client:ann", added_us=1))
    assert table.with_rule(rule(author="client:bob", added_us=2)) is table
    assert table.rules[0].author == "client:ann"


def test_a_rule_is_removed_whatever_its_author() -> None:
    other = deny("write")
    table = RuleTable().with_rule(rule(author="client:ann", added_us=1)).with_rule(other)
    assert table.without_rule(rule()).rules == (other,)
    assert table.without_rule(rule("others")) is table


def test_a_table_takes_valid_rules_only() -> None:
    with pytest.raises(InvalidArgument):
        RuleTable().with_rule(rule("or*ers"))


def numbered(number: int) -> Rule:
    return rule(f"team-{number}.orders*", principal=f"client:app-{number}", author="client:ann", added_us=1 << 50)


def test_a_table_holds_ten_thousand_rules_and_at_most_a_mebibyte() -> None:
    table = RuleTable(tuple(numbered(number) for number in range(10_000)))
    assert len(table.encode()) < rules.RULES_BYTES_MAX
    bytes_each = len(numbered(99_999).encode()) + 1
    fitting = (rules.RULES_BYTES_MAX - len(table.encode())) // bytes_each
    table = RuleTable(table.rules + tuple(numbered(90_000 + number) for number in range(fitting)))
    assert rules.RULES_BYTES_MAX - bytes_each < len(table.encode()) <= rules.RULES_BYTES_MAX
    with pytest.raises(LimitExceeded) as raised:
        table.with_rule(numbered(99_999))
    size = len(table.encode()) + bytes_each
    assert raised.value.message == (
        f"{len(table.rules) + 1} rules and 0 members of roles take {size} bytes, and at most 1048576 are stored; "
        "remove some, or replace several rules by one with a prefix"
    )
    table.without_rule(table.rules[-1]).with_rule(numbered(99_999))


def test_a_role_that_is_granted_twice_is_kept_once_with_its_first_author() -> None:
    table = RuleTable().with_member(RoleMember("role:finance", BILLING, "client:ann", 1))
    assert table.with_member(RoleMember("role:finance", BILLING, "client:bob", 2)) is table
    assert RuleTable.decode(table.encode()) == table
    assert table.without_member(RoleMember("role:finance", "client:bob")) is table
    assert not table.without_member(RoleMember("role:finance", BILLING)).members


def test_a_change_of_rules_leaves_members_and_the_other_way_round() -> None:
    member = RoleMember("role:finance", BILLING)
    table = RuleTable().with_member(member).with_rule(rule()).with_rule(deny("write")).without_rule(deny("write"))
    assert (table.rules, table.members) == ((rule(),), (member,))
    assert table.without_member(member).rules == (rule(),)


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (RoleMember("finance", BILLING), "is not a role"),
        (RoleMember("role:", BILLING), "is not a role"),
        (RoleMember("role:a b", BILLING), "is not a role"),
        (RoleMember("role:fin*", BILLING), "is not a role"),
        (RoleMember("client:finance", BILLING), "is not a role"),
        (RoleMember("role:finance", "role:staff"), "a role has no roles"),
        (RoleMember("role:finance", "*"), "is not a principal"),
        (RoleMember("role:finance", "ann"), "is not a principal"),
    ],
)
def test_a_role_is_granted_to_a_principal_only(member: RoleMember, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        RuleTable().with_member(member)


def test_a_principal_has_a_bounded_number_of_roles() -> None:
    table = RuleTable(members=tuple(RoleMember(f"role:{number}", BILLING) for number in range(ROLES_MAX)))
    with pytest.raises(LimitExceeded, match="client:billing has 256 roles"):
        table.with_member(RoleMember("role:more", BILLING))
    table.with_member(RoleMember("role:more", "client:ann"))


def test_members_count_in_the_size_of_a_table() -> None:
    table = RuleTable(members=tuple(RoleMember("role:" + "r" * 250, f"client:{number}") for number in range(4_000)))
    with pytest.raises(LimitExceeded, match="0 rules and 4001 members of roles take"):
        table.with_member(RoleMember("role:more", BILLING))


@pytest.mark.parametrize("principal", ["role:", "role:a b", "role:a*", "role:a\x07"])
def test_a_rule_for_a_role_names_it(principal: str) -> None:
    check_rule(rule(principal="role:finance"))
    with pytest.raises(InvalidArgument, match="is not a role"):
        check_rule(rule(principal=principal))


def test_a_role_is_no_principal() -> None:
    with pytest.raises(InvalidArgument, match="'role:finance' is a role: name a principal that has it"):
        rules.check_principal("role:finance")


def test_an_explanation_names_the_roles_that_do_not_help() -> None:
    compiled = CompiledRules([], [RoleMember("role:b", BILLING)])
    assert compiled.explain(BILLING, "read", "topic", "orders", ("role:a",)).why == (
        "no rule allows client:billing, which has role:a, role:b, to read topic orders"
    )
    many = tuple(f"role:{number}" for number in range(20))
    assert "which has 21 roles," in compiled.explain(BILLING, "read", "topic", "orders", many).why


def test_without_a_rule_nothing_is_allowed() -> None:
    compiled = CompiledRules(())
    assert not compiled.allows(BILLING, "read", "topic", "orders")
    assert compiled.explain(BILLING, "read", "topic", "orders") == (
        False,
        None,
        "no rule allows client:billing to read topic orders",
    )


def test_a_client_without_a_certificate_is_allowed_nothing() -> None:
    compiled = CompiledRules([allow("read", name="*", principal="*")])
    assert compiled.allows(BILLING, "read", "topic", "orders")
    assert not compiled.allows("", "read", "topic", "orders")
    assert compiled.explain("", "read", "topic", "orders") == (
        False,
        None,
        "a client without a certificate has no rules",
    )


@pytest.mark.parametrize("operation", rules.OPERATIONS["topic"])
def test_read_write_delete_and_alter_imply_describe(operation: rules.Operation) -> None:
    compiled = CompiledRules([allow(operation)])
    allowed = {other for other in rules.OPERATIONS["topic"] if compiled.allows(BILLING, other, "topic", "orders")}
    assert allowed == ({operation} if operation == "create" else {operation, "describe"})


def test_an_implied_operation_is_explained_by_the_one_that_implies_it() -> None:
    rule = allow("create", "write")
    assert CompiledRules([rule]).explain(BILLING, "describe", "topic", "orders") == (
        True,
        rule,
        "allowed by the rule: allow client:billing to create, write topic orders; write implies describe",
    )


def test_a_deny_is_of_its_own_operations_only() -> None:
    reading = CompiledRules([allow("read"), deny("describe")])
    assert reading.allows(BILLING, "read", "topic", "orders")
    assert not reading.allows(BILLING, "describe", "topic", "orders")
    describing = CompiledRules([allow("read"), deny("read")])
    assert not describing.allows(BILLING, "read", "topic", "orders")
    assert describing.allows(BILLING, "describe", "topic", "orders")


@pytest.mark.parametrize("denied", ["orders", "orders*", "o*", "*"])
@pytest.mark.parametrize("allowed", ["orders", "orders*", "o*", "*"])
@pytest.mark.parametrize("principals", [(BILLING, "*"), ("*", BILLING), (BILLING, BILLING), ("*", "*")])
def test_a_deny_wins_over_allows_of_any_principal_and_name(
    denied: str, allowed: str, principals: tuple[str, str]
) -> None:
    stop = deny("write", name=denied, principal=principals[1])
    table = [allow("write", name=allowed, principal=principals[0]), stop]
    for order in (table, table[::-1]):
        decision = CompiledRules(order).explain(BILLING, "write", "topic", "orders")
        assert decision == (
            False,
            stop,
            f"denied by the rule: deny {principals[1]} to write topic {denied}",
        )


def test_the_most_specific_allow_is_shown() -> None:
    table = [allow("read", name=name) for name in ("*", "orders", "ord*", "orders*", "o*")]
    for order in (table, table[::-1]):
        compiled = CompiledRules(order)
        shown = {
            name: compiled.explain(BILLING, "read", "topic", name).rule
            for name in ("orders", "orders1", "ordinary", "o", "x")
        }
        assert {name: rule and rule.name for name, rule in shown.items()} == {
            "orders": "orders",
            "orders1": "orders*",
            "ordinary": "ord*",
            "o": "o*",
            "x": "*",
        }


def test_the_most_specific_deny_is_shown() -> None:
    table = [deny("read", name=name) for name in ("*", "orders", "o*")]
    for order in (table, table[::-1]):
        assert CompiledRules(order).explain(BILLING, "read", "topic", "orders").rule == deny("read")


def test_among_equals_the_rule_of_the_principal_is_shown_then_the_first() -> None:
    common, first, second = allow("read", principal="*"), allow("read"), allow("read", "write")
    compiled = CompiledRules([common, first, second])
    assert compiled.explain(BILLING, "read", "topic", "orders").rule is first
    assert compiled.explain("client:ann", "read", "topic", "orders").rule is common
    assert CompiledRules([second, first]).explain(BILLING, "read", "topic", "orders").rule is second
    longer = allow("read", name="order*", principal="*")
    shorter = allow("read", name="o*")
    assert CompiledRules([shorter, longer]).explain(BILLING, "read", "topic", "orders").rule is longer


def test_a_prefix_matches_from_the_start_and_itself() -> None:
    compiled = CompiledRules([allow("read", name="team.a*")])
    names = ("team.a", "team.a1", "team.a.b", "team.", "team.b", "team-a", "xteam.a", "team.A", "")
    assert [name for name in names if compiled.allows(BILLING, "read", "topic", name)] == [
        "team.a",
        "team.a1",
        "team.a.b",
    ]


def test_an_exact_name_matches_no_longer_one() -> None:
    compiled = CompiledRules([allow("read")])
    assert [
        name for name in ("orders", "orders1", "order", "Orders") if compiled.allows(BILLING, "read", "topic", name)
    ] == ["orders"]


def test_principals_and_kinds_are_apart() -> None:
    compiled = CompiledRules([allow("read"), allow("read", kind="group", principal="client:ann")])
    assert not compiled.allows("client:ann", "read", "topic", "orders")
    assert not compiled.allows(BILLING, "read", "group", "orders")
    assert not compiled.allows("client:billing2", "read", "topic", "orders")


def test_the_cluster_has_no_names() -> None:
    compiled = CompiledRules([allow("alter", kind="cluster", name="*")])
    assert compiled.allows(BILLING, "alter", "cluster", "*")
    assert compiled.allows(BILLING, "describe", "cluster", "*")
    assert not compiled.allows("client:ann", "describe", "cluster", "*")


def test_remembered_answers_are_bounded_in_number_and_size() -> None:
    compiled = CompiledRules([allow("read", name="x*")])
    for number in range(rules.ANSWERS_MAX + 100):
        assert compiled.allows(BILLING, "read", "topic", f"x{number}")
        assert not compiled.allows(BILLING, "read", "topic", f"y{number}")
        assert 0 < compiled.remembered <= rules.ANSWERS_MAX
    fresh = CompiledRules([allow("read", name="x*")])
    assert fresh.allows(BILLING, "read", "topic", "x" * 100_000) and fresh.remembered == 0
    assert fresh.allows(BILLING, "read", "topic", "x") and fresh.allows(BILLING, "read", "topic", "x")
    assert fresh.remembered == 1
