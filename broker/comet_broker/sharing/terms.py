"""What may be asked for in the name of a shared group, and by which settlement what is done: the same for members, who
have a stream, and for callers, who have none."""

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
from comet_broker.sharing.state import Agreed, Range, SharedPartition

SETTLEMENTS: Final = frozenset(pb.Settlement.values()) - {pb.SETTLEMENT_UNSPECIFIED}


class Said(Protocol):
    """A Settle or a LeaseSettlement."""

    @property
    def kind(self) -> pb.Settlement: ...
    @property
    def firsts(self) -> Sequence[int]: ...
    @property
    def ends(self) -> Sequence[int]: ...
    @property
    def delay_ms(self) -> int: ...
    @property
    def reason(self) -> str: ...


def agreed_of(options: pb.ShareOptions) -> Agreed:
    lease_ms = options.lease_ms or limits.SHARE_LEASE_MS
    if not limits.SHARE_LEASE_MS_MIN <= lease_ms <= limits.SHARE_LEASE_MS_MAX:
        raise InvalidArgument(f"lease_ms is {limits.SHARE_LEASE_MS_MIN} to {limits.SHARE_LEASE_MS_MAX}, not {lease_ms}")
    attempts_max = options.attempts_max or limits.SHARE_ATTEMPTS
    if attempts_max > limits.SHARE_ATTEMPTS_MAX:
        raise InvalidArgument(f"attempts_max is at most {limits.SHARE_ATTEMPTS_MAX}, not {attempts_max}")
    if options.dead_letter:
        check_topic_name(options.dead_letter)
    return Agreed(
        Options(
            lease_s=lease_ms / 1000,
            attempts_max=attempts_max,
            by_key=options.by_key,
            dead_letters=bool(options.dead_letter),
        ),
        options.dead_letter,
    )


def one_line(text: str) -> str:
    """On one line, and so that many of them fit into what is kept."""
    return "".join(one if one.isprintable() else " " for one in text[: limits.SHARE_REASON_CHARS_MAX])


def start_of(options: pb.ShareOptions) -> Position:
    return position_from_pb(options.start) if options.HasField("start") else Latest()


def check_dead_letter(agreed: Agreed, topic: str) -> None:
    if topic == agreed.dead_letter:
        raise InvalidArgument(f"{topic!r} cannot be its own dead-letter topic")


def check_settlement(said: Said) -> None:
    firsts, ends = said.firsts, said.ends
    if len(firsts) != len(ends) or len(firsts) > limits.SHARE_RANGES_MAX:
        raise InvalidArgument(
            f"a settle names up to {limits.SHARE_RANGES_MAX} ranges, a first and an end of each; "
            f"not {len(firsts)} firsts and {len(ends)} ends"
        )
    if not all(map(lt, firsts, ends)) or sum(ends) - sum(firsts) > limits.SHARE_WINDOW_RECORDS_MAX:
        raise InvalidArgument(
            f"a settle names ranges that are not empty, of {limits.SHARE_WINDOW_RECORDS_MAX} records at most"
        )
    if said.delay_ms > limits.SHARE_DELAY_MS_MAX:
        raise InvalidArgument(f"delay_ms is at most {limits.SHARE_DELAY_MS_MAX}, not {said.delay_ms}")
    if said.kind not in SETTLEMENTS:
        raise InvalidArgument(f"a settle is accept, release, reject, extend or return, not {said.kind}")


def settle_here(
    state: SharedPartition, holder: Holder, said: Said, lost: list[Range], done: Callable[[CometError | None], None]
) -> None:
    """Has the state do what was said, which was checked. What of it was not leased to the holder goes into `lost`;
    `done` is called when the rest is kept."""
    firsts, ends = list(said.firsts), list(said.ends)
    match said.kind:
        case pb.SETTLEMENT_ACCEPT:
            lost += state.accept(holder, firsts, ends, done)
        case pb.SETTLEMENT_RELEASE:
            lost += state.release(holder, firsts, ends, said.delay_ms / 1000, done)
        case pb.SETTLEMENT_REJECT:
            lost += state.reject(holder, firsts, ends, one_line(said.reason), done)
        case pb.SETTLEMENT_RETURN:
            lost += state.give_back(holder, firsts, ends, done)
        case kind:
            assert kind == pb.SETTLEMENT_EXTEND, "it was checked"
            lost += state.extend(holder, firsts, ends)
            done(None)
