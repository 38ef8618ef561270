"""The cluster of a client or command that names none, and what it presents there: each value from the first place that
has it.

    argument, --bootstrap ─► COMET_BOOTSTRAP, COMET_CLIENT_… ─► context of --context, COMET_CONTEXT ─► current context
    ─► localhost:9092

A certificate, an access key, a token or client credentials are one value: those of a context are left out if the
environment names any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from comet.client.contexts import NO_CONTEXT, Contexts, read_contexts
from comet.settings.client import CONTEXT_VARIABLE, CREDENTIALS, DEFAULT_BOOTSTRAP, VARIABLES

CONTEXT_FLAG: Final = "--context"
CURRENT: Final = "current"
DEFAULT: Final = "default"


class ConnectionValue(NamedTuple):
    """One value and its source: a flag, a variable, a context or the default."""

    name: str
    value: str
    source: str


class ClusterChoice(NamedTuple):
    """All values that were given, and the address; pure data."""

    context: str  # empty: none
    context_source: str  # --context, COMET_CONTEXT or current; empty: none
    values: tuple[ConnectionValue, ...]
    overridden: tuple[str, ...]  # variables that differ from the value of the context

    @property
    def address(self) -> str:
        return next(one.value for one in self.values if one.name == "bootstrap")

    def from_context(self) -> Iterator[ConnectionValue]:
        return (one for one in self.values if one.source == _source(self.context))


def connection_of(
    environ: Mapping[str, str],
    contexts: Callable[[], Contexts],
    *,
    default: str,
    address: str | None = None,
    context: str | None = None,
) -> ClusterChoice:
    """Each value from the first place that has it. `address` and `context` are flags; `contexts` reads the file, unless
    the context is none. Raises InvalidArgument for an unknown context."""
    name, named_by = (context, CONTEXT_FLAG) if context else (environ.get(CONTEXT_VARIABLE, ""), CONTEXT_VARIABLE)
    settings: Mapping[str, str] = {}
    if name != NO_CONTEXT:
        known = contexts()
        name, named_by = (name, named_by) if name else (known.current, CURRENT)
        settings = known.of(name, named_by if named_by != CURRENT else f"current in {known.file}") if name else {}
    else:
        name = ""
    presented = any(environ.get(VARIABLES[one]) for one in CREDENTIALS)
    values, overridden = [], []
    for setting, variable in VARIABLES.items():
        flag = address if setting == "bootstrap" else None
        own = settings.get(setting)
        if flag is not None:
            values.append(ConnectionValue(setting, flag, "--bootstrap"))
        elif given := environ.get(variable):
            values.append(ConnectionValue(setting, given, variable))
            overridden += [variable] if own is not None and own != given else []
        elif own is not None and not (presented and setting in CREDENTIALS):
            values.append(ConnectionValue(setting, own, _source(name)))
        elif setting == "bootstrap":
            values.append(ConnectionValue(setting, default, DEFAULT))
    return ClusterChoice(name, named_by if name else "", tuple(values), tuple(overridden))


def _source(context: str) -> str:
    return f"context {context}"


def default_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a client that names no cluster, COMET_BOOTSTRAP among them, with those of its context. Raises
    InvalidArgument for an unknown context, or a malformed file of contexts."""
    found = connection_of(environ, read_contexts, default=DEFAULT_BOOTSTRAP)
    return {**environ, **{VARIABLES[one.name]: one.value for one in found.values}}
