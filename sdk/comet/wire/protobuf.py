"""Conversion between the protocol's messages and the SDK's types, in both directions, for SDK and broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from comet.errors import CometError, Internal, InvalidArgument, from_code
from comet.settings.topic import TOPIC_SETTINGS, SettingSource, TopicConfig, TopicDefaults, plain, topic_setting
from comet.types import (
    AtOffset,
    AtTime,
    BrokerInfo,
    Earliest,
    Latest,
    PartitionInfo,
    PartitionStatus,
    Position,
    ReplicaConflict,
    TopicInfo,
)
from comet.v1 import types_pb2 as pb

_CODE_PREFIX: Final = "ERROR_CODE_"


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


def settings_from_pb(message: pb.TopicConfig) -> dict[str, Any]:
    """The fields that are set, unchecked: TopicConfig checks them. Raises InvalidArgument for an unknown word."""
    found = {name: getattr(message, name) for name in TOPIC_SETTINGS if message.HasField(name)}
    for name in found.keys() & _WORD_FROM_PB.keys():
        found[name] = TOPIC_SETTINGS[name].convert(_WORD_FROM_PB[name].get(found[name], found[name]))
    return found


def config_from_pb(message: pb.TopicConfig) -> TopicConfig:
    return TopicConfig(**settings_from_pb(message))


def _sources_to_pb(sources: Mapping[str, SettingSource]) -> dict[str, Any]:
    return {name: _SOURCE_TO_PB[source] for name, source in sources.items()}


def _sources_from_pb(sources: Mapping[str, Any]) -> dict[str, SettingSource]:
    return {name: _SOURCE_FROM_PB.get(number, SettingSource.BUILT_IN) for name, number in sources.items()}


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
                index=p.index,
                leader=p.leader,
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
            )
            for p in topic.partitions
        ],
        config=config_to_pb(topic.config),
        created_us=topic.created_us,
        sources=_sources_to_pb(topic.sources),
        defaults=None if topic.defaults is None else defaults_to_pb(topic.defaults),
    )


def topic_from_pb(message: pb.Topic) -> TopicInfo:
    return TopicInfo(
        name=message.name,
        id=message.id,
        partitions=tuple(
            PartitionInfo(
                p.index,
                p.leader,
                p.leader_epoch,
                tuple(p.replicas),
                tuple(p.in_sync),
                tuple(
                    ReplicaConflict(
                        one.broker, one.leader, one.epoch, one.offset, one.high_watermark, one.log_end, one.problem
                    )
                    for one in p.conflicts
                ),
            )
            for p in message.partitions
        ),
        config=config_from_pb(message.config),
        created_us=message.created_us,
        sources=_sources_from_pb(message.sources),
        defaults=defaults_from_pb(message.defaults) if message.HasField("defaults") else None,
    )


def broker_to_pb(broker: BrokerInfo) -> pb.Broker:
    return pb.Broker(
        id=broker.id,
        host=broker.host,
        port=broker.port,
        version=broker.version,
        rack=broker.rack,
        draining=broker.draining,
    )


def broker_from_pb(message: pb.Broker) -> BrokerInfo:
    return BrokerInfo(message.id, message.host, message.port, message.version, message.rack, message.draining)


def status_to_pb(status: PartitionStatus) -> pb.PartitionStatus:
    return pb.PartitionStatus(
        index=status.index,
        log_start=status.log_start,
        log_end=status.log_end,
        high_watermark=status.high_watermark,
        bytes=status.bytes,
        segments=status.segments,
        failed=status.failed,
        lost=[pb.OffsetRange(first=first, end=end) for first, end in status.lost],
        broker=status.broker,
        leader_epoch=status.leader_epoch,
        leader=status.leader,
        last_stable_offset=status.last_stable_offset,
        in_rate=status.in_rate,
        in_bytes_rate=status.in_bytes_rate,
        last_us=status.last_us,
    )


def status_from_pb(message: pb.PartitionStatus) -> PartitionStatus:
    return PartitionStatus(
        index=message.index,
        log_start=message.log_start,
        log_end=message.log_end,
        high_watermark=message.high_watermark,
        bytes=message.bytes,
        segments=message.segments,
        failed=message.failed,
        lost=tuple((lost.first, lost.end) for lost in message.lost),
        broker=message.broker,
        leader_epoch=message.leader_epoch,
        leader=message.leader,
        last_stable_offset=message.last_stable_offset,
        in_rate=message.in_rate if message.HasField("in_rate") else None,
        in_bytes_rate=message.in_bytes_rate if message.HasField("in_bytes_rate") else None,
        last_us=message.last_us if message.HasField("last_us") else None,
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
