"""Decisions on access against a naive evaluator that walks all rules, and against pycasbin: 10^5 rules and questions.

Names are from two letters, so that exact names and prefixes overlap. Roles are granted, or come with the question, as
those of a token. pycasbin gets a rule as one row for each operation, with the implied one written out, and roles as
its own.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Final, NamedTuple

import casbin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.rules import (
    KINDS,
    OPERATIONS,
    CompiledRules,
    Kind,
    Operation,
    RoleMember,
    Rule,
    check_member,
    check_rule,
)

PRINCIPALS: Final = ("client:a", "client:b", "client:c")
ROLES: Final = ("role:x", "role:y")
SEEDS: Final = 10
TABLES: Final = 200  # of each seed
RULES: Final = 50  # of each table
QUESTIONS: Final = 50  # to each table

assert SEEDS * TABLES * RULES == SEEDS * TABLES * QUESTIONS == 100_000

CASBIN_TABLES: Final = 200  # of each seed
CASBIN_RULES: Final = 5
CASBIN_QUESTIONS: Final = 10

CASBIN_MODEL: Final = """
[request_definition]
r = principal, kind, operation, name

[policy_definition]
p = principal, kind, operation, name, eft

[role_definition]
g = _, _

[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))

[matchers]
m = r.operation == p.operation && r.kind == p.kind && (p.principal == "*" || g(r.principal, p.principal)) && \
    matches(r.name, p.name)
