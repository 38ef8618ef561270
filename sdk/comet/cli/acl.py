"""`comet acl`: the rules of access, and what they allow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comet.cli._acts import add_commands
from comet.cli._exit import ERROR
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from comet.cli._output import note, print_json
from comet.errors import InvalidArgument
from comet.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from comet.admin.rules import AccessDecision
    from comet.cli._acl_file import AclFile, Expectation

app = typer.Typer(help="Add, remove and list rules of access; explain and test what they allow.", no_args_is_help=True)
add_commands(app, "acl")

File = Annotated[Path, typer.Argument(help="File with a rule or an expectation in each line.")]
Casbin = Annotated[bool, typer.Option("--casbin", help="The file has policies of Casbin: p, SUBJECT, KIND/NAME, ACT.")]


@app.command("test")
@guarded
async def check(file: File, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    """Check expectations, such as "client:billing may not write topic invoices": by the rules in the file, if it has
    any, else by those of the cluster. Fails if one does not hold."""
    from comet.cli._acl_file import read_acl_file

    found = read_acl_file(file)
    if not found.expectations:
        raise InvalidArgument(f"{file} has no expectation, such as: client:billing may read topic invoices")
    if found.rules:
        decisions = _by_rules(found)
    elif found.members:
        raise InvalidArgument(f"{file} has members of roles and no rule: leave them out, or export both with the rules")
    else:
        decisions = await _by_cluster(bootstrap, found.expectations)
    wrong = [
        (one, decision)
        for one, decision in zip(found.expectations, decisions, strict=True)
        if decision.allowed is not one.allowed
    ]
    if json_output:
        failed = [{"line": one.line, "expectation": str(one), "why": decision.why} for one, decision in wrong]
        print_json({"expectations": len(decisions), "failed": failed})
    else:
        for one, decision in wrong:
            print(f"{file}, line {one.line}: {one}: {decision}")
        note(f"{len(decisions) - len(wrong)} of {count(len(decisions), 'expectation')} hold")
    if wrong:
        raise typer.Exit(ERROR)


@app.command("import")
@guarded
async def import_(
    file: File, casbin: Casbin = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False
) -> None:
    """Add the rules and roles in a file to those of the cluster. Expectations in it are left out."""
    import comet
    from comet.cli._acl_file import read_acl_file

    found = read_acl_file(file, casbin=casbin)
    added = granted = 0
    async with comet.Admin(bootstrap) as admin:
        for member in found.members:
            granted += (await admin.access.grant_role(member.role, member.principal)).changed
        for rule in found.rules:
            change = await admin.access.add_rule(rule.principal, rule.operations, rule.kind, rule.name, deny=rule.deny)
            added += change.changed
    if json_output:
        print_json({"rules": len(found.rules), "added": added, "members": len(found.members), "granted": granted})
        return
    note(f"added {count(added, 'rule')}; {len(found.rules) - added} of the file were there")
    if found.members:
        note(f"granted {count(granted, 'role')}; {len(found.members) - granted} of the file were there")


@app.command("export")
@guarded
async def export(
    casbin: Annotated[bool, typer.Option("--casbin", help="As policies of Casbin.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the rules and roles of the cluster as a file, which `comet acl test` and `import` take."""
    import comet
    from comet.cli._acl_file import lines_of

    async with comet.Admin(bootstrap) as admin:
        rules, roles = await admin.access.list_rules(), await admin.access.list_roles()
    for line in lines_of(rules.rules, roles.members, casbin=casbin):
        print(line)


def _by_rules(file: AclFile) -> list[AccessDecision]:
    """As a broker decides. Raises InvalidArgument for a rule that it would refuse."""
    from comet.admin.rules import AccessDecision, Rule
    from comet.cli._acl_file import broker_rule
    from comet_broker.core import rules as broker

    compiled = broker.CompiledRules(
        [broker_rule(one) for one in file.rules],
        [broker.check_member(broker.RoleMember(one.role, one.principal)) for one in file.members],
    )
    found = []
    for one in file.expectations:
        question = broker_rule(Rule(one.principal, (one.operation,), one.kind, one.name))
        decision = compiled.explain(question.principal, question.operations[0], question.kind, question.name)
        found.append(AccessDecision(decision.allowed, decision.why, None))
    return found


async def _by_cluster(bootstrap: str, expectations: Sequence[Expectation]) -> list[AccessDecision]:
    import comet

    async with comet.Admin(bootstrap) as admin:
        return [
            await admin.access.explain_access(one.principal, one.operation, one.kind, one.name) for one in expectations
        ]
