"""The configuration of a topic from requested settings and the cluster's defaults, with the source of each value. Pure.

A topic keeps the defaults that it was created with: all its replicas must agree on its settings, and brokers may have
different defaults while they are restarted one by one. A setting that is unset takes the default of the broker that
alters the topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS, SettingSource, TopicConfig, TopicDefaults, topic_setting


class SourcedConfig(NamedTuple):
    """A configuration, and the source of each value that is not built in."""

    config: TopicConfig
    sources: Mapping[str, SettingSource]


def topic_defaults(configured: TopicConfig, replicas: int) -> TopicDefaults:
    """The defaults of a topic with this number of replicas, from those of the broker's settings.

    >>> topic_defaults(TopicConfig(retention_ms=5), replicas=3).config.min_insync
    2
    """
    built_in = {name: row.default_for(replicas) for name, row in TOPIC_SETTINGS.items()}
    values = {
        name: getattr(configured, name) if row.default_replicated is None else built_in[name]
        for name, row in TOPIC_SETTINGS.items()
    }
    own = [name for name, value in values.items() if value != built_in[name]]
    return TopicDefaults(TopicConfig(**values), dict.fromkeys(own, SettingSource.CLUSTER), replicas)


def created(settings: Mapping[str, Any], defaults: TopicDefaults) -> SourcedConfig:
    """Raises InvalidArgument."""
    sources = {**defaults.sources, **dict.fromkeys(settings, SettingSource.TOPIC)}
    return SourcedConfig(replace(defaults.config, **settings), sources)


def altered(
    before: SourcedConfig, settings: Mapping[str, Any], unset: Collection[str], defaults: TopicDefaults
) -> SourcedConfig:
    """`settings` are set, `unset` take the defaults, the others stay. Raises InvalidArgument.

    >>> before = SourcedConfig(TopicConfig(retention_ms=5), {"retention_ms": SettingSource.TOPIC})
    >>> altered(before, {}, ["retention_ms"], TopicDefaults()).sources
    {}
    """
    for name in unset:
        if topic_setting(name).name in settings:
            raise InvalidArgument(f"{name} is both set and unset; choose one")
    values = {name: getattr(defaults.config, name) for name in unset}
    sources = {name: source for name, source in before.sources.items() if name not in unset}
    sources |= {name: source for name, source in defaults.sources.items() if name in unset}
    sources |= dict.fromkeys(settings, SettingSource.TOPIC)
    return SourcedConfig(replace(before.config, **values, **settings), sources)