"""


class Question(NamedTuple):
    principal: str
    operation: Operation
    kind: Kind
    name: str
    roles: tuple[str, ...] = ()  # of its token


def naive(rules: list[Rule], members: list[RoleMember], question: Question) -> Rule | None:
    """The rule that decides: of those that match, a deny; then the most specific, the principal's own, that of its
    first role, the first."""
    roles = {one.role for one in members if one.principal == question.principal} | set(question.roles)
    rank = {"*": 0, "role:y": 1, "role:x": 2, question.principal: 3}
    found: list[tuple[bool, bool, int, int, int]] = []
    for index, rule in enumerate(rules):
        if rule.kind != question.kind or (rule.principal not in {"*", question.principal, *roles}):
            continue
        prefix = rule.name[-1] == "*"
        covers = question.name == rule.name or (prefix and question.name.startswith(rule.name[:-1]))
        if question.name[-1] == "*" and rule.effect == "deny":  # about all names that begin so
            covers |= rule.name.startswith(question.name[:-1])
        if not covers:
            continue
        wanted = {question.operation}
        if question.operation == "describe" and rule.effect == "allow":
            wanted = {"describe", "read", "write", "alter", "delete"}
        if wanted.isdisjoint(rule.operations):
            continue
        found.append((rule.effect == "deny", not prefix, len(rule.name), rank[rule.principal], -index))
    return rules[-max(found)[-1]] if found else None


def random_name(random: Random, longest: int = 4) -> str:
    return "".join(random.choices("ab", k=random.randint(1, longest)))


def random_rule(random: Random) -> Rule:
    kind = random.choices(KINDS, (12, 4, 2, 1))[0]
    operations = random.sample(OPERATIONS[kind], random.randint(1, len(OPERATIONS[kind])))
    shape = random.random()
    name = "*" if kind == "cluster" or shape < 0.1 else random_name(random) + ("*" if shape < 0.5 else "")
    return Rule(
        principal=random.choice((*PRINCIPALS, *ROLES, "*")),
        effect=random.choices(("allow", "deny"), (3, 1))[0],
        operations=tuple(operations[:2]),
        kind=kind,
        name=name,
    )


def random_members(random: Random) -> list[RoleMember]:
    return [RoleMember(random.choice(ROLES), random.choice(PRINCIPALS)) for _ in range(random.randint(0, 4))]


def random_question(random: Random) -> Question:
    kind = random.choices(KINDS, (12, 4, 2, 1))[0]
    name = "*" if kind == "cluster" else random_name(random, 5)
    roles = tuple(role for role in ROLES if random.random() < 0.2)
    return Question(random.choice(PRINCIPALS), random.choice(OPERATIONS[kind]), kind, name, roles)


def about_all(question: Question) -> Question:
    """The question about all names that begin as its name does."""
    return question._replace(name=question.name.removesuffix("*")[:2] + "*")


def outcome(rule: Rule | None) -> str:
    return rule.effect if rule is not None else "none"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_decisions_equal_those_of_a_naive_evaluator(seed: int) -> None:
    random = Random(seed)
    outcomes = Counter[str]()
    for _ in range(TABLES):
        rules = [random_rule(random) for _ in range(RULES)]
        members = random_members(random)
        compiled = CompiledRules(map(check_rule, rules), map(check_member, members))
        questions = [random_question(random) for _ in range(QUESTIONS)]
        expected = [naive(rules, members, question) for question in questions]
        for question, rule in zip(questions, expected, strict=True):
            allowed = outcome(rule) == "allow"
            decision = compiled.explain(*question)
            assert (decision.allowed, decision.rule) == (allowed, rule), (seed, question, rules)
            assert compiled.allows(*question) == allowed, (seed, question, rules)
            assert compiled.allows(*question) == allowed, ("remembered", seed, question, rules)
            wider = about_all(question)
            assert outcome(compiled.explain(*wider).rule) == outcome(naive(rules, members, wider)), (seed, wider, rules)
        outcomes.update(map(outcome, expected))
    assert all(outcomes[each] > QUESTIONS * TABLES // 10 for each in ("allow", "deny", "none")), outcomes


names = st.text("ab", min_size=1, max_size=4)
any_rule = st.builds(
    Rule,
    principal=st.sampled_from((*PRINCIPALS[:2], *ROLES, "*")),
    effect=st.sampled_from(("allow", "deny")),
    operations=st.sets(st.sampled_from(OPERATIONS["topic"]), min_size=1, max_size=2).map(tuple),
    kind=st.just("topic"),
    name=names | names.map("{}*".format) | st.just("*"),
)


roles = st.sets(st.sampled_from(ROLES)).map(sorted).map(tuple)
any_question = st.builds(
    Question, st.sampled_from(PRINCIPALS[:2]), st.sampled_from(OPERATIONS["topic"]), st.just("topic"), names, roles
)
any_member = st.builds(RoleMember, st.sampled_from(ROLES), st.sampled_from(PRINCIPALS[:2]))


@given(st.lists(any_rule, max_size=6), st.lists(any_member, max_size=3), any_question)
def test_a_decision_equals_that_of_a_naive_evaluator(
    rules: list[Rule], members: list[RoleMember], question: Question
) -> None:
    expected = naive(rules, members, question)
    compiled = CompiledRules(rules, members)
    assert compiled.explain(*question).rule == expected
    assert compiled.allows(*question) == (outcome(expected) == "allow")
    wider = about_all(question)
    assert compiled.allows(*wider) == (outcome(naive(rules, members, wider)) == "allow")


def matches(word: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), word) is not None


def policies(rules: list[Rule]) -> list[list[str]]:
    """Each rule as rows of one operation, and describe where an allow implies it; each row once."""
    rows: dict[tuple[str, ...], None] = {}
    for rule in rules:
        operations = set(rule.operations)
        if rule.effect == "allow" and operations & {"read", "write", "delete", "alter"}:
            operations.add("describe")
        rows.update(dict.fromkeys((rule.principal, rule.kind, each, rule.name, rule.effect) for each in operations))
    return [list(row) for row in rows]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_decisions_equal_those_of_pycasbin(seed: int) -> None:
    random = Random(seed)
    model = casbin.Model()
    model.load_model_from_text(CASBIN_MODEL)
    enforcer = casbin.Enforcer(model)
    enforcer.add_function("matches", matches)
    outcomes = Counter[bool]()
    for _ in range(CASBIN_TABLES):
        rules = [random_rule(random) for _ in range(CASBIN_RULES)]
        members = random_members(random)
        enforcer.clear_policy()
        enforcer.get_role_manager().clear()
        assert enforcer.add_policies(policies(rules))
        granted = {one.identity for one in members}
        for role, principal in sorted(granted):
            assert enforcer.add_grouping_policy(principal, role)
        compiled = CompiledRules(rules, members)
        for _ in range(CASBIN_QUESTIONS):
            question = random_question(random)._replace(roles=())
            if random.random() < 0.5:  # one that a rule concerns
                kind, name = (rule := random.choice(rules)).kind, rule.name
                name = name if kind == "cluster" else name.replace("*", random_name(random))
                question = Question(random.choice(PRINCIPALS), random.choice(OPERATIONS[kind]), kind, name)
            allowed = compiled.allows(*question)
            asked = (question.principal, question.kind, question.operation, question.name)
            assert enforcer.enforce(*asked) == allowed, (seed, question, rules)
            outcomes[allowed] += 1
    assert outcomes[True] > outcomes.total() // 20, outcomes
