"""The help of `comet broker` and `comet gateway`: their settings in panels, in the style of the other commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from comet.settings.server import Table

# Panels by title: names of settings, or with * how they begin. The first that fits has it.
Panels = Mapping[str, Sequence[str]]

BROKER_PANELS: Final[Panels] = {
    "Broker": ["id", "data", "cluster", "rack", "log_level", "memory_bytes_max"],
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
        "drain_*",
    ],
    "Metrics": ["metrics_*"],
    "Defaults of new topics": ["topic_*"],
}
GATEWAY_PANELS: Final[Panels] = {
    "Gateway": ["bootstrap", "host", "port", "docs", "dashboard", "cluster*", "quotes_topic", "log_level", "drain_*"],
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


class HelpFormatter(argparse.HelpFormatter):
    """Capitals as in the help of the other commands."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


def settings_parser(name: str, about: str, table: Table, panels: Panels) -> argparse.ArgumentParser:
    """A parser with a flag for each setting, and --json and --help."""
    usage = f"{name} [OPTIONS]"
    parser = argparse.ArgumentParser(
        prog=name, usage=usage, description=about, formatter_class=HelpFormatter, add_help=False
    )
    options = parser.add_argument_group("Options")
    options.add_argument("-h", "--help", action="help", help="Show this message and exit.")
    options.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    groups = {title: parser.add_argument_group(title) for title in (*panels, OTHERS)}
    table.add_flags(options, lambda setting: groups[panel_of(setting, panels)])
    return parser


def panel_of(setting: str, panels: Panels) -> str:
    """The panel of a setting.

    >>> panel_of("jwt_issuer", BROKER_PANELS), panel_of("searches_max", GATEWAY_PANELS), panel_of("x", BROKER_PANELS)
    ('Access of clients', 'Searches and exports', 'Other settings')
    """
    from fnmatch import fnmatchcase

    return next((title for title, names in panels.items() if any(fnmatchcase(setting, one) for one in names)), OTHERS)
