"""Access rules: the operations that a principal may do, on which topics, groups, transactional ids, or on the cluster.

    principal        effect  operations   kind   name
    client:billing   allow   read, write  topic  orders*
    role:finance     allow   read         topic  invoices*
    *                deny    delete       topic  audit

A principal is the identity in a client's certificate, access key or token. A rule for a role holds for its members:
those in the table, and clients whose token has the role. A role has no roles itself.

A question is allowed if an allow matches it and no deny does: a deny always wins, and without a rule nothing is
allowed. As in Kafka, an allow of read, write, delete or alter is also an allow of describe, and a deny concerns only
the operations that it lists: beside an allow of read, a deny of read leaves describe allowed, and a deny of describe
leaves read allowed. A question about `orders*` is about all names that begin so: a deny of any of them denies it.

Pure: brokers store the table, and compile it whenever it changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec

from comet.errors import InvalidArgument, LimitExceeded
from comet.security.principals import ROLE, ROLES_MAX, is_name, is_role
from comet.types import check_topic_name
from comet_broker.core.cluster import Stored
from comet_broker.core.slots import check_name
from comet_broker.metadata.store import TRANSACTION_BYTES_MAX

Operation: TypeAlias = Literal["read", "write", "create", "delete", "alter", "describe"]
Kind: TypeAlias = Literal["topic", "group", "transaction", "cluster"]
Effect: TypeAlias = Literal["allow", "deny"]

EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
OPERATIONS: Final[Mapping[Kind, tuple[Operation, ...]]] = {
    "topic": ("read", "write", "create", "delete", "alter", "describe"),
    "group": ("read", "delete", "alter", "describe"),
    "transaction": ("write", "describe"),  # of a transactional id
    "cluster": ("alter", "describe"),  # alter: its brokers and rules
}
IMPLY_DESCRIBE: Final[frozenset[Operation]] = frozenset({"read", "write", "delete", "alter"})
ALL: Final = "*"  # as a principal: each one that a client proved; as a name: all

RULES_BYTES_MAX: Final = 1 << 20  # of a table as it is stored: about 10,000 rules and members
ANSWERS_MAX: Final = 10_000  # that compiled rules remember
_LISTED_MAX: Final = 5  # roles in a sentence
_REMEMBERED_NAME_MAX: Final = 256  # characters; longer ones are no names, and would fill the memory

assert RULES_BYTES_MAX < TRANSACTION_BYTES_MAX


class Rule(Stored, frozen=True, array_like=True):
    """`operations` are kept sorted, each once. `name` is exact, or a prefix that ends in `*`."""

    principal: str
    effect: Effect
    operations: tuple[Operation, ...]
    kind: Kind
    name: str
    author: str = ""
    added_us: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "operations", tuple(sorted(set(self.operations))))

    def __str__(self) -> str:
        return f"{self.effect} {self.principal} to {', '.join(self.operations)} {self.kind} {self.name}"

    @property
    def identity(self) -> tuple[str, Effect, tuple[Operation, ...], Kind, str]:
        """All of the rule but its author and time."""
        return self.principal, self.effect, self.operations, self.kind, self.name

    @property
    def specificity(self) -> tuple[bool, int]:
        """Larger for a more specific name: an exact one before prefixes, a longer prefix before a shorter one."""
        return not self.name.endswith(ALL), len(self.name)


class RoleMember(Stored, frozen=True, array_like=True):
    """A principal that has a role."""

    role: str
    principal: str
    author: str = ""
    added_us: int = 0

    def __str__(self) -> str:
        return f"{self.role} of {self.principal}"

    @property
    def identity(self) -> tuple[str, str]:
        """All of it but its author and time."""
        return self.role, self.principal


class Decision(NamedTuple):
    """The answer to a question, the rule that decides it, and the reason as a sentence.

    If several rules agree, the one with the most specific name is shown; among equals one for the principal itself
    before one for a role, the first by its name, before one for all; then the one added first.
    """

    allowed: bool
    rule: Rule | None
    why: str


def check_rule(rule: Rule) -> Rule:
    """Returns the rule if it can match a question. Raises InvalidArgument."""
    if rule.effect not in EFFECTS:
        raise InvalidArgument(f"{rule.effect!r} is not an effect: use {_either(EFFECTS)}")
    if rule.kind not in KINDS:
        raise InvalidArgument(f"{rule.kind!r} is not a kind: use {_either(KINDS)}")
    possible = OPERATIONS[rule.kind]
    if not rule.operations:
        raise InvalidArgument(f"a rule needs operations: use any of {', '.join(possible)} for kind {rule.kind}")
    for operation in rule.operations:
        if operation not in possible:
            raise InvalidArgument(f"kind {rule.kind} has no operation {operation!r}: use {_either(possible)}")
    if rule.principal.startswith(ROLE):
        check_role(rule.principal)
    elif rule.principal != ALL:
        check_principal(rule.principal)
    _check_rule_name(rule.kind, rule.name)
    return rule


def check_member(member: RoleMember) -> RoleMember:
    """Returns the member if a client can be it. Raises InvalidArgument."""
    check_role(member.role)
    if member.principal.startswith(ROLE):
        raise InvalidArgument(f"a role has no roles: grant {member.role} to the members of {member.principal}")
    check_principal(member.principal)
    return member


def check_principal(principal: str) -> None:
    """Raises InvalidArgument for a text that no client can be."""
    if principal.startswith(ROLE):
        raise InvalidArgument(f"{principal!r} is a role: name a principal that has it, such as 'client:billing'")
    if not is_name(principal):
        raise InvalidArgument(
            f"{principal!r} is not a principal: use its kind and name in at most 256 characters, such as "
            "'client:billing', or '*' for every client"
        )


def check_role(role: str) -> None:
    """Raises InvalidArgument for a text that is not the name of a role."""
    if not is_role(role):
        raise InvalidArgument(f"{role!r} is not a role: use a name of at most 256 characters, such as 'role:finance'")


def _check_rule_name(kind: Kind, name: str) -> None:
    if kind == "cluster" and name != ALL:
        raise InvalidArgument(f"the name in a rule of kind cluster is '*', not {name!r}")
    if name == ALL:
        return
    prefix = name.removesuffix(ALL)
    if ALL in prefix:
        raise InvalidArgument(f"{name!r} has a '*' before its end: use an exact name, or a prefix such as 'orders*'")
    if kind == "topic":
        check_topic_name(prefix)
    else:
        check_name(prefix)


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


class RuleTable(Stored, frozen=True):
    """All rules and members of roles, each in the order in which they were added. One value in the store.

    A table with an operation, kind or effect that this version does not know cannot be decoded: to leave out a rule
    that may be a deny would allow too much.
    """

    rules: tuple[Rule, ...] = ()
    members: tuple[RoleMember, ...] = ()

    def with_rule(self, rule: Rule) -> Self:
        """The table with the rule; this one if it has the rule already. Raises InvalidArgument, LimitExceeded."""
        identity = check_rule(rule).identity
        if any(identity == known.identity for known in self.rules):
            return self
        return msgspec.structs.replace(self, rules=(*self.rules, rule))._checked()

    def without_rule(self, rule: Rule) -> Self:
        """The table without the rule, by its identity; this one if it lacks the rule."""
        rest = tuple(known for known in self.rules if known.identity != rule.identity)
        return self if len(rest) == len(self.rules) else msgspec.structs.replace(self, rules=rest)

    def with_member(self, member: RoleMember) -> Self:
        """The table with a role granted; this one if it was. Raises InvalidArgument, LimitExceeded."""
        identity = check_member(member).identity
        if any(identity == known.identity for known in self.members):
            return self
        if sum(known.principal == member.principal for known in self.members) >= ROLES_MAX:
            raise LimitExceeded(f"{member.principal} has {ROLES_MAX} roles, the most that one can have; revoke some")
        return msgspec.structs.replace(self, members=(*self.members, member))._checked()

    def without_member(self, member: RoleMember) -> Self:
        """The table with a role revoked; this one if it was not granted."""
        rest = tuple(known for known in self.members if known.identity != member.identity)
        return self if len(rest) == len(self.members) else msgspec.structs.replace(self, members=rest)

    def _checked(self) -> Self:
        size = len(self.encode())
        if size > RULES_BYTES_MAX:
            raise LimitExceeded(
                f"{len(self.rules)} rules and {len(self.members)} members of roles take {size} bytes, and at most "
                f"{RULES_BYTES_MAX} are stored; remove some, or replace several rules by one with a prefix"
            )
        return self


class CompiledRules:
    """Answers questions about a fixed table, and remembers answers."""

    def __init__(self, rules: Iterable[Rule], members: Iterable[RoleMember] = ()) -> None:
        by_question: dict[tuple[str, Operation, Kind], list[Rule]] = {}
        for rule in rules:
            for operation in _matching_operations(rule):
                by_question.setdefault((rule.principal, operation, rule.kind), []).append(rule)
        self._by_name = {question: _RulesByName(found) for question, found in by_question.items()}
        self._roles: dict[str, set[str]] = {}
        for member in members:
            self._roles.setdefault(member.principal, set()).add(member.role)
        self._answers: dict[tuple[str, tuple[str, ...], Operation, Kind, str], bool] = {}

    @property
    def remembered(self) -> int:
        """The number of answers that are remembered."""
        return len(self._answers)

    def allows(self, principal: str, operation: Operation, kind: Kind, name: str, roles: tuple[str, ...] = ()) -> bool:
        """Whether the principal may do this, also by the roles of its token. An empty principal has proved nothing,
        and may do nothing."""
        question = (principal, roles, operation, kind, name)
        answer = self._answers.get(question)
        if answer is None:
            rule = self._deciding(*question)
            answer = rule is not None and rule.effect == "allow"
            if len(name) <= _REMEMBERED_NAME_MAX:
                if len(self._answers) >= ANSWERS_MAX:
                    self._answers.clear()
                self._answers[question] = answer
        return answer

    def roles_of(self, principal: str, roles: Iterable[str] = ()) -> list[str]:
        """The roles of a principal, with those of its token, by name."""
        return sorted(self._roles.get(principal, set()).union(roles))

    def _deciding(
        self, principal: str, roles: tuple[str, ...], operation: Operation, kind: Kind, name: str
    ) -> Rule | None:
        """A deny that matches, else an allow that matches."""
        if not principal:
            return None
        found: Rule | None = None
        for subject in (principal, *self.roles_of(principal, roles), ALL):
            rules = self._by_name.get((subject, operation, kind))
            if rules is not None:
                found = _stronger(found, rules.at(name))
        return found

    def explain(
        self, principal: str, operation: Operation, kind: Kind, name: str, roles: tuple[str, ...] = ()
    ) -> Decision:
        """The same answer as `allows`, with its reason."""
        rule = self._deciding(principal, roles, operation, kind, name)
        if not principal:
            return Decision(False, None, "a client without a certificate has no rules")
        if rule is None:
            found = self.roles_of(principal, roles)
            own = f", which has {_listed(found)}," if found else ""
            return Decision(False, None, f"no rule allows {principal}{own} to {operation} {kind} {name}")
        if rule.effect == "deny":
            return Decision(False, rule, f"denied by the rule: {rule}")
        if operation in rule.operations:
            return Decision(True, rule, f"allowed by the rule: {rule}")
        implying = next(other for other in rule.operations if other in IMPLY_DESCRIBE)
        return Decision(True, rule, f"allowed by the rule: {rule}; {implying} implies {operation}")


def _listed(roles: Sequence[str]) -> str:
    return ", ".join(roles) if len(roles) <= _LISTED_MAX else f"{len(roles)} roles"


def _matching_operations(rule: Rule) -> frozenset[Operation]:
    """The operations that the rule decides."""
    operations = frozenset(rule.operations)
    return operations | {"describe"} if rule.effect == "allow" and operations & IMPLY_DESCRIBE else operations


def _stronger(first: Rule | None, second: Rule | None) -> Rule | None:
    """A deny before an allow, then the more specific one, then the first."""
    if first is None or second is None:
        return first or second
    if first.effect != second.effect:
        return first if first.effect == "deny" else second
    return second if second.specificity > first.specificity else first


class _RulesByName:
    """For each name, the rule that decides. The rules are those of one principal, operation and kind.

    The names with a prefix are a range in alphabetical order, and two ranges are apart or one lies in the other. Cut at
    their ends, they become ranges with one rule each, found by bisection: a question takes as long with many lengths
    of prefixes as with one.
    """

    __slots__ = ("_deciding", "_denies", "_exact", "_starts")

    def __init__(self, rules: Iterable[Rule]) -> None:
        by_name: dict[str, Rule] = {}
        for rule in rules:
            known = by_name.setdefault(rule.name, rule)
            if known.effect == "allow" and rule.effect == "deny":
                by_name[rule.name] = rule
        self._denies = sorted(
            ((name.removesuffix(ALL), rule) for name, rule in by_name.items() if rule.effect == "deny"),
            key=itemgetter(0),
        )
        self._exact: dict[str, Rule] = {}
        self._starts: list[str] = []
        self._deciding: list[Rule | None] = [by_name.pop(ALL, None)]  # before the first start, then from each start on
        self._cut({name.removesuffix(ALL): rule for name, rule in by_name.items() if name.endswith(ALL)})
        for name, rule in by_name.items():
            if not name.endswith(ALL):
                self._exact[name] = _stronger(rule, self.at(name)) or rule

    def _cut(self, by_prefix: Mapping[str, Rule]) -> None:
        enclosing = [("", self._deciding[0])]  # ends and rules of the ranges around a prefix; the first has no end

        def decide_from(start: str, rule: Rule | None) -> None:
            if self._starts and self._starts[-1] == start:
                self._deciding[-1] = rule
            else:
                self._starts.append(start)
                self._deciding.append(rule)

        def end_range() -> None:
            end, _ = enclosing.pop()
            decide_from(end, enclosing[-1][1])

        for prefix in sorted(by_prefix):
            while len(enclosing) > 1 and enclosing[-1][0] <= prefix:
                end_range()
            rule = _stronger(by_prefix[prefix], enclosing[-1][1])
            decide_from(prefix, rule)
            enclosing.append((_after(prefix), rule))
        while len(enclosing) > 1:
            end_range()

    def at(self, name: str) -> Rule | None:
        if name.endswith(ALL) and (denied := self._deny_within(name.removesuffix(ALL))) is not None:
            return denied
        rule = self._exact.get(name)
        return rule if rule is not None else self._deciding[bisect_right(self._starts, name)]

    def _deny_within(self, prefix: str) -> Rule | None:
        """A deny of one of the names that begin so."""
        index = bisect_left(self._denies, prefix, key=itemgetter(0))
        found = self._denies[index] if index < len(self._denies) else None
        return found[1] if found is not None and found[0].startswith(prefix) else None


def _after(prefix: str) -> str:
    """The first string, in alphabetical order, after those with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
