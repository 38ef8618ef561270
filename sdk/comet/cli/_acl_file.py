"""Rules, members of roles and expectations in a file, one in a line, for `comet acl test`, `import` and `export`.

    allow client:billing read,describe topic invoices-*     a rule, as `comet acl list` shows it
    deny * delete topic invoices-*
    role role:finance client:billing                        a member of a role
    client:billing may read topic invoices-1                what has to hold by the rules
    client:billing may not write topic invoices-1

Casbin's policies are lines such as `p, client:billing, topic/invoices-*, read, allow`; a policy without an effect
allows. Its roles are `g, client:billing, role:finance`. Roles of roles, roles with other names, and patterns other than
a prefix cannot be told by rules, and are refused.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from comet.admin.rules import PRINCIPAL, ROLE, ResourceKind, RoleMember, Rule, RuleOperation
from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from comet_broker.core import rules as broker

BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Expectation:
    """What has to hold."""

    line: int
    principal: str
    operation: RuleOperation
    kind: ResourceKind
    name: str
    allowed: bool

    def __str__(self) -> str:
        return f"{self.principal} {'may' if self.allowed else 'may not'} {self.operation} {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class AclFile:
    rules: tuple[Rule, ...]
    members: tuple[RoleMember, ...]
    expectations: tuple[Expectation, ...]


def read_acl_file(path: Path, *, casbin: bool = False) -> AclFile:
    """Raises InvalidArgument, naming the file and line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > BYTES_MAX:
        raise InvalidArgument(f"{path} is larger than {BYTES_MAX} bytes")
    rules: list[Rule] = []
    members: list[RoleMember] = []
    expectations: list[Expectation] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            if casbin:
                found = _policy(words)
                members.append(found) if isinstance(found, RoleMember) else rules.append(found)
            elif words.startswith("role "):
                members.append(member_of(*_two(words.split()[1:])))
            elif words.startswith(("allow ", "deny ")):
                rules.append(rule_of(words))
            else:
                expectations.append(_expectation(number, words.split()))
        except ValueError as error:
            raise InvalidArgument(f"{path}, line {number}: {error}") from None
    return AclFile(tuple(rules), tuple(members), tuple(expectations))


def rule_of(line: str) -> Rule:
    """The rule of a line. Raises ValueError."""
    words = line.split()
    if len(words) != 5 or words[0] not in ("allow", "deny"):
        raise ValueError(
            f"a rule is allow or deny, a principal, operations, a kind and a name, not {' '.join(words)!r}"
        )
    effect, principal, operations, kind, name = words
    return Rule(principal, _operations(operations), _kind(kind), name, deny=effect == "deny")


def broker_rule(rule: Rule) -> broker.Rule:
    """The rule as a broker keeps it. Raises InvalidArgument for a rule that it would refuse."""
    from comet_broker.core import rules as broker

    words: tuple[broker.Operation, ...] = tuple(one.value for one in rule.operations)
    effect: broker.Effect = "deny" if rule.deny else "allow"
    return broker.check_rule(broker.Rule(rule.principal, effect, words, rule.kind.value, rule.name))


def member_of(role: str, principal: str) -> RoleMember:
    """Raises ValueError."""
    if not (re.fullmatch(ROLE, role) and re.fullmatch(PRINCIPAL, principal)):
        raise ValueError(f"a member of a role is role, role:NAME and a principal, not {role!r} and {principal!r}")
    if principal.startswith("role:"):
        raise ValueError(f"{principal!r} is a role, and roles have no roles")
    return RoleMember(role, principal)


def _two(words: list[str]) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError(f"a member of a role is role, role:NAME and a principal, not {' '.join(words)!r}")
    return words[0], words[1]


def _expectation(line: int, words: list[str]) -> Expectation:
    match words:
        case [principal, "may", "not", operation, kind, name]:
            allowed = False
        case [principal, "may", operation, kind, name]:
            allowed = True
        case _:
            raise ValueError(
                f"{' '.join(words)!r} is neither a rule (allow client:a read topic t) nor an expectation "
                "(client:a may not read topic t)"
            )
    found, *others = _operations(operation)
    if others:
        raise ValueError(f"an expectation has one operation, not {operation!r}")
    return Expectation(line, principal, found, _kind(kind), name, allowed)


def _policy(text: str) -> Rule | RoleMember:
    (row,) = csv.reader([text], skipinitialspace=True)
    fields = [field.strip() for field in row]
    if fields[0] == "g" and len(fields) == 3:
        return member_of(fields[2], fields[1])
    if fields[0] != "p" or len(fields) not in (4, 5):
        raise ValueError(f"{text!r}: a policy is p, SUBJECT, KIND/NAME, ACT, a role g, SUBJECT, role:NAME")
    kind, slash, name = fields[2].partition("/")
    effect = fields[4] if len(fields) == 5 else "allow"
    if not slash or effect not in ("allow", "deny"):
        raise ValueError(f"{text!r}: the object is KIND/NAME, such as topic/invoices-*, the effect allow or deny")
    return Rule(fields[1], _operations(fields[3]), _kind(kind), name, deny=effect == "deny")


def _operations(text: str) -> tuple[RuleOperation, ...]:
    try:
        return tuple(RuleOperation(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of operations: use {', '.join(RuleOperation)}") from None


def _kind(text: str) -> ResourceKind:
    try:
        return ResourceKind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a kind: use {', '.join(ResourceKind)}") from None


def lines_of(rules: Iterable[Rule], members: Iterable[RoleMember], *, casbin: bool = False) -> Iterator[str]:
    """As `read_acl_file` takes them."""
    for member in members:
        words = ("g,", f"{member.principal},", member.role) if casbin else ("role", member.role, member.principal)
        yield " ".join(words)
    for rule in rules:
        if not casbin:
            yield str(rule)
            continue
        effect = "deny" if rule.deny else "allow"
        for operation in rule.operations:
            yield f"p, {rule.principal}, {rule.kind}/{rule.name}, {operation}, {effect}"
