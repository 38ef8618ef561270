"""Reads a cluster, checks a plan and carries it out.

read ─► plan ─► check: rights, dry runs ─► remember ─► each step ─► remember
                      └─► problems: nothing was changed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from comet.admin.acts import ACTS
from comet.cli.apply.applied import Applied
from comet.cli.apply.declaration import Current
from comet.cli.apply.yaml_tree import Problem
from comet.errors import InvalidArgument, LimitExceeded
from comet.units import count, format_bytes, least

if TYPE_CHECKING:
    import comet
    from comet.cli.apply.plan import ApplyPlan, ApplyStep

_NEEDS_MAX: Final = 1_000  # of a CheckAccess


class Store(Protocol):
    """Remembers what runs made; see AppliedStore."""

    async def write(self, applied: Applied) -> None: ...


@dataclass(frozen=True, slots=True)
class Check:
    """What the cluster says of a plan before it is carried out."""

    problems: tuple[Problem, ...]
    losses: tuple[str, ...]  # what is deleted, with the records that are known


async def read_current(admin: comet.Admin) -> Current:
    cluster = await admin.describe_cluster()
    rules, roles = await admin.access.list_rules(), await admin.access.list_roles()
    return Current(
        {topic.name: topic for topic in await admin.list_topics()},
        {str(rule): rule for rule in rules.rules},
        {str(member): member for member in roles.members},
        {quota.principal: quota for quota in (await admin.access.list_quotas()).quotas},
        cluster.topic_defaults,
        len(cluster.brokers),
    )


async def check(admin: comet.Admin, steps: Sequence[ApplyStep]) -> Check:
    """Whether this client may do all steps, and whether the brokers would. Changes nothing."""
    problems: list[Problem] = []
    for start in range(0, len(steps), _NEEDS_MAX):
        some = steps[start : start + _NEEDS_MAX]
        needs = [(*ACTS[step.act].needs.split(), step.name if step.kind == "topic" else "*") for step in some]
        errors = (await admin.access.check([(operation, kind, name) for operation, kind, name in needs])).errors
        problems += [
            Problem(step.line, f"{step.kind} {step.name}: {error.message}")
            for step, error in zip(some, errors, strict=True)
            if error is not None
        ]
    losses: list[str] = []
    if not problems:
        for step in steps:
            try:
                losses += await _dry_run(admin, step)
            except (InvalidArgument, LimitExceeded) as error:
                problems.append(Problem(step.line, f"topic {step.name!r}: {error.message}"))
    return Check(tuple(problems), tuple(losses))


async def _dry_run(admin: comet.Admin, step: ApplyStep) -> list[str]:
    """What the step deletes."""
    match step.act:
        case "AlterTopic":
            given, unset = step.item
            plan = await admin.alter_topic(step.name, unset=unset, dry_run=True, **given)
            if plan.records or not plan.complete:
                records = least(count(plan.records, "record"), complete=plan.complete)
                return [f"topic {step.name}: retention deletes {records} ({format_bytes(plan.bytes)})"]
        case "AddPartitions":
            await admin.add_partitions(step.name, step.item, dry_run=True)
        case "DeleteTopic":
            return [f"topic {step.name} is deleted: {await admin.delete_topic(step.name, dry_run=True)}"]
        case "RemoveRule" | "RevokeRole" | "RemoveQuota":
            return [f"{step.kind} {step.name} is removed"]
    return []


async def carry_out(
    admin: comet.Admin, store: Store | None, plan: ApplyPlan, applied: Applied, done: Callable[[ApplyStep], None]
) -> None:
    """Makes all changes in order. `applied` is what is remembered now; without a store, nothing is."""
    if store is not None and plan.before != applied:
        await store.write(plan.before)
    ids: dict[str, str] = {}
    for step in plan.steps:
        await _act(admin, step, ids)
        done(step)
    after = plan.after(ids)
    if store is not None and after != plan.before:
        await store.write(after)


async def _act(admin: comet.Admin, step: ApplyStep, ids: dict[str, str]) -> None:
    item = step.item
    match step.act:
        case "CreateTopic":
            made = await admin.create_topic(
                step.name, partitions=item.partitions or 1, replicas=item.replicas or 0, **item.settings
            )
            ids[step.name] = made.id.hex()
        case "AlterTopic":
            given, unset = item
            await admin.alter_topic(step.name, unset=unset, **given)
        case "AddPartitions":
            await admin.add_partitions(step.name, item)
        case "DeleteTopic":
            await admin.delete_topic(step.name)
        case "AddRule":
            await admin.access.add_rule(item.principal, item.operations, item.kind, item.name, deny=item.deny)
        case "RemoveRule":
            await admin.access.remove_rule(item.principal, item.operations, item.kind, item.name, deny=item.deny)
        case "GrantRole":
            await admin.access.grant_role(item.role, item.principal)
        case "RevokeRole":
            await admin.access.revoke_role(item.role, item.principal)
        case "SetQuota":
            limits = {name: getattr(item, name) for name in ("bytes_in", "bytes_out", "requests", "streams")}
            await admin.access.set_quota(item.principal, **limits)
        case "RemoveQuota":
            await admin.access.remove_quota(item)
        case _:
            raise AssertionError(step.act)
