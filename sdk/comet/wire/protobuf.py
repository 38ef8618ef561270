"""Conversion between the protocol's messages and the SDK's types, in both directions, for SDK and broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from comet.entities import (
    BrokerInfo,
    OffsetRange,
    PartitionInfo,
    ReplicaConflict,
    ReplicaInfo,
    TopicDetails,
    TopicInfo,
)
from comet.errors import CometError, Internal, InvalidArgument, from_code
from comet.settings.topic import TOPIC_SETTINGS, SettingSource, TopicConfig, TopicDefaults, plain, topic_setting
from comet.types import (
    AtOffset,
    AtTime,
    Earliest,
    Latest,
    Position,
)
from comet.v1 import types_pb2 as pb

_CODE_PREFIX: Final = "ERROR_CODE_"
_NO_BROKER: Final = 0


def _words(enumeration: Any) -> dict[str, Any]:
    """The words of an enumeration of the protocol, whose zero is PREFIX_UNSPECIFIED: PREFIX_BUILT_IN is "built-in"."""
    zero, *others = enumeration.values
    prefix = zero.name.removesuffix("UNSPECIFIED")
    return {one.name.removeprefix(prefix).lower().replace("_", "-"): one.number for one in others}


_SETTING_FIELDS: Final = pb.TopicConfig.DESCRIPTOR.fields_by_name
assert set(_SETTING_FIELDS) == set(TOPIC_SETTINGS), "a topic setting is a field of TopicConfig in types.proto, too"
_WORD_TO_PB: Final = {
    name: _words(_SETTING_FIELDS[name].enum_type) for name, row in TOPIC_SETTINGS.items() if row.words
}
_WORD_FROM_PB: Final = {name: {number: word for word, number in words.items()} for name, words in _WORD_TO_PB.items()}
assert all(tuple(words) == TOPIC_SETTINGS[name].words for name, words in _WORD_TO_PB.items())
_SOURCE_TO_PB: Final = {SettingSource(word): number for word, number in _words(pb.SettingSource.DESCRIPTOR).items()}
_SOURCE_FROM_PB: Final = {number: source for source, number in _SOURCE_TO_PB.items()}


def error_to_pb(error: CometError) -> pb.Error:
    code = _CODE_PREFIX + error.code if _known(error.code) else "ERROR_CODE_INTERNAL"
    return pb.Error(code=code, message=error.message, retry_after_ms=error.retry_after_ms, details=error.details)


def error_from_pb(message: pb.Error) -> CometError:
    try:
        code = pb.ErrorCode.Name(message.code).removeprefix(_CODE_PREFIX)
    except ValueError:  # a newer broker
        return Internal(f"error {message.code}: {message.message}")
    return from_code(code, message.message, details=message.details, retry_after_ms=message.retry_after_ms)


def _known(code: str) -> bool:
    return _CODE_PREFIX + code in pb.ErrorCode.DESCRIPTOR.values_by_name


def config_to_pb(config: TopicConfig) -> pb.TopicConfig:
    """A configuration with every field set."""
    return settings_to_pb(config.plain())


def settings_to_pb(settings: Mapping[str, Any]) -> pb.TopicConfig:
    """A configuration with only the named fields set, for create and alter."""
    message = pb.TopicConfig()
    for name, value in settings.items():
        row = topic_setting(name)
        found = _WORD_TO_PB[name][plain(row.convert(value))] if row.words else value
        try:
            setattr(message, name, found)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"invalid {name}: {value!r}: {error}") from error
    return message


def given_to_pb(config: TopicConfig | None, settings: Mapping[str, Any]) -> pb.TopicConfig:
    """Of a whole configuration, or of settings by name."""
    if config is None:
        return settings_to_pb(settings)
    if settings:
        raise InvalidArgument("give the settings as a TopicConfig or by name, not both")
    return config_to_pb(config)


def settings_from_pb(message: pb.TopicConfig) -> dict[str, Any]:
    """The fields that are set, unchecked: TopicConfig checks them. Raises InvalidArgument for an unknown word."""
    found = {name: getattr(message, name) for name in TOPIC_SETTINGS if message.HasField(name)}
    for name in found.keys() & _WORD_FROM_PB.keys():
        found[name] = TOPIC_SETTINGS[name].convert(_WORD_FROM_PB[name].get(found[name], found[name]))
    return found


def config_from_pb(message: pb.TopicConfig) -> TopicConfig:
    return TopicConfig(**settings_from_pb(message))


def _sources_to_pb(sources: Mapping[str, SettingSource]) -> dict[str, Any]:
    return {name: _SOURCE_TO_PB[source] for name, source in sources.items() if source is not SettingSource.BUILT_IN}


def _sources_from_pb(sources: Mapping[str, Any]) -> dict[str, SettingSource]:
    """The source of each setting; the message has those that are not built in."""
    given = {name: _SOURCE_FROM_PB.get(sources[name], SettingSource.BUILT_IN) for name in sources}
    return {name: given.get(name, SettingSource.BUILT_IN) for name in TOPIC_SETTINGS}


def defaults_to_pb(defaults: TopicDefaults) -> pb.TopicDefaults:
    return pb.TopicDefaults(
        config=config_to_pb(defaults.config), sources=_sources_to_pb(defaults.sources), replicas=defaults.replicas
    )


def defaults_from_pb(message: pb.TopicDefaults) -> TopicDefaults:
    return TopicDefaults(config_from_pb(message.config), _sources_from_pb(message.sources), message.replicas)


def topic_to_pb(topic: TopicInfo) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        id=topic.id,
        partitions=[
            pb.Partition(
                index=p.partition,
                leader=p.leader or _NO_BROKER,
                leader_epoch=p.leader_epoch,
                replicas=p.replicas,
                in_sync=p.in_sync,
                conflicts=[
                    pb.Conflict(
                        broker=one.broker,
                        leader=one.leader,
                        epoch=one.epoch,
                        offset=one.offset,
                        high_watermark=one.high_watermark,
                        log_end=one.log_end,
                        problem=one.problem,
                    )
                    for one in p.conflicts
                ],
                target=p.target,
            )
            for p in topic.partitions
        ],
        config=config_to_pb(topic.config),
        created_us=topic.created_us,
        sources=_sources_to_pb(topic.sources),
    )


def topic_from_pb(message: pb.Topic) -> TopicInfo:
    return TopicInfo(**_topic_fields(message, {}))


def topic_details_from_pb(message: pb.Topic, statuses: Iterable[pb.PartitionStatus]) -> TopicDetails:
    """A described topic. A partition has the figures of its status; none without one."""
    by_partition = {status.index: status for status in statuses if status.broker}
    return TopicDetails(**_topic_fields(message, by_partition), defaults=config_from_pb(message.defaults.config))


def _topic_fields(message: pb.Topic, statuses: Mapping[int, pb.PartitionStatus]) -> dict[str, Any]:
    return {
        "name": message.name,
        "id": message.id,
        "partitions": tuple(_partition(one, statuses.get(one.index)) for one in message.partitions),
        "config": config_from_pb(message.config),
        "created_us": message.created_us,
        "sources": _sources_from_pb(message.sources),
    }


def _partition(message: pb.Partition, status: pb.PartitionStatus | None) -> PartitionInfo:
    return PartitionInfo(
        message.index,
        message.leader or None,
        message.leader_epoch,
        tuple(message.replicas),
        tuple(message.in_sync),
        tuple(
            ReplicaConflict(one.broker, one.leader, one.epoch, one.offset, one.high_watermark, one.log_end, one.problem)
            for one in message.conflicts
        ),
        tuple(message.target),
        **_figures(status),
    )


def replicas_from_pb(partition: PartitionInfo, statuses: Iterable[pb.PartitionStatus]) -> tuple[ReplicaInfo, ...]:
    """Each replica of a partition, without figures where its broker did not answer."""
    by_broker = {status.broker: status for status in statuses}
    return tuple(
        ReplicaInfo(broker, broker == partition.leader, broker in partition.in_sync, **_figures(by_broker.get(broker)))
        for broker in partition.replicas
    )


def _figures(status: pb.PartitionStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "log_start": status.log_start,
        "log_end": status.log_end,
        "high_watermark": status.high_watermark,
        "last_stable_offset": status.last_stable_offset,
        "bytes": status.bytes,
        "segments": status.segments,
        "failed": status.failed,
        "lost": tuple(OffsetRange(lost.first, lost.end) for lost in status.lost),
        "last_us": status.last_us if status.HasField("last_us") else None,
        "in_rate": status.in_rate if status.HasField("in_rate") else None,
        "in_bytes_rate": status.in_bytes_rate if status.HasField("in_bytes_rate") else None,
    }


def broker_from_pb(message: pb.Broker, controller: int | None = None) -> BrokerInfo:
    return BrokerInfo(
        message.id,
        message.host,
        message.port,
        message.version,
        message.rack,
        message.draining,
        controller=message.id == controller,
    )


def position_to_pb(position: Position) -> pb.Position:
    match position:
        case Earliest():
            return pb.Position(earliest=True)
        case Latest():
            return pb.Position(latest=True)
        case AtOffset(offset):
            return pb.Position(offset=offset)
        case AtTime(timestamp_us):
            return pb.Position(timestamp_us=timestamp_us)


def position_from_pb(message: pb.Position) -> Position:
    match message.WhichOneof("at"):
        case "offset":
            return AtOffset(message.offset)
        case "timestamp_us":
            return AtTime(message.timestamp_us)
        case "latest":
            return Latest()
        case "earliest":
            return Earliest()
    raise InvalidArgument("a position needs one of offset, timestamp_us, earliest, latest")
