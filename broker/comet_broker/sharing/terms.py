"""Checks of requests in the name of a share group, and the handling of acknowledgements. They are the same for members,
which have a stream, and for callers, which have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import lt
from typing import Final, Protocol

from comet.errors import CometError, InvalidArgument
from comet.types import Latest, Position, check_topic_name
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import position_from_pb
from comet_broker import limits
from comet_broker.core.shares import Holder, Options
from comet_broker.sharing.context import Agreed, Range
from comet_broker.sharing.state import SharePartition

ACKNOWLEDGE_TYPES: Final = frozenset(pb.AcknowledgeType.values()) - {pb.ACKNOWLEDGE_TYPE_UNSPECIFIED}


class Acknowledgement(Protocol):
    """An Acknowledge or an Acknowledgement."""

    @property
    def kind(self) -> pb.AcknowledgeType: ...
    @property
    def firsts(self) -> Sequence[int]: ...
    @property
    def ends(self) -> Sequence[int]: ...
    @property
    def delay_ms(self) -> int: ...
    @property
    def reason(self) -> str: ...


def agreed_of(options: pb.ShareOptions) -> Agreed:
    lock_ms = options.lock_ms or limits.SHARE_LOCK_MS
    if not limits.SHARE_LOCK_MS_MIN <= lock_ms <= limits.SHARE_LOCK_MS_MAX:
        raise InvalidArgument(
            f"lock_ms must be {limits.SHARE_LOCK_MS_MIN} to {limits.SHARE_LOCK_MS_MAX}, not {lock_ms}"
        )
    deliveries_max = options.deliveries_max or limits.SHARE_DELIVERIES
    if deliveries_max > limits.SHARE_DELIVERIES_MAX:
        raise InvalidArgument(f"deliveries_max is at most {limits.SHARE_DELIVERIES_MAX}, not {deliveries_max}")
    if options.dead_letter:
        check_topic_name(options.dead_letter)
    return Agreed(
        Options(
            lock_s=lock_ms / 1000,
            deliveries_max=deliveries_max,
            by_key=options.by_key,
            dead_letters=bool(options.dead_letter),
        ),
        options.dead_letter,
        _filter_of(options.filter),
    )


def _filter_of(text: str) -> str:
    """A group's filter in its canonical form, so that members may spell it differently. Raises MalformedFilter."""
    if not text:
        return ""
    from comet.filters import parse  # here: most brokers never need it
    from comet.filters.parser import CHARS_MAX

    chosen = parse(text, now_us=0)
    if chosen != parse(text, now_us=1):
        raise InvalidArgument(
            "the filter of a share group has no time ago, such as -15m: it would be another one for each member; "
            "give a time, such as 2026-01-31T12:00:00Z"
        )
    return chosen.text if len(chosen.text) <= CHARS_MAX else text


def one_line(text: str) -> str:
    """The text on one line, limited so that many of them fit into the stored state."""
    return "".join(one if one.isprintable() else " " for one in text[: limits.SHARE_REASON_CHARS_MAX])


def start_of(options: pb.ShareOptions) -> Position:
    return position_from_pb(options.start) if options.HasField("start") else Latest()


def check_dead_letter(agreed: Agreed, topic: str) -> None:
    if topic == agreed.dead_letter:
        raise InvalidArgument(f"{topic!r} cannot be its own dead-letter topic")


def check_acknowledgement(acknowledgement: Acknowledgement) -> None:
    firsts, ends = acknowledgement.firsts, acknowledgement.ends
    if len(firsts) != len(ends) or len(firsts) > limits.SHARE_RANGES_MAX:
        raise InvalidArgument(
            f"an acknowledge takes up to {limits.SHARE_RANGES_MAX} ranges, with a first and an end of each; "
            f"not {len(firsts)} firsts and {len(ends)} ends"
        )
    if not all(map(lt, firsts, ends)) or sum(ends) - sum(firsts) > limits.SHARE_WINDOW_RECORDS_MAX:
        raise InvalidArgument(
            f"an acknowledge takes ranges that are not empty, of at most {limits.SHARE_WINDOW_RECORDS_MAX} records"
        )
    if acknowledgement.delay_ms > limits.SHARE_DELAY_MS_MAX:
        raise InvalidArgument(f"delay_ms is at most {limits.SHARE_DELAY_MS_MAX}, not {acknowledgement.delay_ms}")
    if acknowledgement.kind not in ACKNOWLEDGE_TYPES:
        raise InvalidArgument(
            f"unknown kind of acknowledge {acknowledgement.kind}: use accept, release, reject, extend or return"
        )


def acknowledge_here(
    state: SharePartition,
    holder: Holder,
    acknowledgement: Acknowledgement,
    lost: list[Range],
    done: Callable[[CometError | None], None],
) -> None:
    """Applies a checked acknowledgement to the state. Ranges that the holder does not hold go into `lost`; `done` is
    called when the rest is stored."""
    firsts, ends = list(acknowledgement.firsts), list(acknowledgement.ends)
    match acknowledgement.kind:
        case pb.ACKNOWLEDGE_TYPE_ACCEPT:
            lost += state.acknowledge(lambda shares: shares.accept(holder, firsts, ends), done)
        case pb.ACKNOWLEDGE_TYPE_RELEASE:
            delay_s = acknowledgement.delay_ms / 1000
            lost += state.acknowledge(lambda shares: shares.release(state.now, holder, firsts, ends, delay_s), done)
        case pb.ACKNOWLEDGE_TYPE_REJECT:
            reason = one_line(acknowledgement.reason)
            lost += state.acknowledge(lambda shares: shares.reject(holder, firsts, ends, reason), done)
        case pb.ACKNOWLEDGE_TYPE_RETURN:
            lost += state.acknowledge(lambda shares: shares.give_back(holder, firsts, ends), done)
        case kind:
            assert kind == pb.ACKNOWLEDGE_TYPE_EXTEND, "it was checked"
            lost += state.extend(holder, firsts, ends)
            done(None)
