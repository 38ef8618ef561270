"""The options of `comet broker` and `comet gateway`, made from the tables of their settings, with help in panels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from comet.errors import InvalidArgument

if TYPE_CHECKING:
    from comet.settings.server import Setting, Table

# Panels by title: names of settings, or with * how they begin. The first that fits has it.
Panels = Mapping[str, Sequence[str]]

BROKER_PANELS: Final[Panels] = {
    "Broker": ["id", "data", "cluster", "rack", "log_*", "memory_bytes_max"],
    "Address": ["host", "port", "advertised_*", "wire*"],
    "Access of clients": ["clients_*", "access_keys", "jwt_*", "superusers", "gateways", "audit", "insecure"],
    "Listener of brokers": ["brokers_*"],
    "Metadata in etcd": ["etcd*"],
    "Replication and timing": [
        "session_ms",
        "replica_lag_ms",
        "default_replicas",
        "rebalance_ms",
        "retention_*",
        "compaction_*",
        "filter_percent",
        "drain_*",
    ],
    "Metrics": ["metrics_*"],
    "Defaults of new topics": ["topic_*"],
}
GATEWAY_PANELS: Final[Panels] = {
    "Gateway": ["bootstrap", "host", "port", "docs", "dashboard", "cluster*", "quotes_topic", "log_*", "drain_*"],
    "Access": ["origins", "hosts", "tokens_file", "oidc_*", "user_rules", "tls_*", "proxies", "principal_*"],
    "Alerts": ["alert*", "smtp_*", "webhook*"],
    "Dead letters": ["dead_letter*", "redrives_*"],
    "Searches and exports": ["search*", "export*"],
    "Tables and quotes": ["table*", "quote_*"],
    "Connections and live data": [
        *("connections_*", "client_*", "subscriptions_*", "watches_*", "live_*", "frame_*", "handshake_*", "idle_*"),
        *(
            "unread_*",
            "delivery_*",
            "outgoing_*",
            "member*",
            "replay*",
            "heartbeat_*",
            "feed*",
            "pattern_*",
            "buffer_*",
        ),
    ],
    "Requests": ["*_max", "body_*", "in_flight_*"],
}
OTHERS: Final = "Other settings"


# ---- commands


class LazyCommand(TyperCommand):
    """A command that is made when it is used, so that a list of commands imports nothing heavy."""

    def made(self) -> TyperCommand:
        raise NotImplementedError

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        return self.made().make_context(*arguments, **options)


class LazyGroup(TyperGroup):
    """A group that is made when it is used, likewise."""

    def made(self) -> TyperGroup:
        raise NotImplementedError

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        return self.made().make_context(*arguments, **options)


class PanelCommand(TyperCommand):
    """A command whose help shows options in their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)


class PanelGroup(TyperGroup):
    """A group whose help shows options in their panels, and then its commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _write_panels(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for one in command.get_params(ctx):
        record = one.get_help_record(ctx)
        if record is not None:
            usual = "Arguments" if one.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(one, "rich_help_panel", None) or usual, []).append(record)
    for title, records in panels.items():
        with formatter.section(title):
            formatter.write_dl(records)


# ---- options


def with_settings(command: Callable[..., None], table: Table, panels: Panels) -> Callable[..., None]:
    """The command with an option for each setting, in place of its last parameter, `**settings`. The texts of options
    are checked, and passed on as they are."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        command(*arguments, **options)

    *own, settings = inspect.signature(command, eval_str=True).parameters.values()
    assert settings.kind is inspect.Parameter.VAR_KEYWORD
    order = [*panels, OTHERS]
    rows = sorted(filter(lambda row: row.flag, table.rows), key=lambda row: order.index(panel_of(row.name, panels)))
    parameters = [*own, _keyword("config", _CONFIG), *(_setting(row, panel_of(row.name, panels)) for row in rows)]
    # Typer reads the signature, and the annotations beside it.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _setting(row: Setting, panel: str) -> inspect.Parameter:
    option = typer.Option(
        row.flag,
        metavar=row.metavar,
        help=row.about + (f"  [default: {row.shown_default}]" if row.shown_default else ""),
        rich_help_panel=panel,
        show_default=False,
        callback=_checking(row),
        autocompletion=_complete_path if row.kind == "path" else _completing(row.choices) if row.choices else None,
    )
    return _keyword(row.name, option)


def _keyword(name: str, option: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, option])


def _checking(row: Setting) -> Callable[[str | None], str | None]:
    """Refuses an invalid text with the error of all commands."""

    def check(value: str | None) -> str | None:
        try:
            if value is not None:
                row.read(value)
        except InvalidArgument as error:
            raise typer.BadParameter(error.message) from None
        return value

    return check


def _completing(words: Sequence[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _complete_path(incomplete: str) -> list[str]:
    from pathlib import Path

    folder, slash, begun = incomplete.rpartition("/")
    try:
        found = [one for one in Path(folder + slash).iterdir() if one.name.startswith(begun)]
    except OSError:
        return []
    return sorted(f"{folder}{slash}{one.name}{'/' if one.is_dir() else ''}" for one in found)


_CONFIG: Final = typer.Option(
    "--config", metavar="FILE", help="Settings as TOML, one name = value a line.", autocompletion=_complete_path
)


def panel_of(setting: str, panels: Panels) -> str:
    """The panel of a setting.

    >>> panel_of("jwt_issuer", BROKER_PANELS), panel_of("searches_max", GATEWAY_PANELS), panel_of("x", BROKER_PANELS)
    ('Access of clients', 'Searches and exports', 'Other settings')
    """
    from fnmatch import fnmatchcase

    return next((title for title, names in panels.items() if any(fnmatchcase(setting, one) for one in names)), OTHERS)
