"""The cluster that a command talks to, and what it presents there: chosen as comet.client.default_cluster says.

Values of the context are put into this process's environment, which clients and child processes read.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from comet.cli._output import note
from comet.client.contexts import read_contexts
from comet.client.default_cluster import CONTEXT_FLAG, CURRENT, ClusterChoice, connection_of
from comet.errors import CometError
from comet.settings.client import CONTEXT_VARIABLE, VARIABLES

CONTEXT_PARAMETER: Final = "context_name"
_TYPER_CONTEXT: Final = "typer_context"


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts for the shell."""
    try:
        return [name for name in read_contexts().settings if name.startswith(incomplete)]
    except CometError:
        return []  # an error message would garble the line being typed


def _option(about: str, **more: Any) -> Any:
    return typer.Option(CONTEXT_FLAG, metavar="NAME", help=about, autocompletion=complete_context, **more)


ContextName = Annotated[str | None, _option("The cluster: a name of comet context, or none.", envvar=CONTEXT_VARIABLE)]
# Of commands that also work without a cluster: they take no context but the one given here.
_GivenContextName = Annotated[str | None, _option("The cluster: a name of comet context.")]


def connect(context: typer.Context, default: str) -> ClusterChoice:
    """The connection of a command, as its flags and its parents' say. What the context has but the address goes into
    the environment."""
    found = connection_of(
        os.environ,
        read_contexts,
        default=default,
        address=_flag(context, "bootstrap"),
        context=_flag(context, CONTEXT_PARAMETER),
    )
    os.environ.update({VARIABLES[one.name]: one.value for one in found.from_context() if one.name != "bootstrap"})
    return found


def _flag(context: typer.Context, name: str) -> str | None:
    """The value of a flag that is given before or after the command's name: `comet cluster -b HOST:PORT drain 1`."""
    at: Any = context
    while at is not None:
        source = at.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            return str(at.params[name])
        at = at.parent
    return None


def connecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that has the parameter `bootstrap` the option --context, and calls it with the address. One whose
    address has no default uses a context only if --context names it."""
    signature = inspect.signature(command, eval_str=True)
    if "bootstrap" not in signature.parameters:
        return command
    default = signature.parameters["bootstrap"].default
    own = next((one.name for one in signature.parameters.values() if one.annotation is typer.Context), None)

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        context = options[own] if own is not None else options.pop(_TYPER_CONTEXT)
        named = options.pop(CONTEXT_PARAMETER, None)
        # A parent, such as `comet cluster`, leaves it to its subcommand.
        if context.invoked_subcommand is None and (default is not None or named):
            found = connect(context, options["bootstrap"] or "")
            if found.overridden and found.context_source != CURRENT:
                note(f"{', '.join(found.overridden)} in the environment overrides context {found.context}")
            options["bootstrap"] = found.address or None
        return command(*arguments, **options)

    keyword = inspect.Parameter.KEYWORD_ONLY
    kind = ContextName if default is not None else _GivenContextName
    added = [inspect.Parameter(CONTEXT_PARAMETER, keyword, default=None, annotation=kind)]
    if own is None:
        added.append(inspect.Parameter(_TYPER_CONTEXT, keyword, annotation=typer.Context))
    parameters = list(signature.parameters.values())
    at = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters[at:at] = added
    # Typer reads the signature, and the annotations beside it.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
