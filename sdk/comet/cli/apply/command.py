"""The command `comet apply`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._exit import ERROR
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json, Yes
from comet.cli._output import note, print_json, report_error
from comet.errors import InvalidArgument
from comet.units import count

if TYPE_CHECKING:
    from comet.cli.apply.acting import Check
    from comet.cli.apply.plan import ApplyPlan, ApplyStep

CHANGES: Final = 2  # the exit code of --exit-code if there are changes, as Terraform has it
_LOSSES_MAX: Final = 10  # in a question
_STDIN: Final = "-"


@guarded
async def apply(
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="The file in YAML; - is stdin.")] = "",
    export: Annotated[bool, typer.Option("--export", help="Print what the cluster has as such a file.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what the file made under its name and no longer declares.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="What the file declares and is there counts as made by it.")
    ] = False,
    dry_run: DryRun = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --dry-run: exit code 2 if there are changes, 1 for errors.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Make topics, rules, roles and quotas as a file declares them. Run again, it changes nothing. What the file does
    not mention stays; --prune deletes what earlier runs made."""
    try:
        if export:
            if file:
                raise InvalidArgument("give --export or --file, not both")
            await _export(bootstrap)
            return
        run = _Run(bootstrap, file, prune=prune, adopt=adopt, as_json=json_output)
        plan = await run.apply(dry_run=dry_run, exit_code=exit_code, yes=yes)
    except InvalidArgument as error:
        report_error(error, as_json=json_output)  # exit code 2 means changes
        raise typer.Exit(ERROR) from None
    if exit_code and plan.steps:
        raise typer.Exit(CHANGES)


async def _export(bootstrap: str) -> None:
    import comet
    from comet.cli.apply.acting import read_current
    from comet.cli.apply.export import exported

    async with comet.Admin(bootstrap) as admin:
        print(exported(await read_current(admin)), end="")


class _Run:
    """One run of the command."""

    def __init__(self, bootstrap: str, file: str, *, prune: bool, adopt: bool, as_json: bool) -> None:
        from comet.cli.apply.cluster_file import read_cluster_file

        self._bootstrap = bootstrap
        self._stdin = file == _STDIN
        self._file = "stdin" if self._stdin else file
        self._declared = read_cluster_file(self._file, _bytes_of(file))
        self._prune, self._adopt, self._as_json = prune, adopt, as_json
        if (prune or adopt) and not self._declared.name:
            raise InvalidArgument(
                f"{self._file} has no name, so nothing is remembered of it: give it one (name: NAME) for "
                f"--{'prune' if prune else 'adopt'}"
            )

    async def apply(self, *, dry_run: bool, exit_code: bool, yes: bool) -> ApplyPlan:
        import comet
        from comet.cli.apply.acting import carry_out, check, read_current
        from comet.cli.apply.applied import Applied, AppliedStore
        from comet.cli.apply.plan import plan_changes
        from comet.cli.apply.yaml_tree import refuse

        if exit_code and not dry_run:
            raise InvalidArgument("--exit-code needs --dry-run")
        store = AppliedStore(self._bootstrap, self._declared.name) if self._declared.name else None
        async with comet.Admin(self._bootstrap) as admin:
            applied = Applied() if store is None else await store.read()
            plan = plan_changes(
                self._declared, await read_current(admin), applied, prune=self._prune, adopt=self._adopt
            )
            refuse(self._file, plan.problems)
            checked = await check(admin, plan.steps)
            refuse(self._file, checked.problems)
            self._show(plan, dry_run=dry_run)
            if dry_run:
                return plan
            self._ask(plan, checked, yes=yes)
            done: list[ApplyStep] = []
            try:
                await carry_out(admin, store, plan, applied, done.append)
            except comet.CometError:
                note(f"{len(done)} of {count(len(plan.steps), 'change')} were made: run it again for the others")
                raise
        self._show_done(plan)
        return plan

    def _ask(self, plan: ApplyPlan, checked: Check, *, yes: bool) -> None:
        """Asks before anything is deleted."""
        if not checked.losses or yes:
            return
        losses = list(checked.losses[:_LOSSES_MAX])
        if len(checked.losses) > _LOSSES_MAX:
            losses.append(f"and {len(checked.losses) - _LOSSES_MAX} more")
        if self._stdin:
            raise InvalidArgument(f"this deletes, and stdin has the file: give --yes. {'; '.join(losses)}")
        for loss in losses:
            note(f"! {loss}")
        typer.confirm(f"Make {count(len(plan.steps), 'change')}? This cannot be undone.", abort=True, err=True)

    def _show(self, plan: ApplyPlan, *, dry_run: bool) -> None:
        """The plan. With --json it is printed once all is done, so that an answer is one document."""
        if self._as_json:
            if dry_run:
                print_json(self._document(plan, dry_run=True))
            return
        for step in plan.steps:
            print(step)
        for left in plan.left:
            note(f"{left} is not declared any more: --prune deletes it")
        for name in plan.unsure:
            note(f"topic {name} may be of a run that was interrupted; if so, delete it: comet topic delete {name}")
        if not plan.steps:
            note(f"no changes: the cluster has all that {self._file} declares")
        elif dry_run:
            note(f"{count(len(plan.steps), 'change')}; nothing was changed")

    def _show_done(self, plan: ApplyPlan) -> None:
        if self._as_json:
            print_json(self._document(plan, dry_run=False))
        elif plan.steps:
            note(f"made {count(len(plan.steps), 'change')}")

    def _document(self, plan: ApplyPlan, *, dry_run: bool) -> dict[str, Any]:
        return {
            "name": self._declared.name,
            "dry_run": dry_run,
            "changes": [
                {"sign": step.sign, "kind": step.kind, "name": step.name, "detail": step.detail} for step in plan.steps
            ],
            "no_longer_declared": list(plan.left),
        }


def _bytes_of(file: str) -> bytes:
    """The file, as far as one that is too large shows it."""
    from comet.cli.apply.yaml_tree import BYTES_MAX

    if not file:
        raise InvalidArgument("give a file: comet apply -f cluster.yaml; - is stdin, --export prints one")
    if file == _STDIN:
        return sys.stdin.buffer.read(BYTES_MAX + 1)
    try:
        with Path(file).open("rb") as opened:
            return opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror or error}") from None
